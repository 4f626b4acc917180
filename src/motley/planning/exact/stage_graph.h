// All stages that can keep up with a rate, as a graph whose paths are plans under kHeterps: shortest paths with a price
// for every device, and which stages no plan below a limit can use.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "motley/planning/cost/evaluation.h"

namespace motley::planning {

// Layers first..last on a type: a stage whose number of devices follows from the rate.
struct Segment {
  std::int16_t first = 0;
  std::int16_t last = 0;
  std::int16_t type = 0;
};

// Any stage's times in constant time, from sums over the layers before it.
class SegmentTimes {
 public:
  explicit SegmentTimes(const Problem& problem, double max_hourly_cost);

  int layers() const { return layers_; }
  int types() const { return types_; }
  bool has_links() const { return !transfer_.empty(); }
  double price(int type) const { return price_[static_cast<std::size_t>(type)]; }
  // Devices of a type that one stage may have.
  double most(int type) const { return most_[static_cast<std::size_t>(type)]; }
  // What a layer's incoming data take on one device, seconds a sample.
  double incoming(int previous, const Segment& segment) const;
  // Without what comes in from the stage before.
  HeterpsStage stage(const Segment& segment) const;
  HeterpsStage stage(const Segment& segment, double incoming) const;
  // The fewest devices on which a stage takes no longer than `seconds` a sample; infinity where there are too few.
  double fewest(const HeterpsStage& stage, int type, double seconds) const;

  // No plan is faster, and none that any objective wants is slower, in seconds a sample.
  double fastest() const;
  double slowest() const;
  // Those that keep up with `seconds` a sample, ordered by their first layer.
  std::vector<Segment> segments(double seconds) const;

 private:
  std::size_t at(int layer, int type) const { return index(layer) * index(types_) + index(type); }

  int layers_;
  int types_;
  std::vector<double> price_;
  std::vector<double> most_;
  std::vector<HeterpsStage> before_;            // layers + 1 x types: sums over the layers before one
  std::vector<double> communication_fraction_;  // layers x types
  std::vector<double> cut_bytes_;
  std::vector<double> transfer_;  // types x types: seconds a byte, both ways; empty where all links are unlimited
};

// What a path is charged for a stage on k devices, while the rate is somewhere in an interval.
enum class Measure {
  kCost,      // price an hour * seconds a sample, at the rate in the interval where that is least
  kFraction,  // k / count of its type: where only the rate matters
};

// Seconds a sample. Plans in it take longer than `low`, or exactly as long, and no longer than `high`.
struct Interval {
  double low = 0;
  double high = 0;
};

struct Use {
  double count = 0;  // devices
  double cost = 0;   // by the measure
};
struct Step {
  Segment segment;
  Use use;
  double seconds = 0;  // ET
};
using StagePath = std::vector<Step>;

// What every device of a type is charged on top (Lagrangian multipliers), and what that sums to at the limits: the
// cheapest path with charges, less the refund, bounds all paths within the limits.
struct Charges {
  std::vector<double> device;
  double refund = 0;
};

class StageGraph {
 public:
  // Keeps those of the segments (in order of their first layers) that keep up with the interval's longest time.
  StageGraph(const SegmentTimes& times, std::span<const Segment> segments, Interval interval, Measure measure);

  // The least cost of a path when every device of a type costs `charge` more; infinity where there is no path.
  double shortest(const std::vector<double>& charge);
  // The path found by shortest(), or one of given segments.
  StagePath path() const;
  StagePath path(std::span<const std::size_t> indices) const;
  // The segments on any path whose cost, with the charges of shortest(), is below the limit.
  std::vector<Segment> below(double limit) const;

  // For the label search.
  const SegmentTimes& times() const { return times_; }
  Interval interval() const { return interval_; }
  std::span<const Segment> segments() const { return segments_; }
  std::size_t begin(int layer) const { return offsets_[static_cast<std::size_t>(layer)]; }  // of segments from there
  double charge(int type) const { return charge_[static_cast<std::size_t>(type)]; }
  // A segment's cost with charges after any stage: less than or equal to that after a certain one.
  double min_cost(std::size_t index) const {
    return use_[index].cost + charge(segments_[index].type) * use_[index].count;
  }
  // The cost with charges of all layers from one on, after a stage of type `previous` (types(): there is none).
  double rest(int layer, int previous) const { return rest_[slot(layer, previous)]; }
  Use use(std::size_t index, int previous) const;
  // The most devices that the segment needs after any stage.
  double max_devices(std::size_t index) const;

 private:
  std::size_t slot(int layer, int previous) const { return index(layer) * index(times_.types() + 1) + index(previous); }
  double cost_after(std::size_t index, int previous) const;
  Step step(const Segment& segment, const HeterpsStage& stage) const;
  Step step(std::size_t index, int previous) const;
  void extend_with_links(int layer);

  const SegmentTimes& times_;
  Interval interval_;
  Measure measure_;
  std::vector<Segment> segments_;
  std::vector<std::size_t> offsets_;
  // Of every segment when nothing comes in, and how many seconds a sample may come in without changing that.
  std::vector<Use> use_;
  std::vector<double> slack_;
  std::vector<double> charge_;
  std::vector<double> rest_;
  std::vector<std::int32_t> choice_;  // the segment that rest_ begins with
};

// What all stages together may use: devices of every type, and price an hour.
struct Limits {
  std::vector<double> devices;
  double price_per_hour = 0;  // infinity: not limited
};

struct LabelResult {
  std::optional<StagePath> path;  // the best found
  double bound = 0;               // no path within the limits costs less
};

// The cheapest path within limits on devices and price: partial paths ("labels") are extended layer by layer, and given
// up where a bound or another label shows that they lead to nothing better.
// Paths that cost `below` or more are not looked for. A label's bound is the greatest by any of the charges; the
// graph's shortest path is left to be that of the first. At most `width` labels go on from a layer; those with the
// worst bounds are left out. Ends early, with the bound of what is left, when `over` says so.
LabelResult search_labels(StageGraph& graph, const Limits& limits, std::span<const Charges> charges, double below,
                          int width, const std::function<bool()>& over);

}  // namespace motley::planning
