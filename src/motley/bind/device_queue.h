// Operations of a communicator on tensors of accelerators, which take part by copies in this machine's memory: an
// operation starts once its inputs have come from the device, and never before one that was asked for earlier, so that
// all ranks start the same operations in the same order wherever their tensors are.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "motley/bind/pinned_blocks.h"
#include "motley/collective/communicator.h"
#include "motley/nn/gradients/device_copy.h"

namespace motley::bind {

class DeviceQueue {
 public:
  // The communicator must outlive it.
  DeviceQueue(collective::Communicator& communicator, int rank) : communicator_(communicator), rank_(rank) {}
  // Once all that was asked for has started.
  ~DeviceQueue();
  DeviceQueue(const DeviceQueue&) = delete;
  DeviceQueue& operator=(const DeviceQueue&) = delete;

  // Copies from and to a device that is not the CPU. Any thread.
  Result<nn::DeviceCopies> copies(at::Device device);
  // Memory of this machine for a contiguous tensor of such a device, not initialised: pinned, and where the
  // communicator has memory from which and into which it copies nothing, there. Any thread; so is the one that lets it
  // go.
  Result<at::Tensor> memory(const at::Tensor& tensor);

  // Starts an operation once its inputs are there: at once where there are none and nothing is waited for. Inputs that
  // do not come in its time, or not at all, end the communicator with an error that says so. Never blocks. Any thread,
  // one at a time where the order matters.
  void start(collective::Collective what, std::vector<nn::DeviceCopies::Arriving> inputs);

 private:
  struct Waiting {
    collective::Collective what;
    std::vector<nn::DeviceCopies::Arriving> inputs;
  };

  void run();
  Status wait(Waiting& waiting) const;

  collective::Communicator& communicator_;
  const int rank_;
  std::mutex mutex_;  // guards all below
  std::condition_variable wake_;
  std::unordered_map<at::Device, nn::DeviceCopies> copies_;
  std::unordered_map<at::Device, std::shared_ptr<PinnedBlocks>> blocks_;
  std::deque<Waiting> queue_;  // the oldest stays until it has started
  bool ending_ = false;
  std::thread thread_;  // from the first operation that waits
};

}  // namespace motley::bind
