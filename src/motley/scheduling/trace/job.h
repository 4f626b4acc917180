// A training job as a scheduler sees it: what it asks for, what its progress is worth, and how fast it trains with so
// many workers in such places.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "motley/base/result.h"
#include "motley/scheduling/trace/cluster_topology.h"

namespace motley::scheduling {

// What a worker may request of its node beside a device: the field, in traces and of live jobs, and the resource.
struct RequestField {
  std::string_view name;
  std::string_view resource;
  double most;
  std::string_view accepted;
};
inline constexpr std::array kRequestFields = {
    RequestField{"cpus_per_worker", kCpus, 1e6, "a number from 0 to 1e6"},
    RequestField{"memory_bytes_per_worker", kMemory, 1e15, "bytes from 0 to 1e15"}};

// The utility of a job's progress: a function of its iterations that never falls.
struct Utility {
  // With x iterations: weight * sqrt(x), so that nobody trains on for little; weight * log(1 + x), which is
  // proportional fairness; weight / (1 + exp(-steepness (x - middle))), as in GADGET's experiments; weight * x; weight
  // * what a table says, between whose points it is a straight line, and behind whose last one it does not rise.
  enum class Shape : std::uint8_t { kSquareRoot, kLogarithm, kSigmoid, kLinear, kTable };
  struct Point {
    double iterations = 0;
    double utility = 0;
    bool operator==(const Point&) const = default;
  };
  Shape shape = Shape::kSquareRoot;
  double weight = 1;
  double steepness = 1;            // of kSigmoid
  double middle = 0;               // of kSigmoid
  std::vector<Point> points = {};  // of kTable, the first one at 0; iterations rise, and utility does not fall

  double at(double iterations) const;
  // Of the least concave function that is nowhere below it, between 0 and `most` iterations: itself, but for kSigmoid
  // and kTable.
  double envelope_at(double iterations, double most) const;
  bool operator==(const Utility&) const = default;
};

inline const char* to_string(Utility::Shape shape) {
  constexpr std::array kNames = {"square-root", "logarithm", "sigmoid", "linear", "table"};
  return kNames[static_cast<std::size_t>(shape)];
}
inline std::vector<Utility::Shape> every_value(Utility::Shape) {
  return {Utility::Shape::kSquareRoot, Utility::Shape::kLogarithm, Utility::Shape::kSigmoid, Utility::Shape::kLinear,
          Utility::Shape::kTable};
}

// Errors: kInvalidInput for a table that is none, with the field and what would be accepted.
Status check(const Utility& utility);

// How fast a job is by type of devices, nodes and workers, as measured, beside one device of the type on which it is
// fastest so.
class MeasuredSpeeds {
 public:
  // `ideal`: if its workers needed no time to synchronise.
  void add(int type, int nodes, int workers, double speed, double ideal);
  // On a straight line between the numbers of workers that were measured on as many nodes, or on the next number that
  // was.
  double at(int type, int nodes, int workers) const { return value(type, nodes, workers, &Speed::measured); }
  int max_workers() const;
  // What a scheduler knows of a job that has had so many workers on each type, 0: none, as Sia's does. As measured up
  // to there; beyond, and up to twice the most that it has had anywhere, as if more workers needed no more time to
  // synchronise; on other types by what one worker does there. Of one that has had none nothing is known: it may have
  // one worker, as fast on all.
  MeasuredSpeeds known_after(const std::vector<int>& most_workers) const;

 private:
  struct Speed {
    double measured = 0, ideal = 0;
  };
  using ByWorkers = std::map<int, Speed>;
  double value(int type, int nodes, int workers, double Speed::* which) const;
  double on_fewest_nodes(int type, int workers, double Speed::* which) const;

  std::map<int, std::map<int, ByWorkers>> types_;  // by type, then by nodes
};

// What a job that may have more or fewer workers says of itself. Each worker trains mini-batches of one size, so that
// twice the workers do twice the work in an iteration.
struct Elastic {
  // With so many workers it is so many times as fast as with one.
  struct SpeedUp {
    int workers = 2;
    double speedup = 1;
    bool operator==(const SpeedUp&) const = default;
  };
  int min_workers = 1;         // workers with which it can run
  int max_workers = 1;         // workers that it can use
  double compute_seconds = 1;  // of an iteration: forward, backward, and what else does not depend on its workers
  double gradient_bytes = 0;
  double reduce_rate = std::numeric_limits<double>::infinity();  // bytes a second that a worker can add up
  double reserve = 0;  // bytes a second of each uplink that its ring reserves and then has; 0: takes its part
  double restart_cost_seconds = 0;  // in which it trains nothing, whenever its workers change
  // As declared, by ascending numbers of workers from 2 on; between them it is a straight line, and behind the last one
  // no more workers help. Empty: as its seconds and bytes say.
  std::vector<SpeedUp> speedup = {};
  std::shared_ptr<const MeasuredSpeeds> measured =
      {};  // where there are some, they tell its speed, and nothing else does

