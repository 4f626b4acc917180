#include "motley/train/job/run_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <ranges>
#include <span>
#include <sstream>
#include <string_view>
#include <vector>

#include "motley/base/clock.h"
#include "motley/base/log.h"
#include "motley/base/os/file.h"
#include "motley/base/os/process.h"
#include "motley/base/units.h"
#include "motley/net/region.h"
#include "motley/train/records/metrics.h"
#include "motley/train/records/run_file.h"

namespace motley::train {

namespace fs = std::filesystem;

namespace {

// What a run writes, and so what another run in its folder replaces.
constexpr const char* kRunFiles[] = {"metrics.jsonl", "checkpoint",    "embeddings",     "run.json",
                                     "summary.json",  "timeline.json", "report.html",    "tensorboard",
                                     "logs",          "job.yaml",      "rendezvous.json"};

// What a start may write besides, before its first step. It may be the user's own, so it stays where it is, and a copy
// of it comes back.
constexpr const char* kPlanFiles[] = {"plan.json", "profile.json", "cluster.yaml"};

// In which workers end whose launcher was killed: they end themselves, the later the longer their steps may take.
constexpr double kOrphanSeconds = 3600;
constexpr double kLockLookSeconds = 0.05;
constexpr std::size_t kLastStepsBytes = 1 << 20;  // of the lines of the last steps
constexpr std::size_t kLastSteps = 20;
constexpr const char* kLogs = "logs";
constexpr const char* kWriterPrefix = "writer-";  // of a file in logs

std::string own_host() {
  char host[256] = {};
  ::gethostname(host, sizeof(host) - 1);
  return host;
}

// What a lock says of the process that holds it: a line for people, and where its number is one (net::host_id).
struct Holder {
  std::string text;
  std::string host_id;

  // It was of this host, and has ended, though whoever started it may not know yet.
  bool is_gone() const {
    int process = 0;
    if (host_id != net::host_id() || std::sscanf(text.c_str(), "process %d on ", &process) != 1) return false;
    const std::optional<char> state = process_state(process);
    return !state || state == 'Z' || state == 'X';
  }
};

Holder read_holder(const fs::path& lock) {
  std::istringstream lines(read_file(lock, 1 << 10).value_or(""));
  Holder holder;
  std::getline(lines, holder.text);
  std::getline(lines, holder.host_id);
  return holder;
}

Status move_if_there(const fs::path& from, const fs::path& to) {
  std::error_code error;
  if (fs::exists(from)) fs::rename(from, to, error);
  if (!error) return {};
  return fail(ErrorCode::kIo, "cannot move '{}' to '{}': {}", from.string(), to.string(), error.message());
}

// Of all workers together, where the cluster file has a price for every one of them.
std::optional<double> price_per_hour(const cluster::Cluster& cluster) {
  double sum = 0;
  for (const cluster::Worker& worker : cluster.workers) {
    const cluster::DeviceType* type = cluster.device_type(worker.device);
    if (type == nullptr || type->price_per_hour <= 0) return {};
    sum += type->price_per_hour;
  }
  return sum;
}

// What a worker computes on, without the device's number.
std::string device_kind(const Job& job, const cluster::Cluster& cluster, const cluster::Worker& worker,
                        const std::string& device) {
  const cluster::DeviceType* type = cluster.device_type(worker.device);
  if (!job.execution.cluster.empty() && type != nullptr && !is_synthetic(job)) return cluster::to_string(type->kind);
  const bool is_named = job.execution.device == "auto" && worker.device != "auto" && !is_synthetic(job) &&
                        cluster::names_device(worker.device);
  const std::string& name = is_named ? worker.device : device;
  return name.substr(0, name.find(':'));
}

Status copy_text(const fs::path& from, const fs::path& to) {
  MOTLEY_ASSIGN(const std::string text, read_file(from));
  return write_file(to, text);
}

}  // namespace

void hand_down(const RunLock& lock) {
  if (lock.valid()) ::fcntl(lock.get(), F_SETFD, 0);
}

fs::path RunDirectory::log_file(int rank) const {
  return folder_ / kLogs / fmt::format("rank-{}.log", rank);
}

Result<RunLock> RunDirectory::lock() const {
  const fs::path path = folder_ / "lock";
  RunLock lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!lock.valid()) return fail(ErrorCode::kIo, "cannot open '{}': {}", path.string(), errno_text());
  const Deadline deadline = Deadline::after(kOrphanSeconds);
  for (bool is_said = false; ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0;) {
    if (errno != EWOULDBLOCK) {
      spdlog::warn("'{}' cannot be locked ({}): nothing keeps a second run out of this folder", path.string(),
                   errno_text());
      return lock;
    }
    const Holder holder = read_holder(path);
    const bool is_gone = holder.is_gone();
    if (!is_gone || deadline.passed()) {
      return fail(ErrorCode::kInvalidInput,
                  "the run in '{}' is alive: {} writes it; stop that first, or name another folder with "
                  "--run-directory",
                  folder_.string(),
                  holder.text.empty() ? "another process"
                  : is_gone           ? fmt::format("a worker that {} had started", holder.text)
                                      : holder.text);
    }
    if (!std::exchange(is_said, true)) {
      spdlog::warn("'{}': waiting up to {:.0f} s for the end of the workers that {} had started", folder_.string(),
                   deadline.allowed(), holder.text);
    }
    SteadyClock::instance().sleep_until(monotonic_seconds() + kLockLookSeconds);
  }
  // On a full disk the lock holds without it.
  const std::string holder = fmt::format("process {} on {}\n{}\n", ::getpid(), own_host(), net::host_id());
  if (::ftruncate(lock.get(), 0) == 0 && ::write(lock.get(), holder.data(), holder.size()) < 0) {
    spdlog::debug("cannot write '{}': {}", path.string(), errno_text());
  }
  return lock;
}

