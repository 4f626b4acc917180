// Each layer works on a tensor that is cut off from the layer before (detached), as a pipeline's stages do: so its
// backward is one call of autograd of its own, between two looks at the clock.
#include "motley/nn/profiler.h"

#include <algorithm>
#include <cmath>

#include "motley/base/statistics.h"
#include "motley/base/units.h"
#include "motley/nn/gradients/gradient_buckets.h"
#include "motley/nn/model_graph.h"

namespace motley::nn {
namespace {

constexpr int kWarmPasses = 2;
constexpr int kMinRounds = 5;
constexpr int kMaxRounds = 50;
constexpr double kMemoryShare = 0.5;  // of the device's memory
constexpr double kCopies = 4;         // of each activation: itself, its gradient, and what libtorch needs in between
constexpr double kTrustedDeviation = 0.05;  // relative; beyond it a point of a fit counts for less
constexpr int kFitRounds = 30;

// Median absolute deviation as a share of the median.
double relative_spread(std::vector<double> values) {
  const double middle = median(values);
  for (double& value : values) value = std::abs(value - middle);
  return middle > 0 ? median(std::move(values)) / middle : 0;
}

struct Seconds {
  double forward = 0;
  double backward = 0;
};

struct Pass {
  std::vector<Seconds> layers;  // the one for the step last
  double update = 0;            // of all weights
};

class Profiler {
 public:
  Profiler(Network& network, const StepSpec& step, torch::Device device, Clock& clock)
      : network_(network), step_(step), device_(device), clock_(clock) {}

  Status prepare() {
    return catch_torch(ErrorCode::kUnavailable, "moving the network to " + device_.str(), [&]() -> Status {
      network_.to(device_, step_.dtype);
      network_.train(true);
      layers_ = list_layers(network_);
      MOTLEY_ASSIGN(optimizer_, Optimizer::create(step_.optimizer, network_.parameters()));
      MOTLEY_ASSIGN(buckets_, GradientBuckets::create(network_.parameters(), step_.bucket_bytes));
      std::vector<std::span<std::byte>> spans;
      for (const std::size_t elements : buckets_->bucket_elements()) {
        memory_.push_back(torch::empty(static_cast<std::int64_t>(elements), buckets_->dtype()));
        spans.emplace_back(static_cast<std::byte*>(memory_.back().data_ptr()), memory_.back().nbytes());
      }
      return buckets_->bind(spans);
    });
  }

  Result<Pass> pass(std::int64_t batch) {
    std::vector<std::int64_t> shape = network_.sample_shape();
    shape.insert(shape.begin(), batch);
    return catch_torch(ErrorCode::kInvalidInput, fmt::format("{}: a batch of {}", network_.name(), batch), [&] {
      const torch::Tensor inputs =
          step_.tokens > 0 ? torch::randint(step_.tokens, shape, step_.dtype) : torch::randn(shape, step_.dtype);
      return timed_pass(inputs.to(device_));
    });
  }

 private:
  double now() const {
    synchronize(device_);
    return clock_.now();
  }

  torch::Tensor targets_for(const torch::Tensor& outputs) const {
    if (step_.loss == Loss::kCrossEntropy) {
      return torch::randint(outputs.size(-1), outputs.sizes().slice(0, outputs.dim() - 1)).to(device_);
    }
    return torch::rand(outputs.sizes(), step_.dtype).round().to(device_);
  }

