#include "motley/train/launch/launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <list>
#include <nlohmann/json.hpp>
#include <optional>

#include "motley/base/clock.h"
#include "motley/base/os/file.h"
#include "motley/base/text.h"
#include "motley/train/checkpoint/checkpoint.h"
#include "motley/train/job/servers.h"
#include "motley/train/loop/progress.h"
#include "motley/train/records/worker_count.h"

namespace motley::train {
namespace {

// A rank under this launcher writes its error as a line that begins with this mark, the error as JSON.
constexpr char kErrorMark = '\x02';

constexpr double kServerStartSeconds = 30;
constexpr double kPartSeconds = 30;      // of an elastic run, between the first worker that is done and the last
constexpr int kMaxRestarts = 3;          // after a parameter server was lost
constexpr double kRequestSeconds = 0.1;  // between looks at whether another number of workers is asked for
constexpr std::size_t kMaxRequestBytes = 256;
constexpr double kStoppedSeconds = 1;  // after which a server or newcomer that is stopped (SIGSTOP) counts as lost

bool is_stopped(pid_t process) {
  const auto stat = read_file(fmt::format("/proc/{}/stat", process), 4096);
  const std::size_t name_end = stat ? stat->rfind(')') : std::string::npos;
  return name_end != std::string::npos && stat->compare(name_end, 3, ") T") == 0;
}

// A process and the pipe of its output, both of which end with this object, whatever way the launcher leaves.
struct Worker {
  explicit Worker(int rank) : rank(rank) {}
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker() {
    if (process > 0 && !status) {
      signal(SIGKILL);
      ::waitpid(process, nullptr, 0);
    }
    close_output();
  }
  void signal(int number) const {
    if (!status) ::kill(-process, number);
  }
  void close_output() {
    if (output >= 0) ::close(output);
    output = -1;
  }
  bool has_left() const { return error && error->code == ErrorCode::kLeft; }
  // A newcomer that found nobody any more has neither done nor lost anything.
  bool came_too_late() const { return error && WIFEXITED(*status) && WEXITSTATUS(*status) == 0; }
  bool ended_by(int number) const { return WIFSIGNALED(*status) && WTERMSIG(*status) == number; }
  // Whether it has been stopped for too long, as far as these calls have seen.
  bool is_hung() {
    const double now = monotonic_seconds();
    if (!is_stopped(process)) last_seen = now;
    return now >= last_seen + kStoppedSeconds;
  }
  std::string name() const { return rank < 0 ? "the parameter server" : fmt::format("rank {}", rank); }

  const int rank;  // -1: the parameter server
  bool is_newcomer = false;
  bool has_notice = false;  // to leave, as fewer workers are asked for
  pid_t process = -1;       // there is none yet
  int output = -1;          // read end, -1 after end of file
  std::string partial;      // a line without its end yet
  std::ofstream log;
  std::optional<int> status;   // of waitpid
  std::optional<Error> error;  // that it left
  int told_workers = 0;        // by it, last; 0: nothing new
  double ended = 0;
  double last_seen = monotonic_seconds();  // not stopped
};

// The environment of this process with these variables in place of any of their names that were there.
std::vector<std::string> environment_with(const std::vector<std::string>& variables) {
  std::vector<std::string> environment = variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('=') + 1);
    const auto is_own = [&](const std::string& own) { return own.starts_with(name); };
    if (std::ranges::none_of(variables, is_own)) environment.push_back(text);
  }
  return environment;
}

std::string launcher_variable() {
  return fmt::format("MOTLEY_LAUNCHER={}", ::getpid());
}

