#include "motley/nn/model_graph.h"

#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/util/Flags.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/profiler/util.h>

#include <algorithm>
#include <utility>

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
class Hush {
 public:
  Hush() : level_(std::exchange(FLAGS_caffe2_log_level, kErrors)) {}
  ~Hush() { FLAGS_caffe2_log_level = level_; }
  Hush(const Hush&) = delete;
  Hush& operator=(const Hush&) = delete;

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
  const Hush hush;
  const NamedTensors buffers = network.buffers();
  Tensors before;
  for (const NamedTensor& buffer : buffers) {
    before.push_back(buffer.tensor.clone());
  }
  std::vector<double> inner;
  std::vector<Tensors> kept;
  Tensors values = {batch_of_zeros(network, kSamples)};
  for (const ChainLayer& layer : layers_of(network)) {
    const auto counter = std::make_shared<MemoryCounter>();
    const Tensors inputs = as_leaves(values);
    {
      const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, counter);
      values = layer.forward(inputs);
    }
    double made = 0;  // of what it returns, without what it only hands on
    for (const torch::Tensor& value : values) {
      const bool is_input = std::ranges::any_of(inputs, [&](const auto& input) { return input.is_same(value); });
      made += is_input ? 0 : static_cast<double>(value.nbytes());
    }
    kept.push_back(values);
    inner.push_back(std::max(0.0, counter->bytes() - made) / kSamples);
  }
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < before.size(); ++i) {
    buffers[i].tensor.copy_(before[i]);
  }
  return inner;
}

}  // namespace

std::vector<ChainLayer> layers_of(Network& network) {
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
    for (const ChainLayer& chained : layers_of(network)) {
      model::Layer layer;
      layer.name = chained.name;
      layer.kind = chained.kind;
      if (!graph.layers.empty()) {
        layer.inputs = {static_cast<int>(graph.layers.size()) - 1};
      }
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

}  // namespace motley::nn
