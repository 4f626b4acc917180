// Bytes over the busiest link of each kind.
#include "motley/planning/cost/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "motley/base/units.h"

namespace motley::planning {
namespace {

// Seconds of the rack whose uplink carries most, of `bytes` in the direction in which it carries more.
template <class Bytes>
double slowest_uplink(const PlacementProblem& problem, Bytes bytes) {
  if (problem.racks() < 2) return 0;
  double most = 0;
  for (int rack = 0; rack < problem.racks(); ++rack) most = std::max(most, bytes(rack));
  return most / problem.uplink_bytes_per_second;
}

double largest_rack(const PlacementProblem& problem) {
  return *std::ranges::max_element(problem.rack_workers);
}

double within_racks(const PlacementProblem& problem) {
  const double pushed = problem.model_bytes;
  return std::max(pushed / problem.worker_bytes_per_second,
                  largest_rack(problem) * pushed / problem.server_bytes_per_second);
}

double between_racks(const PlacementProblem& problem) {
  const double racks = problem.racks();
  if (racks < 2) return 0;
  return 2 * problem.model_bytes * (racks - 1) / racks /
         std::min(problem.server_bytes_per_second, problem.uplink_bytes_per_second);
}

// By Placement: what it takes, and whether it can be had with these servers.
struct Way {
  double (*seconds)(const PlacementProblem&);
  bool (*is_possible)(const PlacementProblem&);
};
constexpr Way kWays[] = {
    {central_seconds, [](const PlacementProblem& problem) { return problem.servers >= 1; }},
    {sharded_seconds, [](const PlacementProblem& problem) { return problem.servers >= 2; }},
    {colocated_seconds, [](const PlacementProblem&) { return true; }},
    {hierarchical_seconds,
     [](const PlacementProblem& problem) { return problem.a_server_in_each_rack && problem.racks() >= 2; }},
    {ring_seconds, [](const PlacementProblem&) { return true; }}};

}  // namespace

const char* to_string(Placement placement) {
  constexpr const char* kNames[] = {"central", "sharded", "colocated", "hierarchical", "ring"};
  return kNames[static_cast<int>(placement)];
}

int PlacementProblem::workers() const {
  return std::accumulate(rack_workers.begin(), rack_workers.end(), 0);
}

double central_seconds(const PlacementProblem& problem) {
  const double all = problem.workers();
  const double model = problem.model_bytes;
  const double uplinks = slowest_uplink(problem, [&](int rack) {
    const double here = problem.rack_workers[static_cast<std::size_t>(rack)];
    return (rack == 0 ? all - here : here) * model;
  });
  return std::max({model / problem.worker_bytes_per_second, all * model / problem.server_bytes_per_second, uplinks});
}

double sharded_seconds(const PlacementProblem& problem) {
  const double all = problem.workers();
  const double racks = problem.racks();
  const double model = problem.model_bytes;
  const double uplinks = slowest_uplink(problem, [&](int rack) {
    const double here = problem.rack_workers[static_cast<std::size_t>(rack)];
    return (here * (racks - 1) + (all - here)) / racks * model;
  });
  return std::max({model / problem.worker_bytes_per_second,
                   all * model / (problem.servers * problem.server_bytes_per_second), uplinks});
}

double colocated_seconds(const PlacementProblem& problem) {
  const double all = problem.workers();
  const double uplinks = slowest_uplink(problem, [&](int rack) {
    const double here = problem.rack_workers[static_cast<std::size_t>(rack)];
    return 2 * here * (all - here) / all * problem.model_bytes;
  });
  return std::max(2 * problem.model_bytes * (all - 1) / (all * problem.worker_bytes_per_second), uplinks);
}

double hierarchical_seconds(const PlacementProblem& problem) {
  return std::max(within_racks(problem), between_racks(problem));
}

double unpipelined_hierarchical_seconds(const PlacementProblem& problem) {
  return within_racks(problem) + between_racks(problem);
}

double ring_seconds(const PlacementProblem& problem) {
  const double all = problem.workers();
  const double link = problem.racks() < 2 ? problem.worker_bytes_per_second
                                          : std::min(problem.worker_bytes_per_second, problem.uplink_bytes_per_second);
  return 2 * problem.model_bytes * (all - 1) / (all * link);
}

Result<std::vector<PlacementSeconds>> rank_placements(const PlacementProblem& problem,
                                                      std::span<const Placement> among) {
  const bool sensible = problem.model_bytes > 0 && problem.racks() > 0 && problem.worker_bytes_per_second > 0 &&
                        (problem.servers == 0 || problem.server_bytes_per_second > 0) &&
                        (problem.racks() < 2 || problem.uplink_bytes_per_second > 0) &&
                        std::ranges::all_of(problem.rack_workers, [](int workers) { return workers > 0; });
  if (!sensible) {
    return fail(ErrorCode::kInvalidInput,
                "placement of servers: {} bytes, racks of [{}] workers, {} servers, links of {}, {} and {} bytes a "
                "second; accepted: a model, workers in each rack, and links that carry something",
                problem.model_bytes, fmt::join(problem.rack_workers, ", "), problem.servers,
                problem.worker_bytes_per_second, problem.server_bytes_per_second, problem.uplink_bytes_per_second);
  }
  std::vector<PlacementSeconds> ranked;
  for (const Placement placement : among) {
    const Way& way = kWays[static_cast<int>(placement)];
    if (way.is_possible(problem)) ranked.push_back({placement, way.seconds(problem)});
  }
  std::ranges::sort(ranked, [](const PlacementSeconds& a, const PlacementSeconds& b) {
    return a.seconds != b.seconds ? a.seconds < b.seconds : a.placement < b.placement;
  });
  return ranked;
}

std::string explain(std::span<const PlacementSeconds> ranked, const PlacementProblem& problem) {
  const auto speed = [](double bytes) { return format_bytes(bytes) + "/s"; };
  std::string text;
  for (const PlacementSeconds& one : ranked) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", to_string(one.placement), format_seconds(one.seconds));
  }
  text += "; links of workers " + speed(problem.worker_bytes_per_second);
  if (problem.servers > 0) text += ", of servers " + speed(problem.server_bytes_per_second);
  if (problem.racks() > 1)
    text += fmt::format(", of {} racks {}", problem.racks(), speed(problem.uplink_bytes_per_second));
  return text;
}

}  // namespace motley::planning
