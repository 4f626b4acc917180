// What is done to a simulated job: where its ranks are and which faults come when. A seed gives a schedule, a person
// can read it, and one that fails is shrunk to the faults that it takes.
#pragma once

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
  kDiskFull,   // nothing can be written, for a while
  kPowerLoss,  // all processes end, and what the disk has not synced may be lost
  kBitRot,     // the same, and a bit of the newest checkpoint changes
};
inline constexpr int kFaultKinds = 9;

struct Fault {
  FaultKind kind = FaultKind::kKill;
  int generation = 1;           // start of the job
  int rank = 0;                 // or what comes after the last one: the server, its two workers, the scheduler
  int other = -1;               // rank; -1: all other ranks
  double at = 0;                // seconds after the generation's start, where the three others are 0
  std::uint64_t operation = 0;  // before this call of the system by the rank,
  std::int64_t step = 0;        // counted from where it has committed this step or a later one; 0: from its start
  std::uint64_t epoch = 0;      // once the rank goes on in this epoch or a later one, for the first time
  int life = 1;                 // of the processes that have the rank, one after the other: which
  double seconds = 0;           // how long it lasts
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
  int minimum = 1;                 // ranks that the job goes on with
  int replacements = 0;            // processes that take places of ranks that have ended
  double replacement_seconds = 0;  // until one starts, on average
  std::vector<Fault> faults;

  bool has_links() const { return topology == Topology::kHostEach || topology == Topology::kTwoHosts; }
  int processes() const { return ranks + 3 + (has_scheduler ? 1 : 0); }
  std::string name(int process) const;
};

Schedule make_schedule(std::uint64_t seed);
std::string describe(const Schedule& schedule, const Fault& fault);
std::string describe(const Schedule& schedule);

}  // namespace motley::simulation
