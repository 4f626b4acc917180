#include "tests/simulation/schedule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

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
constexpr std::uint64_t kJoinOperations = 1500;      // of one that joins, until it has done a step or two
constexpr std::uint64_t kCheckpointOperations = 40;  // of the disk, in which a checkpoint is written
constexpr double kSilenceSeconds = 1;                // after which a rank counts as lost
constexpr double kReplacementSeconds[] = {2e-3, 0.02, 0.3};
constexpr double kRestartSeconds[] = {2e-3, 0.05, 0.5};
constexpr std::uint64_t kMostSpace = 4000;        // bytes of a disk that is full but for these: a checkpoint, about
constexpr std::uint64_t kServerOperations = 400;  // of a server, about, in which ranks join it or do a step

const Extent& extent(const Schedule& schedule) {
  return kExtents[static_cast<int>(schedule.topology)];
}

FaultKind draw_kind(Random& random, const Schedule& schedule) {
  // Half of all are losses of a rank; within a host nothing is lost on the way.
  const std::uint64_t drawn = random.below(2 * kFaultKindsWithoutLauncher);
  if (drawn >= kFaultKindsWithoutLauncher) return drawn % 2 == 0 ? FaultKind::kKill : FaultKind::kStop;
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

// What happens to a server, or between it and ranks.
Fault make_server_fault(Random& random, const Schedule& schedule) {
  Fault fault;
  const std::uint64_t drawn = random.below(8);
  if (drawn >= 4) fault.kind = drawn == 7 ? FaultKind::kStop : FaultKind::kKill;
  if (drawn < 4 && schedule.has_links()) fault.kind = static_cast<FaultKind>(2 + drawn);
  fault.generation = random.below(6) == 0 ? 2 : 1;
  fault.rank = schedule.first_server() + static_cast<int>(random.below(static_cast<std::uint64_t>(schedule.servers)));
  if (fault.kind >= FaultKind::kReset && random.below(2) == 0) {
    fault.other = static_cast<int>(random.below(static_cast<std::uint64_t>(schedule.ranks)));
  }
  fault.seconds = random.below(3) == 0 ? 0.05 + 0.3 * random.uniform() : 0.5 + 4 * random.uniform();
  const std::uint64_t moment = random.below(4);
  if (moment == 0) {  // while ranks join it
    fault.epoch = 2 + random.below(3);
  } else if (moment == 1 && !schedule.faults.empty()) {  // soon after something else
    fault.at = schedule.faults[random.below(schedule.faults.size())].at + 0.05 * random.uniform();
  } else if (moment == 2) {
    fault.life = random.below(3) == 0 ? 2 : 1;
    fault.operation = 1 + random.below(5 * kServerOperations);
  } else {
    fault.step = 1 + static_cast<std::int64_t>(random.below(19));
    fault.operation = 1 + random.below(kServerOperations);
  }
  return fault;
}

void add_servers(Random& random, Schedule& schedule) {
  schedule.servers = 1 + static_cast<int>(random.below(2));
  schedule.has_momentum = random.below(4) != 0;
  schedule.restart_seconds = kRestartSeconds[random.below(std::size(kRestartSeconds))];
  const std::uint64_t count = random.below(4);
  for (std::uint64_t i = 0; i < count; ++i) schedule.faults.push_back(make_server_fault(random, schedule));
}

// Soon after a fault, counted in what a rank does then: another one. Or a rank is lost while a checkpoint is written,
// and the power fails while it is written again.
void add_burst(Random& random, Schedule& schedule) {
  const auto draw_rank = [&] { return static_cast<int>(random.below(static_cast<std::uint64_t>(schedule.ranks))); };
  Fault fault{.follows = true};
  auto before = schedule.faults.begin() + static_cast<std::ptrdiff_t>(random.below(schedule.faults.size()));
  if (random.below(2) == 0) {
    fault.operation = 1 + random.below(random.below(2) == 0 ? 20 : 200);
    fault.rank = draw_rank();
    fault.witness = draw_rank();
  } else {
    if (random.below(2) == 0) {
      Fault loss{.rank = draw_rank(), .witness = 0, .is_of_disk = true};
      loss.operation = 1 + random.below(kCheckpointOperations * 5);
      before = schedule.faults.insert(schedule.faults.end(), loss);
    }
    fault.kind = FaultKind::kPowerLoss;
    fault.rank = random.below(2) == 0 ? 0 : draw_rank();
    fault.is_of_disk = true;
    fault.operation = 1 + random.below(kCheckpointOperations);
  }
  fault.generation = before->generation;
  schedule.faults.insert(before + 1, fault);
}

// While a process takes the place of one that was killed, several others end at once.
void add_losses_in_joining(Random& random, Schedule& schedule) {
  const auto is_replaced = [&](const Fault& fault) {
    return fault.kind == FaultKind::kKill && fault.rank < schedule.ranks && fault.life == 1 && !fault.follows;
  };
  const auto before = std::ranges::find_if(schedule.faults, is_replaced);
  if (schedule.replacements == 0 || before == schedule.faults.end()) return;
  const int newcomer = before->rank;
  Fault fault{.generation = before->generation};
  if (random.below(2) == 0) {
    fault.operation = 1 + random.below(kJoinOperations);
    fault.life = 2;
    fault.witness = newcomer;
  } else {
    fault.epoch = 3 + random.below(2);
    fault.witness = kAnyRank;
  }
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    if (rank == newcomer || random.below(3) == 0) continue;
    fault.rank = rank;
    schedule.faults.push_back(fault);
    fault = {.generation = fault.generation, .follows = true};
  }
}

