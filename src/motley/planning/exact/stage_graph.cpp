// Shortest paths over stages (see stage_graph.h). The number of devices of a stage, and so its cost, depends on the
// stage before only through the time of what comes in, and mostly not at all: that time is hidden behind computation.
// So a segment's cost without incoming data is computed once, together with the slack below which it stays the same,
// and the exact cost after a certain type only where it is above the slack and could still matter.
#include "motley/planning/exact/stage_graph.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace motley::planning {
namespace {

constexpr double kMaxDevices = 1e15;  // integers up to here are exact

double ceiling(double value) {  // 0 <= value <= kMaxDevices
  const auto whole = static_cast<double>(static_cast<std::int64_t>(value));
  return whole < value ? whole + 1 : whole;
}

HeterpsStage difference(const HeterpsStage& a, const HeterpsStage& b) {
  return {a.compute_fixed - b.compute_fixed, a.compute_divided - b.compute_divided, a.data_fixed - b.data_fixed,
          a.data_divided - b.data_divided};
}

}  // namespace

SegmentTimes::SegmentTimes(const Problem& problem, double max_hourly_cost)
    : layers_(problem.layer_count()),
      types_(problem.type_count()),
      before_(static_cast<std::size_t>((layers_ + 1) * types_)),
      cut_bytes_(problem.cut_bytes) {
  for (const Type& type : problem.types) {
    price_.push_back(type.price_per_hour);
    const double affordable = std::floor(max_hourly_cost * (1 + kTolerance) / type.price_per_hour);
    const double most = std::min(static_cast<double>(type.count), kMaxDevices);
    most_.push_back(type.price_per_hour > 0 ? std::min(most, affordable) : most);
  }
  for (int layer = 0; layer < layers_; ++layer) {
    for (int type = 0; type < types_; ++type) {
      const HeterpsStage one = heterps_stage(problem, layer, layer, type, -1);
      const HeterpsStage& sum = before_[at(layer, type)];
      before_[at(layer + 1, type)] = {sum.compute_fixed + one.compute_fixed, sum.compute_divided + one.compute_divided,
                                      sum.data_fixed + one.data_fixed, sum.data_divided + one.data_divided};
      communication_fraction_.push_back(problem.at(layer, type).communication_fraction);
    }
  }
  const auto limited = [](const Link& link) { return std::isfinite(link.bytes_per_second); };
  if (std::ranges::any_of(problem.links, limited)) {
    for (const Link& link : problem.links) transfer_.push_back(2 / link.bytes_per_second);
  }
}

double SegmentTimes::incoming(int previous, const Segment& segment) const {
  return transfer_.empty() || previous < 0 || previous >= types_
             ? 0
             : cut_bytes_[static_cast<std::size_t>(segment.first)] * transfer_[at(previous, segment.type)];
}

HeterpsStage SegmentTimes::stage(const Segment& segment) const {
  return difference(before_[at(segment.last + 1, segment.type)], before_[at(segment.first, segment.type)]);
}

HeterpsStage SegmentTimes::stage(const Segment& segment, double incoming) const {
  HeterpsStage stage = this->stage(segment);
  const double divided = communication_fraction_[at(segment.first, segment.type)];
  stage.data_fixed += incoming * (1 - divided);
  stage.data_divided += incoming * divided;
  return stage;
}

double SegmentTimes::fewest(const HeterpsStage& stage, int type, double seconds) const {
  const double for_computation = seconds - stage.compute_fixed;
  const double for_data = seconds - stage.data_fixed;
  if (!(for_computation >= 0) || !(for_data >= 0)) return kInfinity;
  double count = 1;
  if (stage.compute_divided > for_computation) count = stage.compute_divided / for_computation;
  if (stage.data_divided > for_data) count = std::max(count, stage.data_divided / for_data);
  return count <= most(type) ? ceiling(count) : kInfinity;
}

double SegmentTimes::fastest() const {
  double seconds = 0;
  for (std::int16_t layer = 0; layer < layers_; ++layer) {
    double least = kInfinity;
    for (std::int16_t type = 0; type < types_; ++type) {
      if (most(type) >= 1) least = std::min(least, stage({layer, layer, type}).seconds(most(type)));
    }
    seconds = std::max(seconds, least);
  }
  return seconds;
}