Status start_worker(Worker& worker, std::vector<std::string> command, const std::vector<std::string>& arguments,
                    const std::filesystem::path& log, const std::vector<std::string>& environment,
                    const sigset_t& former_mask) {
  worker.log.open(log, std::ios::app);
  if (!worker.log) return fail(ErrorCode::kIo, "cannot open '{}': {}", log.string(), errno_text());
  int pipe_ends[2];
  if (::pipe2(pipe_ends, O_CLOEXEC) != 0) {
    return fail(ErrorCode::kIo, "cannot make a pipe for {}: {}", worker.name(), errno_text());
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], STDERR_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  // A process group of its own, so that Ctrl-C reaches the launcher alone, which passes it on once.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setsigmask(&attributes, &former_mask);

  command.insert(command.end(), arguments.begin(), arguments.end());
  const auto pointers = [](const std::vector<std::string>& texts) {
    std::vector<char*> list;
    for (const std::string& text : texts) list.push_back(const_cast<char*>(text.c_str()));
    list.push_back(nullptr);
    return list;
  };
  const int problem = ::posix_spawn(&worker.process, command[0].c_str(), &actions, &attributes,
                                    pointers(command).data(), pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  ::close(pipe_ends[1]);
  if (problem != 0) {
    ::close(pipe_ends[0]);
    worker.process = -1;
    return fail(ErrorCode::kIo, "cannot start {} ('{}'): {}", worker.name(), command[0], std::strerror(problem));
  }
  worker.output = pipe_ends[0];
  ::fcntl(worker.output, F_SETFL, O_NONBLOCK);
  return {};
}

// The error that a rank wrote behind the mark.
std::optional<Error> parse_error(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  return Error{static_cast<ErrorCode>(json.value("code", 0)), json.value("message", ""), json.value("rank", -1)};
}

// Copies what a worker wrote, line by line, to its log and to the terminal.
void forward_output(Worker& worker, ProgressLine& progress, bool quiet) {
  char block[1 << 14];
  for (;;) {
    const ssize_t got = ::read(worker.output, block, sizeof(block));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got > 0) {
      worker.partial.append(block, static_cast<std::size_t>(got));
    } else if (!worker.partial.empty()) {
      worker.partial += '\n';
    }
    std::size_t begin = 0;
    for (std::size_t end; (end = worker.partial.find('\n', begin)) != std::string::npos; begin = end + 1) {
      const std::string line = worker.partial.substr(begin, end - begin + 1);
      if (line.front() == kProgressMark) {
        if (!quiet) progress.show(line.substr(1, line.size() - 2));
      } else if (line.front() == kWorkersMark) {
        worker.told_workers = std::atoi(line.c_str() + 1);
      } else if (line.front() == kErrorMark) {
        worker.error = parse_error(line.substr(1));
      } else {
        worker.log << line << std::flush;
        if (quiet) continue;
        progress.clear();
        std::fwrite(line.data(), 1, line.size(), stdout);
        std::fflush(stdout);
      }
    }
    worker.partial.erase(0, begin);
    if (got <= 0) return worker.close_output();
  }
}

// How to go on with a run that has ended early.
std::string way_on(const RunDirectory& run) {
  return holds_checkpoint(run.checkpoint_folder())
             ? fmt::format("continue with --resume --run-directory {}", run.folder().string())
             : fmt::format("there is no checkpoint yet: start again with --overwrite --run-directory {}",
                           run.folder().string());
}