// In half of all schedules there is more, drawn apart, so that the others are what they are.
void add_more(Schedule& schedule) {
  Random random(mix({schedule.seed, 0x80}));
  if (random.below(2) == 0) return;
  if (random.below(2) == 0) add_servers(random, schedule);
  schedule.has_node_failures = schedule.has_scheduler && random.below(2) == 0;
  if (random.below(2) == 0) add_burst(random, schedule);
  if (random.below(3) == 0) add_losses_in_joining(random, schedule);
}

// Half of all jobs on one host have a launcher, by which people stop or resize many of them, or which is lost; drawn
// apart, too.
void add_launcher(Schedule& schedule) {
  Random random(mix({schedule.seed, 0x81}));
  if (schedule.has_links() || random.below(2) == 0) return;
  schedule.has_launcher = true;
  const std::uint64_t count = random.below(4);
  for (std::uint64_t i = 0; i < count; ++i) {
    constexpr FaultKind kKinds[] = {FaultKind::kInterrupt, FaultKind::kResize, FaultKind::kResize,
                                    FaultKind::kLaunchLoss};
    Fault fault{.kind = kKinds[random.below(std::size(kKinds))]};
    fault.generation = random.below(4) == 0 ? 2 : 1;
    fault.rank = static_cast<int>(random.below(static_cast<std::uint64_t>(schedule.ranks)));
    fault.workers = 1 + static_cast<int>(random.below(static_cast<std::uint64_t>(schedule.ranks + 1)));
    const std::uint64_t moment = random.below(3);
    if (moment == 0) {
      fault.at = (extent(schedule).start_seconds + extent(schedule).seconds) * random.uniform();
    } else if (moment == 1) {
      fault.life = 1 + static_cast<int>(random.below(2));
      fault.operation = 1 + random.below(random.below(2) == 0 ? 3 : kJoinOperations);  // before it takes signals
    } else {
      fault.witness = kAnyRank;
      fault.epoch = 2 + random.below(3);
    }
    schedule.faults.push_back(fault);
  }
}

