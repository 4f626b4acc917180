#include "motley/train/launch/launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "motley/base/clock.h"
#include "motley/base/os/file.h"
#include "motley/base/os/process.h"
#include "motley/base/os/terminal.h"
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
constexpr int kMaxRestarts = 3;          // of a run that is not elastic, after a parameter server was lost
constexpr double kRequestSeconds = 0.1;  // between looks at whether another number of workers is asked for
constexpr std::size_t kMaxRequestBytes = 256;
constexpr double kStoppedSeconds = 1;  // after which a server or newcomer that is stopped (SIGSTOP) counts as lost

// A worker, or a parameter server: a process and the pipe of its output, both of which end with this object, whatever
// way the launcher leaves.
struct Child {
  Child(int rank, bool is_newcomer) : rank(rank), is_newcomer(is_newcomer) {}
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (process > 0 && !has_ended) {
      signal(SIGKILL);
      ::waitpid(process, nullptr, 0);
    }
    close_output();
  }
  void signal(int number) const { ::kill(-process, number); }
  void close_output() {
    if (output >= 0) ::close(output);
    output = -1;
  }
  // Whether it has been stopped for too long, as far as these calls have seen.
  bool is_hung() {
    const double now = monotonic_seconds();
    if (process_state(process) != 'T') last_seen = now;
    return now >= last_seen + kStoppedSeconds;
  }
  // Its status, once it has ended.
  std::optional<int> reap() {
    int status = 0;
    if (has_ended || ::waitpid(process, &status, WNOHANG) != process) return std::nullopt;
    has_ended = true;
    ended = monotonic_seconds();
    return status;
  }
  std::string name() const { return rank < 0 ? "the parameter server" : fmt::format("rank {}", rank); }

  const int rank;  // -1: the parameter server
  const bool is_newcomer;
  pid_t process = -1;   // there is none yet
  int output = -1;      // read end, -1 after end of file
  std::string partial;  // a line without its end yet
  std::ofstream log;
  bool has_ended = false;
  std::optional<Error> error;  // that it left
  int told_workers = 0;        // by it, last; 0: nothing new
  double ended = 0;
  double last_seen = monotonic_seconds();  // not stopped
};

std::string launcher_variable() {
  return fmt::format("MOTLEY_LAUNCHER={}", ::getpid());
}

Status start_process(Child& child, const LaunchOptions& options, const std::vector<std::string>& arguments,
                     const std::filesystem::path& log, const std::vector<std::string>& variables) {
  child.log.open(log, std::ios::app);
  if (!child.log) return fail(ErrorCode::kIo, "cannot open '{}': {}", log.string(), errno_text());
  int pipe_ends[2];
  if (::pipe2(pipe_ends, O_CLOEXEC) != 0) {
    return fail(ErrorCode::kIo, "cannot make a pipe for {}: {}", child.name(), errno_text());
  }
  // A process group of its own, so that Ctrl-C reaches the launcher alone, which passes it on once.
  Program program = {.words = options.program.command,
                     .environment = environment_with(variables),
                     .output = pipe_ends[1],
                     .errors = pipe_ends[1],
                     .group = Program::Group::kOwn};
  program.words.insert(program.words.end(), arguments.begin(), arguments.end());
  const bool forks = options.may_fork && options.program.run && can_fork();
  const std::string name = child.rank < 0 ? "motley server" : fmt::format("motley rank {}", child.rank);
  const Result<pid_t> started = forks ? fork_into(program, options.program.run, name) : spawn(program);
  ::close(pipe_ends[1]);
  if (!started) {
    ::close(pipe_ends[0]);
    return fail(ErrorCode::kIo, "{}: {}", child.name(), started.error().message);
  }
  child.process = *started;
  child.output = pipe_ends[0];
  ::fcntl(child.output, F_SETFL, O_NONBLOCK);
  return {};
}

// The error that a rank wrote behind the mark.
std::optional<Error> parse_error(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  return Error{static_cast<ErrorCode>(json.value("code", 0)), json.value("message", ""), json.value("rank", -1)};
}