// Which failure came first. A rank that another's failure brought down says so (its error is about another rank); what
// counts is the rank killed by a signal that we did not send, else the earliest error that a rank has about itself.
Status verdict(const std::list<Worker>& workers, const RunDirectory& run, double killed_at, bool interrupted,
               int min_workers) {
  std::vector<const Worker*> order;
  for (const Worker& worker : workers) {
    if (!worker.has_left() && !worker.came_too_late()) order.push_back(&worker);
  }
  const auto is_interrupted = [](const Worker* worker) {
    return worker->error && worker->error->code == ErrorCode::kInterrupted;
  };
  const auto is_done = [&](const Worker* worker) {
    return WIFEXITED(*worker->status) && (WEXITSTATUS(*worker->status) == 0 || is_interrupted(worker));
  };
  if (min_workers > 0 && std::ranges::count_if(order, is_done) >= min_workers) {
    std::erase_if(order, [](const Worker* worker) { return WIFSIGNALED(*worker->status) || worker->is_newcomer; });
  }
  std::ranges::stable_sort(order, {}, &Worker::ended);
  // Ended by a signal of ours: killed, or asked to stop before it could follow.
  const auto signalled_by_us = [&](const Worker* worker) {
    return WIFSIGNALED(*worker->status) && (worker->ended >= killed_at || (interrupted && worker->ended_by(SIGINT)));
  };
  // Workers of an elastic run kill those whom they lose, also where one worker's own error ends them all.
  const auto has_own_error = [&](const Worker* worker) {
    return worker->error && !is_interrupted(worker) && (worker->error->rank < 0 || worker->error->rank == worker->rank);
  };
  const bool is_explained = min_workers > 0 && std::ranges::any_of(order, has_own_error);
  for (const Worker* worker : order) {
    if (is_explained || !WIFSIGNALED(*worker->status) || signalled_by_us(worker)) continue;
    const int signal = WTERMSIG(*worker->status);
    return fail(Error{ErrorCode::kPeerLost,
                      fmt::format("{} (process {}) was killed by signal {} ({}); {}", worker->name(), worker->process,
                                  signal, ::strsignal(signal), way_on(run)),
                      worker->rank});
  }
  // What other ranks say of one that a stop cut short counts for nothing.
  const bool cut_short = interrupted && std::ranges::any_of(order, signalled_by_us);
  std::optional<Error> about_another;
  bool all_interrupted = !order.empty();
  for (const Worker* worker : order) {
    const bool exited = WIFEXITED(*worker->status);
    if (exited && WEXITSTATUS(*worker->status) == 0) {
      all_interrupted = false;
      continue;
    }
    const std::optional<Error>& error = worker->error;
    if (is_interrupted(worker)) continue;
    if (cut_short && (!error || error->code == ErrorCode::kPeerLost || error->code == ErrorCode::kTimeout)) continue;
    all_interrupted = false;
    if (has_own_error(worker)) {
      std::string message = error->within(worker->name()).message;
      // Too few are left: whoever reads it wants to know how to go on.
      if (error->code == ErrorCode::kPeerLost) message += "; " + way_on(run);
      return fail(Error{error->code, std::move(message), worker->rank});
    }
    if (about_another) continue;
    about_another =
        error ? error->within(worker->name())
              : Error{ErrorCode::kInternal,
                      exited ? fmt::format("{} ended with status {} and left no error; see {}", worker->name(),
                                           WEXITSTATUS(*worker->status), run.log_file(worker->rank).string())
                             : worker->name() + " did not end in time and was killed",
                      worker->rank};
  }
  if (about_another) return fail(std::move(*about_another));
  if (!all_interrupted) return {};
  return fail(ErrorCode::kInterrupted, "stopped as asked; {}{}", cut_short ? "" : "a checkpoint was written; ",
              way_on(run));
}

// The token of the parameter server that is started for the run.
std::filesystem::path token_file(const RunDirectory& run) {
  return std::filesystem::absolute(run.folder() / "logs" / "server.token");
}

// Signals that end a child or ask for a stop, taken from a descriptor, in the same poll as the workers' output.
class Signals {
 public:
  explicit Signals(bool with_stops) {
    sigset_t taken;
    sigemptyset(&taken);
    sigaddset(&taken, SIGCHLD);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
      if (with_stops) sigaddset(&taken, signal);
    }
    ::sigprocmask(SIG_BLOCK, &taken, &former_mask_);
    descriptor_ = ::signalfd(-1, &taken, SFD_NONBLOCK | SFD_CLOEXEC);
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  ~Signals() {
    ::close(descriptor_);
    ::sigprocmask(SIG_SETMASK, &former_mask_, nullptr);
  }

  int descriptor() const { return descriptor_; }
  const sigset_t& former_mask() const { return former_mask_; }