Result<RunLock> RunDirectory::prepare(bool resume, bool overwrite) const {
  if (resume && !fs::exists(job_file()) && !fs::exists(replaced_folder())) {
    return fail(ErrorCode::kInvalidInput, "--resume: '{}' holds no run (there is no job.yaml in it)", folder_.string());
  }
  const bool is_of_run = fs::exists(run_file()) || fs::exists(metrics_file()) || fs::exists(tried_job_file()) ||
                         fs::exists(replaced_folder());
  if (!resume && fs::exists(job_file()) && !is_of_run) {
    return fail(ErrorCode::kInvalidInput,
                "'{}' holds a job.yaml, but no run that could be replaced; accepted: another folder with "
                "--run-directory",
                folder_.string());
  }
  MOTLEY_TRY(make_folders(folder_));
  MOTLEY_ASSIGN(RunLock held, lock());
  MOTLEY_TRY(settle_replaced());  // of a start that was killed
  if (!resume && fs::exists(job_file())) {
    if (!overwrite) {
      return fail(ErrorCode::kInvalidInput,
                  "'{}' holds a run already; continue it with --resume, replace it with --overwrite, or name another "
                  "folder with --run-directory",
                  folder_.string());
    }
    MOTLEY_TRY(set_aside(replaced_folder(), true));
  }
  MOTLEY_TRY(make_folders(folder_ / kLogs));
  return held;
}

// metrics.jsonl goes first and comes back last: wherever a kill falls between, settle_replaced() sees from it that the
// new run has made no step.
Status RunDirectory::set_aside(const fs::path& folder, bool with_logs) const {
  MOTLEY_TRY(make_folders(folder));
  for (const char* name : kPlanFiles) {
    if (fs::exists(folder_ / name)) MOTLEY_TRY(copy_text(folder_ / name, folder / name));
  }
  for (const char* name : kRunFiles) {
    if (with_logs || std::string_view(name) != kLogs) MOTLEY_TRY(move_if_there(folder_ / name, folder / name));
  }
  return {};
}

// A name of its own for each start: on a disk of another host what a file of one name has held before may be seen for a
// while.
fs::path RunDirectory::writer_file(std::uint64_t session) const {
  return folder_ / kLogs / fmt::format("{}{:016x}", kWriterPrefix, session);
}

Status RunDirectory::note_writer(std::uint64_t session, int rank) const {
  MOTLEY_TRY(make_folders(folder_ / kLogs));
  MOTLEY_TRY(write_file(writer_file(session), fmt::format("{}\n", rank)));
  std::vector<fs::path> former;  // of other starts
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder_ / kLogs, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kWriterPrefix) && entry.path() != writer_file(session)) former.push_back(entry.path());
  }
  for (const fs::path& file : former) fs::remove(file, ignored);
  return {};
}

Result<std::optional<int>> RunDirectory::find_writer(std::uint64_t session) const {
  std::error_code unknown;
  const bool is_there = fs::exists(writer_file(session), unknown);
  if (unknown) return fail(ErrorCode::kIo, "cannot read '{}': {}", writer_file(session).string(), unknown.message());
  if (!is_there) return std::optional<int>();
  MOTLEY_ASSIGN(const std::string text, read_file(writer_file(session), 64));
  return std::optional(std::atoi(text.c_str()));
}

