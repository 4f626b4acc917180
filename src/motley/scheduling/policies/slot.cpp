#include "motley/scheduling/policies/slot.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>
#include <queue>

#include "motley/base/random.h"
#include "motley/scheduling/simulator/placement.h"

namespace motley::scheduling {
namespace {

constexpr double kSame = 1e-12;  // relative: sums of values that differ by less are equal

constexpr int kPriceRounds = 20;        // of the search for prices, at most
constexpr int kPriceSteps = 30;         // bisections of one of its steps
constexpr double kPriceGain = 1e-4;     // relative: it ends where a round lowers the bound by less
constexpr std::size_t kAllSubsets = 4;  // types whose prices are moved in all combinations
constexpr int kMinPatience = 100;       // rounds without gain, of few jobs
constexpr double kMinPrice = 0.05;      // of the highest, where devices are weighed by their prices

// A piece of a concave envelope: from `from` to `to` workers, each of which adds `slope`.
struct Segment {
  int job = 0;
  int type = kAnyType;
  int from = 0;
  int to = 0;
  double slope = 0;
};

// Those of one job on devices of one type, the steepest first.
using Offer = std::vector<Segment>;

class Solver {
 public:
  Solver(const SlotProblem& problem, const SlotOptions& options) : problem_(problem), options_(options) {
    for (int type = 0; type < problem.topology.type_count(); ++type) types_.push_back(make_size(type));
    prices_.assign(types_.size(), 1);
    const ClusterTopology& topology = problem.topology;
    for (int i = 0; i < static_cast<int>(topology.resources.size()); ++i) totals_.push_back(topology.total(i));
    for (const SlotJob& one : problem.jobs) {
      double weight = 1;
      for (std::size_t i = 0; i < one.requests.size(); ++i) {
        if (one.requests[i] > 0) weight = std::max(weight, topology.devices() * one.requests[i] / totals_[i]);
      }
      weights_.push_back(weight);
    }
  }

  SlotAnswer solve() {
    is_typed_ ? find_bound_by_prices() : find_bound();
    pack();
    grow(everybody());
    improve();
    return {std::move(placements_), value_, std::max(bound_, value_)};
  }

 private:
  // How many devices of a type there are, in the most roomy places.
  struct Size {
    int devices = 0;
    int on_node = 0;
    int in_rack = 0;
  };
  Size make_size(int type) const {
    const ClusterTopology& topology = problem_.topology;
    Size size{topology.devices(type), topology.largest_node(type)};
    std::vector<int> by_rack(index(topology.racks));
    for (const Node& node : topology.nodes) {
      if (type != kAnyType && node.type != type) continue;
      int& in_rack = by_rack[index(node.rack)];
      in_rack += node.devices;
      size.in_rack = std::max(size.in_rack, in_rack);
    }
    return size;
  }
  const Size& size(int type) const { return type == kAnyType ? all_ : types_[index(type)]; }

  const SlotJob& job(int number) const { return problem_.jobs[index(number)]; }
  Placement& placement(int number) { return placements_[index(number)]; }
  double utility(int number, const Placement& where) const {
    return compute_value(problem_.topology, job(number), where);
  }

  std::vector<int> everybody() const {
    std::vector<int> jobs(problem_.jobs.size());
    std::iota(jobs.begin(), jobs.end(), 0);
    return jobs;
  }

  // The best utility of 0, 1, ... workers, wherever others are.
  std::vector<double> list_best_values(const SlotJob& one, int type) const {
    const int most = std::min(one.max_workers(), size(type).devices);
    const int stays =
        is_of_type(problem_.topology, one.now, type) ? count_workers(one.now) : 0;  // with so many workers
    std::vector<double> values(index(most) + 1);
    for (int workers = 0; workers <= most; ++workers) {
      const Locality locality = workers <= size(type).on_node   ? Locality::kNode
                                : workers <= size(type).in_rack ? Locality::kRack
                                                                : Locality::kCluster;
      const bool moves = workers > 0 && !one.now.empty() && workers != stays;
      values[index(workers)] =
          one.value_on(type)[static_cast<std::size_t>(locality)][index(workers)] * (moves ? 1 - one.moving : 1);
    }
    return values;
  }

  Offer compute_envelope(int number, int type) const {
    const std::vector<double> values = list_best_values(job(number), type);
    const std::vector<int> corners = find_corners(values);
    Offer segments;
    for (std::size_t i = 1; i < corners.size(); ++i) {
      const int from = corners[i - 1], to = corners[i];
      segments.push_back({number, type, from, to, (values[index(to)] - values[index(from)]) / (to - from)});
    }
    return segments;
  }