// A full disk may have some space left, so that a part of what is written can be; drawn apart, too.
void add_space(Schedule& schedule) {
  Random random(mix({schedule.seed, 0x83}));
  for (Fault& fault : schedule.faults) {
    if (fault.kind == FaultKind::kDiskFull && random.below(2) == 0) fault.space = 1 + random.below(kMostSpace);
  }
}

std::string name_sides(const Schedule& schedule, const Fault& fault) {
  std::vector<int> sides[2];
  for (int host = 0; host <= schedule.host(schedule.ranks - 1); ++host) {
    sides[fault.is_on_side(host) ? 0 : 1].push_back(host);
  }
  return fmt::format("hosts {} and hosts {}", fmt::join(sides[0], ", "), fmt::join(sides[1], ", "));
}

// Some hosts against all others, each side with what runs on it; drawn apart, too.
void add_partition(Schedule& schedule) {
  Random random(mix({schedule.seed, 0x82}));
  if (!schedule.has_links() || random.below(3) != 0) return;
  Fault fault{.kind = FaultKind::kPartition};
  fault.generation = random.below(4) == 0 ? 2 : 1;
  const auto hosts = static_cast<std::uint64_t>(schedule.host(schedule.ranks - 1) + 1);
  fault.hosts = 1 + static_cast<unsigned>(random.below((1U << hosts) - 2));
  const std::uint64_t length = random.below(4);
  fault.seconds = length == 0   ? std::numeric_limits<double>::infinity()
                  : length == 1 ? kSilenceSeconds + 0.3 * random.uniform()
                                : 0.5 + 12 * random.uniform();
  const auto draw_rank = [&] { return static_cast<int>(random.below(static_cast<std::uint64_t>(schedule.ranks))); };
  const std::uint64_t moment = random.below(5);
  auto place = schedule.faults.end();
  if (moment == 0) {
    fault.at = (extent(schedule).start_seconds + extent(schedule).seconds) * random.uniform();
  } else if (moment == 1) {
    fault.step = random.below(2) == 0 ? draw_eventful_step(random) : 1 + static_cast<std::int64_t>(random.below(19));
    fault.operation = 1 + random.below(extent(schedule).duty_operations);
    fault.witness = draw_rank();
  } else if (moment == 2) {  // as all go on in an epoch
    fault.epoch = 2 + random.below(2);
    fault.witness = kAnyRank;
  } else {  // soon after another one, while ranks agree on who is left
    const auto before = schedule.faults.begin() + static_cast<std::ptrdiff_t>(random.below(schedule.faults.size()));
    fault.generation = before->generation;
    fault.follows = true;
    fault.witness = draw_rank();
    fault.operation = 1 + random.below(random.below(2) == 0 ? 200 : extent(schedule).operations / 4);
    place = before + 1;
    while (place != schedule.faults.end() && place->follows) ++place;
  }
  schedule.faults.insert(place, fault);
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
  add_more(schedule);
  add_launcher(schedule);
  add_partition(schedule);
  add_space(schedule);
  std::ranges::stable_sort(schedule.faults, {}, &Fault::generation);
  return schedule;
}

Schedule simplify(Schedule schedule) {
  schedule.has_launcher = false;
  for (Fault& fault : schedule.faults) fault.space = 0;
  std::erase_if(schedule.faults, [](const Fault& fault) { return fault.kind >= FaultKind::kInterrupt; });
  return schedule;
}

std::string Schedule::name(int process) const {
  if (process < ranks) return fmt::format("rank {}", process);
  if (is_server(process)) return fmt::format("parameter server {}", process - first_server());
  if (process == ranks + 3) return "the scheduler";
  return process == ranks ? std::string("the server") : fmt::format("the server's worker {}", process - ranks - 1);
}

