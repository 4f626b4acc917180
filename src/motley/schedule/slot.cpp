#include "motley/schedule/slot.h"

#include <algorithm>
#include <numeric>
#include <queue>

#include "motley/base/random.h"
#include "motley/schedule/capacity.h"

namespace motley::schedule {
namespace {

constexpr double kSame = 1e-12;  // relative: sums of values that differ by less are equal

// A piece of a concave envelope: from `from` to `to` workers, each of which adds `slope`.
struct Segment {
  int job = 0;
  int from = 0;
  int to = 0;
  double slope = 0;
};

class Solver {
 public:
  Solver(const SlotProblem& problem, const SlotOptions& options)
      : problem_(problem),
        options_(options),
        random_(options.seed),
        free_(problem.machines),
        placements_(problem.jobs.size()) {
    std::vector<int> by_rack(static_cast<std::size_t>(problem.machines.racks));
    for (const Server& server : problem.machines.servers) {
      most_on_server_ = std::max(most_on_server_, server.devices);
      by_rack[static_cast<std::size_t>(server.rack)] += server.devices;
    }
    most_in_rack_ = by_rack.empty() ? 0 : std::ranges::max(by_rack);
  }

  SlotAnswer solve() {
    find_bound();
    pack(wanted_);
    grow(everybody());
    improve();
    SlotAnswer answer{std::move(placements_), value_, bound_};
    answer.bound = std::max(answer.bound, answer.value);
    return answer;
  }

 private:
  const SlotJob& job(int number) const { return problem_.jobs[static_cast<std::size_t>(number)]; }
  Placement& placement(int number) { return placements_[static_cast<std::size_t>(number)]; }
  double worth(int number, const Placement& where) const { return value_of(problem_.machines, job(number), where); }

  std::vector<int> everybody() const {
    std::vector<int> jobs(problem_.jobs.size());
    std::iota(jobs.begin(), jobs.end(), 0);
    return jobs;
  }

  // What so many workers are worth at best, wherever others are.
  double best_value(const SlotJob& one, int workers) const {
    const Reach reach = workers <= most_on_server_ ? Reach::kServer
                        : workers <= most_in_rack_ ? Reach::kRack
                                                   : Reach::kCluster;
    const double value = one.value[static_cast<std::size_t>(reach)][static_cast<std::size_t>(workers)];
    return workers == 0 || one.now.empty() || workers == workers_of(one.now) ? value : value - one.moving;
  }

  std::vector<Segment> envelope_of(int number) const {
    const SlotJob& one = job(number);
    const int most = std::min(one.most(), problem_.machines.devices());
    std::vector<std::pair<int, double>> hull = {{0, 0.0}};
    for (int workers = 1; workers <= most; ++workers) {
      const double value = best_value(one, workers);
      const auto slope = [&](std::size_t i, std::pair<int, double> to) {
        return (to.second - hull[i].second) / (to.first - hull[i].first);
      };
      while (hull.size() > 1 && slope(hull.size() - 1, {workers, value}) >= slope(hull.size() - 2, hull.back())) {
        hull.pop_back();
      }
      hull.emplace_back(workers, value);
    }
    std::vector<Segment> segments;
    for (std::size_t i = 1; i < hull.size(); ++i) {
      const double slope = (hull[i].second - hull[i - 1].second) / (hull[i].first - hull[i - 1].first);
      if (slope <= 0) break;
      segments.push_back({number, hull[i - 1].first, hull[i].first, slope});
    }
    return segments;
  }

  // The relaxation is solved by taking the steepest segments first, the last one in part.
  void find_bound() {
    std::vector<Segment> segments;
    for (const int number : everybody()) {
      const std::vector<Segment> own = envelope_of(number);
      segments.insert(segments.end(), own.begin(), own.end());
    }
    std::ranges::stable_sort(segments, std::greater(), &Segment::slope);
    wanted_.assign(problem_.jobs.size(), 0);
    int left = problem_.machines.devices();
    for (const Segment& segment : segments) {
      const int taken = std::min(left, segment.to - segment.from);
      bound_ += taken * segment.slope;
      left -= taken;
      if (taken == segment.to - segment.from) wanted_[static_cast<std::size_t>(segment.job)] = segment.to;
      if (left == 0) break;
    }
  }

  void put(int number, Placement where) {
    value_ -= worth(number, placement(number));
    free_.give_back(placement(number), job(number).reserve);
    free_.take(where, job(number).reserve);
    value_ += worth(number, where);
    placement(number) = std::move(where);
  }

  // Those that stay where they are first, then the largest first.
  void pack(const std::vector<int>& wanted) {
    std::vector<int> order;
    for (const int number : everybody()) {
      const int workers = wanted[static_cast<std::size_t>(number)];
      if (workers == 0) continue;
      const SlotJob& one = job(number);
      if (!one.now.empty() && one.moving > 0 && workers == workers_of(one.now) &&
          free_.has_room(one.now, one.reserve)) {
        put(number, one.now);
      } else {
        order.push_back(number);
      }
    }
    std::ranges::stable_sort(order, std::greater(),
                             [&](int number) { return wanted[static_cast<std::size_t>(number)]; });
    for (const int number : order) {
      const int workers = wanted[static_cast<std::size_t>(number)];
      Placement where = free_.find(workers, job(number).reserve);
      if (!where.empty() && worth(number, where) > 0) put(number, std::move(where));
    }
  }