  // One relaxation for devices and one for each resource that jobs request; what they want is that of the tightest.
  void find_bound() {
    std::vector<Segment> segments;
    for (const int number : everybody()) {
      std::ranges::move(compute_envelope(number, kAnyType), std::back_inserter(segments));
    }
    bound_ = std::numeric_limits<double>::infinity();
    relax(segments, problem_.topology.devices(), [](const SlotJob&) { return 1.0; });
    for (std::size_t i = 0; i < totals_.size(); ++i) {
      relax(segments, totals_[i], [&](const SlotJob& one) { return one.requests.empty() ? 0 : one.requests[i]; });
    }
  }

  // Solved by taking the segments first that gain most for what they take, the last one in part. `take`: by a worker.
  template <class Take>
  void relax(std::vector<Segment> segments, double left, const Take& take) {
    const auto gain = [&](const Segment& segment) {
      const double each = take(job(segment.job));
      return each > 0 ? segment.slope / each : std::numeric_limits<double>::infinity();
    };
    std::ranges::stable_sort(segments, std::greater(), gain);
    std::vector<Wanted> wanted(problem_.jobs.size());
    double bound = 0;
    for (const Segment& segment : segments) {
      const double each = take(job(segment.job));
      const int more = segment.to - segment.from;
      const double taken = each > 0 ? std::min<double>(more, left / each) : more;
      bound += taken * segment.slope;
      left -= taken * each;
      if (taken >= more) wanted[index(segment.job)] = {segment.to, kAnyType};
      if (left <= 0) break;
    }
    if (bound >= bound_) return;
    bound_ = bound;
    wanted_ = std::move(wanted);
  }

  // With heterogeneous devices the relaxation has a price for each type. At any prices no packing has more utility than
  // what all devices cost and each job's best surplus over the cost of its own; that sum is a convex function of the
  // prices, and its least value is the relaxation's optimum. It is looked for by moving prices of one type or of
  // several together, each time to where these devices are asked for no more often than there are (devices that can
  // stand in for each other become dearer together). Each job then wants devices of the type on which its surplus is
  // largest, as many as are left when those come first whose utility of one more is furthest above its price.
  void find_bound_by_prices() {
    offers_.resize(problem_.jobs.size());
    double costliest = 0;
    for (const int number : everybody()) {
      for (int type = job(number).first_type(); type < job(number).end_of_types(); ++type) {
        Offer offer = compute_envelope(number, type);
        if (offer.empty()) continue;
        costliest = std::max(costliest, offer.front().slope);
        offers_[index(number)].push_back(std::move(offer));
      }
    }
    prices_.assign(types_.size(), 0);
    bound_ = ask(prices_).cost;
    for (int round = 0; round < kPriceRounds; ++round) {
      const double before = bound_;
      for (const std::vector<std::size_t>& some : groups_of_types()) move_prices(some, costliest);
      if (bound_ >= before * (1 - kPriceGain)) break;
    }

    std::vector<Segment> segments;
    for (const int number : everybody()) {
      const Offer* best = best_offer(number, prices_).first;
      if (best != nullptr) std::ranges::copy(*best, std::back_inserter(segments));
    }
    const auto above_price = [&](const Segment& segment) { return segment.slope - price(segment.type, prices_); };
    std::ranges::stable_sort(segments, std::greater(), above_price);
    wanted_.assign(problem_.jobs.size(), {});
    std::vector<int> left;
    for (const Size& type : types_) left.push_back(type.devices);
    for (const Segment& segment : segments) {
      if (above_price(segment) < 0) break;
      int& some = segment.type == kAnyType ? *std::ranges::max_element(left) : left[index(segment.type)];
      if (wanted(segment.job).workers < segment.from || some < segment.to - segment.from) continue;
      some -= segment.to - segment.from;
      wanted(segment.job) = {segment.to, segment.type};
    }
  }

  // A job of any type takes the cheapest.
  static double price(int type, const std::vector<double>& prices) {
    return type == kAnyType ? std::ranges::min(prices) : prices[index(type)];
  }

  // That with the largest surplus, and the surplus; none where there is no surplus.
  std::pair<const Offer*, double> best_offer(int number, const std::vector<double>& prices) const {
    std::pair<const Offer*, double> best = {nullptr, 0};
    for (const Offer& offer : offers_[index(number)]) {
      double surplus = 0;
      for (const Segment& segment : offer) {
        const double above = segment.slope - price(segment.type, prices);
        if (above <= 0) break;
        surplus += above * (segment.to - segment.from);
      }
      if (surplus > best.second) best = {&offer, surplus};
    }
    return best;
  }

