#include "tests/simulation/launcher_job.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <utility>

namespace motley::simulation {
namespace {

constexpr double kLookSeconds = 0.1;  // between two looks at what does not tell by itself
constexpr double kStoppedSeconds = 1;
constexpr double kLeastStopSeconds = 20;  // that workers have for a checkpoint

}  // namespace

LauncherJob::LauncherJob(const train::LaunchRules& rules, Observer& observer, StartRank start_rank)
    : rules_(rules), observer_(observer), start_rank_(std::move(start_rank)) {}

int LauncherJob::run(const std::filesystem::path& folder) {
  Simulator& simulator = Simulator::instance();
  state_.emplace(rules_, *this);
  (void)state_->start();
  while (!state_->is_over()) {
    news_.add(simulator.begin_wait("waiting for its workers"));
    simulator.wait(simulator.now() + kLookSeconds);
    simulator.operation();
    for (; followed_stops_ < stops_; ++followed_stops_) {
      state_->stop(simulator.now());
      stopped_at_ = simulator.now();
    }
    for (std::size_t worker = 0; worker < children_.size(); ++worker) follow(static_cast<int>(worker));
    if (const int workers = observer_.committed_workers(); workers > 0) state_->follow_step(workers);
    state_->advance(simulator.now(), simulator.now());
    if (!request_.empty() && state_->takes_request()) state_->follow_request(request_);
  }
  check(state_->verdict(train::RunDirectory(folder)));
  return 0;
}

void LauncherJob::follow(int worker) {
  Simulator& simulator = Simulator::instance();
  Child& child = children_[static_cast<std::size_t>(worker)];
  if (child.is_reaped) return;
  const Process& process = *child.process;
  if (process.has_ended) {
    child.is_reaped = true;
    const std::optional<int> code = child.launched.exit_code;
    const int status = code ? *code << 8 : process.status - 128;  // as waitpid has it
    return state_->follow_end(worker, status, child.launched.error, simulator.now());
  }
  if (!process.is_stopped) child.last_seen = simulator.now();
  if (simulator.now() >= child.last_seen + kStoppedSeconds) state_->follow_hang(worker);
}

Result<int> LauncherJob::start_worker(int rank, bool is_newcomer) {
  for (const Child& other : children_) {
    if (other.rank == rank && !other.process->has_ended) {
      observer_.violate(kLauncherTrue, fmt::format("the launcher starts rank {} while there is one", rank));
    }
  }
  Simulator& simulator = Simulator::instance();
  simulator.note(fmt::format("the launcher starts rank {}{}", rank, is_newcomer ? ", a newcomer" : ""));
  Child& child = children_.emplace_back(Child{.rank = rank, .is_newcomer = is_newcomer});
  child.process = &start_rank_(rank, child.launched);
  child.last_seen = simulator.now();
  return child.process->id;
}

void LauncherJob::signal_worker(int worker, int signal) {
  Child& child = children_[static_cast<std::size_t>(worker)];
  if (signal == SIGKILL || !child.launched.takes_signals) {
    return Simulator::instance().kill(*child.process, signal);
  }
  (signal == SIGTERM ? child.launched.is_asked_to_leave : child.launched.is_asked_to_stop) = true;
}

// Each worker gets a signal by which it stops with a checkpoint; one that has not begun ends by itself.
void LauncherJob::lose() {
  for (std::size_t worker = 0; worker < children_.size(); ++worker) {
    if (!children_[worker].process->has_ended) signal_worker(static_cast<int>(worker), SIGINT);
  }
}

void LauncherJob::stop() {
  ++stops_;
  wake();
}

void LauncherJob::ask_for(int workers) {
  request_ = fmt::format("{} {}", workers, ++requests_);
}

void LauncherJob::say(const std::string& text) {
  Simulator::instance().note("the launcher: " + text);
}

// What it says of the run's end is what has happened.
void LauncherJob::check(const Status& verdict) const {
  Simulator::instance().note("the launcher: " + (verdict ? std::string("all is done") : verdict.error().message));
  const int done = observer_.finished();
  if (verdict && done == 0)
    observer_.violate(kLauncherTrue, "the launcher says that all is done, and no rank has done all");
  // A full disk that one of them has met is told, whatever the others have done.
  const bool is_of_disk = !verdict && verdict.error().code == ErrorCode::kIo;
  if (!verdict && !is_of_disk && done >= std::max(1, rules_.min_workers)) {
    observer_.violate(kLauncherTrue,
                      fmt::format("{} ranks have done all, and the launcher says: {}", done, verdict.error().message));
  }
  if (verdict || verdict.error().code != ErrorCode::kInterrupted) return;
  if (stops_ == 0) observer_.violate(kLauncherTrue, "the launcher says that it was stopped, which nobody asked for");
  const auto had_not_begun = [](const Child& child) {
    return !child.is_newcomer && !child.launched.exit_code && child.process->status == 128 + SIGINT;
  };
  const bool says_saved = verdict.error().message.find("a checkpoint was written") != std::string::npos;
  if (says_saved && observer_.saved() < observer_.committed()) {
    observer_.violate(kLauncherTrue,
                      fmt::format("the launcher says that a checkpoint was written, and that of step {} was not",
                                  observer_.committed()));
  }
  const bool is_killed_early = state_->killed_at() < stopped_at_ + kLeastStopSeconds;
  if (is_killed_early && stops_ == 1 && std::ranges::none_of(children_, had_not_begun)) {
    observer_.violate(kLauncherTrue, "the launcher leaves no time for a checkpoint although it was stopped once");
  }
}

}  // namespace motley::simulation
