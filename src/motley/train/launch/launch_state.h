// What a launcher decides about a job's processes: what it sees of them and the time go in, starts and signals come
// out. It touches no process itself, so that simulated ones can be launched, too.
#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "motley/base/result.h"
#include "motley/train/job/run_directory.h"
#include "motley/train/records/worker_count.h"

namespace motley::train {

inline constexpr int kMaxServerRestarts = 3;

// How to go on with a run that has ended early.
std::string way_on(const RunDirectory& run);

struct LaunchRules {
  int workers = 1;
  // The run goes on where workers are killed, as long as so many are left; 0: it does not.
  int min_workers = 0;
  int max_workers = 0;       // that it may be given while it runs; 0: no more than it begins with
  int replacements = 0;      // of those, in all, that take killed workers' places
  double grace_seconds = 3;  // how long the others may take to end after the first failure
  // And all of them after a stop, with a checkpoint written, beside so many steps, in which they hear of the stop.
  double stop_seconds = 60;
  int steps_to_stop = 1;
  double join_seconds = 0;  // for which too few of an elastic run wait for others, once they have written a checkpoint
};

// Carries out what is decided. Workers are numbered in the order of their starts, from 0.
class LaunchedProcesses {
 public:
  virtual ~LaunchedProcesses() = default;
  // Its process id.
  virtual Result<int> start_worker(int rank, bool is_newcomer) = 0;
  virtual void signal_worker(int worker, int signal) = 0;  // one that has not ended
  virtual Status start_server() = 0;                       // in the place of the one before
  virtual void say(const std::string& text) = 0;           // to whoever watches
};

// One start of a job's workers, up to the end of the last one. Times are seconds of one clock that never goes back.
class LaunchState {
 public:
  LaunchState(const LaunchRules& rules, LaunchedProcesses& processes);

  Status start();

  // What is seen. A worker has ended, with this status of waitpid and the error that it left.
  void follow_end(int worker, int status, std::optional<Error> error, double now);
  // One has been stopped (SIGSTOP) for too long.
  void follow_hang(int worker);
  // The server has ended, or has been stopped for too long: another one takes its place where the run goes on.
  Status follow_server_loss(int process);
  // A worker's word of how many the last step was done with.
  void follow_step(int workers) { told_workers_ = workers; }
  // Somebody asks for another number of workers (motley/train/records/worker_count.h), in whatever words; asked for
  // before, it is nothing new. Only while takes_request(): one request is followed after the other, the next one once
  // all that are there have done a step together.
  bool takes_request() const { return is_settled(); }
  void follow_request(const std::string& text);
  // The first stop leaves workers the time to write a checkpoint, another one none. `step_seconds`: that a step takes;
  // asked once they have been told.
  void stop(double now, const std::function<double()>& step_seconds = {});
  void stop_at_once(double now);
  // Workers that still run then are killed.
  void end_by(double time);
  // As often as time goes by; `wall` in seconds since 1970.
  void advance(double now, double wall);

  bool is_over() const;
  bool was_stopped() const { return is_interrupted_; }
  // How many workers there are, and are to be.
  const WorkerCount& count() const { return count_; }
  // When all that were left were killed; infinity: they were not.
  double killed_at() const { return killed_at_; }
  // Once it is over: which failure came first, if any. A rank that another's failure brought down says so (its error is
  // about another rank); what counts is the rank killed by a signal that was not sent from here, else the earliest
  // error that a rank has about itself.
  Status verdict(const RunDirectory& run) const;

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  struct Worker {
    int rank = 0;
    bool is_newcomer = false;
    int process = -1;
    bool has_notice = false;     // to leave, as fewer workers are asked for
    std::optional<int> status;   // of waitpid
    std::optional<Error> error;  // that it left
    double ended = 0;
    bool is_missed = true;  // the run did not go on without it

    bool exited_with(int code) const;
    bool was_killed() const;
    bool was_killed_by(int signal) const;
    bool was_interrupted() const { return error && error->code == ErrorCode::kInterrupted; }
    bool has_left() const { return error && error->code == ErrorCode::kLeft; }
    // A newcomer that found nobody any more has neither done nor lost anything.
    bool came_too_late() const { return error && exited_with(0); }
    // Workers of an elastic run kill those whom they lose, also where one worker's own error ends them all.
    bool has_own_error() const;
    std::string name() const { return "rank " + std::to_string(rank); }
  };

  Status start_worker(int rank, bool is_newcomer);
  void signal(std::size_t worker, int number);
  bool replace(const Worker& lost);
  bool goes_on_without(const Worker& lost, bool is_replaced);
  bool is_settled() const;
  int running() const;
  void answer(const std::string& refused);
  void send_away(int count);
  void take_in(int count);

  std::vector<const Worker*> in_order_of_ends() const;
  bool was_signalled_from_here(const Worker& worker) const;

  const LaunchRules rules_;
  LaunchedProcesses& processes_;
  std::vector<Worker> workers_;  // by number
  int replacements_ = 0;         // that were started
  int server_restarts_ = 0;
  WorkerCount count_;
  int told_workers_ = 0;                // by a worker, since; 0: nothing new
  std::string request_, seen_request_;  // that is being followed; that was looked at last
  int wanted_ = 0;                      // by it
  bool is_interrupted_ = false;
  bool has_failed_ = false;
  double kill_at_ = kNever;
  double killed_at_ = kNever;
};

}  // namespace motley::train
