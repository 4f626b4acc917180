// What runs attempts of jobs: processes of this machine, or a cluster's own workload manager. A controller does not
// call it: commands go one way, and what has been seen comes back.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "motley/base/result.h"
#include "motley/scheduling/service/job_record.h"
#include "motley/train/records/worker_count.h"

namespace motley::scheduling {

struct Attempt {
  int job = 0;
  std::string name;  // of the job
  int number = 1;    // of the attempt, from 1
  std::vector<std::string> command;
  std::string directory;         // where it runs
  std::filesystem::path folder;  // the attempt's own: output, and what the executor notes
  std::vector<NodeAllocation> nodes;
  std::string request = {};  // for another number of workers (worker_count.h), which no other one is like; empty: none
  double cpus_per_worker = 0;          // that it takes of its node beside its device; 0: as many as its nodes give it
  double memory_bytes_per_worker = 0;  // likewise
};

// What the command finds in its environment: MOTLEY_JOB, MOTLEY_ATTEMPT, MOTLEY_ATTEMPT_FOLDER, MOTLEY_WORKERS, and
// MOTLEY_NODES (name:workers, comma between); MOTLEY_CPUS_PER_WORKER where it has requested some.
inline constexpr const char* kFolderVariable = "MOTLEY_ATTEMPT_FOLDER";
std::vector<std::pair<std::string, std::string>> list_variables(const Attempt& attempt);

struct AttemptStatus {
  // kUnknown: it never began. kLost: all of its processes are gone, and nobody knows how they ended.
  enum class State { kUnknown, kRunning, kEnded, kLost };
  State state = State::kUnknown;
  int exit_code = 0;         // where it ended; 128 + signal for one that a signal ended
  bool node_failed = false;  // where it is lost: because a node of its is
  std::string why = {};      // where its command could not be started
  // What its launcher says of its workers, where it says so and the executor can change their number.
  std::optional<train::WorkerCount> count = {};
};

class Executor {
 public:
  virtual ~Executor() = default;
  // Starts an attempt that has not begun; does nothing for one that has, whoever started it, so that a service that was
  // killed may start again what it is not sure of. The attempt outlives this process.
  virtual Status start(const Attempt& attempt) = 0;
  virtual Result<AttemptStatus> look(const Attempt& attempt) = 0;
  // Passes the attempt's request on to its launcher; again, if it has been. The answer is in what look() sees.
  virtual Status resize(const Attempt& attempt) = 0;
  // Asks all of its processes to save their work and end (SIGTERM, which reaches the command once however often it is
  // asked), or ends them (SIGKILL). One that has not begun never will, and is lost from then on. Does nothing for one
  // that has ended.
  virtual Status ask_to_end(const Attempt& attempt) = 0;
  virtual Status kill(const Attempt& attempt) = 0;
  // Nodes that are not there at the moment, by name.
  virtual Result<std::vector<std::string>> down_nodes() = 0;
};

// What a controller wants done with an attempt.
struct Command {
  enum class Kind { kStart, kResize, kAskToEnd, kKill };
  Kind kind = Kind::kStart;
  Attempt attempt;
};

// What a controller is told: of the attempts that it watches, and of nodes. Executors fail at any call, which is told,
// too: the next step asks again.
struct AttemptSeen {
  int job = 0;
  int number = 0;  // of the attempt
  AttemptStatus status;
};
struct Problem {
  int job = 0;      // 0: of none
  int attempt = 0;  // number
  std::string what;
  bool was_asked_to_end = false;  // that is what failed
};
struct Observation {
  std::vector<AttemptSeen> attempts;                   // those that could be looked at
  std::optional<std::vector<std::string>> down_nodes;  // nothing: could not be looked at
  std::vector<Problem> problems;                       // in looking, and in carrying out what was commanded before
};

Observation observe(Executor& executor, const std::vector<Attempt>& watched);
// One after another; returns what failed.
std::vector<Problem> carry_out(Executor& executor, const std::vector<Command>& commands);

}  // namespace motley::scheduling
