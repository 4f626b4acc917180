#include "motley/nn/network_part.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "motley/nn/model_graph.h"

namespace motley::nn {
namespace {

constexpr std::int64_t kSamples = 2;  // that find the shapes: of one, what has none looks like a sample

using Shapes = std::vector<std::vector<std::int64_t>>;  // of one sample of each value

Shapes list_shapes(const Tensors& values) {
  Shapes shapes;
  for (const torch::Tensor& value : values) shapes.push_back(value.sizes().slice(1).vec());
  return shapes;
}

// What goes on to the next part as one tensor: of several values one row a sample, which has all of them.
torch::Tensor packed(const Tensors& values) {
  if (values.size() == 1) return values.front();
  Tensors rows;
  for (const torch::Tensor& value : values) {
    TORCH_CHECK(value.dim() > 0 && value.size(0) == values.front().size(0) &&
                    (value.scalar_type() == values.front().scalar_type() ||
                     (value.is_floating_point() && values.front().is_floating_point())),
                "of the ", values.size(), " tensors that go from one stage to the next one has the shape ",
                value.sizes(), " and the type ", value.scalar_type(), "; accepted: one entry of the first dimension ",
                "for each sample, and real numbers or one type in all");
    rows.push_back(value.dim() == 1 ? value.unsqueeze(1) : value.flatten(1));
  }
  return torch::cat(rows, 1);
}

Tensors unpacked(const torch::Tensor& rows, const Shapes& shapes) {
  if (shapes.size() == 1) return {rows};
  Tensors values;
  std::int64_t begin = 0;
  for (std::vector<std::int64_t> shape : shapes) {
    const std::int64_t width = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
    shape.insert(shape.begin(), rows.size(0));
    values.push_back(rows.narrow(1, begin, width).view(shape).contiguous());  // as the layer before made them
    begin += width;
  }
  return values;
}

class Part final : public Network {
 public:
  Part(std::unique_ptr<Network> whole, std::vector<ChainLayer> layers, NamedTensors parameters, NamedTensors buffers,
       std::vector<std::int64_t> sample_shape, Shapes input_shapes)
      : Network(fmt::format("{} ({} to {})", whole->name(), layers.front().name, layers.back().name),
                std::move(sample_shape)),
        whole_(std::move(whole)),
        layers_(std::move(layers)),
        parameters_(std::move(parameters)),
        buffers_(std::move(buffers)),
        input_shapes_(std::move(input_shapes)) {}

  Tensors forward(const Tensors& inputs) override {
    TORCH_CHECK(inputs.size() == 1, "a part of a network takes one input and was given ", inputs.size());
    Tensors values = unpacked(inputs.front(), input_shapes_);
    for (const ChainLayer& layer : layers_) values = layer.forward(values);
    return {packed(values)};
  }
  NamedTensors parameters() const override { return parameters_; }
  NamedTensors buffers() const override { return buffers_; }
  std::vector<BatchNormLayer> batch_norms() const override {
    std::vector<BatchNormLayer> own = whole_->batch_norms();
    std::erase_if(own, [&](const BatchNormLayer& layer) {
      return std::ranges::none_of(buffers_,
                                  [&](const NamedTensor& buffer) { return buffer.tensor.is_same(layer.running_mean); });
    });
    return own;
  }
  std::vector<ChainLayer> chain() override { return layers_; }
  void train(bool on) override { whole_->train(on); }
  void to(torch::Device device, torch::Dtype dtype) override { whole_->to(device, dtype); }