  // How often a stop was asked for since the last call.
  int take_stops() const {
    int stops = 0;
    signalfd_siginfo info;
    while (::read(descriptor_, &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
      stops += info.ssi_signo == SIGCHLD ? 0 : 1;
    }
    return stops;
  }

 private:
  sigset_t former_mask_;
  int descriptor_ = -1;
};

// One start of the server and the workers, up to the end of the last worker.
class Launch {
 public:
  Launch(const LaunchOptions& options, const RunDirectory& run) : options_(options), run_(run) {}
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;
  ~Launch() {
    if (!tells_count()) return;
    std::error_code ignored;
    std::filesystem::remove(worker_count_file(options_.count_folder), ignored);
    std::filesystem::remove(worker_request_file(options_.count_folder), ignored);
  }

  Status run() {
    if (tells_count()) begin_to_tell_count();
    if (!options_.server_arguments.empty()) MOTLEY_TRY(start_server());
    MOTLEY_TRY(start_workers());
    const auto has_ended = [](const Worker& worker) { return worker.status && worker.output < 0; };
    while (!std::ranges::all_of(workers_, has_ended)) {
      wait_for_news();
      follow_stops();
      for (auto worker = workers_.begin(); worker != workers_.end(); ++worker) follow(*worker);
      follow_count();
      MOTLEY_TRY(follow_server());
      if (monotonic_seconds() >= kill_at_ && killed_at_ == kNever) {
        killed_at_ = monotonic_seconds();
        for (const Worker& worker : workers_) worker.signal(SIGKILL);
      }
    }
    progress_.clear();
    if (options_.deadline && killed_at_ != kNever && killed_at_ >= options_.deadline->at()) {
      return fail(ErrorCode::kTimeout, "the workers had not ended after {:.3g} s and were killed",
                  options_.deadline->allowed());
    }
    return verdict(workers_, run_, killed_at_, interrupted_, options_.min_workers);
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  // Its address and its token go to the workers.
  Status start_server() {
    MOTLEY_TRY(net::Secret::generate().write(token_file(run_)));
    const std::string token = fmt::format("{}={}", net::kTokenFileVariable, token_file(run_).string());
    const std::filesystem::path address_file = run_.folder() / "logs" / "server.address";
    std::error_code ignored;
    std::filesystem::remove(address_file, ignored);
    server_arguments_ = options_.server_arguments;
    server_arguments_.insert(server_arguments_.end(), {"--address-file", address_file.string()});
    server_environment_ = environment_with({launcher_variable(), token});
    MOTLEY_TRY(start_server_process());
    MOTLEY_ASSIGN(const std::string address, wait_for_address(address_file));
    *std::next(std::ranges::find(server_arguments_, "--listen")) = address;  // as for another one in its place
    variables_.insert(variables_.end(), {fmt::format("{}={}", kServersVariable, address), token});
    return {};
  }

  Status start_server_process() {
    server_.emplace(-1);
    return start_worker(*server_, options_.program, server_arguments_, server_log(), server_environment_,
                        signals_.former_mask());
  }

  // Of an elastic run: where the server has ended, or has been stopped for a while, another one takes its place.
  Status follow_server() {
    if (options_.min_workers == 0 || !server_ || server_->status) return {};
    int status = 0;
    if (::waitpid(server_->process, &status, WNOHANG) == server_->process) server_->status = status;
    if (!server_->status && !server_->is_hung()) return {};
    if (server_restarts_ == kMaxRestarts) return {};
    ++server_restarts_;
    std::fprintf(stderr, "motley: the parameter server (process %d) was lost; another one takes its place\n",
                 server_->process);
    return start_server_process();
  }

  // The address, once the server listens.
  Result<std::string> wait_for_address(const std::filesystem::path& file) {
    const Deadline deadline = Deadline::after(kServerStartSeconds);
    for (;;) {
      if (const auto address = read_file(file, 256)) return address->substr(0, address->find('\n'));
      const bool ended = ::waitpid(server_->process, nullptr, WNOHANG) == server_->process;
      if (server_->output >= 0) forward_output(*server_, progress_, true);
      if (ended) {
        server_->status = 0;
        const std::string text = read_file(server_log()).value_or("");
        const std::string message = text.substr(0, text.find_last_not_of('\n') + 1);
        return fail(ErrorCode::kUnavailable, "the parameter server ended at once: {} (see {})",
                    message.substr(message.rfind('\n') + 1), server_log().string());
      }
      if (deadline.passed()) {
        return fail(ErrorCode::kTimeout, "the parameter server did not listen within {:.3g} s; see {}",
                    deadline.allowed(), server_log().string());
      }
      SteadyClock::instance().sleep_until(monotonic_seconds() + 0.01);
    }
  }

  std::filesystem::path server_log() const { return run_.folder() / "logs" / "server.log"; }

  Status start_workers() {
    for (int rank = 0; rank < options_.workers; ++rank) MOTLEY_TRY(start_rank(rank, false));
    return {};
  }

  Status start_rank(int rank, bool is_newcomer) {
    Worker& worker = workers_.emplace_back(rank);
    worker.is_newcomer = is_newcomer;
    std::vector<std::string> variables = variables_;
    variables.insert(variables.end(), {fmt::format("MOTLEY_RANK={}", rank),
                                       fmt::format("MOTLEY_SIZE={}", std::max(options_.workers, options_.max_workers)),
                                       "MOTLEY_PROGRESS=marked"});
    if (is_newcomer) variables.emplace_back("MOTLEY_NEWCOMER=1");
    return start_worker(worker, options_.program, options_.worker_arguments, run_.log_file(rank),
                        environment_with(variables), signals_.former_mask());
  }

  // Until a process writes or ends, or a stop is asked for; 0.1 s at most.
  void wait_for_news() {
    std::vector<pollfd> polled = {{signals_.descriptor(), POLLIN, 0}};
    for (const Worker& worker : workers_) {
      if (worker.output >= 0) polled.push_back({worker.output, POLLIN, 0});
    }
    if (server_ && server_->output >= 0) {
      polled.push_back({server_->output, POLLIN, 0});
      forward_output(*server_, progress_, true);
    }
    ::poll(polled.data(), polled.size(), 100);
  }

  // The first stop is passed on, and leaves the workers time to write a checkpoint; another one leaves none.
  void follow_stops() {
    for (int stops = signals_.take_stops(); stops > 0; --stops) {
      if (interrupted_) {
        kill_at_ = monotonic_seconds();
        continue;
      }
      interrupted_ = true;
      std::fprintf(stderr, "motley: stopping after this step, with a checkpoint (again to stop at once)\n");
      for (const Worker& worker : workers_) worker.signal(SIGINT);
      kill_at_ = std::min(kill_at_, monotonic_seconds() + options_.stop_seconds);
    }
    if (options_.stop && options_.stop->stop_requested()) {
      interrupted_ = true;
      kill_at_ = monotonic_seconds();
    }
  }

  void follow(Worker& worker) {
    if (worker.output >= 0) forward_output(worker, progress_, options_.quiet);
    // The others do not wait for a newcomer before it has joined, so they do not miss it either.
    if (worker.is_newcomer && !worker.status && worker.is_hung()) worker.signal(SIGKILL);
    int status = 0;
    if (!worker.status && ::waitpid(worker.process, &status, WNOHANG) == worker.process) {
      worker.status = status;
      worker.ended = monotonic_seconds();
      if (worker.output >= 0)
        forward_output(worker, progress_, options_.quiet);  // its last words say whether it has left
      const bool clean = WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 130);
      if (options_.min_workers > 0 && clean) {  // all had done all; one that hangs now is no loss
        kill_at_ = std::min(kill_at_, worker.ended + kPartSeconds);
      }
      if (interrupted_ && worker.ended_by(SIGINT)) {
        kill_at_ = worker.ended;  // it had not begun: the others would wait for it in vain
      }
      if (!clean && !failed_ && !interrupted_ && !worker.has_left()) replace(worker);
      // What keeps a newcomer out ends nobody else.
      const bool is_outside = worker.is_newcomer && WIFEXITED(status);
      if (!clean && !failed_ && !is_outside && !worker.has_left() && !goes_on_without(worker)) {
        failed_ = true;
        // Of an elastic run those who are left write a checkpoint first.
        const double grace = options_.min_workers > 0 ? options_.stop_seconds : options_.grace_seconds;
        kill_at_ = std::min(kill_at_, worker.ended + grace);
      }
    }
    // A grandchild may hold the pipe open; a worker that has ended has nothing more to say after a last read.
    if (worker.status && monotonic_seconds() > worker.ended + 1) worker.close_output();
  }

