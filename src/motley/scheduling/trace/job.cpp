#include "motley/scheduling/trace/job.h"

#include <cmath>
#include <iterator>

namespace motley::scheduling {
namespace {

// Where the straight line from (0, u(0)) touches a sigmoid, or `most` if that is before: up to there the line is the
// envelope, behind it the sigmoid, which is concave there. The touching point is where the chord's slope is greatest;
// it lies behind the middle, and slopes of chords rise up to it and fall behind it.
double touching_point(const Utility& utility, double most) {
  const double begin = utility.at(0);
  double low = std::clamp(utility.middle, 0.0, most);
  double high = most;
  for (int step = 0; step < 100 && high - low > 1e-9 * most; ++step) {
    const double at = (low + high) / 2;
    const double value = utility.at(at);
    const double slope = utility.steepness * value * (1 - value / utility.weight);
    (slope * at > value - begin ? low : high) = at;
  }
  return high;
}

// Of a table, the straight line between two of its points.
double between(const Utility::Point& one, const Utility::Point& other, double iterations) {
  const double share = (iterations - one.iterations) / (other.iterations - one.iterations);
  return one.utility + share * (other.utility - one.utility);
}

// The value of the upper hull of a table's points, up to `most`.
double hull_at(const Utility& utility, double iterations, double most) {
  std::vector<Utility::Point> hull;
  const auto add = [&](const Utility::Point& point) {
    while (hull.size() > 1 && between(hull[hull.size() - 2], point, hull.back().iterations) >= hull.back().utility) {
      hull.pop_back();
    }
    hull.push_back(point);
  };
  for (const Utility::Point& point : utility.points) {
    if (point.iterations < most) add(point);
  }
  add({most, utility.at(most) / utility.weight});
  const auto next = std::ranges::find_if(hull, [&](const auto& point) { return point.iterations >= iterations; });
  if (next == hull.begin()) return utility.weight * next->utility;
  return utility.weight * between(*(next - 1), *next, iterations);
}

double bandwidth(const Elastic& job, const Network& network, const RingPlace& place) {
  if (place.nodes <= 1) return network.intra_node_bandwidth;
  if (job.reserve > 0) return job.reserve;
  const double rings = std::max(1.0, network.contention * place.contention);
  return network.inter_node_bandwidth / (rings + network.loss * (rings - 1));
}

}  // namespace

double Utility::at(double iterations) const {
  switch (shape) {
    case Shape::kSquareRoot:
      return weight * std::sqrt(iterations);
    case Shape::kLogarithm:
      return weight * std::log1p(iterations);
    case Shape::kSigmoid:
      return weight / (1 + std::exp(-steepness * (iterations - middle)));
    case Shape::kTable: {
      const auto next = std::ranges::find_if(points, [&](const Point& one) { return one.iterations >= iterations; });
      if (next == points.end()) return weight * points.back().utility;
      return weight * (next == points.begin() ? next->utility : between(*(next - 1), *next, iterations));
    }
    case Shape::kLinear:
      break;
  }
  return weight * iterations;
}

double Utility::envelope_at(double iterations, double most) const {
  if (iterations >= most) return at(iterations);
  if (shape == Shape::kTable) return hull_at(*this, iterations, most);
  if (shape != Shape::kSigmoid) return at(iterations);
  const double touches = touching_point(*this, most);
  if (iterations >= touches) return at(iterations);
  return at(0) + (at(touches) - at(0)) * iterations / touches;
}

Status check(const Utility& utility) {
  if (utility.shape != Utility::Shape::kTable) return {};
  const auto refuse = [](std::size_t point, const char* field, double value, const char* accepted) {
    return fail(ErrorCode::kInvalidInput, "utility.points[{}].{} is {}; accepted: {}", point, field, value, accepted);
  };
  const std::vector<Utility::Point>& points = utility.points;
  if (points.size() < 2) {
    return fail(ErrorCode::kInvalidInput, "utility.points has {} points; accepted: two or more", points.size());
  }
  if (points[0].iterations != 0) return refuse(0, "iterations", points[0].iterations, "0 for the first");
  for (std::size_t i = 1; i < points.size(); ++i) {
    if (points[i].iterations <= points[i - 1].iterations) {
      return refuse(i, "iterations", points[i].iterations, "more than the point before");
    }
    if (points[i].utility < points[i - 1].utility) {
      return refuse(i, "utility", points[i].utility, "no less than the point before: utilities never fall");
    }
  }
  return {};
}

double iteration_seconds(const Elastic& job, const Network& network, const RingPlace& place) {
  const double passed = job.gradient_bytes * (place.workers - 1) / place.workers;
  return passed * (2 / bandwidth(job, network, place) + 1 / job.reduce_rate) + network.seconds_per_node * place.nodes +
         job.compute_seconds;
}

RingPlace ring_place(const ClusterTopology& topology, const Placement& placement) {
  return {count_workers(placement), static_cast<int>(placement.size()), 1, find_type(topology, placement)};
}

RingPlace on_fewest_nodes(int workers, int largest) {
  const int on_each = std::max(1, largest);
  return {workers, (workers + on_each - 1) / on_each};
}

void MeasuredSpeeds::add(int type, int nodes, int workers, double speed, double ideal) {
  types_[type][nodes][workers] = {speed, ideal};
}

int MeasuredSpeeds::max_workers() const {
  int most = 0;
  for (const auto& [type, by_nodes] : types_) {
    for (const auto& [nodes, by_workers] : by_nodes) most = std::max(most, by_workers.rbegin()->first);
  }
  return most;
}

double MeasuredSpeeds::value(int type, int nodes, int workers, double Speed::* which) const {
  const auto found = types_.find(type);
  if (found == types_.end()) return 0;
  auto on_nodes = found->second.lower_bound(nodes);
  if (on_nodes == found->second.end()) --on_nodes;
  const ByWorkers& by_workers = on_nodes->second;
  const auto next = by_workers.lower_bound(workers);
  if (next == by_workers.end()) return by_workers.rbegin()->second.*which;
  if (next->first == workers || next == by_workers.begin()) return next->second.*which;
  const auto before = std::prev(next);
  const double share = static_cast<double>(workers - before->first) / (next->first - before->first);
  return before->second.*which + share * (next->second.*which - before->second.*which);
}

double MeasuredSpeeds::on_fewest_nodes(int type, int workers, double Speed::* which) const {
  for (const auto& [nodes, by_workers] : types_.at(type)) {
    if (by_workers.rbegin()->first >= workers) return value(type, nodes, workers, which);
  }
  return value(type, types_.at(type).rbegin()->first, workers, which);
}

MeasuredSpeeds MeasuredSpeeds::known_after(const std::vector<int>& most_workers) const {
  MeasuredSpeeds known;
  const auto most = std::ranges::max_element(most_workers);
  const int reach = most == most_workers.end() ? 0 : 2 * *most;
  const auto beyond = [&](int type, int workers) {
    const int had = most_workers[index(type)];
    return on_fewest_nodes(type, had, &Speed::measured) * on_fewest_nodes(type, workers, &Speed::ideal) /
           on_fewest_nodes(type, had, &Speed::ideal);
  };
  const auto first =
      static_cast<int>(std::ranges::find_if(most_workers, [](int had) { return had > 0; }) - most_workers.begin());
  for (const auto& [type, by_nodes] : types_) {
    if (reach == 0) known.add(type, 1, 1, 1, 1);
    for (const auto& [nodes, by_workers] : by_nodes) {
      for (const auto& [workers, speed] : by_workers) {
        if (workers > reach) break;
        const int had = most_workers[index(type)];
        double told = speed.measured;
        if (had == 0) {
          const bool is_known = workers <= most_workers[index(first)];
          told = at(type, 1, 1) / at(first, 1, 1) * (is_known ? at(first, nodes, workers) : beyond(first, workers));
        } else if (workers > had) {
          told = beyond(type, workers);
        }
        known.add(type, nodes, workers, told, speed.ideal);
      }
    }
  }
  return known;
}

double Elastic::speedup_with(int workers_now) const {
  SpeedUp before{1, 1};
  for (const SpeedUp& next : speedup) {
    if (workers_now <= next.workers) {
      const double part = static_cast<double>(workers_now - before.workers) / (next.workers - before.workers);
      return before.speedup + part * (next.speedup - before.speedup);
    }
    before = next;
  }
  return before.speedup;
}

double speed(const Job& job, const Network& network, const RingPlace& place) {
  const double on_type = job.speed_on(place.type);
  if (!job.elastic || on_type <= 0) return on_type;
  if (job.elastic->measured) {
    const auto fastest = std::ranges::max_element(job.type_speeds) - job.type_speeds.begin();
    const int type = place.type == kAnyType ? static_cast<int>(fastest) : place.type;
    return job.elastic->measured->at(type, place.nodes, place.workers);
  }
  if (!job.elastic->speedup.empty()) {
    return on_type * job.elastic->speedup_with(place.workers) / job.elastic->speedup_with(job.workers);
  }
  const double asked = iteration_seconds(*job.elastic, network, {job.workers});
  Elastic there = *job.elastic;
  there.compute_seconds /= on_type;
  const double now = iteration_seconds(there, network, place);
  return place.workers * asked / (job.workers * now);
}

}  // namespace motley::scheduling