// A line of a worker's log as a terminal shows it: warnings and errors have colours.
std::string colored_level(const std::string& line) {
  constexpr std::size_t kBeforeLevel = 32;  // the time and the rank
  for (const auto& [level, color] :
       {std::pair(std::string(" warning: "), TextColor::kWarning), {std::string(" error: "), TextColor::kBad}}) {
    const std::size_t at = line.find(level);
    if (at > kBeforeLevel) continue;
    const std::string word = level.substr(1, level.size() - 3);
    return line.substr(0, at + 1) + colored(word, color, STDOUT_FILENO) + line.substr(at + 1 + word.size());
  }
  return line;
}

// Copies what a worker wrote, line by line, to its log and to the terminal.
void forward_output(Child& child, ProgressLine& progress, bool quiet) {
  char block[1 << 14];
  for (;;) {
    const ssize_t got = ::read(child.output, block, sizeof(block));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got > 0) {
      child.partial.append(block, static_cast<std::size_t>(got));
    } else if (!child.partial.empty()) {
      child.partial += '\n';
    }
    child.log.clear();  // a disk that was full may have room again
    std::size_t begin = 0;
    for (std::size_t end; (end = child.partial.find('\n', begin)) != std::string::npos; begin = end + 1) {
      const std::string line = child.partial.substr(begin, end - begin + 1);
      if (line.front() == kProgressMark) {
        if (!quiet) progress.show_marked(line.substr(1, line.size() - 2));
      } else if (line.front() == kWorkersMark) {
        child.told_workers = std::atoi(line.c_str() + 1);
      } else if (line.front() == kErrorMark) {
        child.error = parse_error(line.substr(1));
        if (child.error) child.log << "error: " << child.error->message << '\n' << std::flush;
      } else {
        child.log << line << std::flush;
        if (quiet) continue;
        progress.clear();
        std::fputs(colored_level(line).c_str(), stdout);
        std::fflush(stdout);
      }
    }
    child.partial.erase(0, begin);
    if (got <= 0) return child.close_output();
  }
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
      struct sigaction now{};
      const bool is_ignored = ::sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
      if (with_stops && !(signal == SIGHUP && is_ignored)) sigaddset(&taken, signal);  // ignored as nohup leaves it
    }
    // Where whoever started this process ignores the end of children, the system would take ours away unasked.
    struct sigaction usual{};
    usual.sa_handler = SIG_DFL;
    ::sigaction(SIGCHLD, &usual, &former_child_);
    ::sigprocmask(SIG_BLOCK, &taken, &former_mask_);
    descriptor_ = ::signalfd(-1, &taken, SFD_NONBLOCK | SFD_CLOEXEC);
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  ~Signals() {
    ::close(descriptor_);
    ::sigprocmask(SIG_SETMASK, &former_mask_, nullptr);
    ::sigaction(SIGCHLD, &former_child_, nullptr);
  }

  int descriptor() const { return descriptor_; }

  // How often a stop was asked for since the last call. A terminal that closes may hang up twice: that is one stop.
  int take_stops() {
    int stops = 0;
    signalfd_siginfo info;
    while (::read(descriptor_, &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
      if (info.ssi_signo == SIGCHLD) continue;
      const bool was_asked = std::exchange(was_asked_, true);
      stops += info.ssi_signo == SIGHUP && was_asked ? 0 : 1;
    }
    return stops;
  }

 private:
  sigset_t former_mask_;
  struct sigaction former_child_;
  int descriptor_ = -1;
  bool was_asked_ = false;
};

// One start of the server and the workers, up to the end of the last worker.
class Launch final : LaunchedProcesses {
 public:
  Launch(const LaunchOptions& options, const RunDirectory& run) : options_(options), run_(run) {}
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;
  ~Launch() override {
    if (!tells_count()) return;
    std::error_code ignored;
    std::filesystem::remove(worker_count_file(options_.count_folder), ignored);
    std::filesystem::remove(worker_request_file(options_.count_folder), ignored);
  }

  bool was_stopped() const { return state_.was_stopped(); }