  // Another one takes a killed worker's place, while there are any.
  void replace(const Worker& lost) {
    if (!WIFSIGNALED(*lost.status) || killed_at_ != kNever || lost.has_notice) return;
    if (options_.replacements == replacements_) return;
    ++replacements_;
    if (const Status started = start_rank(lost.rank, true); !started) {
      std::fprintf(stderr, "motley: %s is not replaced: %s\n", lost.name().c_str(), started.error().message.c_str());
      workers_.pop_back();
    }
  }

  bool goes_on_without(const Worker& lost) {
    if (options_.min_workers == 0 || !WIFSIGNALED(*lost.status)) return false;
    const auto is_there = [](const Worker& worker) {
      return !worker.status || (WIFEXITED(*worker.status) && !worker.has_left() && !worker.came_too_late());
    };
    const auto left = std::ranges::count_if(workers_, is_there);
    progress_.clear();
    std::fprintf(stderr, "motley: %s (process %d) was killed by signal %d (%s); %d workers are left\n",
                 lost.name().c_str(), lost.process, WTERMSIG(*lost.status), ::strsignal(WTERMSIG(*lost.status)),
                 static_cast<int>(left));
    return left >= options_.min_workers;
  }

  // --- How many workers there are, and are to be

  bool tells_count() const { return !options_.count_folder.empty(); }

