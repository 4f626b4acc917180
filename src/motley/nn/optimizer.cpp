#include "motley/nn/optimizer.h"

#include <cmath>
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

template <class AlgorithmType, class StateType>
struct AdamTraits {
  using Algorithm = AlgorithmType;
  using State = StateType;
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

template <class Traits>
class TorchOptimizer final : public Optimizer {
 public:
  template <class Options>
  TorchOptimizer(NamedTensors parameters, const Options& options)
      : parameters_(std::move(parameters)), algorithm_(tensors_of(parameters_), options) {}

  Status step(double learning_rate) override {
    return catch_torch(ErrorCode::kInternal, "updating the weights", [&] {
      algorithm_.param_groups().front().options().set_lr(learning_rate);
      algorithm_.step();
    });
  }

  NamedTensors state() const override {
    NamedTensors all;
    for (const NamedTensor& parameter : parameters_) {
      const auto found = algorithm_.state().find(parameter.tensor.unsafeGetTensorImpl());
      if (found == algorithm_.state().end()) {
        continue;
      }
      const Tensors fields = Traits::read(static_cast<const typename Traits::State&>(*found->second));
      for (std::size_t i = 0; i < fields.size(); ++i) {
        if (fields[i].defined()) {
          all.push_back({parameter.name + "." + Traits::kFields[i], fields[i].detach().clone()});
        }
      }
    }
    return all;
  }

