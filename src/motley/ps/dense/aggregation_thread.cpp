// What a bucket's announcements say together, and the loop of a core.
#include "motley/ps/dense/aggregation_thread.h"

#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>

#include <bit>
#include <chrono>

#include "motley/base/os/signals.h"
#include "motley/net/socket.h"

namespace motley::ps {
namespace {

constexpr double kSpinSeconds = 50e-6;
constexpr int kSleepMilliseconds = 100;
constexpr double kWaitSeconds = 0.1;     // for requests to be taken, before another look at how long it has been
constexpr int kTurnsBetweenSockets = 8;  // while there is other work

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

std::optional<collective::Mean> AggregationTask::weigh(std::size_t bucket, std::span<const Announcement> announced,
                                                       std::span<const int> ranks) {
  const auto rank_at = [&](std::size_t at) { return ranks.empty() ? static_cast<int>(at) : ranks[at]; };
  const Announcement& first = announced[0];
  std::vector<double> weights;
  for (std::size_t at = 0; at < announced.size(); ++at) {
    const Announcement& it = announced[at];
    if (it.step != first.step || it.learning_rate != first.learning_rate || it.update != first.update ||
        std::bit_cast<std::uint64_t>(it.factor) != std::bit_cast<std::uint64_t>(first.factor) || !(it.weight >= 0)) {
      give_up(Error{ErrorCode::kInvalidInput,
                    fmt::format("bucket {}: rank {} is at step {} with learning rate {} and weight {}, rank {} at step "
                                "{} with learning rate {}",
                                bucket, rank_at(at), it.step, it.learning_rate, it.weight, rank_at(0), first.step,
                                first.learning_rate),
                    rank_at(at)});
      return std::nullopt;
    }
    weights.push_back(it.weight);
  }
  return collective::weighted_mean(weights);
}

Result<bool> AggregationTask::transfer(std::size_t channel) {
  net::Connection& connection = *channels_[channel];
  MOTLEY_ASSIGN(const bool moved, connection.progress());
  if (connection.pending_receives() > 0) return moved;
  if (!reads(channel)) {
    if (!net::wait_for(connection.descriptor(), POLLRDHUP, 0)) return moved;
    return fail(ErrorCode::kPeerLost, "{}: it closed its connection", connection.peer_name());
  }
  MOTLEY_ASSIGN(const auto message, connection.try_receive());
  if (!message) return moved;
  return fail(ErrorCode::kCorrupt, "{}: it sent a frame of type {:#x} and {} bytes that nobody expects",
              connection.peer_name(), message->header.type, message->header.length);
}

AggregationThread::AggregationThread(std::optional<int> pinned_to, const std::atomic<bool>& spins,
                                     ThreadMetrics& metrics)
    : spins_(spins), metrics_(metrics), wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  thread_ = start_thread([this] { run(); });
  if (pinned_to) {
    cpu_set_t processors;
    CPU_ZERO(&processors);
    CPU_SET(*pinned_to, &processors);
    pthread_setaffinity_np(thread_.native_handle(), sizeof(processors), &processors);
  }
}

AggregationThread::~AggregationThread() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    requested_ = true;
  }
  ::eventfd_write(wake_.get(), 1);
  thread_.join();
}

void AggregationThread::request(Request request) {
  {
    const std::lock_guard lock(mutex_);
    requests_.push_back(std::move(request));
    requested_ = true;
  }
  ::eventfd_write(wake_.get(), 1);
}

bool AggregationThread::remove_now(std::uint64_t job, double seconds) {
  remove(job);
  std::unique_lock lock(mutex_);
  bool is_taken = false;
  for (double waited = 0; !is_taken && waited < seconds; waited += kWaitSeconds) {  // a stop of the process counts once
    is_taken = taken_.wait_for(lock, std::chrono::duration<double>(kWaitSeconds), [this] { return requests_.empty(); });
  }
  return is_taken;
}

void AggregationThread::take_requests() {
  const std::lock_guard lock(mutex_);
  for (Request& request : requests_) {
    if (request.task) {
      tasks_[request.job] = std::move(request.task);
      turns_.add(request.job, request.tenant, request.weight);
    } else {
      tasks_.erase(request.job);
      turns_.remove(request.job);
    }
  }
  requests_.clear();
  requested_ = false;
  taken_.notify_all();
}

// Reads and writes what sockets allow, waiting for the first so long.
void AggregationThread::serve_sockets(int milliseconds) {
  polled_.assign(1, {wake_.get(), POLLIN, 0});
  owners_.clear();
  bool has_input = false;
  for (const auto& [job, task] : tasks_) {
    for (std::size_t rank = 0; rank < task->channels().size(); ++rank) {
      if (task->ended(rank)) continue;
      const net::Connection& channel = *task->channels()[rank];
      const bool reads = task->reads(rank);
      const int events = (reads ? POLLIN : POLLRDHUP) | (channel.wants_to_write() ? POLLOUT : 0);
      polled_.push_back({channel.descriptor(), static_cast<short>(events), 0});
      owners_.emplace_back(task.get(), rank);
      has_input = has_input || (reads && channel.has_input());
    }
  }
  if (::poll(polled_.data(), polled_.size(), has_input ? 0 : milliseconds) <= 0 && !has_input) return;
  const double began = monotonic_seconds();
  if (polled_[0].revents != 0) {
    eventfd_t count = 0;
    ::eventfd_read(wake_.get(), &count);
  }
  for (std::size_t i = 0; i < owners_.size(); ++i) {
    const auto [task, rank] = owners_[i];
    const bool has_more = task->reads(rank) && task->channels()[rank]->has_input();
    if (polled_[i + 1].revents != 0 || has_more) task->progress(rank);
  }
  metrics_.busy.add(monotonic_seconds() - began);
}

void AggregationThread::run() {
  double worked_at = 0;
  for (int turn = 0;; ++turn) {
    if (requested_) {
      take_requests();
      const std::lock_guard lock(mutex_);
      if (stop_) return;
    }
    const double began = monotonic_seconds();
    turned_at_.store(began, std::memory_order_relaxed);
    if (turns_.take([&](std::uint64_t job) { return tasks_.at(job)->advance(); })) {
      metrics_.busy.add(monotonic_seconds() - began);
      worked_at = 0;
      if (turn % kTurnsBetweenSockets == 0) serve_sockets(0);
      continue;
    }
    if (spins_) {
      if (worked_at == 0) worked_at = began;
      if (began < worked_at + kSpinSeconds) {
        relax();
        if (turn % kTurnsBetweenSockets == 0) serve_sockets(0);
        continue;
      }
    }
    bool idle = true;
    for (const auto& [job, task] : tasks_) idle = task->fall_asleep() && idle;
    if (idle) serve_sockets(kSleepMilliseconds);
    for (const auto& [job, task] : tasks_) task->wake_up();
    worked_at = 0;
  }
}

}  // namespace motley::ps
