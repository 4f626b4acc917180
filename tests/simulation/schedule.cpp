#include "tests/simulation/schedule.h"

#include <fmt/format.h>

#include <algorithm>

#include "motley/base/random.h"

namespace motley::simulation {
namespace {

constexpr double kJobSeconds = 0.6;          // that a job takes about, without faults
constexpr std::uint64_t kOperations = 4000;  // the same, of a rank
constexpr double kSilenceSeconds = 1;        // after which a rank counts as lost

FaultKind draw_kind(Random& random, const Schedule& schedule) {
  // Half of all are losses of a rank; within a host nothing is lost on the way.
  const std::uint64_t drawn = random.below(2 * kFaultKinds);
  if (drawn >= kFaultKinds) return drawn % 2 == 0 ? FaultKind::kKill : FaultKind::kStop;
  const auto kind = static_cast<FaultKind>(drawn);
  return !schedule.has_links() && kind >= FaultKind::kReset && kind <= FaultKind::kSlow ? FaultKind::kKill : kind;
}

Fault make_fault(Random& random, const Schedule& schedule) {
  Fault fault;
  fault.kind = draw_kind(random, schedule);
  fault.generation = random.below(4) == 0 ? 2 : 1;
  const bool is_of_process = fault.kind == FaultKind::kKill || fault.kind == FaultKind::kStop;
  const int choices = is_of_process && random.below(3) == 0 ? schedule.processes() : schedule.ranks;
  fault.rank = static_cast<int>(random.below(static_cast<std::uint64_t>(choices)));
  const bool is_of_link = fault.kind >= FaultKind::kReset && fault.kind <= FaultKind::kSlow;
  if (is_of_link && random.below(2) == 0) {
    fault.other = (fault.rank + 1 + static_cast<int>(random.below(static_cast<std::uint64_t>(schedule.ranks - 1)))) %
                  schedule.ranks;
  }
  fault.seconds = random.below(3) == 0 ? 0.05 + 0.3 * random.uniform() : 0.5 + 4 * random.uniform();
  if (random.below(2) == 0) {
    fault.operation = 1 + random.below(kOperations);
  } else {
    fault.at = kJobSeconds * random.uniform();
  }
  return fault;
}

// Soon after the one before it, or when what that one has silenced counts as lost: while the others agree on who is
// left.
void follow(Random& random, const Schedule& schedule, Fault& fault) {
  const Fault& before = schedule.faults.back();
  fault.generation = before.generation;
  fault.operation = 0;
  if (schedule.has_links() && random.below(3) == 0) {
    // Who has told the others falls silent, or one of them does.
    fault.kind = random.below(4) == 0 ? FaultKind::kHalfOpen : FaultKind::kSilence;
    fault.rank = static_cast<int>(random.below(3));
    fault.other = -1;
    fault.epoch = 2;
    fault.seconds = 2 + 3 * random.uniform();
    return;
  }
  const bool is_of_links = fault.kind == FaultKind::kSilence || fault.kind == FaultKind::kHalfOpen;
  if (fault.rank < kFewestRanks && random.below(is_of_links ? 2 : 8) == 0) {
    fault.epoch = 2 + random.below(2);
    return;
  }
  fault.at = before.at + (random.below(2) == 0 ? 0.03 : 0.2) * random.uniform();
  const bool is_silent = before.kind != FaultKind::kKill && before.kind != FaultKind::kReset;
  if (is_silent && random.below(2) == 0) fault.at += kSilenceSeconds - 0.05;
}

}  // namespace

// At least three faults of two kinds.
Schedule make_schedule(std::uint64_t seed) {
  Random random(mix({seed, 0xfa}));
  Schedule schedule;
  schedule.seed = seed;
  schedule.topology = static_cast<Topology>(random.below(kTopologies));
  if (schedule.topology == Topology::kHostEach) schedule.ranks = kMostRanks;
  schedule.has_large_buckets = random.below(8) == 0;
  schedule.has_slow_rank = random.below(4) == 0;
  const std::size_t count = 3 + random.below(2);
  while (schedule.faults.size() < count) {
    Fault fault = make_fault(random, schedule);
    const bool has_moment =
        !schedule.faults.empty() && schedule.faults.back().operation + schedule.faults.back().epoch == 0;
    if (has_moment && random.below(3) != 0) {
      follow(random, schedule, fault);
    }
    schedule.faults.push_back(fault);
    const bool is_one_kind = std::ranges::all_of(
        schedule.faults, [&](const Fault& each) { return each.kind == schedule.faults.front().kind; });
    if (schedule.faults.size() == count && is_one_kind) schedule.faults.pop_back();
  }
  std::ranges::stable_sort(schedule.faults, {}, &Fault::generation);
  return schedule;
}

std::string Schedule::name(int process) const {
  if (process < ranks) return fmt::format("rank {}", process);
  return process == ranks ? std::string("the server") : fmt::format("the server's worker {}", process - ranks - 1);
}

std::string describe(const Schedule& schedule, const Fault& fault) {
  const std::string who = schedule.name(fault.rank);
  const std::string when = fault.operation > 0 ? fmt::format("before system call {} of {}", fault.operation, who)
                           : fault.epoch > 0   ? fmt::format("once {} goes on in epoch {}", who, fault.epoch)
                                               : fmt::format("after {:.4f} s", fault.at);
  const std::string link = fault.other < 0 ? fmt::format("rank {} and all others", fault.rank)
                                           : fmt::format("rank {} and rank {}", fault.rank, fault.other);
  const std::string what = [&] {
    switch (fault.kind) {
      case FaultKind::kKill:
        return who + " is killed";
      case FaultKind::kStop:
        return fmt::format("{} is stopped for {:.3g} s", who, fault.seconds);
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
        return std::string("the power fails, and a bit of the newest checkpoint changes");
    }
    return std::string();
  }();
  return fmt::format("start {}, {}: {}", fault.generation, when, what);
}

std::string describe(const Schedule& schedule) {
  constexpr const char* kTopologyNames[] = {"on one host, over shared memory", "on one host, over TCP",
                                            "each on a host of its own", "on two hosts, two each"};
  std::string text = fmt::format("seed {}: {} ranks {}{}{}; beside them a server with two workers\n", schedule.seed,
                                 schedule.ranks, kTopologyNames[static_cast<int>(schedule.topology)],
                                 schedule.has_large_buckets ? ", with large buckets" : "",
                                 schedule.has_slow_rank ? ", the last one slow" : "");
  for (const Fault& fault : schedule.faults) text += "  " + describe(schedule, fault) + "\n";
  return text;
}

}  // namespace motley::simulation