  // At some prices: the bound, and the devices of each type that are asked for.
  struct Demand {
    double cost = 0;
    std::vector<int> devices;
  };
  Demand ask(const std::vector<double>& prices) const {
    Demand demand{0, std::vector<int>(types_.size())};
    for (std::size_t type = 0; type < types_.size(); ++type) demand.cost += prices[type] * types_[type].devices;
    const auto cheapest = static_cast<std::size_t>(std::ranges::min_element(prices) - prices.begin());
    for (const int number : everybody()) {
      const auto [offer, surplus] = best_offer(number, prices);
      if (offer == nullptr) continue;
      demand.cost += surplus;
      const int type = offer->front().type;
      int workers = 0;
      for (const Segment& segment : *offer) {
        if (segment.slope > price(type, prices)) workers = segment.to;
      }
      demand.devices[type == kAnyType ? cheapest : index(type)] += workers;
    }
    return demand;
  }

  std::vector<std::vector<std::size_t>> groups_of_types() const {
    std::vector<std::vector<std::size_t>> groups;
    if (types_.size() > kAllSubsets) {
      for (std::size_t type = 0; type < types_.size(); ++type) groups.push_back({type});
      groups.emplace_back(types_.size());
      std::iota(groups.back().begin(), groups.back().end(), 0);
      return groups;
    }
    for (std::size_t subset = 1; subset < std::size_t{1} << types_.size(); ++subset) {
      groups.emplace_back();
      for (std::size_t type = 0; type < types_.size(); ++type) {
        if ((subset >> type & 1) != 0) groups.back().push_back(type);
      }
    }
    return groups;
  }

  // Bisects how far these prices move together; keeps the best of what it has seen.
  void move_prices(const std::vector<std::size_t>& types, double costliest) {
    const std::vector<double> from = prices_;
    double low = 0, high = costliest;
    for (const std::size_t type : types) low = std::min(low, -from[type]);
    for (int step = 0; step < kPriceSteps; ++step) {
      const double by = (low + high) / 2;
      std::vector<double> prices = from;
      for (const std::size_t type : types) prices[type] = std::max(0.0, from[type] + by);
      const Demand demand = ask(prices);
      int missing = 0;
      for (const std::size_t type : types) missing += demand.devices[type] - types_[type].devices;
      (missing > 0 ? low : high) = by;
      if (demand.cost < bound_) {
        bound_ = demand.cost;
        prices_ = prices;
      }
    }
  }

  // What a placement of a job costs, in workers on the cheapest type; where its workers request other resources, each
  // counts as many devices as its dominant share is of them.
  double cost(int number, const Placement& where) const { return weights_[index(number)] * cost(where); }
  double cost(const Placement& where) const {
    if (!is_typed_) return count_workers(where);
    const double least = kMinPrice * std::ranges::max(prices_);
    const double unit = std::max(least, std::ranges::min(prices_));
    if (unit <= 0) return count_workers(where);
    double cost = 0;
    for (const Part& part : where) {
      const int type = problem_.topology.nodes[index(part.node)].type;
      cost += part.workers * std::max(least, prices_[index(type)]) / unit;
    }
    return cost;
  }

  void put(int number, Placement where) {
    value_ -= utility(number, placement(number));
    free_.release(placement(number), job(number).demand());
    free_.take(where, job(number).demand());
    value_ += utility(number, where);
    placement(number) = std::move(where);
  }

  // Those that stay where they are first, then the largest first.
  void pack() {
    std::vector<int> order;
    for (const int number : everybody()) {
      const auto [workers, type] = wanted(number);
      if (workers == 0) continue;
      const SlotJob& one = job(number);
      if (!one.now.empty() && one.moving > 0 && workers == count_workers(one.now) &&
          is_of_type(problem_.topology, one.now, type) && free_.fits(one.now, one.demand())) {
        put(number, one.now);
      } else {
        order.push_back(number);
      }
    }
    std::ranges::stable_sort(order, std::greater(), [&](int number) { return wanted(number).workers; });
    for (const int number : order) {
      const auto [workers, type] = wanted(number);
      Placement where = free_.find(workers, job(number).demand(), type);
      if (!where.empty() && utility(number, where) > 0) put(number, std::move(where));
    }
  }

