// The network's weights and the optimizer's state on their way from the rank that writes the run's files to ranks that
// have just joined, by a thread of its own, while all of them train.
#pragma once

#include <atomic>
#include <memory>
#include <thread>

#include "motley/base/clock.h"
#include "motley/collective/gradient_reducer.h"
#include "motley/train/checkpoint/checkpoint.h"

namespace motley::train {

class StateTransfer {
 public:
  // `group`: of the writer, its `root`, and those who have joined. `state`: what the writer sends; the others' is
  // empty. Ends where the ranks change. `rank`: this one, of the job.
  StateTransfer(std::unique_ptr<collective::Group> group, int root, Checkpoint state, int rank,
                const Deadline& deadline);
  ~StateTransfer();  // waits until it is over
  StateTransfer(const StateTransfer&) = delete;
  StateTransfer& operator=(const StateTransfer&) = delete;

  bool is_over() const { return is_over_; }
  // Waits until it is over. What has arrived, once.
  Result<Checkpoint> take();

 private:
  void run(int root, int rank, const Deadline& deadline);

  const std::unique_ptr<collective::Group> group_;
  Checkpoint state_;
  Status outcome_;
  std::atomic<bool> is_over_ = false;
  std::thread thread_;
};

}  // namespace motley::train
