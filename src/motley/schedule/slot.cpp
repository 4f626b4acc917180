#include "motley/schedule/slot.h"

#include <algorithm>
#include <numeric>
#include <queue>

#include "motley/base/random.h"

namespace motley::schedule {
namespace {

constexpr double kSame = 1e-12;  // relative: sums of values that differ by less are equal
constexpr double kSlack = 1e-9;  // relative: bandwidth that rounding may feign to be missing

// What is free: devices and uplinks.
class Free {
 public:
  explicit Free(const Machines& machines) : machines_(machines), occupancy_(machines) {
    for (const Server& server : machines.servers) server_uplinks_.push_back(server.uplink);
    racks_.resize(static_cast<std::size_t>(machines.racks));
    for (int rack = 0; rack < machines.racks; ++rack) rack_uplinks_.push_back(machines.rack_uplink(rack));
    for (std::size_t server = 0; server < machines.servers.size(); ++server) {
      Rack& rack = racks_[static_cast<std::size_t>(machines.servers[server].rack)];
      rack.servers.push_back(static_cast<int>(server));
      rack.devices += machines.servers[server].devices;
      most_on_server_ = std::max(most_on_server_, machines.servers[server].devices);
    }
    by_free_.resize(static_cast<std::size_t>(most_on_server_) + 1);
    for (int server = 0; server < static_cast<int>(machines.servers.size()); ++server) {
      by_free_[index(devices(server))].push_back(server);
    }
  }

  void take(const Placement& placement, double reserve) {
    for (const Part& part : placement) std::erase(by_free_[index(devices(part.server))], part.server);
    occupancy_.take(placement);
    count(placement, reserve, 1);
  }
  void give_back(const Placement& placement, double reserve) {
    for (const Part& part : placement) std::erase(by_free_[index(devices(part.server))], part.server);
    occupancy_.give_back(placement);
    count(placement, reserve, -1);
  }

  bool has_room(const Placement& placement, double reserve) const {
    const int workers = workers_of(placement);
    if (!occupancy_.has_room(placement) || std::ranges::any_of(placement, [&](const Part& part) {
          return part.workers < workers && !has_server_uplink(part.server, reserve);
        })) {
      return false;
    }
    bool fits = true;
    for_each_crossed_rack(placement, [&](int rack) { fits = fits && has_rack_uplink(rack, reserve); });
    return fits;
  }

  // So many workers with the shortest reach that there is room for, up to the longest that is asked for; empty where
  // there is none.
  Placement find(int workers, double reserve, Reach longest = Reach::kCluster) const {
    Placement found = on_one_server(workers);
    if (found.empty() && longest >= Reach::kRack) found = in_one_rack(workers, reserve);
    if (found.empty() && longest == Reach::kCluster) found = over_racks(workers, reserve);
    return found;
  }

 private:
  struct Rack {
    std::vector<int> servers;
    int devices = 0;  // free
  };

  static std::size_t index(int number) { return static_cast<std::size_t>(number); }
  int devices(int server) const { return occupancy_.free_on(server); }
  bool has_server_uplink(int server, double reserve) const {
    return reserve * (1 - kSlack) <= server_uplinks_[index(server)];
  }
  bool has_rack_uplink(int rack, double reserve) const { return reserve * (1 - kSlack) <= rack_uplinks_[index(rack)]; }
  int rack_of(int server) const { return machines_.servers[index(server)].rack; }

  template <class Function>
  void for_each_crossed_rack(const Placement& placement, Function function) const {
    if (placement.empty()) return;
    const int first = rack_of(placement.front().server);
    if (std::ranges::all_of(placement, [&](const Part& part) { return rack_of(part.server) == first; })) return;
    std::vector<int> racks;
    for (const Part& part : placement) racks.push_back(rack_of(part.server));
    std::ranges::sort(racks);
    racks.erase(std::unique(racks.begin(), racks.end()), racks.end());
    for (const int rack : racks) function(rack);
  }

  // Of servers whose devices are taken (1) or given back (-1) and which are in no list: the lists, racks and uplinks.
  void count(const Placement& placement, double reserve, int sign) {
    const int workers = workers_of(placement);
    for (const Part& part : placement) {
      by_free_[index(devices(part.server))].push_back(part.server);
      racks_[index(rack_of(part.server))].devices -= sign * part.workers;
      if (part.workers < workers) server_uplinks_[index(part.server)] -= sign * reserve;
    }
    for_each_crossed_rack(placement, [&](int rack) { rack_uplinks_[index(rack)] -= sign * reserve; });
  }