  Status run() {
    if (tells_count()) begin_to_tell_count();
    if (options_.deadline) state_.end_by(options_.deadline->at());
    if (!options_.server_arguments.empty()) MOTLEY_TRY(start_first_server());
    MOTLEY_TRY(state_.start());
    const auto is_silent = [](const Child& worker) { return worker.output < 0; };
    while (!state_.is_over() || !std::ranges::all_of(workers_, is_silent)) {
      wait_for_news();
      follow_stops();
      for (std::size_t worker = 0; worker < workers_.size(); ++worker) follow(static_cast<int>(worker));
      MOTLEY_TRY(follow_server());
      state_.advance(monotonic_seconds(), wall_seconds());
      if (tells_count()) follow_count();
    }
    progress_.clear();
    if (options_.deadline && std::isfinite(state_.killed_at()) && state_.killed_at() >= options_.deadline->at()) {
      return fail(ErrorCode::kTimeout, "the workers had not ended after {:.3g} s and were killed",
                  options_.deadline->allowed());
    }
    Status verdict = state_.verdict(run_);
    tell_other_errors(verdict);
    return verdict;
  }

 private:
  // What workers have said and the verdict does not say: where some were killed, the others' words are the cause.
  void tell_other_errors(const Status& verdict) {
    if (!verdict && verdict.error().code == ErrorCode::kInterrupted) return;
    std::string told = verdict ? "" : verdict.error().message;
    for (const Child& worker : workers_) {
      if (!worker.error || worker.error->code == ErrorCode::kInterrupted) continue;
      const std::string& message = worker.error->message;
      if (told.find(message) != std::string::npos) continue;
      told += message;
      say(fmt::format("{}: {}", worker.name(), message));
    }
  }

  // --- What the state wants done

  Result<int> start_worker(int rank, bool is_newcomer) override {
    Child& worker = workers_.emplace_back(rank, is_newcomer);
    std::vector<std::string> variables = variables_;
    variables.insert(variables.end(), {fmt::format("MOTLEY_RANK={}", rank),
                                       fmt::format("MOTLEY_SIZE={}", std::max(options_.workers, options_.max_workers)),
                                       "MOTLEY_PROGRESS=marked"});
    if (is_newcomer) variables.emplace_back("MOTLEY_NEWCOMER=1");
    const Status started = start_process(worker, options_, options_.worker_arguments, run_.log_file(rank), variables);
    if (started) return worker.process;
    workers_.pop_back();
    return fail(started.error());
  }

  void signal_worker(int worker, int signal) override { workers_[static_cast<std::size_t>(worker)].signal(signal); }

  Status start_server() override {
    server_.emplace(-1, false);
    return start_process(*server_, options_, server_arguments_, server_log(), server_variables_);
  }

  void say(const std::string& text) override {
    progress_.clear();
    std::fprintf(stderr, "motley: %s\n", text.c_str());
  }

  // --- The parameter server

  // Its address and its token go to the workers.
  Status start_first_server() {
    MOTLEY_TRY(net::Secret::generate().write(token_file(run_)));
    const std::string token = fmt::format("{}={}", net::kTokenFileVariable, token_file(run_).string());
    const std::filesystem::path address_file = run_.folder() / "logs" / "server.address";
    std::error_code ignored;
    std::filesystem::remove(address_file, ignored);
    server_arguments_ = options_.server_arguments;
    server_arguments_.insert(server_arguments_.end(), {"--address-file", address_file.string()});
    server_variables_ = {launcher_variable(), token};
    MOTLEY_TRY(start_server());
    MOTLEY_ASSIGN(const std::string address, wait_for_address(address_file));
    *std::next(std::ranges::find(server_arguments_, "--listen")) = address;  // as for another one in its place
    variables_.insert(variables_.end(), {fmt::format("{}={}", kServersVariable, address), token});
    return {};
  }

