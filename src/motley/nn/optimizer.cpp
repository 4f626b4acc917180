#include "motley/nn/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <unordered_map>

namespace motley::nn {
namespace {

// What differs between the optimizers is which tensors a parameter's state consists of. Each trait reads them from and
// writes them into libtorch's state for one parameter.
struct SgdTraits {
  using Algorithm = torch::optim::SGD;
  using State = torch::optim::SGDParamState;
  static constexpr const char* kFields[] = {"momentum_buffer"};

  static Tensors read(const State& state) { return {state.momentum_buffer()}; }
  static void write(State& state, const Tensors& fields) { state.momentum_buffer(fields[0]); }
};

template <class AlgorithmType, class StateType, class OptionsType>
struct AdamTraits {
  using Algorithm = AlgorithmType;
  using State = StateType;
  using Options = OptionsType;
  static constexpr const char* kFields[] = {"exp_avg", "exp_avg_sq", "step"};

  static Tensors read(const State& state) {
    return {state.exp_avg(), state.exp_avg_sq(), torch::tensor(state.step(), torch::kInt64)};
  }
  static void write(State& state, const Tensors& fields) {
    state.exp_avg(fields[0]);
    state.exp_avg_sq(fields[1]);
    state.step(fields[2].item<std::int64_t>());
  }
};

using Adam = AdamTraits<torch::optim::Adam, torch::optim::AdamParamState, torch::optim::AdamOptions>;
using AdamW = AdamTraits<torch::optim::AdamW, torch::optim::AdamWParamState, torch::optim::AdamWOptions>;

template <class Traits>
class TorchOptimizer final : public Optimizer {
 public:
  template <class Options>
  TorchOptimizer(NamedTensors parameters, const Options& options)
      : parameters_(std::move(parameters)), algorithm_(list_tensors(parameters_), options) {}

  Status step(double learning_rate) override {
    return catch_torch(ErrorCode::kInternal, "updating the weights", [&] {
      algorithm_.param_groups().front().options().set_lr(learning_rate);
      algorithm_.step();
    });
  }

  NamedTensors state() const override {
    NamedTensors all;
    for (const auto& [name, parameter] : parameters_) {
      const auto found = algorithm_.state().find(parameter.unsafeGetTensorImpl());
      if (found == algorithm_.state().end()) continue;
      const Tensors fields = Traits::read(static_cast<const typename Traits::State&>(*found->second));
      for (std::size_t i = 0; i < fields.size(); ++i) {
        if (fields[i].defined()) all.push_back({name + "." + Traits::kFields[i], fields[i].detach().clone()});
      }
    }
    return all;
  }

  Status load_state(const NamedTensors& state) override {
    std::unordered_map<std::string, torch::Tensor> by_name;
    for (const NamedTensor& tensor : state) by_name.emplace(tensor.name, tensor.tensor);
    std::vector<std::pair<void*, Tensors>> loaded;
    for (const auto& [name, parameter] : parameters_) {
      Tensors fields;
      for (const char* field : Traits::kFields) {
        const auto node = by_name.extract(name + "." + field);
        if (node.empty()) continue;
        const torch::Tensor& given = node.mapped();
        const bool is_step = std::string_view(field) == "step";
        if (is_step ? given.scalar_type() != torch::kInt64 || given.dim() != 0
                    : given.scalar_type() != parameter.scalar_type() || given.sizes() != parameter.sizes()) {
          return fail(ErrorCode::kCorrupt, "optimizer state '{}' is {} {} and does not fit parameter {} of shape {}",
                      node.key(), c10::toString(given.scalar_type()), format_shape(given.sizes()), name,
                      format_shape(parameter.sizes()));
        }
        fields.push_back(is_step ? given : given.to(parameter.device(), /*non_blocking=*/false).clone());
      }
      if (fields.empty()) continue;
      if (fields.size() != std::size(Traits::kFields)) {
        return fail(ErrorCode::kCorrupt, "the optimizer state of parameter '{}' is there in part only", name);
      }
      loaded.emplace_back(parameter.unsafeGetTensorImpl(), std::move(fields));
    }
    if (!by_name.empty()) {
      return fail(ErrorCode::kCorrupt, "optimizer state '{}' belongs to no parameter of this network and optimizer",
                  by_name.begin()->first);
    }
    algorithm_.state().clear();
    for (auto& [key, fields] : loaded) {
      auto parameter_state = std::make_unique<typename Traits::State>();
      Traits::write(*parameter_state, fields);
      algorithm_.state()[key] = std::move(parameter_state);
    }
    return {};
  }

 private:
  static Tensors list_tensors(const NamedTensors& parameters) {
    Tensors tensors;
    for (const NamedTensor& parameter : parameters) tensors.push_back(parameter.tensor);
    return tensors;
  }

