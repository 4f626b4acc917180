// The dynamic program behind the bounds of an exact search over pipelines.
#include "motley/planner/pipeline_bounds.h"

#include <algorithm>
#include <cmath>

namespace motley::planner {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRounding = 1 + 1e-12;   // a threshold is passed only by more than rounding
constexpr double kMostTableBytes = 96e6;  // of all groups' tables
constexpr double kMostAdditions = 4e8;    // to fill them
constexpr int kFewestThresholds = 6;      // rather than fewer, types are split into more groups

}  // namespace

PipelineBounds::PipelineBounds(const PipelineStages& stages, const Range& range, int thresholds) : stages_(stages) {
  make_groups();
  double rooms = 0;
  for (const Group& group : groups_) {
    rooms += static_cast<double>(group.rooms);
  }
  const int count = static_cast<int>(std::min<double>(thresholds, std::max(1.0, affordable_thresholds(rooms))));
  if (stages_.problem().micro_batches > 1 && range.low > 0 && range.high > range.low) {
    for (int i = 0; i + 1 < count; ++i) {
      thresholds_.push_back(range.low * std::pow(range.high / range.low, i / std::max(1.0, count - 2.0)));
    }
  }
  thresholds_.push_back(kInfinity);
  for (Group& group : groups_) {
    fill(group);
  }
}

double PipelineBounds::affordable_thresholds(double rooms) const {
  const auto kinds = static_cast<double>(stages_.kind_count());
  const auto layers = static_cast<double>(stages_.layers());
  const double sums = rooms * kinds * layers * static_cast<double>(kSums);
  return std::min(kMostTableBytes / (sums * sizeof(double)), kMostAdditions / (sums * (layers / 2 + kinds)));
}

// One group of all types where its table is small enough; else a type is put into the first group that it fits into,
// and the limit of a type that is too numerous for any is left out.
void PipelineBounds::make_groups() {
  const std::vector<cost::Type>& types = stages_.problem().types;
  groups_.push_back({std::vector<std::size_t>(types.size()), 1, {}, {}});
  for (std::size_t type = 0; type < types.size(); ++type) {
    const auto choices = static_cast<std::size_t>(types[type].count + 1);
    const auto fits = [&](const Group& group) {
      return affordable_thresholds(static_cast<double>(group.rooms * choices)) >= kFewestThresholds;
    };
    auto group = std::find_if(groups_.begin(), groups_.end(), fits);
    if (group == groups_.end() && groups_.size() < kMostGroups) {
      group = groups_.insert(groups_.end(), {std::vector<std::size_t>(types.size()), 1, {}, {}});
    }
    if (group != groups_.end() && fits(*group)) {
      group->strides[type] = group->rooms;
      group->rooms *= choices;
    }
  }
}

PipelineBounds::Room PipelineBounds::all() const {
  Room room{};
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    room[g] = groups_[g].rooms - 1;
  }
  return room;
}

PipelineBounds::Room PipelineBounds::without(Room room, const Kind& kind) const {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    room[g] -= static_cast<std::size_t>(kind.replicas) * groups_[g].strides[static_cast<std::size_t>(kind.type)];
  }
  return room;
}