  // The best that a job could have instead of what it has, per device more; nothing where it cannot gain.
  struct Gain {
    double rate = 0;
    int job = 0;
    Placement where;
    bool operator<(const Gain& other) const { return std::pair(rate, -job) < std::pair(other.rate, -other.job); }
  };
  Gain best_gain(int number) {
    const SlotJob& one = job(number);
    const Placement before = placement(number);
    const int had = workers_of(before);
    const double worth_before = worth(number, before);
    free_.give_back(before, one.reserve);
    Gain best{0, number, {}};
    const auto consider = [&](Placement where) {
      if (where.empty()) return;
      const int more = std::max(1, workers_of(where) - had);
      const double rate = (worth(number, where) - worth_before) / more;
      if (rate > best.rate * (1 + kSame)) best = {rate, number, std::move(where)};
    };
    if (!one.now.empty() && free_.has_room(one.now, one.reserve)) consider(one.now);
    for (int workers = std::max(1, had); workers <= one.most(); ++workers) {
      Placement where = free_.find(workers, one.reserve);
      if (where.empty()) break;
      consider(std::move(where));
    }
    free_.take(before, one.reserve);
    return best;
  }

  // Gives what is free to those who make most of it.
  void grow(const std::vector<int>& jobs) {
    std::priority_queue<Gain> gains;
    const auto offer = [&](int number) {
      Gain gain = best_gain(number);
      if (gain.rate > 0) gains.push(std::move(gain));
    };
    for (const int number : jobs) offer(number);
    while (!gains.empty()) {
      const Gain old = gains.top();
      gains.pop();
      Gain now = best_gain(old.job);  // others may have taken what it would have had
      if (now.rate <= 0) continue;
      if (!gains.empty() && now < gains.top()) {
        gains.push(std::move(now));
        continue;
      }
      put(now.job, std::move(now.where));
      offer(old.job);
    }
  }

  bool is_near() const { return value_ >= bound_ * (1 - options_.gap); }

  // Takes out jobs of some servers and some that have less than the relaxation would give them, packs them again in
  // another order, and keeps what is better.
  void improve() {
    if (problem_.jobs.empty()) return;
    int idle = 0;  // rounds in a row that gained nothing
    for (int round = 0; round < options_.rounds && idle < options_.patience && !is_near(); ++round) {
      const std::vector<int> chosen = choose();
      std::vector<std::pair<int, Placement>> before;
      for (const int number : chosen) before.emplace_back(number, placement(number));
      const double value_before = value_;
      for (const int number : chosen) put(number, {});
      // In this order each gets the number of workers at which it makes most of its devices, or a number by lot, or
      // what the others leave; then all may grow.
      for (const int number : chosen) {
        const std::uint64_t way = random_.below(3);
        Placement where;
        if (way == 0) {
          where = best_gain(number).where;
        } else if (way == 1) {
          const auto workers = 1 + static_cast<int>(random_.below(static_cast<std::uint64_t>(job(number).most())));
          where = free_.find(workers, job(number).reserve);
        }
        if (!where.empty() && worth(number, where) > 0) put(number, std::move(where));
      }
      grow(chosen);
      idle = value_ > value_before + kSame * bound_ ? 0 : idle + 1;
      if (value_ >= value_before - kSame * bound_) continue;
      for (const int number : chosen) put(number, {});
      for (auto& [number, where] : before) put(number, std::move(where));
      value_ = value_before;
    }
  }

  std::vector<int> choose() {
    const auto any = [&](std::size_t count) { return static_cast<int>(random_.below(count)); };
    const std::size_t servers = problem_.machines.servers.size();
    std::vector<char> emptied(servers, 0);
    const std::size_t count = 1 + random_.below(std::min<std::size_t>(3, servers));
    for (std::size_t i = 0; i < count; ++i) emptied[static_cast<std::size_t>(any(servers))] = 1;
    std::vector<int> chosen, poor;
    for (const int number : everybody()) {
      const Placement& where = placement(number);
      if (std::ranges::any_of(where,
                              [&](const Part& part) { return emptied[static_cast<std::size_t>(part.server)] != 0; })) {
        chosen.push_back(number);
      } else if (workers_of(where) < wanted_[static_cast<std::size_t>(number)]) {
        poor.push_back(number);
      }
    }
    for (int i = 0; i < 3 && !poor.empty(); ++i) {
      const auto at = static_cast<std::size_t>(any(poor.size()));
      chosen.push_back(poor[at]);
      poor.erase(poor.begin() + static_cast<std::ptrdiff_t>(at));
    }
    for (std::size_t i = chosen.size(); i > 1; --i) std::swap(chosen[i - 1], chosen[random_.below(i)]);
    return chosen;
  }

  const SlotProblem& problem_;
  const SlotOptions& options_;
  Random random_;
  Capacity free_;
  std::vector<Placement> placements_;
  std::vector<int> wanted_;  // of each job: workers that the relaxation gives it, in whole segments
  double value_ = 0;
  double bound_ = 0;
  int most_on_server_ = 0;
  int most_in_rack_ = 0;
};

}  // namespace

double value_of(const Machines& machines, const SlotJob& job, const Placement& placement) {
  if (placement.empty()) return 0;
  const auto reach = static_cast<std::size_t>(reach_of(machines, placement));
  const double value = job.value[reach][static_cast<std::size_t>(workers_of(placement))];
  return job.now.empty() || job.now == placement ? value : value - job.moving;
}

bool fits(const SlotProblem& problem, const std::vector<Placement>& placements) {
  Capacity free(problem.machines);
  for (std::size_t i = 0; i < placements.size(); ++i) {
    if (!free.has_room(placements[i], problem.jobs[i].reserve)) return false;
    free.take(placements[i], problem.jobs[i].reserve);
  }
  return true;
}

SlotAnswer solve_slot(const SlotProblem& problem, const SlotOptions& options) {
  return Solver(problem, options).solve();
}

}  // namespace motley::schedule