  // False, where nothing of it is trained.
  static bool run_backward(const Tensors& outputs, const Tensors& gradients) {
    Tensors roots;
    Tensors given;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].requires_grad() || !gradients[i].defined()) continue;
      roots.push_back(outputs[i]);
      given.push_back(gradients[i]);
    }
    if (roots.empty()) return false;
    torch::autograd::backward(roots, given);
    return true;
  }

  Result<Pass> timed_pass(torch::Tensor sample) {
    Pass pass{std::vector<Seconds>(layers_.size() + 1)};
    std::vector<Seconds>& seconds = pass.layers;
    buckets_->zero();
    std::vector<Tensors> inputs;
    std::vector<Tensors> outputs;
    Tensors values = {std::move(sample)};
    double begin = now();
    const auto since_last = [&] {
      const double end = now();
      return end - std::exchange(begin, end);
    };
    {
      const Autocast autocast(device_, step_.autocast);
      for (std::size_t i = 0; i < layers_.size(); ++i) {
        inputs.push_back(as_leaves(values));
        values = layers_[i].forward(inputs.back());
        outputs.push_back(values);
        seconds[i].forward = since_last();
      }
    }
    const torch::Tensor predicted = values.front().detach();
    const torch::Tensor targets = targets_for(predicted);
    begin = now();
    MOTLEY_ASSIGN(const LossOutcome loss,
                  compute_loss(step_.loss, predicted, targets, static_cast<double>(predicted.size(0))));
    Evaluation seen(step_.loss, {default_metrics(step_.loss).front()});
    MOTLEY_TRY(seen.add(predicted, targets));
    seconds.back().forward = since_last();

    Tensors gradients = {loss.output_gradient.to(values.front().options())};
    for (std::size_t i = layers_.size(); i-- > 0;) {
      if (!run_backward(std::exchange(outputs[i], {}), gradients)) break;
      gradients.clear();
      for (const torch::Tensor& input : inputs[i]) gradients.push_back(input.grad());
      seconds[i].backward = since_last();
    }
    MOTLEY_TRY(optimizer_->step(0));
    pass.update = since_last();
    return pass;
  }

  Network& network_;
  const StepSpec& step_;
  const torch::Device device_;
  Clock& clock_;
  std::vector<ChainLayer> layers_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<torch::Tensor> memory_;  // of the buckets, which go first
  std::unique_ptr<GradientBuckets> buckets_;
};

// The passes of one batch size.
struct Series {
  std::int64_t batch = 0;
  double pass_seconds = 0;  // of the last warm pass
  std::vector<std::vector<Seconds>> passes = {};

  model::Measurement measurement(std::size_t layer) const {
    std::vector<double> forward, backward, sums;
    for (const std::vector<Seconds>& pass : passes) {
      forward.push_back(pass[layer].forward);
      backward.push_back(pass[layer].backward);
      sums.push_back(pass[layer].forward + pass[layer].backward);
    }
    return {static_cast<double>(batch), median(std::move(forward)), median(std::move(backward)),
            relative_spread(std::move(sums))};
  }
  std::vector<double> whole() const {
    std::vector<double> whole;
    for (const std::vector<Seconds>& pass : passes) {
      double& seconds = whole.emplace_back(0);
      for (const auto& [forward, backward] : pass) seconds += forward + backward;
    }
    return whole;
  }
  double quiet_seconds() const { return percentile(whole(), kQuietPasses); }
  double drift() const {
    const std::vector<double> all = whole();
    const auto third = static_cast<std::ptrdiff_t>(std::max<std::size_t>(1, all.size() / 3));
    return median({all.end() - third, all.end()}) / median({all.begin(), all.begin() + third}) - 1;
  }
};

Status go_on(const ProfilerOptions& options) {
  if (!options.stop.stop_requested()) return {};
  return fail(ErrorCode::kInterrupted, "stopped as asked; nothing was written");
}

// Passes that warm up each batch size, as long as the rounds that follow fit into memory and time.
Result<std::vector<Series>> warm_up(Profiler& profiler, const model::Graph& graph, const ProfilerOptions& options) {
  double bytes_per_sample = graph.input_bytes;
  for (const model::Layer& layer : graph.layers) {
    bytes_per_sample += kCopies * layer.activation_bytes;
  }
  const double begin = options.clock.now();
  std::vector<Series> all;
  double round_seconds = 0;
  for (const std::int64_t batch : options.batches) {
    const double size = static_cast<double>(batch);
    if (!all.empty()) {
      const double expected = all.back().pass_seconds * size / static_cast<double>(all.back().batch);
      const double left = options.seconds - (options.clock.now() - begin);
      if (size * bytes_per_sample > kMemoryShare * options.memory_bytes ||
          kWarmPasses * expected + kMinRounds * (round_seconds + expected) > left) {
        break;
      }
    }
    if (options.progress) options.progress(fmt::format("{}: batches of {}", graph.name, batch));
    double last = 0;
    Result<Pass> done;
    for (int i = 0; i < kWarmPasses && done; ++i) {
      MOTLEY_TRY(go_on(options));
      const double before = options.clock.now();
      done = profiler.pass(batch);
      last = options.clock.now() - before;
    }
    if (!done) {
      const bool out_of_memory = done.error().code == ErrorCode::kUnavailable && !all.empty();
      if (out_of_memory) break;
      if (batch == 1 && options.batches.size() > 1) continue;
      return fail(done.error());
    }
    all.push_back({batch, last});
    round_seconds += last;
  }
  return all;
}

}  // namespace

