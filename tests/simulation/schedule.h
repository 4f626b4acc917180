// What is done to a simulated job: where its ranks are and which faults come when. A seed gives a schedule, a person
// can read it, and one that fails is shrunk to the faults that it takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace motley::simulation {

enum class FaultKind : std::uint8_t {
  kKill,       // the process, by SIGKILL
  kStop,       // the process, by SIGSTOP, for a while
  kReset,      // all connections between two ranks
  kSilence,    // nothing goes between two ranks, or a rank and all others, for a while
  kHalfOpen,   // the same one way only
  kSlow,       // bytes take longer between two ranks, for a while
  kDiskFull,   // no more than some bytes can be written, for a while
  kPowerLoss,  // all processes end, and what the disk has not synced may be lost
  kBitRot,     // the same, and a bit of the newest checkpoint changes
  // Of a job that has a launcher:
  kInterrupt,   // a person stops it; at the second time, at once
  kResize,      // a person asks for another number of workers
  kLaunchLoss,  // the launcher is killed
  // Between hosts:
  kPartition,  // nothing goes between some hosts and all others, for a while or for good
};
inline constexpr int kFaultKinds = 13;
inline constexpr int kFaultKindsWithoutLauncher = 9;

// In a process's place: the one that a fault is about, or of steps and epochs any rank.
inline constexpr int kOwn = -1, kAnyRank = -2;

struct Fault {
  FaultKind kind = FaultKind::kKill;
  int generation = 1;           // start of the job
  int rank = 0;                 // or another process, as Schedule counts them
  int other = -1;               // rank; -1: all other ranks
  double at = 0;                // seconds after the generation's start, where the three others are 0
  std::uint64_t operation = 0;  // before this call of the system by the rank,
  std::int64_t step = 0;        // counted from where it has committed this step or a later one; 0: from its start
  std::uint64_t epoch = 0;      // once the rank goes on in this epoch or a later one, for the first time
  int life = 1;                 // of the processes that have the rank, one after the other: which
  int witness = kOwn;           // the process whose calls, steps and epochs these are
  bool is_of_disk = false;      // only calls that change the disk are counted
  bool follows = false;         // all of it is counted from when the fault before it in the schedule comes
  double seconds = 0;           // how long it lasts; infinite: for good
  int workers = 0;              // that are asked for
  unsigned hosts = 0;           // of one side of a partition: bits
  std::size_t space = 0;        // bytes that a full disk still takes
  bool is_on_side(int host) const { return (hosts >> host & 1U) != 0; }
  bool operator==(const Fault&) const = default;
};

enum class Topology : std::uint8_t { kSharedMemory, kOneHostTcp, kHostEach, kTwoHosts };
inline constexpr int kTopologies = 4;

inline constexpr int kFewestRanks = 4, kMostRanks = 5;

struct Schedule {
  std::uint64_t seed = 0;  // of all that is drawn beside the faults
  Topology topology = Topology::kSharedMemory;
  int ranks = kFewestRanks;
  bool has_large_buckets = false;
  bool has_slow_rank = false;      // the last one, whose share of the batch becomes small
  bool has_scheduler = false;      // beside it
  bool has_pauses = false;         // threads are held up now and then
  bool has_node_failures = false;  // of the scheduler's cluster
  bool has_launcher = false;       // which starts the ranks, and those that take places; else a person does
  int minimum = 1;                 // ranks that the job goes on with
  int replacements = 0;            // processes that take places of ranks that have ended
  double replacement_seconds = 0;  // until one starts, on average
  int servers = 0;             // parameter servers that the ranks' gradients go through; two keep each other's state
  bool has_momentum = false;   // the optimizer, whose state they have
  double restart_seconds = 0;  // until a server that has ended is started again, on average
  std::vector<Fault> faults;

  int host(int process) const {
    const int rank = process % ranks;
    return topology == Topology::kHostEach ? rank : topology == Topology::kTwoHosts ? rank / 2 : 0;
  }
  bool has_links() const { return topology == Topology::kHostEach || topology == Topology::kTwoHosts; }
  // Ranks, the served job's server and two workers, the scheduler, the ranks' servers.
  int first_server() const { return ranks + 3 + (has_scheduler ? 1 : 0); }
  int processes() const { return first_server() + servers; }
  bool is_server(int process) const { return process >= first_server() && process < processes(); }
  std::string name(int process) const;
};

Schedule make_schedule(std::uint64_t seed);
// The same job without a launcher, if it has one, and what people do with that, without partitions, and with a disk
// that has no space at all once it is full.
Schedule simplify(Schedule schedule);
std::string describe(const Schedule& schedule, const Fault& fault);
std::string describe(const Schedule& schedule);

}  // namespace motley::simulation
