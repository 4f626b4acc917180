#include "motley/train/step/network_state.h"

#include <map>
#include <unordered_set>

#include "motley/base/os/file.h"
#include "motley/train/job/servers.h"
#include "motley/train/step/tensor_file.h"
#include "motley/train/worker/job_parts.h"

namespace motley::train {
namespace {

// Leaves the tensors that this rank has, too; of an optimizer's state ("<name>.<field>") those of its parameters.
void keep_own(nn::NamedTensors& all, const nn::NamedTensors& own, bool of_optimizer) {
  std::unordered_set<std::string> names;
  for (const nn::NamedTensor& tensor : own) names.insert(tensor.name);
  std::erase_if(all, [&](const nn::NamedTensor& tensor) {
    return !names.contains(of_optimizer ? tensor.name.substr(0, tensor.name.rfind('.')) : tensor.name);
  });
}

}  // namespace

NetworkState::NetworkState(const Parts& parts) : parts_(parts) {
  if (parts.layout == nullptr) return;
  for (int stage = 0; stage < parts.layout->stages(); ++stage)
    givers_.push_back(parts.layout->list_ranks(stage).front());
}

Status NetworkState::hand_to(NetworkState& other) const {
  MOTLEY_TRY(other.parts_.network.stage->load_state(parts_.network.stage->state()));
  MOTLEY_ASSIGN(const nn::NamedTensors optimizer, parts_.sync.optimizer_state(parts_.context.long_deadline()));
  return other.parts_.sync.load_optimizer_state(optimizer);
}

// What those who give it have, put together; complete on rank 0 and nowhere else.
Result<std::string> NetworkState::collect(std::int64_t step, const std::function<Result<nn::NamedTensors>()>& own) {
  const Deadline deadline = parts_.context.long_deadline();
  const std::map<std::string, std::string> metadata = {{"format", "pt"}, {"step", std::to_string(step)}};
  nn::NamedTensors all;
  const auto add = [&](const nn::NamedTensors& tensors) {
    for (const nn::NamedTensor& tensor : tensors) {
      if (std::ranges::find(all, tensor.name, &nn::NamedTensor::name) == all.end()) all.push_back(tensor);
    }
  };
  for (const int root : givers_.empty() ? std::vector{parts_.context.writer} : givers_) {
    nn::NamedTensors tensors;
    if (root == parts_.context.rank) {
      MOTLEY_ASSIGN(tensors, own());
      tensors = parts_.sync.without_copies(std::move(tensors));
    }
    if (root == parts_.context.writer) {
      add(tensors);
      continue;
    }
    std::string text;
    if (root == parts_.context.rank) {
      MOTLEY_ASSIGN(text, encode_tensors(tensors));
    }
    MOTLEY_ASSIGN(text, broadcast_text(parts_.context.group, std::move(text), root, deadline));
    if (parts_.context.writes()) {
      MOTLEY_ASSIGN(const TensorFile part, decode_tensors(text));
      add(part.tensors);
    }
  }
  return parts_.context.writes() ? encode_tensors(all, metadata) : std::string();
}

Result<std::string> NetworkState::weights(std::int64_t step) {
  return collect(step, [&]() -> Result<nn::NamedTensors> {
    if (!parts_.network.is_synthetic) MOTLEY_TRY(nn::check_weights(parts_.network.stage->parameters()));
    return parts_.sync.state_after_step();
  });
}

Result<std::string> NetworkState::optimizer(std::int64_t step) {
  return collect(step, [&] { return parts_.sync.optimizer_state(parts_.context.long_deadline()); });
}

Status NetworkState::load_weights(const std::string& text) {
  MOTLEY_ASSIGN(TensorFile weights, decode_tensors(text));
  if (parts_.layout != nullptr) keep_own(weights.tensors, parts_.network.stage->state(), false);
  return parts_.network.stage->load_state(weights.tensors);
}

Status NetworkState::load_optimizer(const std::string& text) {
  MOTLEY_ASSIGN(TensorFile state, decode_tensors(text));
  if (parts_.layout != nullptr) keep_own(state.tensors, parts_.network.stage->parameters(), true);
  return parts_.sync.load_optimizer_state(state.tensors);
}

Status NetworkState::start(std::int64_t step, int embedding_servers) {
  const Deadline deadline = parts_.context.long_deadline();
  if (parts_.network.lookups && parts_.network.lookups->served) {
    if (step > 0 && embedding_servers == 0) {
      return fail(
          ErrorCode::kInvalidInput,
          "embedding.placement: server; the checkpoint to go on from was written without rows on servers; accepted: "
          "worker");
    }
    MOTLEY_ASSIGN(auto servers, read_servers(parts_.job));
    MOTLEY_ASSIGN(auto table, ServedTable::open(parts_.job, *parts_.network.lookups, parts_.network.device,
                                                std::move(servers), parts_.peers, {step, embedding_servers}, deadline));
    parts_.tensors.look_up_in(std::move(table));
  }
  return parts_.sync.serve_weights(make_optimizer_spec(parts_.job), deadline);
}

// Where each rank takes the optimizer's step itself, replicas are bitwise the same where they round alike: with the
// same build of libtorch, the same kind of device and the same instructions. How an accelerator adds up a norm, with
// which gradients are clipped, also depends on how many cores it has.
Result<WeightsHash> NetworkState::hash_weights() const {
  const LocalNetwork& network = parts_.network;
  const bool takes_step = !parts_.sync.is_served();
  const bool depends_on_cores =
      takes_step && !network.device.is_cpu() && parts_.layout == nullptr && parts_.job.max_grad_norm > 0;
  WeightsHash own;
  if (parts_.sync.is_async() || network.is_synthetic || depends_on_cores) return own;
  own.replicas =
      parts_.layout == nullptr ? 1 : 1 + static_cast<std::uint32_t>(parts_.layout->find_stage(parts_.context.rank));
  own.arithmetic = 1;
  if (takes_step) own.arithmetic += crc32c(at::show_config() + c10::DeviceTypeName(network.device.type())) / 2;
  return nn::catch_torch(ErrorCode::kInternal, "reading the weights", [&] {
    for (const nn::NamedTensor& parameter : network.stage->parameters()) {
      const torch::Tensor values = parameter.tensor.detach().cpu().contiguous();
      own.hash = crc64({static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()}, own.hash);
    }
    return own;
  });
}

}  // namespace motley::train
