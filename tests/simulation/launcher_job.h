// The launcher of the ranks' job: its decisions are production's, and the processes that it starts and signals
// simulated ones. People stop the job, or ask for other numbers of workers.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "motley/train/launch/launch_state.h"
#include "tests/simulation/observer.h"
#include "tests/simulation/simulator.h"

namespace motley::simulation {

// What goes between a launcher and a rank's process: signals, and what its parent learns of it.
struct LaunchedRank {
  bool takes_signals = false;  // it has joined; before, the system ends it by any
  bool is_asked_to_stop = false;
  bool is_asked_to_leave = false;
  std::optional<int> exit_code;  // where its main function has come to an end
  std::optional<Error> error;    // that it left
};

class LauncherJob final : public train::LaunchedProcesses {
 public:
  // Starts the process of a rank.
  using StartRank = std::function<Process&(int rank, LaunchedRank& launched)>;

  LauncherJob(const train::LaunchRules& rules, Observer& observer, StartRank start_rank);

  // The launcher's main function, which ends with all workers.
  int run(const std::filesystem::path& folder);
  // Some rank's process has ended.
  void wake() { news_.wake_all(); }
  // The launcher itself was killed.
  void lose();

  // By people. At the second time no checkpoint is waited for.
  void stop();
  void ask_for(int workers);

 private:
  struct Child {
    int rank = 0;
    bool is_newcomer = false;
    LaunchedRank launched;
    Process* process = nullptr;
    bool is_reaped = false;
    double last_seen = 0;  // not stopped
  };
  Result<int> start_worker(int rank, bool is_newcomer) override;
  void signal_worker(int worker, int signal) override;
  Status start_server() override { return {}; }
  void say(const std::string& text) override;

  void follow(int worker);
  void check(const Status& verdict) const;

  const train::LaunchRules rules_;
  Observer& observer_;
  const StartRank start_rank_;
  std::deque<Child> children_;  // in the order of their starts
  std::optional<train::LaunchState> state_;
  WaitQueue news_;
  int stops_ = 0;
  int followed_stops_ = 0;
  double stopped_at_ = 0;  // last
  int requests_ = 0;
  std::string request_;
};

}  // namespace motley::simulation