  // A request that was made before is of another start.
  void begin_to_tell_count() {
    std::error_code ignored;
    std::filesystem::remove(worker_request_file(options_.count_folder), ignored);
    if (options_.min_workers > 0) {
      count_.min_workers = options_.min_workers;
      count_.max_workers = std::max(options_.workers, options_.max_workers);
    }
    tell_count();
  }

  void tell_count() {
    const Status written = write_file(worker_count_file(options_.count_folder), write_json_line(count_));
    if (written) return;
    progress_.clear();
    std::fprintf(stderr, "motley: how many workers there are cannot be told: %s\n", written.error().message.c_str());
  }

  // One request after another: the next one is looked at once all that are there have done a step together.
  void follow_count() {
    if (!tells_count()) return;
    const WorkerCount before = count_;
    int running = 0;
    for (Worker& worker : workers_) {
      if (worker.told_workers > 0) count_.workers = std::exchange(worker.told_workers, 0);
      if (!worker.status) ++running;
    }
    if (count_.workers != before.workers) count_.since = wall_seconds();
    const bool is_leaving =
        std::ranges::any_of(workers_, [](const Worker& worker) { return worker.has_notice && !worker.status; });
    const bool is_settled = running == count_.workers && !is_leaving && !interrupted_ && !failed_;
    if (is_settled && !request_.empty()) {
      answer(running == wanted_ ? ""
                                : fmt::format("{} of {} workers are there, as others have ended", running, wanted_));
    }
    if (is_settled && monotonic_seconds() >= look_at_) look_at_request(running);
    if (count_ != before) tell_count();
  }

  void answer(const std::string& refused) {
    count_.asked = std::exchange(request_, "");
    count_.refused = refused;
    if (refused.empty()) return;
    progress_.clear();
    std::fprintf(stderr, "motley: %s\n", refused.c_str());
  }

