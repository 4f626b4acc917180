#include "motley/train/step/network_state.h"

#include <map>
#include <unordered_set>

#include "motley/train/job/servers.h"
#include "motley/train/step/tensor_file.h"

namespace motley::train {
namespace {

// The tensors of these names; of an optimizer's state ("<name>.<field>") those of these parameters.
nn::NamedTensors select_tensors(const nn::NamedTensors& wanted, const nn::NamedTensors& all, bool of_optimizer) {
  std::unordered_set<std::string> names;
  for (const nn::NamedTensor& tensor : wanted) {
    names.insert(tensor.name);
  }
  nn::NamedTensors found;
  for (const nn::NamedTensor& tensor : all) {
    if (names.contains(of_optimizer ? tensor.name.substr(0, tensor.name.rfind('.')) : tensor.name)) {
      found.push_back(tensor);
    }
  }
  return found;
}

}  // namespace

// What each stage's first rank has, put together; complete on rank 0 and nowhere else.
Result<std::string> NetworkState::collect(std::int64_t step, const std::function<Result<nn::NamedTensors>()>& own) {
  const Deadline deadline = context_.long_deadline();
  const std::map<std::string, std::string> metadata = {{"format", "pt"}, {"step", std::to_string(step)}};
  const StageLayout* layout = options_.layout;
  nn::NamedTensors all;
  for (int stage = 0; stage < (layout != nullptr ? layout->stages() : 1); ++stage) {
    const int root = layout != nullptr ? layout->list_ranks(stage).front() : 0;
    nn::NamedTensors tensors;
    if (root == context_.rank) {
      MOTLEY_ASSIGN(tensors, own());
      tensors = sync_.without_copies(std::move(tensors));
    }
    if (root == 0) {
      all.insert(all.end(), tensors.begin(), tensors.end());
      continue;
    }
    std::string text;
    if (root == context_.rank) {
      MOTLEY_ASSIGN(text, encode_tensors(tensors));
    }
    MOTLEY_ASSIGN(text, broadcast_text(context_.group, std::move(text), root, deadline));
    if (context_.writes()) {
      MOTLEY_ASSIGN(const TensorFile part, decode_tensors(text));
      all.insert(all.end(), part.tensors.begin(), part.tensors.end());
    }
  }
  return context_.writes() ? encode_tensors(all, metadata) : std::string();
}

Result<std::string> NetworkState::weights(std::int64_t step) {
  return collect(step, [&]() -> Result<nn::NamedTensors> { return network_.stage->state(); });
}

Result<std::string> NetworkState::optimizer(std::int64_t step) {
  return collect(step, [&] { return sync_.optimizer_state(context_.long_deadline()); });
}

Status NetworkState::load_weights(const std::string& text) {
  MOTLEY_ASSIGN(TensorFile weights, decode_tensors(text));
  if (options_.layout != nullptr) {
    weights.tensors = select_tensors(network_.stage->state(), weights.tensors, false);
  }
  return network_.stage->load_state(weights.tensors);
}

Status NetworkState::load_optimizer(const std::string& text) {
  MOTLEY_ASSIGN(TensorFile state, decode_tensors(text));
  if (options_.layout != nullptr) {
    state.tensors = select_tensors(network_.stage->parameters(), state.tensors, true);
  }
  return sync_.load_optimizer_state(state.tensors);
}

Status NetworkState::start(std::int64_t step, int embedding_servers) {
  const Deadline deadline = context_.long_deadline();
  MOTLEY_TRY(open_table({step, embedding_servers}, deadline));
  return sync_.serve_weights(options_.rule, deadline);
}

// The rows that the samples look up, where servers have them.
Status NetworkState::open_table(const ServedTable::Start& start, const Deadline& deadline) {
  if (!network_.lookups || !network_.lookups->served) {
    return {};
  }
  if (start.step > 0 && start.written_by == 0) {
    return fail(
        ErrorCode::kInvalidInput,
        "embedding.placement: server; the checkpoint to go on from was written without rows on servers; accepted: "
        "worker");
  }
  MOTLEY_ASSIGN(auto servers, read_servers(job_));
  MOTLEY_ASSIGN(auto table, ServedTable::open(job_, *network_.lookups, std::move(servers), peers_, start, deadline));
  tensors_.look_up_in(std::move(table));
  return {};
}

}  // namespace motley::train
