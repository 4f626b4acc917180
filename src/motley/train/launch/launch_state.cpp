#include "motley/train/launch/launch_state.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "motley/base/guard.h"
#include "motley/base/units.h"
#include "motley/train/checkpoint/checkpoint.h"

namespace motley::train {
namespace {

constexpr double kPartSeconds = 30;  // of an elastic run, between the first worker that is done and the last

}  // namespace

std::string way_on(const RunDirectory& run) {
  return holds_checkpoint(run.checkpoint_folder())
             ? fmt::format("continue with --resume --run-directory {}", run.folder().string())
             : fmt::format("there is no checkpoint yet: start again with --overwrite --run-directory {}",
                           run.folder().string());
}

bool LaunchState::Worker::exited_with(int code) const {
  return status && WIFEXITED(*status) && WEXITSTATUS(*status) == code;
}

bool LaunchState::Worker::was_killed() const {
  return status && WIFSIGNALED(*status);
}

bool LaunchState::Worker::was_killed_by(int signal) const {
  return was_killed() && WTERMSIG(*status) == signal;
}

bool LaunchState::Worker::has_own_error() const {
  return error && !was_interrupted() && (error->rank < 0 || error->rank == rank);
}

LaunchState::LaunchState(const LaunchRules& rules, LaunchedProcesses& processes)
    : rules_(rules), processes_(processes) {
  if (rules.min_workers == 0) return;
  count_.min_workers = rules.min_workers;
  count_.max_workers = std::max(rules.workers, rules.max_workers);
}

Status LaunchState::start() {
  for (int rank = 0; rank < rules_.workers; ++rank) MOTLEY_TRY(start_worker(rank, false));
  return {};
}

Status LaunchState::start_worker(int rank, bool is_newcomer) {
  MOTLEY_ASSIGN(const int process, processes_.start_worker(rank, is_newcomer));
  workers_.push_back({.rank = rank, .is_newcomer = is_newcomer, .process = process});
  return {};
}

void LaunchState::signal(std::size_t worker, int number) {
  if (!workers_[worker].status) processes_.signal_worker(static_cast<int>(worker), number);
}

// --- What is seen

void LaunchState::follow_end(int number, int status, std::optional<Error> error, double now) {
  Worker& ended = workers_[static_cast<std::size_t>(number)];
  ended.status = status;
  ended.error = std::move(error);
  ended.ended = now;
  const Worker worker = ended;  // as others are started below
  const bool is_clean = worker.exited_with(0) || worker.exited_with(128 + SIGINT);
  const bool has_done_all = is_clean && !worker.came_too_late();
  if (rules_.min_workers > 0 && has_done_all) end_by(now + kPartSeconds);  // so had all: one that hangs is no loss
  const bool is_awaited = MOTLEY_GUARD("launcher-newcomer-interrupted", !worker.is_newcomer);
  if (is_interrupted_ && worker.was_killed_by(SIGINT) && is_awaited) {
    kill_at_ = now;  // it had not begun: the others would wait for it in vain
  }
  if (is_clean || has_failed_ || worker.has_left()) return;
  const bool is_replaced = !is_interrupted_ && replace(worker);
  // What keeps a newcomer out ends nobody else.
  const bool is_outside = worker.is_newcomer && !worker.was_killed();
  const bool is_missed = !is_outside && !goes_on_without(worker, is_replaced);
  workers_[static_cast<std::size_t>(number)].is_missed = is_missed;
  if (!is_missed) return;
  has_failed_ = true;
  if (rules_.min_workers == 0) return end_by(now + rules_.grace_seconds);
  // Those who are left write a checkpoint first. After another one's own error they wait for nobody.
  end_by(now + rules_.stop_seconds + (worker.was_killed() ? rules_.join_seconds : 0));
}

// Another one takes a killed worker's place, while there are any.
bool LaunchState::replace(const Worker& lost) {
  if (!lost.was_killed() || killed_at_ != kNever || lost.has_notice) return false;
  if (rules_.replacements == replacements_) return false;
  ++replacements_;
  const Status started = start_worker(lost.rank, true);
  if (!started) processes_.say(fmt::format("{} is not replaced: {}", lost.name(), started.error().message));
  return started.has_value();
}

bool LaunchState::goes_on_without(const Worker& lost, bool is_replaced) {
  if (rules_.min_workers == 0 || !lost.was_killed()) return false;
  const auto is_there = [](const Worker& worker) {
    return !worker.status || (!worker.was_killed() && !worker.has_left() && !worker.came_too_late());
  };
  const auto left = std::ranges::count_if(workers_, is_there);
  const int signal = WTERMSIG(*lost.status);
  processes_.say(fmt::format("{} (process {}) was killed by signal {} ({}); {}", lost.name(), lost.process, signal,
                             ::strsignal(signal),
                             is_replaced ? std::string("another one takes its place")
                             : left == 1 ? std::string("1 worker is left")
                                         : fmt::format("{} workers are left", left)));
  return left >= rules_.min_workers;
}

// The others do not wait for a newcomer before it has joined, so they do not miss it either.
void LaunchState::follow_hang(int worker) {
  const auto number = static_cast<std::size_t>(worker);
  if (workers_[number].is_newcomer) signal(number, SIGKILL);
}

Status LaunchState::follow_server_loss(int process) {
  if (rules_.min_workers == 0 || server_restarts_ == kMaxServerRestarts) return {};
  ++server_restarts_;
  processes_.say(fmt::format("the parameter server (process {}) was lost; another one takes its place", process));
  return processes_.start_server();
}

// --- Stops

void LaunchState::stop(double now, const std::function<double()>& step_seconds) {
  if (is_interrupted_) return stop_at_once(now);
  is_interrupted_ = true;
  processes_.say("stopping after this step, with a checkpoint (again to stop at once)");
  for (std::size_t worker = 0; worker < workers_.size(); ++worker) signal(worker, SIGINT);
  end_by(now + rules_.stop_seconds + (step_seconds ? rules_.steps_to_stop * step_seconds() : 0));
}

void LaunchState::stop_at_once(double now) {
  is_interrupted_ = true;
  kill_at_ = now;
}

void LaunchState::end_by(double time) {
  kill_at_ = std::min(kill_at_, time);
}

void LaunchState::advance(double now, double wall) {
  if (now >= kill_at_ && killed_at_ == kNever) {
    killed_at_ = now;
    for (std::size_t worker = 0; worker < workers_.size(); ++worker) signal(worker, SIGKILL);
  }
  if (told_workers_ > 0 && told_workers_ != count_.workers) {
    count_.workers = told_workers_;
    count_.since = wall;
  }
  told_workers_ = 0;
  if (request_.empty() || !is_settled()) return;
  answer(running() == wanted_ ? ""
                              : fmt::format("{} of {} workers are there, as others have ended", running(), wanted_));
}

bool LaunchState::is_over() const {
  return std::ranges::all_of(workers_, [](const Worker& worker) { return worker.status.has_value(); });
}

// --- How many workers there are to be

int LaunchState::running() const {
  return static_cast<int>(std::ranges::count_if(workers_, [](const Worker& worker) { return !worker.status; }));
}

bool LaunchState::is_settled() const {
  const auto is_leaving = [](const Worker& worker) { return worker.has_notice && !worker.status; };
  return running() == count_.workers && std::ranges::none_of(workers_, is_leaving) && !is_interrupted_ && !has_failed_;
}

void LaunchState::answer(const std::string& refused) {
  count_.asked = std::exchange(request_, "");
  count_.refused = refused;
  if (!refused.empty()) processes_.say(refused);
}

void LaunchState::follow_request(const std::string& text) {
  if (text == seen_request_) return;
  request_ = seen_request_ = text;
  if (count_.max_workers == 0) return answer("workers: the job is not elastic; accepted with elastic: MIN:MAX");
  const Result<int> wanted = parse_worker_request(text, count_.min_workers, count_.max_workers);
  if (!wanted) return answer(wanted.error().message);
  wanted_ = *wanted;
  processes_.say(fmt::format("{} {} asked for, {} {} there", format_count(wanted_, "worker"),
                             wanted_ == 1 ? "is" : "are", running(), running() == 1 ? "is" : "are"));
  send_away(running() - wanted_);
  take_in(wanted_ - running());
}

void LaunchState::send_away(int count) {
  for (std::size_t worker = workers_.size(); worker-- > 0 && count > 0;) {
    if (workers_[worker].status) continue;
    workers_[worker].has_notice = true;
    signal(worker, SIGTERM);
    --count;
  }
}

void LaunchState::take_in(int count) {
  for (int rank = 0; count > 0; ++rank) {
    const auto has_place = [rank](const Worker& worker) { return worker.rank == rank && !worker.status; };
    if (MOTLEY_KEEPS("launcher-free-rank") && std::ranges::any_of(workers_, has_place)) continue;
    --count;
    if (const Status started = start_worker(rank, true); !started) return answer(started.error().message);
  }
}

// --- How it ended

bool LaunchState::was_signalled_from_here(const Worker& worker) const {
  return worker.was_killed() && (worker.ended >= killed_at_ || (is_interrupted_ && worker.was_killed_by(SIGINT)));
}

// Those whose ends say something.
std::vector<const LaunchState::Worker*> LaunchState::in_order_of_ends() const {
  std::vector<const Worker*> order;
  for (const Worker& worker : workers_) {
    const bool has_left = MOTLEY_KEEPS("launcher-left") && worker.has_left();
    const bool came_too_late = MOTLEY_KEEPS("launcher-too-late") && worker.came_too_late();
    const bool was_kept_out = worker.is_newcomer && !worker.is_missed && !worker.was_killed();
    if (!has_left && !came_too_late && !was_kept_out) order.push_back(&worker);
  }
  // All who are there may have been asked to leave, and have stopped the run then: that is no stop by a person.
  const auto is_done = [this](const Worker* worker) {
    return worker->exited_with(0) || (is_interrupted_ && worker->was_interrupted() && !worker->was_killed());
  };
  if (rules_.min_workers > 0 && std::ranges::count_if(order, is_done) >= rules_.min_workers) {
    std::erase_if(
        order, [&](const Worker* worker) { return worker->was_killed() || (worker->is_newcomer && !is_done(worker)); });
  } else if (is_interrupted_) {
    const auto is_survived = [this](const Worker* worker) {
      return worker->was_killed() && !worker->is_missed && !was_signalled_from_here(*worker);
    };
    if (!std::ranges::all_of(order, is_survived)) std::erase_if(order, is_survived);
  }
  std::ranges::stable_sort(order, {}, &Worker::ended);
  return order;
}

Status LaunchState::verdict(const RunDirectory& run) const {
  const std::vector<const Worker*> order = in_order_of_ends();
  const bool is_explained =
      rules_.min_workers > 0 && std::ranges::any_of(order, [](const Worker* one) { return one->has_own_error(); });
  for (const Worker* worker : order) {
    if (is_explained || !worker->was_killed() || was_signalled_from_here(*worker)) continue;
    const int signal = WTERMSIG(*worker->status);
    return fail(Error{ErrorCode::kPeerLost,
                      fmt::format("{} (process {}) was killed by signal {} ({}); {}", worker->name(), worker->process,
                                  signal, ::strsignal(signal), way_on(run)),
                      worker->rank});
  }
  // What other ranks say of one that a stop cut short counts for nothing.
  const bool is_cut_short =
      is_interrupted_ && std::ranges::any_of(order, [&](const Worker* one) { return was_signalled_from_here(*one); });
  std::optional<Error> about_another;
  bool all_interrupted = !order.empty();
  for (const Worker* worker : order) {
    if (worker->exited_with(0)) {
      all_interrupted = false;
      continue;
    }
    const std::optional<Error>& error = worker->error;
    if (worker->was_interrupted()) continue;
    const bool is_of_loss = !error || error->code == ErrorCode::kPeerLost || error->code == ErrorCode::kTimeout;
    if (is_cut_short && is_of_loss) continue;
    all_interrupted = false;
    if (worker->has_own_error()) {
      std::string message = error->within(worker->name()).message;
      // Too few are left: whoever reads it wants to know how to go on.
      if (error->code == ErrorCode::kPeerLost) message += "; " + way_on(run);
      return fail(Error{error->code, std::move(message), worker->rank});
    }
    if (about_another) continue;
    about_another = error ? error->within(worker->name())
                          : Error{ErrorCode::kInternal,
                                  worker->was_killed()
                                      ? worker->name() + " did not end in time and was killed"
                                      : fmt::format("{} ended with status {} and left no error; see {}", worker->name(),
                                                    WEXITSTATUS(*worker->status), run.log_file(worker->rank).string()),
                                  worker->rank};
  }
  if (about_another) return fail(std::move(*about_another));
  if (!all_interrupted) return {};
  return fail(ErrorCode::kInterrupted, "stopped as asked; {}{}", is_cut_short ? "" : "a checkpoint was written; ",
              way_on(run));
}

}  // namespace motley::train