  double speedup_with(int workers_now) const;  // where it is declared
};

// What the placement of a job takes beside its devices.
struct Demand {
  double reserve = 0;                     // bytes a second of each uplink that its ring goes over
  std::span<const double> requests = {};  // of each of ClusterTopology::resources, a worker; empty: nothing
};

struct Job {
  std::string name;
  double arrival = 0;   // seconds from the trace's begin
  double duration = 0;  // seconds that it trains with the workers it asks for, all of them on one node
  int workers = 1;      // that it asks for, one device each
  double deadline = std::numeric_limits<double>::infinity();  // seconds after its arrival by which it should be done
  std::optional<Elastic> elastic = {};  // none: it has what it asks for or nothing, and is as fast anywhere
  double iterations = 0;                // that it does in all, of one worker each; 0: one a second of its duration
  Utility utility = {};                 // of its iterations
  double device_hour_cost = 0;          // what an hour of one of its devices costs, in the same unit: energy, rent
  // By type of device, in the order of ClusterTopology::types: how fast it computes there, beside the devices for which
  // its times hold; 0: it cannot run there. Then all its workers have devices of one type at a time. Empty: it is as
  // fast on all, and may be on several.
  std::vector<double> type_speeds = {};
  // Of each of ClusterTopology::resources: how much each of its workers takes beside its device. Empty: nothing.
  std::vector<double> requests = {};
  std::string application = {};  // jobs of one are as fast as each other; empty: of none

  // On the fastest, where no type is given.
  double speed_on(int type) const {
    if (type_speeds.empty()) return 1;
    return type < 0 ? *std::max_element(type_speeds.begin(), type_speeds.end()) : type_speeds[index(type)];
  }
  int min_workers() const { return elastic ? elastic->min_workers : workers; }
  int max_workers() const { return elastic ? elastic->max_workers : workers; }
  double reserve() const { return elastic ? elastic->reserve : 0; }
  // Holds while the job does.
  Demand demand() const { return {reserve(), requests}; }
  double device_seconds() const { return duration * workers; }
  // What it has done after so many seconds of its duration.
  double iterations_after(double seconds) const {
    return iterations > 0 && duration > 0 ? iterations * (seconds / duration) : seconds;
  }
  double utility_after(double seconds) const { return utility.at(iterations_after(seconds)); }
  double compute_cost(double device_seconds) const { return device_hour_cost * device_seconds / 3600; }
};

// --- How fast it trains

// Where a ring runs, as far as its speed depends on it.
struct RingPlace {
  int workers = 1;
  int nodes = 1;
  int contention = 1;  // rings, itself among them, at the node where most meet that leave their nodes
  int type = kAnyType;
};

// Seconds of an iteration: GADGET (Yu et al., INFOCOM 2022), equation (1), with the bandwidth that contention leaves
// and the overhead of spread rings as in SJF-BCO (Yu et al., MobiHoc 2022):
//
//     d (w - 1) / w (2 / B + 1 / G) + seconds_a_server * nodes + compute_seconds
//
// where B is the bandwidth inside a node on one, the job's reserve if it has one, and between / f(k) otherwise, with
// k = max(1, meeting share * rings that share a link).
double iteration_seconds(const Elastic& job, const Network& network, const RingPlace& place);

// Of a ring that meets no other.
RingPlace ring_place(const ClusterTopology& topology, const Placement& placement);

// So many workers on as few nodes as can be, with nobody else, where the largest node has `largest` devices.
RingPlace on_fewest_nodes(int workers, int largest);

// Seconds of its duration that a job does in a second: 1 with the workers it asks for on one node, and for jobs that
// are not elastic, where devices are those for which its times hold; where they are not, computation goes at the pace
// of their type (Job::type_speeds).
double speed(const Job& job, const Network& network, const RingPlace& place);

}  // namespace motley::scheduling