  Status load_state(const NamedTensors& state) override {
    std::unordered_map<std::string, torch::Tensor> by_name;
    for (const NamedTensor& tensor : state) {
      by_name.emplace(tensor.name, tensor.tensor);
    }
    std::vector<std::pair<void*, Tensors>> loaded;
    for (const NamedTensor& parameter : parameters_) {
      Tensors fields;
      for (const char* field : Traits::kFields) {
        const auto node = by_name.extract(parameter.name + "." + field);
        if (node.empty()) {
          continue;
        }
        const torch::Tensor& given = node.mapped();
        const bool is_count = given.scalar_type() == torch::kInt64 && given.dim() == 0;
        const bool is_like_parameter =
            given.sizes() == parameter.tensor.sizes() && given.scalar_type() == parameter.tensor.scalar_type();
        if (std::string_view(field) == "step" ? !is_count : !is_like_parameter) {
          return fail(ErrorCode::kCorrupt, "optimizer state '{}' is {} {} and does not fit parameter {} of shape {}",
                      node.key(), c10::toString(given.scalar_type()), format_shape(given.sizes()), parameter.name,
                      format_shape(parameter.tensor.sizes()));
        }
        fields.push_back(given);
      }
      if (!fields.empty() && fields.size() != std::size(Traits::kFields)) {
        return fail(ErrorCode::kCorrupt, "the optimizer state of parameter '{}' is there in part only", parameter.name);
      }
      if (!fields.empty()) {
        for (std::size_t i = 0; i < fields.size(); ++i) {
          const bool is_step = std::string_view(Traits::kFields[i]) == "step";
          fields[i] = is_step ? fields[i] : fields[i].to(parameter.tensor.device(), /*non_blocking=*/false).clone();
        }
        loaded.emplace_back(parameter.tensor.unsafeGetTensorImpl(), std::move(fields));
      }
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
  static Tensors tensors_of(const NamedTensors& parameters) {
    Tensors tensors;
    for (const NamedTensor& parameter : parameters) {
      tensors.push_back(parameter.tensor);
    }
    return tensors;
  }

  NamedTensors parameters_;
  typename Traits::Algorithm algorithm_;
};

}  // namespace

Status check_optimizer(const OptimizerSpec& spec) {
  const auto refuse = [](const char* key, double value, const char* accepted) {
    return fail(ErrorCode::kInvalidInput, "optimizer.{}: {} is not accepted; accepted: {}", key, value, accepted);
  };
  const bool is_sgd = spec.name == "sgd";
  if (!is_sgd && spec.name != "adam" && spec.name != "adamw") {
    return fail(ErrorCode::kInvalidInput, "optimizer.name: '{}' is not known; accepted: sgd, adam, adamw", spec.name);
  }
  if (!(spec.learning_rate > 0 && std::isfinite(spec.learning_rate))) {
    return refuse("learning_rate", spec.learning_rate, "numbers above 0");
  }
  if (!(spec.weight_decay >= 0 && std::isfinite(spec.weight_decay))) {
    return refuse("weight_decay", spec.weight_decay, "0 or more");
  }
  if (!(spec.momentum >= 0 && spec.momentum < 1)) {
    return refuse("momentum", spec.momentum, "0 <= momentum < 1");
  }
  if (!is_sgd && (spec.momentum > 0 || spec.nesterov)) {
    return fail(ErrorCode::kInvalidInput, "optimizer.{}: optimizer '{}' has no such setting (it has beta1)",
                spec.momentum > 0 ? "momentum" : "nesterov", spec.name);
  }
  if (spec.nesterov && spec.momentum == 0) {
    return fail(ErrorCode::kInvalidInput, "optimizer.nesterov: needs optimizer.momentum above 0");
  }
  if (!(spec.beta1 >= 0 && spec.beta1 < 1)) {
    return refuse("beta1", spec.beta1, "0 <= beta1 < 1");
  }
  if (!(spec.beta2 >= 0 && spec.beta2 < 1)) {
    return refuse("beta2", spec.beta2, "0 <= beta2 < 1");
  }
  if (!(spec.epsilon > 0)) {
    return refuse("epsilon", spec.epsilon, "numbers above 0");
  }
  return {};
}

Result<std::unique_ptr<Optimizer>> Optimizer::create(const OptimizerSpec& spec, NamedTensors parameters) {
  MOTLEY_TRY(check_optimizer(spec));
  using torch::optim::AdamOptions;
  using torch::optim::AdamWOptions;
  using torch::optim::SGDOptions;
  return catch_torch(ErrorCode::kInternal, "creating the optimizer", [&]() -> std::unique_ptr<Optimizer> {
    const auto betas = std::make_tuple(spec.beta1, spec.beta2);
    if (spec.name == "sgd") {
      return std::make_unique<TorchOptimizer<SgdTraits>>(std::move(parameters), SGDOptions(spec.learning_rate)
                                                                                    .momentum(spec.momentum)
                                                                                    .nesterov(spec.nesterov)
                                                                                    .weight_decay(spec.weight_decay));
    }
    if (spec.name == "adam") {
      using Traits = AdamTraits<torch::optim::Adam, torch::optim::AdamParamState>;
      return std::make_unique<TorchOptimizer<Traits>>(
          std::move(parameters),
          AdamOptions(spec.learning_rate).betas(betas).eps(spec.epsilon).weight_decay(spec.weight_decay));
    }
    using Traits = AdamTraits<torch::optim::AdamW, torch::optim::AdamWParamState>;
    return std::make_unique<TorchOptimizer<Traits>>(
        std::move(parameters),
        AdamWOptions(spec.learning_rate).betas(betas).eps(spec.epsilon).weight_decay(spec.weight_decay));
  });
}

Result<double> gradient_norm(const NamedTensors& parameters) {
  auto norm = catch_torch(ErrorCode::kInternal, "measuring the gradients", [&] {
    Tensors norms;
    for (const NamedTensor& parameter : parameters) {
      if (parameter.tensor.grad().defined()) {
        norms.push_back(torch::linalg_vector_norm(parameter.tensor.grad()));
      }
    }
    return norms.empty() ? 0.0 : torch::linalg_vector_norm(torch::stack(norms)).item<double>();
  });
  if (!norm) {
    return norm;
  }
  if (!std::isfinite(*norm)) {
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
  return norm;
}

Status scale_gradients(const NamedTensors& parameters, double factor) {
  return catch_torch(ErrorCode::kInternal, "scaling the gradients", [&] {
    for (const NamedTensor& parameter : parameters) {
      if (parameter.tensor.grad().defined()) {
        parameter.tensor.grad().mul_(factor);
      }
    }
  });
}

}  // namespace motley::nn
