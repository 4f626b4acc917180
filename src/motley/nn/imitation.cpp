#include "motley/nn/imitation.h"

#include <algorithm>
#include <cmath>

#include "motley/model/profile.h"

namespace motley::nn {
namespace {

// One zero, seen as so many: nothing that a network is said to compute takes memory before it is sent.
torch::Tensor zeros_of(c10::IntArrayRef shape, const torch::TensorOptions& options) {
  return torch::zeros({1}, options).expand(shape);
}

// Zeros of some width for each sample, and zeros for the gradient of what was read.
class Imitate : public torch::autograd::Function<Imitate> {
 public:
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& input,
                               std::int64_t width) {
    context->saved_data["shape"] = input.sizes().vec();
    return zeros_of({input.size(0), width}, input.options());
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               const torch::autograd::tensor_list& gradients) {
    return {zeros_of(context->saved_data["shape"].toIntVector(), gradients.front().options()), torch::Tensor()};
  }
};

class Imitation final : public Network {
 public:
  Imitation(const model::Graph& graph, std::vector<std::int64_t> sample_shape, std::int64_t outputs)
      : name_(fmt::format("imitation of {}", graph.name)), sample_shape_(std::move(sample_shape)) {
    const std::vector<double> cuts = model::cut_bytes(graph);
    for (std::size_t i = 0; i < graph.layers.size(); ++i) {
      const model::Layer& layer = graph.layers[i];
      const bool is_last = i + 1 == graph.layers.size();
      const auto width =
          is_last ? outputs : std::max<std::int64_t>(1, std::llround(cuts[i + 1] / static_cast<double>(sizeof(float))));
      ChainLayer one{
          .name = layer.name,
          .kind = layer.kind,
          .forward = of_one_value([width](const torch::Tensor& input) { return Imitate::apply(input, width); }),
          .parameters = {},
          .buffers = {}};
      if (layer.parameters > 0) {
        one.parameters.push_back(
            {layer.name + ".weight", torch::zeros({std::llround(layer.parameters)}).requires_grad_()});
      }
      layers_.push_back(std::move(one));
    }
  }

  std::string name() const override { return name_; }
  Tensors forward(const Tensors& inputs) override {
    Tensors values = inputs;
    for (const ChainLayer& layer : layers_) {
      values = layer.forward(values);
    }
    return values;
  }
  NamedTensors parameters() const override {
    NamedTensors all;
    for (const ChainLayer& layer : layers_) {
      all.insert(all.end(), layer.parameters.begin(), layer.parameters.end());
    }
    return all;
  }
  NamedTensors buffers() const override { return {}; }
  std::vector<BatchNormLayer> batch_norms() const override { return {}; }
  std::vector<ChainLayer> chain() override { return layers_; }
  void train(bool /*on*/) override {}
  void to(torch::Device device, torch::Dtype dtype) override {
    const torch::NoGradGuard no_grad;
    for (ChainLayer& layer : layers_) {
      for (NamedTensor& parameter : layer.parameters) {
        parameter.tensor.set_data(parameter.tensor.to(device, dtype));
      }
    }
  }
  std::vector<std::int64_t> sample_shape() const override { return sample_shape_; }

 private:
  std::string name_;
  std::vector<std::int64_t> sample_shape_;
  std::vector<ChainLayer> layers_;
};

}  // namespace

Result<std::unique_ptr<Network>> make_imitation(const std::filesystem::path& file, std::int64_t most_layers,
                                                std::vector<std::int64_t> sample_shape, std::int64_t outputs) {
  MOTLEY_ASSIGN(model::Profile profile, model::read_profile(file));
  profile = model::without_step_layer(std::move(profile));
  if (most_layers > 0) {
    profile = model::coarsen(profile, static_cast<int>(most_layers));
  }
  for (const model::Layer& layer : profile.graph.layers) {
    if (layer.lookups > 0) {
      return fail(ErrorCode::kInvalidInput,
                  "model.path: layer '{}' of '{}' looks up rows; accepted with model.name imitation: networks whose "
                  "layers do not",
                  layer.name, file.string());
    }
  }
  return catch_torch(ErrorCode::kUnavailable, "imitating " + profile.graph.name, [&] {
    return std::unique_ptr<Network>(std::make_unique<Imitation>(profile.graph, std::move(sample_shape), outputs));
  });
}

}  // namespace motley::nn