  void look_at_request(int running) {
    look_at_ = monotonic_seconds() + kRequestSeconds;
    const auto read = read_file(worker_request_file(options_.count_folder), kMaxRequestBytes);
    std::error_code ignored;
    if (!read && !std::filesystem::exists(worker_request_file(options_.count_folder), ignored)) return;
    const std::string text = read ? escaped(read->substr(0, read->find('\n'))) : "too long";
    if (text == seen_request_) return;
    request_ = seen_request_ = text;
    if (count_.max_workers == 0) return answer("workers: the job is not elastic; accepted with elastic: MIN:MAX");
    const Result<int> wanted = parse_worker_request(text, count_.min_workers, count_.max_workers);
    if (!wanted) return answer(wanted.error().message);
    wanted_ = *wanted;
    progress_.clear();
    std::fprintf(stderr, "motley: %d workers are asked for, %d are there\n", wanted_, running);
    for (auto worker = workers_.rbegin(); worker != workers_.rend() && running > wanted_; ++worker) {
      if (worker->status) continue;
      worker->has_notice = true;
      worker->signal(SIGTERM);
      --running;
    }
    for (int rank = 0; running < wanted_ && request_ == text; ++rank) {
      const auto has_place = [rank](const Worker& worker) { return worker.rank == rank && !worker.status; };
      if (std::ranges::any_of(workers_, has_place)) continue;
      ++running;
      if (const Status started = start_rank(rank, true); !started) {
        workers_.pop_back();
        answer(started.error().message);
      }
    }
  }

  const LaunchOptions& options_;
  const RunDirectory& run_;
  const Signals signals_{!options_.stop};  // restored after the processes below have gone
  ProgressLine progress_;
  std::optional<Worker> server_;
  std::vector<std::string> server_arguments_, server_environment_;
  int server_restarts_ = 0;
  std::list<Worker> workers_;
  int replacements_ = 0;  // that were started
  WorkerCount count_;
  std::string request_, seen_request_;  // that is being followed; that was looked at last
  int wanted_ = 0;                      // by it
  double look_at_ = 0;
  // Of all workers. Ranks meet through a file in the run folder; the job id tells this start's file from one that a
  // killed run left.
  std::vector<std::string> variables_ = {launcher_variable(),
                                         fmt::format("MOTLEY_JOB_ID={}-{:.6f}", ::getpid(), wall_seconds())};
  bool interrupted_ = false;
  bool failed_ = false;
  double kill_at_ = options_.deadline ? options_.deadline->at() : kNever;
  double killed_at_ = kNever;
};

}  // namespace

Status follow_launcher(int signal) {
  ::prctl(PR_SET_PDEATHSIG, signal);
  const char* launcher = std::getenv("MOTLEY_LAUNCHER");
  if (launcher != nullptr && std::to_string(::getppid()) != launcher) {  // it ended before the line above
    return fail(ErrorCode::kPeerLost, "the launcher (process {}) has ended", launcher);
  }
  return {};
}

void leave_error(const Error& error) {
  const nlohmann::json json = {
      {"code", static_cast<int>(error.code)}, {"message", error.message}, {"rank", error.rank}};
  const std::string text = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  std::fflush(stdout);
  std::fprintf(stderr, "%c%s\n", kErrorMark, text.c_str());
}

Status launch_workers(LaunchOptions options, const RunDirectory& run) {
  for (int restart = 1;; ++restart) {
    Status status = Launch(options, run).run();
    const bool go_on = !status && status.error().code == ErrorCode::kServerLost && restart <= kMaxRestarts &&
                       holds_checkpoint(run.checkpoint_folder());
    if (!go_on) {
      if (!status && restart > 1) status.error().message += "; " + way_on(run);
      std::error_code ignored;
      std::filesystem::remove(token_file(run), ignored);
      return status;
    }
    std::fprintf(stderr, "motley: %s\nmotley: going on from the last checkpoint (restart %d of %d)\n",
                 status.error().message.c_str(), restart, kMaxRestarts);
    auto& arguments = options.worker_arguments;
    if (std::ranges::find(arguments, "--resume") == arguments.end()) arguments.push_back("--resume");
  }
}

}  // namespace motley::train