std::string describe(const Schedule& schedule, const Fault& fault) {
  const bool is_own = fault.witness == kOwn;
  const std::string replacement = fault.life > 1 ? "'s replacement" : "";
  const std::string who = schedule.name(fault.rank) + (is_own ? replacement : "");
  const std::string whose = fault.witness == kAnyRank ? "any rank"
                            : is_own                  ? who
                                                      : schedule.name(fault.witness) + replacement;
  const std::string call =
      fmt::format("before {} call {} of {}", fault.is_of_disk ? "disk" : "system", fault.operation, whose);
  const std::string who_goes_on = is_own && schedule.is_server(fault.rank) ? "any rank" : whose;
  const std::string when = fault.step > 0        ? fmt::format("{} after step {}", call, fault.step)
                           : fault.operation > 0 ? call
                           : fault.epoch > 0     ? fmt::format("once {} goes on in epoch {}", who_goes_on, fault.epoch)
                                                 : fmt::format("after {:.4f} s", fault.at);
  const std::string other = fault.other < 0 ? "all others" : schedule.name(fault.other);
  const std::string link = fmt::format("{} and {}", schedule.name(fault.rank), other);
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
        return fmt::format("nothing goes from {} to {} for {:.3g} s", schedule.name(fault.rank), other, fault.seconds);
      case FaultKind::kSlow:
        return fmt::format("the links between {} are slow for {:.3g} s", link, fault.seconds);
      case FaultKind::kPowerLoss:
        return std::string("the power fails: all ranks end, and what is not synced may be lost");
      case FaultKind::kDiskFull:
        return fmt::format("the disk is full{} for {:.3g} s",
                           fault.space > 0 ? fmt::format(" but for {} bytes", fault.space) : "", fault.seconds);
      case FaultKind::kBitRot:
        return std::string("the power fails, and a bit of the newest checkpoint changes");
      case FaultKind::kInterrupt:
        return std::string("a person stops the job");
      case FaultKind::kResize:
        return fmt::format("a person asks for {} workers", fault.workers);
      case FaultKind::kLaunchLoss:
        return std::string("the launcher is killed");
      case FaultKind::kPartition:
        return fmt::format("nothing goes between {} {}", name_sides(schedule, fault),
                           std::isinf(fault.seconds) ? "for good" : fmt::format("for {:.3g} s", fault.seconds));
    }
    return std::string();
  }();
  return fmt::format("start {}, {}{}: {}", fault.generation, fault.follows ? "then " : "", when, what);
}

std::string describe(const Schedule& schedule) {
  constexpr const char* kTopologyNames[] = {"on one host, over shared memory", "on one host, over TCP",
                                            "each on a host of its own", "on two hosts, two each"};
  std::string text = fmt::format(
      "seed {}: {} ranks {}{}{}{}{}{}{}\n", schedule.seed, schedule.ranks,
      kTopologyNames[static_cast<int>(schedule.topology)], schedule.has_large_buckets ? ", with large buckets" : "",
      schedule.has_slow_rank ? ", the last one slow" : "", schedule.has_launcher ? ", started by a launcher" : "",
      schedule.has_pauses ? ", threads held up now and then" : "",
      schedule.servers == 0 ? "; beside them a server with two workers" : "",
      schedule.has_node_failures ? ", a scheduler whose nodes fail"
      : schedule.has_scheduler   ? ", a scheduler"
                                 : "");
  if (schedule.servers > 0) {
    text += fmt::format(
        "  the ranks' gradients go through {} parameter server{}, {}; one that has ended starts again after "
        "{:.3g} s on average\n",
        schedule.servers, schedule.servers > 1 ? "s" : "", schedule.has_momentum ? "with momentum" : "without momentum",
        schedule.restart_seconds);
  }
  if (schedule.minimum > 1) text += fmt::format("  the job goes on with {} ranks at least\n", schedule.minimum);
  if (schedule.replacements > 0) {
    text += fmt::format("  {} processes take places of ranks that have ended, after {:.3g} s on average\n",
                        schedule.replacements, schedule.replacement_seconds);
  }
  for (const Fault& fault : schedule.faults) text += "  " + describe(schedule, fault) + "\n";
  return text;
}

}  // namespace motley::simulation
