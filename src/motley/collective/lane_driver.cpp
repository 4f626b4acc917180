// The two threads' turns.
#include "motley/collective/lane_driver.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include "motley/base/os/file.h"
#include "motley/collective/waiting.h"

namespace motley::collective {
namespace {

constexpr int kPollMilliseconds = 20;
constexpr double kSpinSeconds = 50e-6;
// The helper is woken for a bucket only if the worker left it alone for longer than this the last time.
constexpr double kWorthHelping = 100e-6;

}  // namespace

LaneDriver::~LaneDriver() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    if (doorbell_ >= 0) eventfd_write(doorbell_, 1);
  }
  wake_.notify_all();
  if (helper_.joinable()) helper_.join();
  if (doorbell_ >= 0) ::close(doorbell_);
}

Status LaneDriver::begin(bool may_spin, bool with_helper) {
  may_spin_ = may_spin;
  with_helper_ = with_helper;
  if (with_helper) {
    doorbell_ = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (doorbell_ < 0) return fail(ErrorCode::kIo, "cannot make an eventfd: {}", errno_text());
    helper_ = std::thread([this] { help(); });
  }
  return {};
}

std::unique_lock<std::mutex> LaneDriver::lock() {
  ++knocking_;
  std::unique_lock lock(mutex_);
  --knocking_;
  return lock;
}

void LaneDriver::started(Patience& patience) {
  if (!with_helper_) return;
  patience.started_at = monotonic_seconds();
  helping_ = helping_ || patience.left_alone > kWorthHelping;
  if (helping_ && helper_polls_) eventfd_write(doorbell_, 1);
  if (helping_ && !helper_polls_) wake_.notify_one();
}

void LaneDriver::break_with(const Error& error) {
  if (!broken_) broken_ = error;
}

Status LaneDriver::status() const {
  if (broken_) return fail(*broken_);
  return {};
}

void LaneDriver::fail_advance(std::unique_lock<std::mutex>& lock, const Error& error, const std::string& operation) {
  lock.unlock();
  const Error cause = cause_of(session_, error);
  lock.lock();
  break_with(operation.empty() ? cause : cause.within(operation));
}

Status LaneDriver::wait(std::unique_lock<std::mutex>& lock, Patience& patience, const Deadline& deadline,
                        const Wait& what) {
  if (with_helper_) patience.left_alone = monotonic_seconds() - patience.started_at;
  waiting_ = true;
  std::vector<pollfd> descriptors;
  double moved_at = monotonic_seconds();
  while (!broken_ && !what.done()) {
    const auto moved = lanes_.advance();
    if (!moved) {
      fail_advance(lock, moved.error(), what.operation());
      break;
    }
    const double now = monotonic_seconds();
    if (*moved) moved_at = now;
    if (now < deadline.at() && (*moved || (may_spin_ && now < moved_at + kSpinSeconds))) continue;
    if (const Status fine = check_wait(session_, deadline, what.operation(), what.ranks); !fine) {
      break_with(fine.error());
      break;
    }
    descriptors.clear();
    lanes_.list_descriptors(descriptors);
    lock.unlock();
    ::poll(descriptors.data(), descriptors.size(), kPollMilliseconds);
    lock.lock();
    moved_at = 0;
  }
  waiting_ = false;
  helping_ = helping_ && !broken_ && !lanes_.idle();
  if (helping_) wake_.notify_one();
  return status();
}

void LaneDriver::help() {
  std::vector<pollfd> descriptors;
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stop_ || (helping_ && !waiting_ && !broken_); });
    if (stop_) return;
    const auto moved = lanes_.advance();
    if (!moved) {
      fail_advance(lock, moved.error(), "");
      continue;
    }
    if (lanes_.idle()) {
      helping_ = false;
      continue;
    }
    if (*moved) {
      // A thread that wants to wait or to start gets its turn.
      lock.unlock();
      while (knocking_ > 0) std::this_thread::yield();
      lock.lock();
      continue;
    }
    descriptors.clear();
    lanes_.list_descriptors(descriptors);
    descriptors.push_back({doorbell_, POLLIN, 0});
    helper_polls_ = true;
    lock.unlock();
    ::poll(descriptors.data(), descriptors.size(), kPollMilliseconds);
    lock.lock();
    helper_polls_ = false;
    eventfd_t rung;
    eventfd_read(doorbell_, &rung);
  }
}

}  // namespace motley::collective
