#include "motley/bind/device_queue.h"

#include <chrono>

#include "motley/base/os/signals.h"

namespace motley::bind {

// A look at the device takes a microsecond; to be woken by it would keep a core busy.
constexpr auto kGlance = std::chrono::microseconds(50);
// Below this, a copy within the machine's memory takes less time than it is worth.
constexpr std::size_t kSharedBytes = 64 << 10;

DeviceQueue::~DeviceQueue() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

Result<nn::DeviceCopies> DeviceQueue::copies(at::Device device) {
  const std::lock_guard lock(mutex_);
  if (const auto found = copies_.find(device); found != copies_.end()) return found->second;
  MOTLEY_ASSIGN(const nn::DeviceCopies made, nn::DeviceCopies::create(device));
  return copies_.emplace(device, made).first->second;
}

Result<at::Tensor> DeviceQueue::memory(const at::Tensor& tensor) {
  MOTLEY_ASSIGN(const nn::DeviceCopies copies, this->copies(tensor.device()));
  if (communicator_.allocates() && tensor.nbytes() >= kSharedBytes) {
    std::shared_ptr<PinnedBlocks> blocks;
    {
      const std::lock_guard lock(mutex_);
      std::shared_ptr<PinnedBlocks>& found = blocks_[tensor.device()];
      if (!found) found = std::make_shared<PinnedBlocks>(copies);
      blocks = found;
    }
    if (auto shared = PinnedBlocks::take(blocks, communicator_, tensor)) return shared;
  }
  return copies.host_memory(tensor.sizes(), tensor.scalar_type());
}

void DeviceQueue::start(collective::Collective what, std::vector<nn::DeviceCopies::Arriving> inputs) {
  {
    const std::lock_guard lock(mutex_);
    if (queue_.empty() && inputs.empty()) {
      communicator_.start(std::move(what));
      return;
    }
    queue_.push_back({std::move(what), std::move(inputs)});
    if (!thread_.joinable()) thread_ = start_thread([this] { run(); });
  }
  wake_.notify_one();
}

void DeviceQueue::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return ending_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Waiting& oldest = queue_.front();
    lock.unlock();
    if (const Status come = wait(oldest); !come) {
      communicator_.abort({come.error().code, fmt::format("rank {}: {}", rank_, come.error().message), rank_});
    }
    communicator_.start(std::move(oldest.what));
    oldest.inputs.clear();
    lock.lock();
    queue_.pop_front();
  }
}

Status DeviceQueue::wait(Waiting& waiting) const {
  const Deadline deadline = Deadline::after(waiting.what.seconds);
  for (nn::DeviceCopies::Arriving& input : waiting.inputs) {
    for (;;) {
      MOTLEY_ASSIGN(const bool has_come, input.has_come());
      if (has_come || !communicator_.health()) break;
      if (deadline.passed()) {
        return fail(ErrorCode::kTimeout, "{}: the device has not computed its values after {:.3g} s",
                    to_string(waiting.what.kind), waiting.what.seconds);
      }
      std::this_thread::sleep_for(kGlance);
    }
  }
  return {};
}

}  // namespace motley::bind