Result<RunLock> RunDirectory::take_over(std::uint64_t session, int rank) const {
  RunLock held;
  MOTLEY_ASSIGN(const std::optional<int> before, find_writer(session));
  const auto is_run_file = [this](const std::string_view name) { return name != kLogs && fs::exists(folder_ / name); };
  if (!before && (fs::exists(replaced_folder()) || std::ranges::any_of(kRunFiles, is_run_file))) {
    MOTLEY_ASSIGN(held, lock());
    MOTLEY_TRY(settle_replaced());  // of a start that was killed
    const fs::path earlier = folder_ / fmt::format("earlier-{:016x}", session);
    MOTLEY_TRY(set_aside(earlier, false));
    spdlog::warn("'{}' held the files of another run, which are in '{}' now", folder_.string(), earlier.string());
  }
  MOTLEY_TRY(note_writer(session, rank));
  return held;
}

Status RunDirectory::settle_replaced() const {
  std::error_code error;
  if (!fs::exists(replaced_folder())) return {};
  MOTLEY_ASSIGN(const Measured measured, last_measured());  // what happens before the first step is there, too
  const bool has_step = measured.step > 0;
  if (!has_step) {
    if (fs::exists(replaced_folder() / "logs")) {
      fs::remove_all(replaced_folder() / "logs" / "failed-start", error);
      MOTLEY_TRY(move_if_there(folder_ / "logs", replaced_folder() / "logs" / "failed-start"));
    }
    if (fs::exists(replaced_folder() / "job.yaml")) {  // all copies were made, and nothing has come back yet
      for (const char* name : kPlanFiles) {
        if (fs::exists(replaced_folder() / name)) {
          MOTLEY_TRY(copy_text(replaced_folder() / name, folder_ / name));
        } else {
          fs::remove(folder_ / name, error);
        }
      }
    }
    for (const char* name : kRunFiles | std::views::reverse) {
      if (!fs::exists(replaced_folder() / name)) continue;
      fs::remove_all(folder_ / name, error);
      MOTLEY_TRY(move_if_there(replaced_folder() / name, folder_ / name));
    }
    spdlog::info("the run that '{}' held is there again: what was to replace it made no step", folder_.string());
  }
  fs::remove_all(replaced_folder(), error);
  return {};
}

Status RunDirectory::roll_back_metrics(std::int64_t step) const {
  if (!fs::exists(metrics_file())) return {};
  MOTLEY_ASSIGN(const std::string text, read_file(metrics_file()));
  std::string kept;
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const Result<MetricsLine> read = parse_metrics_line(line);
    if (read && std::visit([](const auto& held) { return held.step; }, *read) <= step) {
      kept += line + "\n";
    }
    if (!read && !lines.eof()) {  // the last line is cut off where a run was killed
      spdlog::warn("{}:{} is left out: {}", metrics_file().string(), number, read.error().message);
    }
  }
  return write_file(metrics_file(), kept);
}

Result<RunDirectory::Measured> RunDirectory::last_measured() const {
  Measured last;
  if (!fs::exists(metrics_file())) return last;
  MOTLEY_ASSIGN(const std::string text, read_file(metrics_file()));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const Result<MetricsLine> read = parse_metrics_line(line);
    if (!read) continue;
    if (const auto* step = std::get_if<StepMetrics>(&*read)) last.step = std::max(last.step, step->step);
    last.seconds = std::max(last.seconds, std::visit([](const auto& held) { return held.time; }, *read));
  }
  return last;
}

double RunDirectory::last_step_seconds() const {
  std::istringstream lines(read_end(metrics_file(), kLastStepsBytes).value_or(""));
  std::vector<double> seconds;
  for (std::string line; std::getline(lines, line);) {
    const Result<MetricsLine> read = parse_metrics_line(line);
    const auto* step = read ? std::get_if<StepMetrics>(&*read) : nullptr;
    if (step != nullptr) seconds.push_back(step->step_seconds);
  }
  if (seconds.empty()) return 0;
  const auto last = std::span(seconds).last(std::min(seconds.size(), kLastSteps));
  std::ranges::nth_element(last, last.begin() + std::ssize(last) / 2);
  return last[last.size() / 2];
}

