#include "tests/simulation/schedule.h"

#include <fmt/format.h>

#include <algorithm>

#include "motley/base/random.h"

namespace motley::simulation {
namespace {

constexpr double kJobSeconds = 0.6;          // that a job takes about, without faults
constexpr std::uint64_t kOperations = 4000;  // the same, of a rank

Fault make_fault(Random& random, Topology topology) {
  Fault fault;
  // Half of all are losses of a rank.
  const std::uint64_t drawn = random.below(2 * kFaultKinds);
  fault.kind = drawn < kFaultKinds ? static_cast<FaultKind>(drawn) : drawn % 2 == 0 ? FaultKind::kKill : FaultKind::kStop;
  // Within a host nothing is lost on the way.
  const bool has_links = topology != Topology::kSharedMemory && topology != Topology::kOneHostTcp;
  if (!has_links && fault.kind >= FaultKind::kReset && fault.kind <= FaultKind::kSlow) fault.kind = FaultKind::kKill;
  fault.generation = random.below(4) == 0 ? 2 : 1;
  fault.rank = static_cast<int>(random.below(kRanks));
  const bool is_of_link = fault.kind >= FaultKind::kReset && fault.kind <= FaultKind::kSlow;
  if (is_of_link && random.below(2) == 0) fault.other = (fault.rank + 1 + static_cast<int>(random.below(kRanks - 1))) % kRanks;
  fault.seconds = random.below(3) == 0 ? 0.05 + 0.3 * random.uniform() : 0.5 + 4 * random.uniform();
  if (fault.kind == FaultKind::kSlow) fault.seconds = 0.2 + random.uniform();
  if (random.below(2) == 0) {
    fault.operation = 1 + random.below(kOperations);
  } else {
    fault.at = kJobSeconds * random.uniform();
  }
  return fault;
}

}  // namespace

// At least three faults of two kinds.
Schedule make_schedule(std::uint64_t seed) {
  Random random(mix({seed, 0xfa}));
  Schedule schedule;
  schedule.seed = seed;
  schedule.topology = static_cast<Topology>(random.below(kTopologies));
  schedule.has_large_buckets = random.below(8) == 0;
  const std::size_t count = 3 + random.below(2);
  while (schedule.faults.size() < count ||
         std::ranges::all_of(schedule.faults, [&](const Fault& fault) { return fault.kind == schedule.faults.front().kind; })) {
    if (schedule.faults.size() == count) schedule.faults.pop_back();
    schedule.faults.push_back(make_fault(random, schedule.topology));
  }
  std::ranges::stable_sort(schedule.faults, {}, &Fault::generation);
  return schedule;
}

std::string describe(const Fault& fault) {
  const std::string when = fault.operation > 0 ? fmt::format("before system call {} of rank {}", fault.operation, fault.rank)
                                               : fmt::format("after {:.4f} s", fault.at);
  const std::string link = fault.other < 0 ? fmt::format("rank {} and all others", fault.rank)
                                           : fmt::format("rank {} and rank {}", fault.rank, fault.other);
  const std::string what = [&] {
    switch (fault.kind) {
      case FaultKind::kKill:
        return fmt::format("rank {} is killed", fault.rank);
      case FaultKind::kStop:
        return fmt::format("rank {} is stopped for {:.3g} s", fault.rank, fault.seconds);
      case FaultKind::kReset:
        return fmt::format("the connections between {} are reset", link);
      case FaultKind::kSilence:
        return fmt::format("nothing goes between {} for {:.3g} s", link, fault.seconds);
      case FaultKind::kHalfOpen:
        return fmt::format("nothing goes from {} to {} for {:.3g} s", fmt::format("rank {}", fault.rank),
                           fault.other < 0 ? "all others" : fmt::format("rank {}", fault.other), fault.seconds);
      case FaultKind::kSlow:
        return fmt::format("the links between {} are slow for {:.3g} s", link, fault.seconds);
      case FaultKind::kPowerLoss:
        return std::string("the power fails: all ranks end, and what is not synced may be lost");
      case FaultKind::kDiskFull:
        return fmt::format("the disk is full for {:.3g} s", fault.seconds);
      case FaultKind::kBitRot:
        return std::string("a bit of a checkpoint's file changes");
    }
    return std::string();
  }();
  return fmt::format("start {}, {}: {}", fault.generation, when, what);
}

std::string describe(const Schedule& schedule) {
  constexpr const char* kTopologyNames[] = {"on one host, over shared memory", "on one host, over TCP",
                                            "each on a host of its own", "on two hosts, two each"};
  std::string text = fmt::format("seed {}: {} ranks {}{}\n", schedule.seed, kRanks,
                                 kTopologyNames[static_cast<int>(schedule.topology)],
                                 schedule.has_large_buckets ? ", with large buckets" : "");
  for (const Fault& fault : schedule.faults) text += "  " + describe(fault) + "\n";
  return text;
}

}  // namespace motley::simulation