  // The best that a job could have instead of what it has, for what it costs more; nothing where it cannot gain.
  struct Gain {
    double rate = 0;
    int job = 0;
    Placement where;
  };
  Gain best_gain(int number) { return best_gain(number, job(number).first_type(), job(number).end_of_types()); }
  // On devices of these types, or where it runs.
  Gain best_gain(int number, int first_type, int end_of_types) {
    const SlotJob& one = job(number);
    const Placement& before = placement(number);
    const int had = count_workers(before);
    const double cost_before = cost(number, before);
    const double utility_before = utility(number, before);
    free_.release(before, one.demand());
    const bool is_full = free_.devices().free() == had;  // but for it: there is nowhere else to go, and no room to grow
    const Capacity::MostFree most_free = is_full ? Capacity::MostFree() : free_.find_most_free();
    const double least_cost = weights_[index(number)];
    Gain best{0, number, {}};
    const auto consider = [&](Placement where) {
      if (where.empty()) return;
      const double more = std::max(least_cost, cost(number, where) - cost_before);
      const double rate = (utility(number, where) - utility_before) / more;
      if (rate > best.rate * (1 + kSame)) best = {rate, number, std::move(where)};
    };
    if (!one.now.empty() && free_.fits(one.now, one.demand())) consider(one.now);
    for (int type = first_type; type < end_of_types && !is_full; ++type) {
      // On other devices than before it may do as well with fewer; fewer than it can run with do nothing.
      const int least = is_of_type(problem_.topology, before, type) ? std::max(one.min_workers, had) : one.min_workers;
      for (int workers = least; workers <= one.max_workers(); ++workers) {
        const int locality = workers <= most_free.on_node ? 0 : workers <= most_free.in_rack ? 1 : 2;  // at best
        const double most = one.value_on(type)[static_cast<std::size_t>(locality)][index(workers)];
        const double more = std::max(least_cost, least_cost * workers - cost_before);
        if ((most - utility_before) / more <= best.rate * (1 + kSame)) continue;
        Placement where = free_.find(workers, one.demand(), type);
        if (where.empty()) break;
        consider(std::move(where));
      }
    }
    free_.take(before, one.demand());
    return best;
  }

  // Gives what is free to those who make most of it.
  void grow(const std::vector<int>& jobs) {
    using Rate = std::pair<double, int>;  // and the job, the first one last
    std::priority_queue<Rate> rates;
    const auto offer = [&](const Gain& gain) {
      if (gain.rate > 0) rates.emplace(gain.rate, -gain.job);
    };
    for (const int number : jobs) offer(best_gain(number));
    while (!rates.empty()) {
      const int number = -rates.top().second;
      rates.pop();
      Gain now = best_gain(number);  // others may have taken what it would have had
      if (!rates.empty() && Rate(now.rate, -number) < rates.top()) {
        offer(now);
        continue;
      }
      if (now.rate <= 0) continue;
      put(number, std::move(now.where));
      offer(best_gain(number));
    }
  }

  bool is_near() const { return value_ >= bound_ * (1 - options_.gap); }

  // Takes out jobs of some nodes and some that have less than the relaxation would give them, often the one that lacks
  // most by that, packs them again in another order, and keeps what is better.
  void improve() {
    if (problem_.jobs.empty()) return;
    const int enough = is_typed_ ? options_.patience : std::max(kMinPatience, static_cast<int>(problem_.jobs.size()));
    const int patience = std::min(options_.patience, enough);
    int idle = 0;  // rounds in a row that gained nothing
    for (int round = 0; round < options_.rounds && idle < patience && !is_near(); ++round) {
      const std::vector<int> chosen = choose();
      std::vector<std::pair<int, Placement>> before;
      for (const int number : chosen) before.emplace_back(number, placement(number));
      const double value_before = value_;
      for (const int number : chosen) put(number, {});
      // In this order each gets the number of workers at which it makes most of its devices, or a number at random, or
      // what the others leave, on a type at random where types matter; then all may grow.
      for (const int number : chosen) {
        const SlotJob& one = job(number);
        const std::uint64_t way = random_.below(is_typed_ ? 4 : 3);
        const int type = is_typed_ ? random_type(one) : kAnyType;
        Placement where;
        if (way == 0) {
          where = best_gain(number).where;
        } else if (way == 1) {
          const auto workers = 1 + static_cast<int>(random_.below(static_cast<std::uint64_t>(one.max_workers())));
          where = free_.find(workers, one.demand(), type);
        } else if (way == 3) {
          where = best_gain(number, type, type + 1).where;
        }
        if (!where.empty() && utility(number, where) > 0) put(number, std::move(where));
      }
      grow(chosen);
      idle = value_ > value_before + kSame * bound_ ? 0 : idle + 1;
      if (value_ >= value_before - kSame * bound_) continue;
      for (const int number : chosen) put(number, {});
      for (auto& [number, where] : before) put(number, std::move(where));
      value_ = value_before;
    }
  }

