#include "motley/nn/loss.h"

namespace motley::nn {

Result<Loss> parse_loss(const std::string& text) {
  for (const Loss loss : {Loss::kCrossEntropy, Loss::kBce, Loss::kMse}) {
    if (text == to_string(loss)) {
      return loss;
    }
  }
  return fail(ErrorCode::kInvalidInput, "loss: '{}' is not known; accepted: cross-entropy, bce, mse", text);
}

const char* to_string(Loss loss) {
  switch (loss) {
    case Loss::kCrossEntropy:
      return "cross-entropy";
    case Loss::kBce:
      return "bce";
    case Loss::kMse:
      break;
  }
  return "mse";
}

namespace {

Status check_shapes(Loss loss, const torch::Tensor& outputs, const torch::Tensor& targets) {
  if (outputs.dim() == 0 || targets.dim() == 0 || outputs.size(0) != targets.size(0) || outputs.numel() == 0) {
    return fail(ErrorCode::kInvalidInput, "loss {}: outputs of shape {} do not fit targets of shape {}",
                to_string(loss), format_shape(outputs.sizes()), format_shape(targets.sizes()));
  }
  if (loss == Loss::kCrossEntropy) {
    if (outputs.dim() < 2 || targets.numel() * outputs.size(-1) != outputs.numel() || targets.is_floating_point()) {
      return fail(ErrorCode::kInvalidInput,
                  "loss cross-entropy: needs outputs [samples x classes] and one whole number a sample as target, or "
                  "[samples x positions x classes] and one a position; given: outputs {}, targets {} {}",
                  format_shape(outputs.sizes()), c10::toString(targets.scalar_type()), format_shape(targets.sizes()));
    }
  } else if (outputs.numel() != targets.numel()) {
    return fail(ErrorCode::kInvalidInput,
                "loss {}: needs as many targets as outputs a sample; given: outputs {}, targets {} (is model.outputs "
                "right?)",
                to_string(loss), format_shape(outputs.sizes()), format_shape(targets.sizes()));
  }
  return {};
}

// The mean over the samples; throws what libtorch throws, also for a class that does not exist.
torch::Tensor mean_loss(Loss loss, const torch::Tensor& outputs, const torch::Tensor& targets) {
  namespace functional = torch::nn::functional;
  switch (loss) {
    case Loss::kCrossEntropy:
      return functional::cross_entropy(outputs.flatten(0, -2),
                                       targets.reshape({-1}).to(outputs.device(), torch::kInt64));
    case Loss::kBce:
      return functional::binary_cross_entropy_with_logits(outputs, targets.to(outputs.options()).view_as(outputs));
    case Loss::kMse:
      break;
  }
  return functional::mse_loss(outputs, targets.to(outputs.options()).view_as(outputs));
}

torch::Tensor widened(const torch::Tensor& outputs) {
  return outputs.scalar_type() == torch::kFloat64 ? outputs.detach() : outputs.detach().to(torch::kFloat32);
}

}  // namespace

Result<LossOutcome> compute_loss(Loss loss, const torch::Tensor& outputs, const torch::Tensor& targets,
                                 double divisor) {
  MOTLEY_TRY(check_shapes(loss, outputs, targets));
  return catch_torch(ErrorCode::kInvalidInput, fmt::format("loss {}", to_string(loss)), [&] {
    const double samples = static_cast<double>(outputs.size(0));
    const torch::Tensor leaf = widened(outputs).requires_grad_();
    const torch::Tensor mean = mean_loss(loss, leaf, targets);
    const torch::Tensor scale = torch::full({}, samples / divisor, mean.options());
    return LossOutcome{mean.detach().to(torch::kFloat64) * samples, samples,
                       torch::autograd::grad({mean}, {leaf}, {scale}).front()};
  });
}

Result<torch::Tensor> loss_sum(Loss loss, const torch::Tensor& outputs, const torch::Tensor& targets) {
  MOTLEY_TRY(check_shapes(loss, outputs, targets));
  return catch_torch(ErrorCode::kInvalidInput, fmt::format("loss {}", to_string(loss)), [&] {
    const torch::NoGradGuard no_grad;
    return mean_loss(loss, widened(outputs), targets).to(torch::kFloat64) * static_cast<double>(outputs.size(0));
  });
}

}  // namespace motley::nn