  // The server where least is left over.
  Placement on_one_server(int workers) const {
    for (int free = workers; free <= most_on_server_; ++free) {
      const std::vector<int>& servers = by_free_[index(free)];
      if (!servers.empty()) return {{std::ranges::min(servers), workers}};
    }
    return {};
  }

  // Fills servers, the emptiest first, and takes the rest from the one where least is left over: as few servers as can
  // be. `servers` are those whose uplinks have room.
  Placement fill(std::vector<int> servers, int workers) const {
    std::ranges::stable_sort(servers, std::greater(), [&](int server) { return devices(server); });
    Placement placement;
    for (auto server = servers.begin(); workers > 0 && server != servers.end() && devices(*server) > 0; ++server) {
      if (devices(*server) >= workers) {
        const auto end = std::find_if(server, servers.end(), [&](int other) { return devices(other) < workers; });
        placement.push_back({*(end - 1), workers});
        workers = 0;
        break;
      }
      placement.push_back({*server, devices(*server)});
      workers -= devices(*server);
    }
    if (workers > 0) return {};
    std::ranges::sort(placement, {}, &Part::server);
    return placement;
  }

  std::vector<int> usable(const Rack& rack, double reserve) const {
    std::vector<int> servers;
    for (const int server : rack.servers) {
      if (devices(server) > 0 && has_server_uplink(server, reserve)) servers.push_back(server);
    }
    return servers;
  }

  // The rack that has room with the fewest devices left over.
  Placement in_one_rack(int workers, double reserve) const {
    std::vector<int> order;
    for (int rack = 0; rack < machines_.racks; ++rack) {
      if (racks_[index(rack)].devices >= workers) order.push_back(rack);
    }
    std::ranges::stable_sort(order, {}, [&](int rack) { return racks_[index(rack)].devices; });
    for (const int rack : order) {
      Placement placement = fill(usable(racks_[index(rack)], reserve), workers);
      if (!placement.empty()) return placement;
    }
    return {};
  }

  // Racks with most free devices first, so that the ring goes over few.
  Placement over_racks(int workers, double reserve) const {
    std::vector<int> order;
    for (int rack = 0; rack < machines_.racks; ++rack) {
      if (has_rack_uplink(rack, reserve)) order.push_back(rack);
    }
    std::ranges::stable_sort(order, std::greater(), [&](int rack) { return racks_[index(rack)].devices; });
    Placement all;
    for (const int rack : order) {
      const std::vector<int> servers = usable(racks_[index(rack)], reserve);
      const int there = std::transform_reduce(servers.begin(), servers.end(), 0, std::plus<>(),
                                              [&](int server) { return devices(server); });
      const int taken = std::min(workers, there);
      if (taken == 0) continue;
      for (const Part& part : fill(servers, taken)) all.push_back(part);
      workers -= taken;
      if (workers == 0) break;
    }
    if (workers > 0) return {};
    std::ranges::sort(all, {}, &Part::server);
    return all;
  }

  const Machines& machines_;
  Occupancy occupancy_;
  std::vector<double> server_uplinks_, rack_uplinks_;
  std::vector<Rack> racks_;
  std::vector<std::vector<int>> by_free_;  // servers with so many free devices
  int most_on_server_ = 0;
};

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
    for (int round = 0; round < options_.rounds && !is_near(); ++round) {
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
  Free free_;
  std::vector<Placement> placements_;
  std::vector<int> wanted_;  // of each job: workers that the relaxation gives it, in whole segments
  double value_ = 0;
  double bound_ = 0;
  int most_on_server_ = 0;
  int most_in_rack_ = 0;
};

}  // namespace

Reach reach_of(const Machines& machines, const Placement& placement) {
  if (placement.size() <= 1) return Reach::kServer;
  const int rack = machines.servers[static_cast<std::size_t>(placement.front().server)].rack;
  const bool in_one = std::ranges::all_of(placement, [&](const Part& part) {
    return machines.servers[static_cast<std::size_t>(part.server)].rack == rack;
  });
  return in_one ? Reach::kRack : Reach::kCluster;
}

double value_of(const Machines& machines, const SlotJob& job, const Placement& placement) {
  if (placement.empty()) return 0;
  const auto reach = static_cast<std::size_t>(reach_of(machines, placement));
  const double value = job.value[reach][static_cast<std::size_t>(workers_of(placement))];
  return job.now.empty() || job.now == placement ? value : value - job.moving;
}

bool fits(const SlotProblem& problem, const std::vector<Placement>& placements) {
  Free free(problem.machines);
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