double SegmentTimes::slowest() const {
  double seconds = 0;
  for (std::int16_t layer = 0; layer < layers_; ++layer) {
    double most = 0;
    for (std::int16_t type = 0; type < types_; ++type) {
      const Segment segment{layer, layer, type};
      double incoming = 0;
      for (int previous = 0; previous < types_; ++previous) {
        incoming = std::max(incoming, this->incoming(previous, segment));
      }
      const HeterpsStage alone = stage(segment);
      most = std::max(most, alone.compute(1) + alone.data(1) + incoming);
    }
    seconds += most;
  }
  return seconds;
}

std::vector<Segment> SegmentTimes::segments(double seconds) const {
  std::vector<Segment> segments;
  for (std::int16_t first = 0; first < layers_; ++first) {
    for (std::int16_t type = 0; type < types_; ++type) {
      // Longer stages need more devices.
      for (std::int16_t last = first; last < layers_; ++last) {
        const Segment segment{first, last, type};
        if (fewest(stage(segment), type, seconds) == kInfinity) break;
        segments.push_back(segment);
      }
    }
  }
  return segments;
}

StageGraph::StageGraph(const SegmentTimes& times, std::span<const Segment> segments, Interval interval, Measure measure)
    : times_(times), interval_(interval), measure_(measure) {
  segments_.reserve(segments.size());
  use_.reserve(segments.size());
  for (const Segment& segment : segments) {
    while (static_cast<int>(offsets_.size()) <= segment.first) offsets_.push_back(segments_.size());
    const HeterpsStage stage = times.stage(segment);
    const Step step = this->step(segment, stage);
    const double count = step.use.count;
    if (count == kInfinity) continue;
    segments_.push_back(segment);
    use_.push_back(step.use);
    if (times.has_links()) {
      const double allowed = measure == Measure::kCost ? std::max(interval.low, step.seconds) : interval.high;
      slack_.push_back((allowed - stage.data(count)) / (times.stage(segment, 1).data(count) - stage.data(count)));
    }
  }
  offsets_.resize(static_cast<std::size_t>(times.layers() + 1), segments_.size());
  rest_.resize(static_cast<std::size_t>((times.layers() + 1) * (times.types() + 1)));
  choice_.resize(rest_.size());
}

Step StageGraph::step(const Segment& segment, const HeterpsStage& stage) const {
  const double count = times_.fewest(stage, segment.type, interval_.high);
  if (count == kInfinity) return {segment, {kInfinity, kInfinity}, kInfinity};
  const double seconds = stage.seconds(count);
  const double cost = measure_ == Measure::kCost ? times_.price(segment.type) * count * std::max(interval_.low, seconds)
                                                 : count / times_.most(segment.type);
  return {segment, {count, cost}, seconds};
}

Step StageGraph::step(std::size_t index, int previous) const {
  const Segment& segment = segments_[index];
  return step(segment, times_.stage(segment, times_.incoming(previous, segment)));
}

Use StageGraph::use(std::size_t index, int previous) const {
  return !times_.has_links() || times_.incoming(previous, segments_[index]) <= slack_[index]
             ? use_[index]
             : step(index, previous).use;
}

double StageGraph::cost_after(std::size_t index, int previous) const {
  const Use use = this->use(index, previous);
  return use.count == kInfinity ? kInfinity : use.cost + charge(segments_[index].type) * use.count;
}

double StageGraph::max_devices(std::size_t index) const {
  double most = use_[index].count;
  for (int previous = 0; times_.has_links() && previous < times_.types(); ++previous) {
    const double count = previous == segments_[index].type ? 0 : use(index, previous).count;
    most = count == kInfinity ? most : std::max(most, count);
  }
  return most;
}