void PipelineBounds::fill(Group& group) const {
  const int layers = stages_.layers();
  const int kinds = stages_.kind_count();
  const std::size_t count = thresholds_.size();
  const std::vector<double> nothing(block(), 0.0);
  group.table.assign(place(group, layers, 0, 0), kInfinity);
  group.whole.assign(block(), kInfinity);
  const double directions = stages_.one_forward_one_backward() ? 1 : 2;

  const auto first_threshold = [&](double pace) {
    std::size_t first = 0;
    while (pace > thresholds_[first] * kRounding) {
      ++first;
    }
    return first;
  };
  // Adds what one more stage or transfer takes to the sums `from` and keeps the least, from a first threshold on.
  // A stage takes its threshold off the excess, which has no meaning at infinity.
  const auto relax = [&](const double* from, double* to, std::size_t first, double forward, double both, double price,
                         bool is_stage) {
    for (std::size_t k = first; k < count; ++k) {
      to[kForward * count + k] = std::min(to[kForward * count + k], from[kForward * count + k] + forward);
      to[kRoundTrip * count + k] = std::min(to[kRoundTrip * count + k], from[kRoundTrip * count + k] + both);
      to[kPrice * count + k] = std::min(to[kPrice * count + k], from[kPrice * count + k] + price);
    }
    for (std::size_t k = first; k + 1 < count; ++k) {
      const double excess = both - (is_stage ? thresholds_[k] : 0);
      to[kExcess * count + k] = std::min(to[kExcess * count + k], from[kExcess * count + k] + excess);
    }
  };

  std::vector<double> with_stage;  // [room][sum][threshold]: the front's last stage is of one kind
  for (int end = 1; end <= layers; ++end) {
    const std::int64_t in_flight = stages_.in_flight(end == layers ? 1 : 2);
    for (int kind = 0; kind < kinds; ++kind) {
      const Kind& devices = stages_.kind(kind);
      const cost::Type& type = stages_.problem().types[static_cast<std::size_t>(devices.type)];
      const std::size_t stride = group.strides[static_cast<std::size_t>(devices.type)];
      const std::size_t taken = stride * static_cast<std::size_t>(devices.replicas);
      const double price = static_cast<double>(devices.replicas) * type.price_per_hour;
      const auto fits = [&](std::size_t room) {
        return stride == 0 ||
               room / stride % static_cast<std::size_t>(type.count + 1) >= static_cast<std::size_t>(devices.replicas);
      };
      with_stage.assign(group.rooms * block(), kInfinity);
      for (int first = 0; first < end; ++first) {
        const StageTimes& stage = stages_.at(first, end, kind);
        const bool kept = stage.fitting >= in_flight;
        if (!kept && stage.fitting_recomputing < in_flight) {
          continue;
        }
        const double both = stage.forward + (kept ? stage.backward : stage.recomputing_backward);
        const std::size_t threshold = first_threshold(both);
        for (std::size_t room = end == layers ? group.rooms - 1 : 0; room < group.rooms; ++room) {
          if (fits(room)) {
            const double* from = first == 0 ? nothing.data() : &group.table[place(group, first, kind, room - taken)];
            relax(from, &with_stage[room * block()], threshold, stage.forward, both, price, true);
          }
        }
      }
      if (end == layers) {
        relax(&with_stage[(group.rooms - 1) * block()], group.whole.data(), 0, 0, 0, 0, false);
        continue;
      }
      for (int behind = 0; behind < kinds; ++behind) {
        const double transfer = stages_.transfer(end, kind, behind);
        const std::size_t threshold = first_threshold(directions * transfer);
        for (std::size_t room = 0; room < group.rooms; ++room) {
          if (fits(room)) {
            relax(&with_stage[room * block()], &group.table[place(group, end, behind, room)], threshold, transfer,
                  2 * transfer, 0, false);
          }
        }
      }
    }
  }
}

template <class Visit>
void PipelineBounds::complete(const double* front, const Rear& rear, const Worth& worth, Visit visit) const {
  const std::size_t count = thresholds_.size();
  const auto micro_batches = static_cast<double>(stages_.problem().micro_batches);
  const double pace = rear.bottleneck + rear.bottleneck_back;
  for (std::size_t k = 0; k < count; ++k) {
    const double most = thresholds_[k] * kRounding;
    const double forward = front[kForward * count + k];
    if (forward == kInfinity || pace > most) {
      continue;
    }
    const double round_trip = rear.round_trip + front[kRoundTrip * count + k];
    double bottleneck = std::max(pace, k == 0 ? 0 : thresholds_[k - 1]);
    if (stages_.one_forward_one_backward()) {
      bottleneck = std::max(bottleneck, round_trip / micro_batches);
      const bool all_count = rear.stages < stages_.problem().micro_batches;
      if (bottleneck > most || (all_count && k + 1 < count &&
                                rear.round_trip + front[kExcess * count + k] >
                                    static_cast<double>(rear.stages) * most + (kRounding - 1) * round_trip)) {
        continue;
      }
    }
    const double step = std::max(rear.exposed + forward, round_trip) + (micro_batches - 1) * bottleneck;
    visit(k, worth(step, rear.price + front[kPrice * count + k]), bottleneck);
  }
}

PipelineBounds::Bound PipelineBounds::bound(int cut, int kind, const Room& room, const Rear& rear, const Worth& worth,
                                            double cutoff) const {
  Bound bound;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    Bound here{kInfinity, kInfinity};
    const double* front = cut == stages_.layers() ? group.whole.data() : &group.table[place(group, cut, kind, room[g])];
    complete(front, rear, worth, [&](std::size_t, double value, double bottleneck) {
      here.value = std::min(here.value, value);
      if (value < cutoff) {
        here.bottleneck = std::min(here.bottleneck, bottleneck);
      }
    });
    bound.value = std::max(bound.value, here.value);
    bound.bottleneck = std::max(bound.bottleneck, here.bottleneck);
  }
  return bound;
}

PipelineBounds::Range PipelineBounds::range(const Worth& worth, double cutoff) const {
  Range range{0, kInfinity};
  for (const Group& group : groups_) {
    Range here{kInfinity, 0};
    complete(group.whole.data(), Rear{}, worth, [&](std::size_t k, double value, double bottleneck) {
      if (value < cutoff) {
        here.low = std::min(here.low, bottleneck);
        here.high = thresholds_[k];
      }
    });
    range.low = std::max(range.low, here.low);
    range.high = std::min(range.high, here.high);
  }
  return range;
}

}  // namespace motley::planner