  NamedTensors parameters_;
  typename Traits::Algorithm algorithm_;
};

template <class Traits>
std::unique_ptr<Optimizer> make_adam(const OptimizerSpec& spec, NamedTensors parameters) {
  typename Traits::Options options(spec.learning_rate);
  options.betas(std::make_tuple(spec.beta1, spec.beta2)).eps(spec.epsilon).weight_decay(spec.weight_decay);
  return std::make_unique<TorchOptimizer<Traits>>(std::move(parameters), options);
}

}  // namespace

Status check_optimizer(const OptimizerSpec& spec) {
  const bool is_sgd = spec.name == "sgd";
  if (!is_sgd && spec.name != "adam" && spec.name != "adamw") {
    return fail(ErrorCode::kInvalidInput, "optimizer.name: '{}' is not known; accepted: sgd, adam, adamw", spec.name);
  }
  const auto is_share = [](double value) { return value >= 0 && value < 1; };
  const struct {
    const char* key;
    double value;
    bool is_accepted;
    const char* accepted;
  } numbers[] = {
      {"learning_rate", spec.learning_rate, spec.learning_rate >= 0 && std::isfinite(spec.learning_rate), "0 or more"},
      {"weight_decay", spec.weight_decay, spec.weight_decay >= 0 && std::isfinite(spec.weight_decay), "0 or more"},
      {"momentum", spec.momentum, is_share(spec.momentum), "0 <= momentum < 1"},
      {"beta1", spec.beta1, is_share(spec.beta1), "0 <= beta1 < 1"},
      {"beta2", spec.beta2, is_share(spec.beta2), "0 <= beta2 < 1"},
      {"epsilon", spec.epsilon, spec.epsilon >= 0 && std::isfinite(spec.epsilon), "0 or more"}};
  for (const auto& [key, value, is_accepted, accepted] : numbers) {
    if (is_accepted) continue;
    return fail(ErrorCode::kInvalidInput, "optimizer.{}: {} is not accepted; accepted: {}", key, value, accepted);
  }
  if (!is_sgd && (spec.momentum > 0 || spec.nesterov)) {
    return fail(ErrorCode::kInvalidInput, "optimizer.{}: optimizer '{}' has no such setting (it has beta1)",
                spec.momentum > 0 ? "momentum" : "nesterov", spec.name);
  }
  if (spec.nesterov && spec.momentum == 0) {
    return fail(ErrorCode::kInvalidInput, "optimizer.nesterov: needs optimizer.momentum above 0");
  }
  return {};
}

int count_state_arrays(const OptimizerSpec& spec) {
  if (spec.name != "sgd") return 2;
  return spec.momentum > 0 ? 1 : 0;
}

Result<std::unique_ptr<Optimizer>> Optimizer::create(const OptimizerSpec& spec, NamedTensors parameters) {
  MOTLEY_TRY(check_optimizer(spec));
  return catch_torch(ErrorCode::kInternal, "creating the optimizer", [&]() -> std::unique_ptr<Optimizer> {
    if (spec.name == "sgd") {
      torch::optim::SGDOptions options(spec.learning_rate);
      options.momentum(spec.momentum).nesterov(spec.nesterov).weight_decay(spec.weight_decay);
      return std::make_unique<TorchOptimizer<SgdTraits>>(std::move(parameters), options);
    }
    return spec.name == "adam" ? make_adam<Adam>(spec, std::move(parameters))
                               : make_adam<AdamW>(spec, std::move(parameters));
  });
}

Result<double> gradient_norm(const NamedTensors& parameters) {
  auto norm = catch_torch(ErrorCode::kInternal, "measuring the gradients", [&] {
    Tensors norms;
    for (const NamedTensor& parameter : parameters) {
      const torch::Tensor& gradient = parameter.tensor.grad();
      if (gradient.defined()) norms.push_back(torch::linalg_vector_norm(gradient));
    }
    return norms.empty() ? 0.0 : torch::linalg_vector_norm(torch::stack(norms)).item<double>();
  });
  if (!norm || std::isfinite(*norm)) return norm;
  for (const NamedTensor& parameter : parameters) {
    if (parameter.tensor.grad().defined() && !torch::isfinite(parameter.tensor.grad()).all().item<bool>()) {
      return fail(ErrorCode::kDiverged,
                  "the gradient of parameter '{}' is not finite; a smaller optimizer.learning_rate, a warm-up or "
                  "clipping may help",
                  parameter.name);
    }
  }
  return fail(ErrorCode::kDiverged, "the norm of the gradients is too large for its type");
}

Status check_weights(const NamedTensors& parameters) {
  return catch_torch(ErrorCode::kInternal, "checking the weights", [&]() -> Status {
    for (const auto& [name, tensor] : parameters) {
      const double norm =
          torch::linalg_vector_norm(tensor.detach(), 2, std::nullopt, false, torch::kFloat64).item<double>();
      const double largest = std::sqrt(tensor.scalar_type() == torch::kFloat64 ? std::numeric_limits<double>::max()
                                                                               : std::numeric_limits<float>::max());
      if (norm <= largest) continue;
      if (!torch::isfinite(tensor).all().item<bool>()) {
        return fail(ErrorCode::kDiverged, "the weights of '{}' are not finite", name);
      }
      return fail(ErrorCode::kDiverged,
                  "the weights of '{}' have grown to a Euclidean norm of {:.2g}; accepted: up to {:.2g}, whose square "
                  "is the largest number of their type",
                  name, norm, largest);
    }
    return {};
  });
}

Status scale_gradients(const NamedTensors& parameters, double factor) {
  return catch_torch(ErrorCode::kInternal, "scaling the gradients", [&] {
    for (const NamedTensor& parameter : parameters) {
      if (parameter.tensor.grad().defined()) parameter.tensor.grad().mul_(factor);
    }
  });
}

double learning_rate_factor(const ScheduleSpec& spec, std::int64_t step) {
  if (step < spec.warmup_steps) return static_cast<double>(step + 1) / static_cast<double>(spec.warmup_steps);
  const std::int64_t since = step - spec.warmup_steps;
  if (spec.name == "step") return std::pow(spec.factor, static_cast<double>(since / spec.step_size));
  if (spec.name != "cosine") return 1;
  const double length = static_cast<double>(spec.total_steps - spec.warmup_steps);
  const double part = std::min(1.0, static_cast<double>(since) / length);
  return spec.minimum + (1 - spec.minimum) * (1 + std::cos(std::numbers::pi * part)) / 2;
}

}  // namespace motley::nn