 private:
  const std::unique_ptr<Network> whole_;
  const std::vector<ChainLayer> layers_;
  const NamedTensors parameters_;
  const NamedTensors buffers_;
  const Shapes input_shapes_;
};

Status check_names(const Network& network, const std::vector<ChainLayer>& layers,
                   const std::vector<std::string>& names) {
  if (layers.size() != names.size()) {
    return fail(ErrorCode::kInvalidInput, "layers has {} names, but the network '{}' has {} layers", names.size(),
                network.name(), layers.size());
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (layers[i].name != names[i]) {
      return fail(ErrorCode::kInvalidInput, "layers[{}] is '{}', but the network '{}' has '{}' there", i, names[i],
                  network.name(), layers[i].name);
    }
  }
  return {};
}

// All tensors of the layers, each with the layers that read it, in the order of those that read it first.
std::vector<SharedTensor> list_readers(const std::vector<ChainLayer>& layers) {
  std::vector<SharedTensor> tensors;
  for (int i = 0; const ChainLayer& layer : layers) {
    for (const std::string& name : std::set(layer.shared.begin(), layer.shared.end())) {
      std::ranges::find(tensors, name, &SharedTensor::name)->layers.push_back(i);
    }
    for (const NamedTensor& tensor : layer.parameters) tensors.push_back({tensor.name, {i}, true});
    for (const NamedTensor& tensor : layer.buffers) tensors.push_back({tensor.name, {i}, false});
    ++i;
  }
  return tensors;
}

// Shapes of one sample before the first layer, of each value that this reads and of all as one, and after the last one.
Status find_shapes(Network& network, const std::vector<ChainLayer>& layers, int first, int last, Shapes& inputs,
                   NetworkPart& part) {
  return catch_torch(ErrorCode::kInvalidInput, network.name() + ": finding the shapes between its layers", [&] {
    const torch::NoGradGuard no_grad;
    const bool is_double = std::ranges::any_of(
        network.parameters(), [](const NamedTensor& tensor) { return tensor.tensor.scalar_type() == torch::kFloat64; });
    const torch::Dtype dtype = is_double ? torch::kFloat64 : torch::kFloat32;
    network.to(torch::kCPU, dtype);
    network.train(false);
    std::vector<std::int64_t> shape = network.sample_shape();
    shape.insert(shape.begin(), kSamples);
    Tensors values = {torch::zeros(shape, dtype)};
    for (int i = 0; i <= last; ++i) {
      if (i == first) {
        inputs = list_shapes(values);
        part.input_shape = packed(values).sizes().slice(1).vec();
      }
      values = layers[static_cast<std::size_t>(i)].forward(values);
    }
    part.output_shape = packed(values).sizes().slice(1).vec();
    network.train(true);
  });
}

}  // namespace

Result<NetworkPart> take_part(std::unique_ptr<Network> network, const std::vector<std::string>& names, int first,
                              int last) {
  if (network->sample_shape().empty()) {
    return fail(ErrorCode::kInvalidInput, "model.input_shape: missing; a pipeline needs the shape of one sample");
  }
  std::vector<ChainLayer> layers = list_layers(*network);
  MOTLEY_TRY(check_names(*network, layers, names));
  MOTLEY_INVARIANT(0 <= first && first <= last && last < static_cast<int>(layers.size()),
                   "there are no layers {} to {} among {}", first, last, layers.size());

  NetworkPart part;
  Shapes inputs;
  MOTLEY_TRY(find_shapes(*network, layers, first, last, inputs, part));
  part.shared = list_readers(layers);
  // In the network's order.
  const auto take = [&](const NamedTensors& tensors) {
    NamedTensors taken;
    for (const NamedTensor& tensor : tensors) {
      const auto read = std::ranges::find(part.shared, tensor.name, &SharedTensor::name);
      const bool is_own = read == part.shared.end() ? first == 0 : std::ranges::any_of(read->layers, [&](int layer) {
        return first <= layer && layer <= last;
      });
      if (is_own) {
        taken.push_back(tensor);
      } else {
        torch::Tensor(tensor.tensor).set_data(torch::empty({0}, tensor.tensor.options()));
      }
    }
    return taken;
  };
  NamedTensors parameters = take(network->parameters());
  NamedTensors buffers = take(network->buffers());
  std::erase_if(part.shared, [](const SharedTensor& tensor) { return tensor.layers.size() == 1; });
  std::vector<ChainLayer> kept(layers.begin() + first, layers.begin() + last + 1);
  part.network = std::make_unique<Part>(std::move(network), std::move(kept), std::move(parameters), std::move(buffers),
                                        part.input_shape, std::move(inputs));
  return part;
}

}  // namespace motley::nn