  // One that a job may have; a job that may have any may also have them all of one, to leave others to others.
  int random_type(const SlotJob& one) {
    const std::size_t ways = types_.size() + (one.type_values.empty() ? 1 : 0);
    const auto type = static_cast<int>(random_.below(ways));
    return type < static_cast<int>(types_.size()) ? type : kAnyType;
  }

  std::vector<int> choose() {
    const auto any = [&](std::size_t count) { return static_cast<int>(random_.below(count)); };
    const std::size_t nodes = problem_.topology.nodes.size();
    std::vector<char> emptied(nodes, 0);
    const std::size_t count = 1 + random_.below(std::min<std::size_t>(3, nodes));
    for (std::size_t i = 0; i < count; ++i) emptied[static_cast<std::size_t>(any(nodes))] = 1;
    const int least = is_typed_ ? 1 : 0;  // who should have devices of which type is less sure than how many
    std::vector<int> chosen, poor;
    for (const int number : everybody()) {
      const Placement& where = placement(number);
      if (std::ranges::any_of(where, [&](const Part& part) { return emptied[index(part.node)] != 0; })) {
        chosen.push_back(number);
      } else if (count_workers(where) < std::max(least, wanted(number).workers)) {
        poor.push_back(number);
      }
    }
    for (int i = 0; i < 3 && !poor.empty(); ++i) {
      auto one = poor.begin() + any(poor.size());
      if (i == 0 && any(2) == 0) one = std::ranges::max_element(poor, {}, [&](int number) { return missing(number); });
      chosen.push_back(*one);
      poor.erase(one);
    }
    for (std::size_t i = chosen.size(); i > 1; --i) std::swap(chosen[i - 1], chosen[random_.below(i)]);
    return chosen;
  }

  // Of the utility of what it wants, all in one place.
  double missing(int number) {
    const auto [workers, type] = wanted(number);
    if (workers == 0) return 0;
    return job(number).value_on(type).front()[index(workers)] - utility(number, placement(number));
  }

  struct Wanted {
    int workers = 0;
    int type = kAnyType;
  };
  Wanted& wanted(int number) { return wanted_[index(number)]; }

  const SlotProblem& problem_;
  const SlotOptions& options_;
  Random random_{options_.seed};
  Capacity free_{problem_.topology};
  std::vector<Placement> placements_{problem_.jobs.size()};
  std::vector<Wanted> wanted_;              // of each job: what the relaxation gives it, in whole segments
  std::vector<std::vector<Offer>> offers_;  // of each job, where types matter
  std::vector<double> prices_;              // of a device, by type, where types matter
  std::vector<double> totals_;              // of each resource
  std::vector<double> weights_;             // of each job: devices that a worker counts as
  // Whether types of devices matter to any job.
  const bool is_typed_ =
      std::ranges::any_of(problem_.jobs, [](const SlotJob& job) { return !job.type_values.empty(); });
  const Size all_ = make_size(kAnyType);
  std::vector<Size> types_;
  double value_ = 0;
  double bound_ = 0;
};

}  // namespace

double compute_value(const ClusterTopology& topology, const SlotJob& job, const Placement& placement) {
  const int workers = count_workers(placement);
  if (placement.empty() || workers < job.min_workers) return 0;
  const bool is_typed = !job.type_values.empty();
  const int type = is_typed ? find_type(topology, placement) : kAnyType;
  if (is_typed && type == kAnyType) return 0;
  const auto locality = static_cast<std::size_t>(find_locality(topology, placement));
  const double value = job.value_on(type)[locality][index(workers)];
  return job.now.empty() || job.now == placement ? value : value * (1 - job.moving);
}

std::vector<int> find_corners(std::span<const double> values) {
  std::vector<int> hull = {0};
  const auto slope = [&](int from, int to) { return (values[index(to)] - values[index(from)]) / (to - from); };
  for (int workers = 1; workers < static_cast<int>(values.size()); ++workers) {
    if (values[index(workers)] <= values[index(hull.back())]) continue;
    while (hull.size() > 1 && slope(hull[hull.size() - 2], hull.back()) <= slope(hull.back(), workers)) hull.pop_back();
    hull.push_back(workers);
  }
  return hull;
}

bool fits(const SlotProblem& problem, const std::vector<Placement>& placements) {
  Capacity free(problem.topology);
  for (std::size_t i = 0; i < placements.size(); ++i) {
    if (!free.fits(placements[i], problem.jobs[i].demand())) return false;
    free.take(placements[i], problem.jobs[i].demand());
  }
  return true;
}

SlotAnswer solve_slot(const SlotProblem& problem, const SlotOptions& options) {
  return Solver(problem, options).solve();
}

}  // namespace motley::scheduling
