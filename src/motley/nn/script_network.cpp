#include "motley/nn/script_network.h"

#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/script.h>

#include <set>

#include "motley/nn/script_chain.h"

namespace motley::nn {
namespace {

class ScriptNetwork final : public Network {
 public:
  ScriptNetwork(std::string name, std::vector<std::int64_t> sample_shape, torch::jit::Module module)
      : name_(std::move(name)), sample_shape_(std::move(sample_shape)), module_(std::move(module)) {}

  std::string name() const override { return name_; }

  Tensors forward(const Tensors& inputs) override {
    const torch::IValue output = module_.forward({inputs.begin(), inputs.end()});
    if (output.isTensor()) {
      return {output.toTensor()};
    }
    if (output.isTensorList()) {
      return output.toTensorVector();
    }
    TORCH_CHECK(output.isTuple(), "the module returned a ", output.tagKind(),
                "; accepted: a tensor, or a tuple or list of tensors");
    Tensors outputs;
    for (const torch::IValue& element : output.toTupleRef().elements()) {
      TORCH_CHECK(element.isTensor(), "the module returned a tuple with a ", element.tagKind(),
                  " in it; accepted: tensors only");
      outputs.push_back(element.toTensor());
    }
    return outputs;
  }

  NamedTensors parameters() const override { return tensors(true); }

  // Frozen parameters are part of the state, but not of what is trained.
  NamedTensors buffers() const override { return tensors(false); }

  // A module with the attributes of torch.nn.BatchNorm is one: the class's name is lost in a traced module.
  std::vector<BatchNormLayer> batch_norms() const override {
    std::vector<BatchNormLayer> layers;
    for (const auto& item : module_.named_modules()) {
      const torch::jit::Module& module = item.value;
      if (!module.hasattr("running_mean") || !module.hasattr("running_var") ||
          !module.attr("running_mean").isTensor() || !module.attr("running_var").isTensor()) {
        continue;
      }
      BatchNormLayer layer{
          item.name, module.attr("running_mean").toTensor(), module.attr("running_var").toTensor(), {}, 0.1};
      if (module.hasattr("num_batches_tracked") && module.attr("num_batches_tracked").isTensor()) {
        layer.num_batches_tracked = module.attr("num_batches_tracked").toTensor();
      }
      if (module.hasattr("momentum")) {
        const torch::IValue momentum = module.attr("momentum");
        layer.momentum = momentum.isNone() ? std::nullopt : std::optional(momentum.toDouble());
      }
      layers.push_back(std::move(layer));
    }
    return layers;
  }

  std::vector<ChainLayer> chain() override { return chain_of(module_); }
  void train(bool on) override { module_.train(on); }
  void to(torch::Device device, torch::Dtype dtype) override { module_.to(device, dtype); }
  std::vector<std::int64_t> sample_shape() const override { return sample_shape_; }

 private:
  // Those that are trained, or the others. One that the module has in several places is taken by its first name.
  NamedTensors tensors(bool trained) const {
    std::set<const c10::TensorImpl*> seen;
    NamedTensors tensors;
    const auto add = [&](const std::string& name, const torch::Tensor& tensor, bool is_trained) {
      if (seen.insert(tensor.unsafeGetTensorImpl()).second && is_trained == trained) tensors.push_back({name, tensor});
    };
    for (const auto& item : module_.named_parameters()) add(item.name, item.value, item.value.requires_grad());
    for (const auto& item : module_.named_buffers()) add(item.name, item.value, false);
    return tensors;
  }

  std::string name_;
  std::vector<std::int64_t> sample_shape_;
  mutable torch::jit::Module module_;
};

}  // namespace

Result<std::unique_ptr<Network>> load_script_network(const std::filesystem::path& path,
                                                     std::vector<std::int64_t> sample_shape) {
  if (std::error_code error; !std::filesystem::is_regular_file(path, error)) {
    return fail(ErrorCode::kInvalidInput, "model.path: there is no file '{}'", path.string());
  }
  auto module = catch_torch(ErrorCode::kInvalidInput,
                            fmt::format("model.path: '{}' is not a TorchScript module that this libtorch can load "
                                        "(tools/motley-export writes one; a state_dict or a pickled module is not)",
                                        path.string()),
                            [&] { return torch::jit::load(path.string(), torch::kCPU); });
  if (!module) {
    return fail(std::move(module).error());
  }
  torch::jit::setGraphExecutorOptimize(false);
  auto network = std::make_unique<ScriptNetwork>(path.filename().string(), std::move(sample_shape), std::move(*module));
  if (network->parameters().empty()) {
    return fail(ErrorCode::kInvalidInput,
                "model.path: the module in '{}' has no parameters to train; was it frozen with torch.jit.freeze?",
                path.string());
  }
  return network;
}

}  // namespace motley::nn