std::optional<planning::Prediction> read_prediction(const RunDirectory& run, const Job& job, std::int64_t workers) {
  const Result<planning::Plan> plan = planning::read_plan(run.folder() / "plan.json");
  if (!plan || plan->stages.size() != 1 || plan->batch != job.training.global_batch_size ||
      plan->micro_batches != job.training.gradient_accumulation_steps || plan->predicted.step_seconds <= 0) {
    return std::nullopt;
  }
  std::int64_t planned = 0;
  for (const planning::Replicas& replicas : plan->stages[0].replicas) planned += replicas.count;
  return planned == workers ? std::optional(plan->predicted) : std::nullopt;
}

Status write_run_file(const RunDirectory& run, const Job& job, const cluster::Cluster& cluster, const RunFacts& facts) {
  RunFile file{.motley_version = MOTLEY_VERSION,
               .started = wall_seconds(),
               .name = job.name,
               .gradient_sync = facts.gradient_sync,
               .global_batch_size = job.training.global_batch_size,
               .training_samples = facts.training_samples,
               .class_names = facts.class_names,
               .price_per_hour = price_per_hour(cluster)};
  if (facts.plan != nullptr) {
    file.planned = PlannedFiles{.plan = "plan.json"};
    const std::string& profile = job.execution.profile.empty() ? job.execution.emulation : job.execution.profile;
    if (!profile.empty()) {
      MOTLEY_TRY(copy_text(profile, run.folder() / "profile.json"));
      file.planned->profile = "profile.json";
    }
    MOTLEY_TRY(write_file(run.folder() / "plan.json", planning::to_json(*facts.plan)));
    if (!job.execution.cluster.empty()) {
      MOTLEY_TRY(copy_text(job.execution.cluster, run.folder() / "cluster.yaml"));
    }
    if (fs::exists(run.folder() / "cluster.yaml")) file.planned->cluster = "cluster.yaml";
  }
  for (const cluster::Worker& worker : cluster.workers) {
    RunWorker& one = file.workers.emplace_back();
    one.rank = static_cast<int>(file.workers.size()) - 1;
    one.name = worker.name;
    one.device = worker.device.empty() ? facts.device : worker.device;
    one.kind = device_kind(job, cluster, worker, facts.device);
    if (worker.emulation) {
      one.emulated = format_seconds(worker.emulation->seconds_per_sample) + " a sample";
    } else if (!job.execution.emulation.empty()) {
      one.emulated = "by the profile '" + job.execution.emulation + "'";
    }
    if (one.kind == cluster::to_string(cluster::DeviceKind::kEmulated)) {
      one.emulated = (one.emulated ? *one.emulated + ", on " : "") + facts.emulated_accelerator;
    }
  }
  const RunAttempt attempt{.started = file.started,
                           .first_step = facts.done_steps + 1,
                           .after_seconds = facts.done_seconds,
                           .workers = facts.workers};
  const Result<RunFile> before = read_run_file(run.run_file());
  if (before) {
    continue_run(file, *before, attempt);
  } else {
    file.attempts.push_back(attempt);
  }
  const double memory = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  file.machine = fmt::format("{}, {}", format_count(::sysconf(_SC_NPROCESSORS_ONLN), "core"), format_bytes(memory));
  return write_run_file(run.run_file(), file);
}

Status note_emulation(const RunDirectory& run, const std::vector<std::string>& notes) {
  MOTLEY_ASSIGN(RunFile file, read_run_file(run.run_file()));
  for (std::size_t rank = 0; rank < notes.size(); ++rank) {
    if (!notes[rank].empty()) {
      std::optional<std::string>& emulated = file.workers.at(rank).emulated;
      emulated = emulated.value_or("") + "; " + notes[rank];
    }
  }
  return write_run_file(run.run_file(), file);
}

Status finish_run_file(const RunDirectory& run, const Status& outcome) {
  MOTLEY_ASSIGN(RunFile file, read_run_file(run.run_file()));
  // There was nothing left to do, or this start has not come so far as to be an attempt.
  if (!file.attempts.empty() && file.attempts.back().exit) return {};
  file.finished = outcome.has_value();
  file.exit = outcome ? "done" : outcome.error().code == ErrorCode::kInterrupted ? "interrupted" : "failed";
  if (!file.attempts.empty()) file.attempts.back().exit = file.exit;
  if (!outcome && !outcome.error().message.empty()) file.error = outcome.error().message;
  return write_run_file(run.run_file(), file);
}

}  // namespace motley::train
