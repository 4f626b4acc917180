#include "motley/train/step/network_state.h"

#include <map>
#include <unordered_set>

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

// What each stage's first rank has, put together; complete on rank 0 and nowhere else.
Result<std::string> NetworkState::collect(std::int64_t step, const std::function<Result<nn::NamedTensors>()>& own) {
  const Deadline deadline = parts_.context.long_deadline();
  const std::map<std::string, std::string> metadata = {{"format", "pt"}, {"step", std::to_string(step)}};
  nn::NamedTensors all;
  for (int stage = 0; stage < (parts_.layout != nullptr ? parts_.layout->stages() : 1); ++stage) {
    const int root = parts_.layout != nullptr ? parts_.layout->list_ranks(stage).front() : parts_.context.writer;
    nn::NamedTensors tensors;
    if (root == parts_.context.rank) {
      MOTLEY_ASSIGN(tensors, own());
      tensors = parts_.sync.without_copies(std::move(tensors));
    }
    if (root == parts_.context.writer) {
      all.insert(all.end(), tensors.begin(), tensors.end());
      continue;
    }
    std::string text;
    if (root == parts_.context.rank) {
      MOTLEY_ASSIGN(text, encode_tensors(tensors));
    }
    MOTLEY_ASSIGN(text, broadcast_text(parts_.context.group, std::move(text), root, deadline));
    if (parts_.context.writes()) {
      MOTLEY_ASSIGN(const TensorFile part, decode_tensors(text));
      all.insert(all.end(), part.tensors.begin(), part.tensors.end());
    }
  }
  return parts_.context.writes() ? encode_tensors(all, metadata) : std::string();
}

Result<std::string> NetworkState::weights(std::int64_t step) {
  return collect(step, [&]() -> Result<nn::NamedTensors> {
    if (!parts_.network.is_synthetic) MOTLEY_TRY(nn::check_weights(parts_.network.stage->parameters()));
    return parts_.network.stage->state();
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
    MOTLEY_ASSIGN(auto table, ServedTable::open(parts_.job, *parts_.network.lookups, std::move(servers), parts_.peers,
                                                {step, embedding_servers}, deadline));
    parts_.tensors.look_up_in(std::move(table));
  }
  return parts_.sync.serve_weights(make_optimizer_spec(parts_.job), deadline);
}

}  // namespace motley::train