model::Affine fit_affine(std::span<const std::pair<double, double>> points) {
  std::vector<double> trust(points.size(), 1);
  model::Affine line;
  for (int round = 0; round < kFitRounds; ++round) {
    double weights = 0, b = 0, t = 0, bb = 0, bt = 0;
    for (std::size_t i = 0; i < points.size(); ++i) {
      const auto [batch, seconds] = points[i];
      const double scale = std::max(seconds, 1e-9);  // no clock tells less
      const double weight = trust[i] / (scale * scale);
      weights += weight;
      b += weight * batch;
      t += weight * seconds;
      bb += weight * batch * batch;
      bt += weight * batch * seconds;
    }
    const double determinant = weights * bb - b * b;
    const bool one_batch = determinant <= 1e-12 * weights * bb;
    line = one_batch ? model::Affine{0, bt / bb}
                     : model::Affine{(bb * t - b * bt) / determinant, (weights * bt - b * t) / determinant};
    if (line.fixed < 0) {
      line = {0, bt / bb};
    } else if (line.per_sample < 0) {
      line = {t / weights, 0};
    }
    for (std::size_t i = 0; i < points.size(); ++i) {
      const auto [batch, seconds] = points[i];
      const double off = std::abs(line.at(batch) - seconds) / std::max(seconds, 1e-9);
      trust[i] = off <= kTrustedDeviation ? 1 : kTrustedDeviation / off;
    }
  }
  return line;
}

Result<model::Graph> step_graph(Network& network) {
  MOTLEY_ASSIGN(model::Graph graph, model_graph(network));
  model::Layer step;
  step.name = model::kStepLayer;
  step.kind = model::LayerKind::kLoss;
  step.inputs = {static_cast<int>(graph.layers.size()) - 1};
  step.activation_bytes = sizeof(float);
  graph.layers.push_back(std::move(step));
  MOTLEY_TRY(model::validate(graph));
  return graph;
}

Result<LayerTimes> profile_layers(Network& network, const model::Graph& graph, const StepSpec& step,
                                  torch::Device device, const ProfilerOptions& options) {
  const double begin = options.clock.now();
  Profiler profiler(network, step, device, options.clock);
  MOTLEY_TRY(profiler.prepare());
  MOTLEY_ASSIGN(std::vector<Series> all, warm_up(profiler, graph, options));

  LayerTimes times;
  std::vector<double> updates;
  while (times.rounds < kMaxRounds && (times.rounds < kMinRounds || options.clock.now() - begin < options.seconds)) {
    for (Series& series : all) {
      MOTLEY_TRY(go_on(options));
      MOTLEY_ASSIGN(Pass pass, profiler.pass(series.batch));
      series.passes.push_back(std::move(pass.layers));
      updates.push_back(pass.update);
    }
    ++times.rounds;
    if (options.progress) {
      options.progress(fmt::format("{}: round {}, {} of {}", graph.name, times.rounds,
                                   format_seconds(options.clock.now() - begin), format_seconds(options.seconds)));
    }
  }

  std::vector<double> spreads, drifts;
  for (const Series& series : all) {
    times.batches.push_back(series.batch);
    times.quiet_seconds.push_back(series.quiet_seconds());
    spreads.push_back(relative_spread(series.whole()));
    drifts.push_back(series.drift());
  }
  times.pass_spread = median(std::move(spreads));
  times.drift = median(std::move(drifts));
  const double update = median(updates);
  double parameters = 0;
  for (const model::Layer& layer : graph.layers) parameters += layer.parameters;
  for (std::size_t i = 0; i < graph.layers.size(); ++i) {
    model::LayerTime layer;
    std::vector<std::pair<double, double>> forward;
    std::vector<std::pair<double, double>> backward;
    for (const Series& series : all) {
      layer.measurements.push_back(series.measurement(i));
      const model::Measurement& measured = layer.measurements.back();
      forward.emplace_back(measured.batch, measured.forward_seconds);
      backward.emplace_back(measured.batch, measured.backward_seconds);
    }
    layer.forward = fit_affine(forward);
    layer.backward = fit_affine(backward);
    if (parameters > 0) layer.update_seconds = update * graph.layers[i].parameters / parameters;
    times.layers.push_back(std::move(layer));
  }
  return times;
}

}  // namespace motley::nn
