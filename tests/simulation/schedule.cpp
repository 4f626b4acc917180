#include "tests/simulation/schedule.h"

#include <fmt/format.h>

#include <algorithm>

#include "motley/base/random.h"

namespace motley::simulation {
namespace {

// What a job takes about, without faults.
struct Extent {
  double start_seconds = 0;           // until the first step
  double seconds = 0;                 // of its steps
  std::uint64_t operations = 0;       // of a rank
  std::uint64_t duty_operations = 0;  // of what all do together after a step
};
constexpr Extent kExtents[kTopologies] = {
    {0.05, 0.1, 1500, 150}, {0.1, 0.3, 3000, 250}, {0.3, 0.6, 7000, 450}, {0.2, 0.5, 3500, 300}};
constexpr std::uint64_t kJoinOperations = 1500;  // of one that joins, until it has done a step or two
constexpr double kSilenceSeconds = 1;            // after which a rank counts as lost
constexpr double kReplacementSeconds[] = {2e-3, 0.02, 0.3};

const Extent& extent(const Schedule& schedule) {
  return kExtents[static_cast<int>(schedule.topology)];
}

FaultKind draw_kind(Random& random, const Schedule& schedule) {
  // Half of all are losses of a rank; within a host nothing is lost on the way.
  const std::uint64_t drawn = random.below(2 * kFaultKinds);
  if (drawn >= kFaultKinds) return drawn % 2 == 0 ? FaultKind::kKill : FaultKind::kStop;
  const auto kind = static_cast<FaultKind>(drawn);
  return !schedule.has_links() && kind >= FaultKind::kReset && kind <= FaultKind::kSlow ? FaultKind::kKill : kind;
}

// After which all write a checkpoint, evaluate, or part.
std::int64_t draw_eventful_step(Random& random) {
  const std::int64_t every[] = {4, 5, 20};
  const std::int64_t chosen = every[random.below(std::size(every))];
  return chosen * (1 + static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(20 / chosen))));
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
  if (schedule.replacements > 0 && is_of_process && fault.rank < schedule.ranks && random.below(4) == 0) {
    fault.life = 2;
    fault.operation = 1 + random.below(kJoinOperations);
    return fault;
  }
  const std::uint64_t moment = random.below(3);
  if (moment == 0) {
    fault.at = (extent(schedule).start_seconds + extent(schedule).seconds) * random.uniform();
  } else if (moment == 1 || fault.rank >= schedule.ranks) {
    fault.operation = 1 + random.below(extent(schedule).operations);
  } else {
    if (random.below(2) == 0) fault.rank = fault.other == 0 ? 1 : 0;  // who writes and collects
    fault.step = draw_eventful_step(random);
    fault.operation = 1 + random.below(extent(schedule).duty_operations);
  }
  return fault;
}

// Soon after the one before it, or when what that one has silenced counts as lost: while the others agree on who is
// left.
void follow(Random& random, const Schedule& schedule, Fault& fault) {
  const Fault& before = schedule.faults.back();
  fault.generation = before.generation;
  fault.operation = 0;
  fault.step = 0;
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

// Both of the lowest ranks propose who is left, as each has lost the other, over slow links to those who decide; and
// one of them may lose a third rank meanwhile, and begin anew.
void add_contention(Random& random, Schedule& schedule) {
  const double at = extent(schedule).start_seconds + extent(schedule).seconds * random.uniform();
  for (const int rank : {0, 1}) {
    Fault slow{.kind = FaultKind::kSlow, .rank = rank, .at = std::max(0.0, at - 0.02)};
    slow.seconds = 0.05 + 0.5 * random.uniform();
    if (random.below(4) != 0) schedule.faults.push_back(slow);
  }
  schedule.faults.push_back({.kind = FaultKind::kReset, .rank = 0, .other = 1, .at = at});
  const int third = 2 + static_cast<int>(random.below(static_cast<std::uint64_t>(schedule.ranks - 2)));
  const int loses = static_cast<int>(random.below(2));
  schedule.faults.push_back(
      {.kind = FaultKind::kReset, .rank = loses, .other = third, .at = at + 0.08 * random.uniform()});
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
  schedule.has_scheduler = random.below(4) == 0;
  schedule.has_pauses = random.below(4) == 0;
  if (random.below(3) != 0) {
    schedule.replacements = 1 + static_cast<int>(random.below(4));
    schedule.replacement_seconds = kReplacementSeconds[random.below(std::size(kReplacementSeconds))];
    if (random.below(4) == 0) schedule.minimum = schedule.ranks - 1;
  }
  if (schedule.topology == Topology::kHostEach && random.below(2) == 0) add_contention(random, schedule);
  if (schedule.replacements > 0 && random.below(2) == 0) {  // whose place is taken while the others train
    Fault kill{.rank = static_cast<int>(random.below(static_cast<std::uint64_t>(schedule.ranks)))};
    kill.operation = 1 + random.below(extent(schedule).duty_operations);
    kill.step = 1 + static_cast<std::int64_t>(random.below(14));
    schedule.faults.push_back(kill);
  }
  const std::size_t count = std::max(schedule.faults.size(), 3 + random.below(2));
  while (schedule.faults.size() < count) {
    Fault fault = make_fault(random, schedule);
    const bool has_moment =
        !schedule.faults.empty() && schedule.faults.back().operation + schedule.faults.back().epoch == 0;
    if (has_moment && fault.life == 1 && random.below(3) != 0) {
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
  if (process == ranks + 3) return "the scheduler";
  return process == ranks ? std::string("the server") : fmt::format("the server's worker {}", process - ranks - 1);
}

std::string describe(const Schedule& schedule, const Fault& fault) {
  const std::string who = schedule.name(fault.rank) + (fault.life > 1 ? "'s replacement" : "");
  const std::string when =
      fault.step > 0        ? fmt::format("before system call {} of {} after step {}", fault.operation, who, fault.step)
      : fault.operation > 0 ? fmt::format("before system call {} of {}", fault.operation, who)
      : fault.epoch > 0     ? fmt::format("once {} goes on in epoch {}", who, fault.epoch)
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
  std::string text = fmt::format(
      "seed {}: {} ranks {}{}{}{}; beside them a server with two workers{}\n", schedule.seed, schedule.ranks,
      kTopologyNames[static_cast<int>(schedule.topology)], schedule.has_large_buckets ? ", with large buckets" : "",
      schedule.has_slow_rank ? ", the last one slow" : "", schedule.has_pauses ? ", threads held up now and then" : "",
      schedule.has_scheduler ? " and a scheduler" : "");
  if (schedule.minimum > 1) text += fmt::format("  the job goes on with {} ranks at least\n", schedule.minimum);
  if (schedule.replacements > 0) {
    text += fmt::format("  {} processes take places of ranks that have ended, after {:.3g} s on average\n",
                        schedule.replacements, schedule.replacement_seconds);
  }
  for (const Fault& fault : schedule.faults) text += "  " + describe(schedule, fault) + "\n";
  return text;
}

}  // namespace motley::simulation
