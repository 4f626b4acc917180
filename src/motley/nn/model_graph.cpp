#include "motley/nn/model_graph.h"

#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/util/Flags.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/profiler/util.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "motley/model/profile.h"

C10_DECLARE_int(caffe2_log_level);

namespace motley::nn {
namespace {

constexpr double kBytes = sizeof(float);  // graphs count all values as these

// Adds up the operations that this thread has libtorch do while it lives.
class FlopCounter {
 public:
  FlopCounter() {
    counted = 0;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
          counted += static_cast<double>(
              torch::profiler::impl::computeFlops(function.name(), torch::profiler::impl::saveExtraArgs(function)));
          return nullptr;
        })
            .needsInputs(true)
            .scopes({at::RecordScope::FUNCTION}));
  }
  ~FlopCounter() { at::removeCallback(handle_); }
  FlopCounter(const FlopCounter&) = delete;
  FlopCounter& operator=(const FlopCounter&) = delete;

  double flops() const { return counted; }

 private:
  static thread_local double counted;  // a callback of libtorch's carries no state
  at::CallbackHandle handle_;
};
thread_local double FlopCounter::counted = 0;

// While it lives, libtorch says errors only: it warns when memory goes that was taken before anybody counted.
class QuietLibtorch {
 public:
  QuietLibtorch() : level_(std::exchange(FLAGS_caffe2_log_level, kErrors)) {}
  ~QuietLibtorch() { FLAGS_caffe2_log_level = level_; }
  QuietLibtorch(const QuietLibtorch&) = delete;
  QuietLibtorch& operator=(const QuietLibtorch&) = delete;

 private:
  static constexpr int kErrors = 2;
  const int level_;
};

// Adds up the bytes that this thread has libtorch take and not give back while it lives, on the CPU.
class MemoryCounter final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, std::int64_t bytes, std::size_t, std::size_t, c10::Device) override { bytes_ += bytes; }
  bool memoryProfilingEnabled() const override { return true; }
  double bytes() const { return static_cast<double>(bytes_); }

 private:
  std::int64_t bytes_ = 0;
};

torch::Tensor batch_of_zeros(const Network& network, std::int64_t samples) {
  std::vector<std::int64_t> shape = network.sample_shape();
  shape.insert(shape.begin(), samples);
  return torch::zeros(shape);
}

double numbers_in(const Tensors& values) {
  double numbers = 0;
  for (const torch::Tensor& value : values) numbers += static_cast<double>(value.numel());
  return numbers;
}

// What each layer keeps for its backward pass beside its output, in bytes of one sample: what a forward pass of two
// takes, since BatchNorm refuses a single value. Running statistics are put back.
std::vector<double> inner_bytes(Network& network) {
  constexpr std::int64_t kSamples = 2;
  const QuietLibtorch quiet;
  const NamedTensors buffers = network.buffers();
  Tensors before;
  for (const NamedTensor& buffer : buffers) before.push_back(buffer.tensor.clone());
  std::vector<double> inner;
  std::vector<Tensors> kept;
  Tensors values = {batch_of_zeros(network, kSamples)};
  for (const ChainLayer& layer : list_layers(network)) {
    const auto counter = std::make_shared<MemoryCounter>();
    const Tensors inputs = as_leaves(values);
    {
      const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, counter);
      values = layer.forward(inputs);
    }
    double created = 0;  // of what it returns, without what it only hands on
    for (const torch::Tensor& value : values) {
      const bool is_input = std::ranges::any_of(inputs, [&](const auto& input) { return input.is_same(value); });
      created += is_input ? 0 : static_cast<double>(value.nbytes());
    }
    kept.push_back(values);
    inner.push_back(std::max(0.0, counter->bytes() - created) / kSamples);
  }
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < before.size(); ++i) buffers[i].tensor.copy_(before[i]);
  return inner;
}

// One zero, seen as so many: nothing that a network is said to compute takes memory before it is sent.
torch::Tensor make_zeros(c10::IntArrayRef shape, const torch::TensorOptions& options) {
  return torch::zeros({1}, options).expand(shape);
}

// Zeros of some width for each sample, and zeros for the gradient of what was read.
class SyntheticFunction : public torch::autograd::Function<SyntheticFunction> {
 public:
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& input,
                               std::int64_t width) {
    context->saved_data["shape"] = input.sizes().vec();
    return make_zeros({input.size(0), width}, input.options());
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               const torch::autograd::tensor_list& gradients) {
    return {make_zeros(context->saved_data["shape"].toIntVector(), gradients.front().options()), torch::Tensor()};
  }
};