double StageGraph::shortest(const std::vector<double>& charge) {
  charge_ = charge;
  for (int layer = times_.layers() - 1; layer >= 0; --layer) {
    // The best segment from here, and the best of another type: without links, one of both follows any stage.
    double best = kInfinity;
    double second = kInfinity;
    std::int32_t best_index = -1;
    std::int32_t second_index = -1;
    for (std::size_t i = begin(layer); i < begin(layer + 1); ++i) {
      const double cost = min_cost(i) + rest(segments_[i].last + 1, segments_[i].type);
      if (cost >= second) continue;
      const bool same = best_index >= 0 && segments_[static_cast<std::size_t>(best_index)].type == segments_[i].type;
      if (cost < best) {
        if (!same) {
          second = best;
          second_index = best_index;
        }
        best = cost;
        best_index = static_cast<std::int32_t>(i);
      } else if (!same) {
        second = cost;
        second_index = static_cast<std::int32_t>(i);
      }
    }
    const int best_type = best_index >= 0 ? segments_[static_cast<std::size_t>(best_index)].type : -1;
    for (int previous = 0; previous <= times_.types(); ++previous) {
      const std::size_t here = slot(layer, previous);
      rest_[here] = previous == best_type ? second : best;
      choice_[here] = previous == best_type ? second_index : best_index;
    }
    if (times_.has_links() && layer > 0) extend_with_links(layer);
  }
  return rest(0, times_.types());
}

// Those bests are what a stage of each type is followed by when nothing needs to be sent. With links, they are tried
// first; other segments only where they could be better even if nothing came in.
void StageGraph::extend_with_links(int layer) {
  const int types = times_.types();
  double worst = 0;
  const auto exact = [&](std::size_t index, int previous) {
    return cost_after(index, previous) + rest(segments_[index].last + 1, segments_[index].type);
  };
  for (int previous = 0; previous < types; ++previous) {
    const std::size_t here = slot(layer, previous);
    if (choice_[here] >= 0) {
      rest_[here] = exact(static_cast<std::size_t>(choice_[here]), previous);
      worst = std::max(worst, rest_[here]);
    }
  }
  for (std::size_t i = begin(layer); i < begin(layer + 1); ++i) {
    const double least = min_cost(i) + rest(segments_[i].last + 1, segments_[i].type);
    if (least >= worst) continue;
    worst = 0;
    for (int previous = 0; previous < types; ++previous) {
      const std::size_t here = slot(layer, previous);
      if (least < rest_[here] && previous != segments_[i].type) {
        const double cost = exact(i, previous);
        if (cost < rest_[here]) {
          rest_[here] = cost;
          choice_[here] = static_cast<std::int32_t>(i);
        }
      }
      worst = choice_[here] >= 0 ? std::max(worst, rest_[here]) : worst;
    }
  }
}

StagePath StageGraph::path() const {
  std::vector<std::size_t> indices;
  int previous = times_.types();
  for (int layer = 0; layer < times_.layers();) {
    indices.push_back(static_cast<std::size_t>(choice_[slot(layer, previous)]));
    layer = segments_[indices.back()].last + 1;
    previous = segments_[indices.back()].type;
  }
  return path(indices);
}

StagePath StageGraph::path(std::span<const std::size_t> indices) const {
  StagePath path;
  for (std::size_t index : indices) {
    path.push_back(step(index, path.empty() ? times_.types() : path.back().segment.type));
  }
  return path;
}

std::vector<Segment> StageGraph::below(double limit) const {
  const int types = times_.types();
  // reach(layer, type): the least cost of all layers before one, the last of which is on that type.
  std::vector<double> reach(static_cast<std::size_t>((times_.layers() + 1) * types), kInfinity);
  std::vector<int> order(static_cast<std::size_t>(types));
  std::vector<Segment> kept;
  for (int layer = 0; layer < times_.layers(); ++layer) {
    const auto here = [&](int type) { return reach[static_cast<std::size_t>(layer * types + type)]; };
    std::iota(order.begin(), order.end(), 0);
    std::ranges::sort(order, {}, [&](int type) { return here(type); });
    for (std::size_t i = begin(layer); i < begin(layer + 1); ++i) {
      const Segment& segment = segments_[i];
      const double least = min_cost(i);
      double cost = layer == 0 ? least : kInfinity;
      if (layer > 0) {
        for (int previous : order) {
          if (here(previous) + least >= cost) break;
          if (previous != segment.type) {
            cost = std::min(cost, here(previous) + cost_after(i, previous));
          }
        }
      }
      if (cost + rest(segment.last + 1, segment.type) < limit) {
        kept.push_back(segment);
        double& target = reach[static_cast<std::size_t>((segment.last + 1) * types + segment.type)];
        target = std::min(target, cost);
      }
    }
  }
  return kept;
}

}  // namespace motley::planning
