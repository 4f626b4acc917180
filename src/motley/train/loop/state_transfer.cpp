#include "motley/train/loop/state_transfer.h"

#include "motley/base/os/injected_fault.h"
#include "motley/base/os/signals.h"
#include "motley/train/loop/step.h"

namespace motley::train {

StateTransfer::StateTransfer(std::unique_ptr<collective::Group> group, int root, Checkpoint state, int rank,
                             const Deadline& deadline)
    : group_(std::move(group)), state_(std::move(state)) {
  thread_ = start_thread([this, root, rank, deadline] { run(root, rank, deadline); });
}

StateTransfer::~StateTransfer() {
  if (thread_.joinable()) thread_.join();
}

void StateTransfer::run(int root, int rank, const Deadline& deadline) {
  inject_fault(rank, "state transfer");
  for (const char* name : {kWeightsFile, kOptimizerFile}) {
    auto text = broadcast_text(*group_, std::move(state_.files[name]), root, deadline);
    if (!text) {
      outcome_ = fail(std::move(text.error()));
      break;
    }
    state_.files[name] = std::move(*text);
  }
  is_over_ = true;
}

Result<Checkpoint> StateTransfer::take() {
  thread_.join();
  MOTLEY_TRY(std::move(outcome_));
  return std::move(state_);
}

}  // namespace motley::train