class SyntheticModel final : public Network {
 public:
  SyntheticModel(const model::Graph& graph, std::vector<std::int64_t> sample_shape, std::int64_t outputs)
      : Network(fmt::format("synthetic {}", graph.name), std::move(sample_shape)) {
    const std::vector<double> cuts = model::cut_bytes(graph);
    for (std::size_t i = 0; i < graph.layers.size(); ++i) {
      const model::Layer& layer = graph.layers[i];
      const bool is_last = i + 1 == graph.layers.size();
      const auto width = is_last ? outputs : std::max<std::int64_t>(1, std::llround(cuts[i + 1] / kBytes));
      layers_.push_back({layer.name, layer.kind, of_one_value([width](const torch::Tensor& input) {
                           return SyntheticFunction::apply(input, width);
                         })});
      if (layer.parameters > 0) {
        layers_.back().parameters.push_back(
            {layer.name + ".weight", torch::zeros({std::llround(layer.parameters)}).requires_grad_()});
      }
    }
  }

  Tensors forward(const Tensors& inputs) override {
    Tensors values = inputs;
    for (const ChainLayer& layer : layers_) values = layer.forward(values);
    return values;
  }
  NamedTensors parameters() const override {
    NamedTensors all;
    for (const ChainLayer& layer : layers_) all.insert(all.end(), layer.parameters.begin(), layer.parameters.end());
    return all;
  }
  NamedTensors buffers() const override { return {}; }
  std::vector<BatchNormLayer> batch_norms() const override { return {}; }
  std::vector<ChainLayer> chain() override { return layers_; }
  void train(bool /*on*/) override {}
  void to(torch::Device device, torch::Dtype dtype) override {
    const torch::NoGradGuard no_grad;
    for (const auto& [name, parameter] : parameters()) torch::Tensor(parameter).set_data(parameter.to(device, dtype));
  }

 private:
  std::vector<ChainLayer> layers_;
};

}  // namespace

std::vector<ChainLayer> list_layers(Network& network) {
  std::vector<ChainLayer> layers = network.chain();
  if (layers.empty()) {
    layers.push_back({network.name(), model::LayerKind::kBlock,
                      [&network](const Tensors& inputs) { return network.forward(inputs); }, network.parameters(),
                      network.buffers()});
  }
  return layers;
}

Result<model::Graph> model_graph(Network& network) {
  if (network.sample_shape().empty()) {
    return fail(ErrorCode::kInvalidInput,
                "model.input_shape: missing; the sizes of the layers of '{}' follow from the shape of one sample",
                network.name());
  }
  model::Graph graph;
  graph.name = network.name();
  graph.source = network.chain().empty()
                     ? "one sample run through the network, which is one layer here: it is no chain that can be cut"
                     : "one sample run through the network's layers";
  MOTLEY_TRY(catch_torch(ErrorCode::kInvalidInput, network.name() + ": finding the sizes of its layers", [&] {
    network.to(torch::kCPU, torch::kFloat32);
    network.train(true);
    const std::vector<double> inner = inner_bytes(network);
    network.train(false);
    const torch::NoGradGuard no_grad;
    Tensors values = {batch_of_zeros(network, 1)};
    graph.input_bytes = kBytes * numbers_in(values);
    for (const ChainLayer& chained : list_layers(network)) {
      model::Layer layer;
      layer.name = chained.name;
      layer.kind = chained.kind;
      if (!graph.layers.empty()) layer.inputs = {static_cast<int>(graph.layers.size()) - 1};
      for (const NamedTensor& parameter : chained.parameters) {
        layer.parameters += static_cast<double>(parameter.tensor.numel());
      }
      const FlopCounter counter;
      values = chained.forward(values);
      layer.flops = counter.flops();
      layer.activation_bytes = kBytes * numbers_in(values);
      layer.inner_bytes = inner[graph.layers.size()];
      layer.lookups = chained.lookups;
      layer.row_bytes = chained.row_bytes;
      layer.table_rows = chained.table_rows;
      graph.layers.push_back(std::move(layer));
    }
    network.train(true);
  }));
  MOTLEY_TRY(model::validate(graph));
  return graph;
}

Result<std::unique_ptr<Network>> make_synthetic_model(const std::filesystem::path& file, std::int64_t max_layers,
                                                      std::vector<std::int64_t> sample_shape, std::int64_t outputs) {
  MOTLEY_ASSIGN(model::Profile profile, model::read_profile(file));
  profile = model::without_step_layer(std::move(profile));
  if (max_layers > 0) profile = model::coarsen(profile, static_cast<int>(max_layers));
  for (const model::Layer& layer : profile.graph.layers) {
    if (layer.lookups > 0) {
      return fail(ErrorCode::kInvalidInput,
                  "model.path: layer '{}' of '{}' looks up rows; accepted with model.name synthetic: networks whose "
                  "layers do not",
                  layer.name, file.string());
    }
  }
  return catch_torch(ErrorCode::kUnavailable, "making the synthetic " + profile.graph.name, [&] {
    return std::unique_ptr<Network>(std::make_unique<SyntheticModel>(profile.graph, std::move(sample_shape), outputs));
  });
}

}  // namespace motley::nn
