#include "motley/train/pipeline/tied_gradients.h"

#include <algorithm>
#include <set>

#include "motley/nn/runtime.h"

namespace motley::train {
namespace {

std::span<std::byte> gradient_bytes(const torch::Tensor& gradient) {
  return {static_cast<std::byte*>(gradient.data_ptr()), static_cast<std::size_t>(gradient.nbytes())};
}

}  // namespace

Result<std::vector<TiedParameter>> tied_parameters(const StageLayout& layout,
                                                   const std::vector<nn::SharedTensor>& shared) {
  std::vector<TiedParameter> tied;
  for (const nn::SharedTensor& tensor : shared) {
    std::vector<int> stages = layout.stages_with(tensor.layers);
    if (stages.size() == 1) continue;
    const auto refuse = [&](const std::string& why, const std::string& accepted) {
      std::vector<std::string> layers;
      for (const int layer : tensor.layers) layers.push_back(layout.plan().layers[static_cast<std::size_t>(layer)]);
      return fail(ErrorCode::kInvalidInput,
                  "layers '{}' share '{}' and are in stages {}, {}; accepted: plans that have these layers in one "
                  "stage{}",
                  fmt::join(layers, "', '"), tensor.name, fmt::join(stages, ", "), why, accepted);
    };
    if (!tensor.trained) return refuse("which share only what is trained", "");
    for (const int stage : stages) {
      if (layout.plan().stages[static_cast<std::size_t>(stage)].gradient_sync ==
          planning::GradientSync::kParameterServer) {
        return refuse(fmt::format("of which stage {} uses a parameter server", stage),
                      ", or none of these stages at a parameter server");
      }
    }
    tied.push_back({tensor.name, std::move(stages)});
  }
  return tied;
}

Result<std::unique_ptr<TiedGradients>> TiedGradients::create(net::Session& session, const StageLayout& layout,
                                                             const std::vector<TiedParameter>& tied,
                                                             const nn::NamedTensors& parameters,
                                                             const Deadline& deadline) {
  const int rank = session.membership().rank;
  const int own = layout.find_stage(rank);
  std::unique_ptr<TiedGradients> gradients(new TiedGradients(rank));
  std::set<int> peers;
  for (std::size_t number = 0; number < tied.size(); ++number) {
    const std::vector<int>& stages = tied[number].stages;
    if (std::ranges::find(stages, own) == stages.end()) continue;
    const auto parameter = std::ranges::find(parameters, tied[number].name, &nn::NamedTensor::name);
    MOTLEY_INVARIANT(parameter != parameters.end(), "stage {} has no '{}'", own, tied[number].name);
    Tied here{
        .number = number, .parameter = *parameter, .parts = {}, .receivers = {}, .is_copy = stages.front() != own};
    for (const int stage : stages) {
      if (stage == own) {
        here.parts.push_back({.stage = stage, .sender = rank, .gradient = {}});
        continue;
      }
      const int sender = layout.sender_to(rank, stage);
      here.parts.push_back({.stage = stage,
                            .sender = sender,
                            .gradient = torch::empty(parameter->tensor.sizes(), parameter->tensor.scalar_type())});
      peers.insert(sender);
      for (const int receiver : layout.list_ranks(stage)) {
        if (layout.sender_to(receiver, own) == rank) here.receivers.push_back(receiver);
      }
    }
    peers.insert(here.receivers.begin(), here.receivers.end());
    gradients->tied_.push_back(std::move(here));
  }
  if (!peers.empty()) {
    MOTLEY_ASSIGN(gradients->stage_channels_, collective::StageChannels::connect(session, {peers.begin(), peers.end()},
                                                                                 deadline, collective::kTiedPurpose));
  }
  return gradients;
}

Status TiedGradients::add_up(std::uint64_t step, const Deadline& deadline) {
  if (tied_.empty()) return {};
  for (Tied& tied : tied_) {
    const std::uint64_t tag = step << 16 | tied.number;
    for (Part& part : tied.parts) {
      if (part.sender != rank_) {
        MOTLEY_ASSIGN(part.number, stage_channels_->receive(part.sender, tag, gradient_bytes(part.gradient)));
        continue;
      }
      MOTLEY_TRY(nn::catch_torch(ErrorCode::kInternal, "copying a gradient from the device",
                                 [&] { part.gradient = tied.parameter.tensor.grad().to(torch::kCPU).contiguous(); }));
      const auto owner = std::make_shared<torch::Tensor>(part.gradient);
      for (const int receiver : tied.receivers) {
        MOTLEY_TRY(stage_channels_->send(receiver, tag, gradient_bytes(part.gradient), owner));
      }
    }
  }
  for (const Tied& tied : tied_) {
    for (const Part& part : tied.parts) {
      if (part.sender == rank_) continue;
      MOTLEY_TRY(stage_channels_->wait(part.sender, part.number, deadline, [&] {
        return fmt::format("step {}, the gradient of '{}' of stage {}", step, tied.parameter.name, part.stage);
      }));
    }
  }
  MOTLEY_TRY(stage_channels_->flush(deadline));  // what is sent is the memory that the sum may go to
  return nn::catch_torch(ErrorCode::kInternal, "adding up gradients of several stages", [&] {
    const torch::NoGradGuard no_grad;
    for (Tied& tied : tied_) {
      torch::Tensor sum = tied.parts.front().gradient;
      for (std::size_t i = 1; i < tied.parts.size(); ++i) sum.add_(tied.parts[i].gradient);
      tied.parameter.tensor.grad().copy_(sum);
    }
  });
}

nn::NamedTensors TiedGradients::without_copies(nn::NamedTensors tensors) const {
  std::erase_if(tensors, [&](const nn::NamedTensor& tensor) {
    return std::ranges::any_of(tied_, [&](const Tied& tied) {
      const std::string& name = tied.parameter.name;
      return tied.is_copy && (tensor.name == name || tensor.name.starts_with(name + "."));
    });
  });
  return tensors;
}

}  // namespace motley::train