  // The address, once the server listens.
  Result<std::string> wait_for_address(const std::filesystem::path& file) {
    const Deadline deadline = Deadline::after(kServerStartSeconds);
    for (;;) {
      if (const auto address = read_file(file, 256)) return address->substr(0, address->find('\n'));
      const bool ended = server_->reap().has_value();
      if (server_->output >= 0) forward_output(*server_, progress_, true);
      if (ended) {
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

  Status follow_server() {
    if (!server_ || server_->has_ended) return {};
    const bool is_lost = server_->reap().has_value() || server_->is_hung();
    return is_lost ? state_.follow_server_loss(server_->process) : Status();
  }

  std::filesystem::path server_log() const { return run_.folder() / "logs" / "server.log"; }

  // --- What is seen

  // Until a process writes or ends, or a stop is asked for; 0.1 s at most.
  void wait_for_news() {
    std::vector<pollfd> polled = {{signals_.descriptor(), POLLIN, 0}};
    for (const Child& worker : workers_) {
      if (worker.output >= 0) polled.push_back({worker.output, POLLIN, 0});
    }
    if (server_ && server_->output >= 0) {
      polled.push_back({server_->output, POLLIN, 0});
      forward_output(*server_, progress_, true);
    }
    ::poll(polled.data(), polled.size(), 100);
  }

  void follow_stops() {
    for (int stops = signals_.take_stops(); stops > 0; --stops) {
      state_.stop(monotonic_seconds(), [this] { return run_.last_step_seconds(); });
    }
    if (options_.stop && options_.stop->stop_requested()) state_.stop_at_once(monotonic_seconds());
  }

  void follow(int number) {
    Child& worker = workers_[static_cast<std::size_t>(number)];
    if (worker.output >= 0) forward_output(worker, progress_, options_.quiet);
    if (worker.is_newcomer && !worker.has_ended && worker.is_hung()) state_.follow_hang(number);
    if (const std::optional<int> status = worker.reap()) {
      // Its last words say whether it has left.
      if (worker.output >= 0) forward_output(worker, progress_, options_.quiet);
      state_.follow_end(number, *status, worker.error, worker.ended);
    }
    if (const int workers = std::exchange(worker.told_workers, 0); workers > 0) state_.follow_step(workers);
    // A grandchild may hold the pipe open; a worker that has ended has nothing more to say after a last read.
    if (worker.has_ended && monotonic_seconds() > worker.ended + 1) worker.close_output();
  }

  // --- How many workers there are, and are to be

  bool tells_count() const { return !options_.count_folder.empty(); }

  // A request that was made before is of another start.
  void begin_to_tell_count() {
    std::error_code ignored;
    std::filesystem::remove(worker_request_file(options_.count_folder), ignored);
    tell_count();
  }

  void tell_count() {
    told_ = state_.count();
    const Status written = write_file(worker_count_file(options_.count_folder), write_json_line(told_));
    if (!written) say(fmt::format("how many workers there are cannot be told: {}", written.error().message));
  }

  void follow_count() {
    if (state_.takes_request() && monotonic_seconds() >= look_at_) look_at_request();
    if (state_.count() != told_) tell_count();
  }

  void look_at_request() {
    look_at_ = monotonic_seconds() + kRequestSeconds;
    const auto read = read_file(worker_request_file(options_.count_folder), kMaxRequestBytes);
    std::error_code ignored;
    if (!read && !std::filesystem::exists(worker_request_file(options_.count_folder), ignored)) return;
    state_.follow_request(read ? escaped(read->substr(0, read->find('\n'))) : "too long");
  }

  const LaunchOptions& options_;
  const RunDirectory& run_;
  Signals signals_{!options_.stop};  // restored after the processes below have gone
  ProgressLine progress_;
  std::optional<Child> server_;
  std::vector<std::string> server_arguments_, server_variables_;
  std::deque<Child> workers_;  // in the order of their starts
  LaunchState state_{options_, *this};
  WorkerCount told_;
  double look_at_ = 0;
  // Of all workers. Ranks meet through a file in the run folder; the job id tells this start's file from one that a
  // killed run left.
  std::vector<std::string> variables_ = {launcher_variable(),
                                         fmt::format("MOTLEY_JOB_ID={}-{:.6f}", ::getpid(), wall_seconds())};
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
    Launch launch(options, run);
    Status status = launch.run();
    const bool is_server_lost = !status && status.error().code == ErrorCode::kServerLost && !launch.was_stopped();
    const bool go_on = is_server_lost && restart <= kMaxRestarts && holds_checkpoint(run.checkpoint_folder());
    if (!go_on) {
      const bool is_cut_off = !status && status.error().code == ErrorCode::kServerLost && launch.was_stopped();
      if (!status && (restart > 1 || is_cut_off)) status.error().message += "; " + way_on(run);
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
