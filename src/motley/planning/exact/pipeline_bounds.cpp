// The dynamic program behind the bounds of an exact search over pipelines.
#include "motley/planning/exact/pipeline_bounds.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace motley::planning {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRounding = 1 + 1e-12;    // a threshold is passed only by more than rounding
constexpr double kMostTableBytes = 256e6;  // of a view
constexpr double kFinestStep = 0.01;       // between thresholds, relative

}  // namespace

PipelineBounds::PipelineBounds(const PipelineStages& stages, const Range& range, int thresholds, double additions)
    : stages_(stages) {
  const planning::Problem& problem = stages_.problem();
  for (const planning::Type& type : problem.types) {
    price_of_all_ += static_cast<double>(type.count) * type.price_per_hour;
  }
  if (problem.micro_batches > 1 && range.low > 0 && range.high > range.low) {
    const double steps = std::clamp(std::log(range.high / range.low) / kFinestStep, 1.0, thresholds - 2.0);
    const int count = static_cast<int>(steps);
    for (int i = 0; i <= count; ++i) {
      thresholds_.push_back(range.low * std::pow(range.high / range.low, static_cast<double>(i) / count));
    }
  }
  thresholds_.push_back(kInfinity);

  // Types of about the same speed are alike to a bound: pools are ranges of this order.
  std::vector<double> seconds(problem.types.size());
  std::vector<std::size_t> order(problem.types.size());
  for (std::size_t type = 0; type < order.size(); ++type) {
    order[type] = type;
    for (int layer = 0; layer < problem.layer_count(); ++layer) {
      const planning::LayerOnType& times = problem.at(layer, static_cast<int>(type));
      seconds[type] += times.forward.per_sample + times.backward.per_sample;
    }
  }
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return seconds[a] < seconds[b]; });
  const auto kinds = static_cast<double>(stages_.kind_count());
  const auto layers = static_cast<double>(stages_.layers());
  const double a_room = kinds * layers * static_cast<double>(block());
  const double most_rooms =
      std::min(kMostTableBytes / (a_room * sizeof(double)), additions / (a_room * (layers / 2 + kinds)));
  views_.push_back(make_view(order, order.size() / 2, most_rooms));
  const std::set<std::size_t> pools(views_[0].strides.begin(), views_[0].strides.end());
  if (pools.size() < order.size() && order.size() > 2) {
    views_.push_back(make_view(order, 1, most_rooms));
    views_.push_back(make_view(order, order.size() - 1, most_rooms));
  }
  for (View& view : views_) {
    fill(view);
  }
}

// Pools: the types before the split and those behind it; then the largest pool is halved as long as that is affordable.
PipelineBounds::View PipelineBounds::make_view(const std::vector<std::size_t>& order, std::size_t split,
                                               double most_rooms) const {
  const std::vector<planning::Type>& types = stages_.problem().types;
  const auto view_of = [&](const std::vector<std::size_t>& ends) {
    View view;
    view.strides.assign(types.size(), 0);
    view.sizes.assign(types.size(), 1);
    std::size_t begin = 0;
    for (const std::size_t end : ends) {
      std::size_t size = 1;
      for (std::size_t i = begin; i < end; ++i) {
        size += static_cast<std::size_t>(types[order[i]].count);
      }
      for (; begin < end; ++begin) {
        view.strides[order[begin]] = view.rooms;
        view.sizes[order[begin]] = size;
      }
      view.rooms *= size;
    }
    return view;
  };
  const auto affordable = [&](const View& view) { return static_cast<double>(view.rooms) <= most_rooms; };

  std::vector<std::size_t> ends{order.size()};
  View best = view_of(ends);
  if (!affordable(best)) {
    return view_of({});  // no limits at all
  }
  for (std::size_t middle = split; middle > 0 && middle < order.size();) {
    ends.insert(std::upper_bound(ends.begin(), ends.end(), middle), middle);
    View finer = view_of(ends);
    if (!affordable(finer)) {
      break;
    }
    best = std::move(finer);
    middle = 0;
    std::size_t most = 1;
    std::size_t begin = 0;
    for (const std::size_t end : ends) {
      if (end - begin > most) {
        most = end - begin;
        middle = begin + most / 2;
      }
      begin = end;
    }
  }
  return best;
}

PipelineBounds::Room PipelineBounds::all() const {
  Room room{};
  for (std::size_t g = 0; g < views_.size(); ++g) {
    room[g] = views_[g].rooms - 1;
  }
  return room;
}

PipelineBounds::Room PipelineBounds::without(Room room, const Kind& kind) const {
  for (std::size_t g = 0; g < views_.size(); ++g) {
    room[g] -= static_cast<std::size_t>(kind.replicas) * views_[g].strides[static_cast<std::size_t>(kind.type)];
  }
  return room;
}

void PipelineBounds::fill(View& view) const {
  const int layers = stages_.layers();
  const int kinds = stages_.kind_count();
  const std::size_t count = thresholds_.size();
  const std::vector<double> nothing(block(), 0.0);
  view.table.assign(place(view, layers, 0, 0), kInfinity);
  view.whole.assign(block(), kInfinity);
  const double directions = stages_.one_forward_one_backward() ? 1 : 2;

  const auto first_threshold = [&](double pace) {
    std::size_t first = 0;
    while (pace > thresholds_[first] * kRounding) {
      ++first;
    }
    return first;
  };
  // Adds what one more stage or transfer takes to the sums `from` and keeps the least, from a first threshold on.
  // A stage goes on with the runs before it or begins one, whichever exceeds the threshold by more, and no run that
  // ends with it may exceed it at all. That has no meaning at infinity.
  const auto relax = [&](const double* from, double* to, std::size_t first, double forward, double both, double price,
                         double work, bool is_stage) {
    for (std::size_t k = first; k < count; ++k) {
      to[kForward * count + k] = std::min(to[kForward * count + k], from[kForward * count + k] + forward);
      to[kRoundTrip * count + k] = std::min(to[kRoundTrip * count + k], from[kRoundTrip * count + k] + both);
      to[kPrice * count + k] = std::min(to[kPrice * count + k], from[kPrice * count + k] + price);
      to[kWork * count + k] = std::min(to[kWork * count + k], from[kWork * count + k] + work);
    }
    for (std::size_t k = first; k + 1 < count; ++k) {
      const double before = from[kExcess * count + k];
      const double here = both + (is_stage ? std::max(before, 0.0) - thresholds_[k] * kRounding : before);
      to[kExcess * count + k] =
          is_stage && here > 0 ? to[kExcess * count + k] : std::min(to[kExcess * count + k], here);
    }
  };

  std::vector<double> with_stage;  // [room][sum][threshold]: the front's last stage is of one kind
  for (int end = 1; end <= layers; ++end) {
    const std::int64_t in_flight = stages_.in_flight(end == layers ? 1 : 2);
    for (int kind = 0; kind < kinds; ++kind) {
      const Kind& devices = stages_.kind(kind);
      const planning::Type& type = stages_.problem().types[static_cast<std::size_t>(devices.type)];
      const std::size_t stride = view.strides[static_cast<std::size_t>(devices.type)];
      const std::size_t size = view.sizes[static_cast<std::size_t>(devices.type)];
      const std::size_t taken = stride * static_cast<std::size_t>(devices.replicas);
      const double price = static_cast<double>(devices.replicas) * type.price_per_hour;
      const auto fits = [&](std::size_t room) {
        return stride == 0 || room / stride % size >= static_cast<std::size_t>(devices.replicas);
      };
      with_stage.assign(view.rooms * block(), kInfinity);
      for (int first = 0; first < end; ++first) {
        const StageTimes& stage = stages_.at(first, end, kind);
        const bool kept = stage.fitting >= in_flight;
        if (!kept && stage.fitting_recomputing < in_flight) {
          continue;
        }
        const double both = stage.forward + (kept ? stage.backward : stage.recomputing_backward);
        const std::size_t threshold = first_threshold(both);
        for (std::size_t room = end == layers ? view.rooms - 1 : 0; room < view.rooms; ++room) {
          if (fits(room)) {
            const double* from = first == 0 ? nothing.data() : &view.table[place(view, first, kind, room - taken)];
            relax(from, &with_stage[room * block()], threshold, stage.forward, both, price, price * both, true);
          }
        }
      }
      if (end == layers) {
        relax(&with_stage[(view.rooms - 1) * block()], view.whole.data(), 0, 0, 0, 0, 0, false);
        continue;
      }
      for (int behind = 0; behind < kinds; ++behind) {
        const double transfer = stages_.transfer(end, kind, behind);
        const std::size_t threshold = first_threshold(directions * transfer);
        for (std::size_t room = 0; room < view.rooms; ++room) {
          if (fits(room)) {
            relax(&with_stage[room * block()], &view.table[place(view, end, behind, room)], threshold, transfer,
                  2 * transfer, 0, 0, false);
          }
        }
      }
    }
  }
}

template <class Visit>
void PipelineBounds::complete(const double* front, const Rear& rear, std::span<const Run> runs, const Worth& worth,
                              Visit visit) const {
  const std::size_t count = thresholds_.size();
  const auto micro_batches = static_cast<double>(stages_.problem().micro_batches);
  const double most_price = std::min(worth.most_price, price_of_all_);
  const double pace = rear.bottleneck + rear.bottleneck_back;
  for (std::size_t k = 0; k < count; ++k) {
    const double most = thresholds_[k] * kRounding;
    const double forward = front[kForward * count + k];
    if (forward == kInfinity || pace > most) {
      continue;
    }
    if (stages_.one_forward_one_backward() && k + 1 < count) {
      const double before = front[kExcess * count + k];
      if (before == kInfinity || (before > 0 && before + excess(runs, most) > 0)) {
        continue;
      }
    }
    const double round_trip = rear.round_trip + front[kRoundTrip * count + k];
    double bottleneck = std::max(pace, k == 0 ? 0 : thresholds_[k - 1]);
    const double work = rear.work + front[kWork * count + k];
    const double price = rear.price + front[kPrice * count + k];
    bottleneck = std::max(bottleneck, most_price > 0 ? work / most_price : 0);
    if (bottleneck > most) {
      continue;
    }
    const double latency = std::max(rear.exposed + forward, round_trip);
    const double product = (micro_batches - 1) * work + latency * price;
    visit(k, std::max(worth(latency + (micro_batches - 1) * bottleneck, price), worth.of_product(product)), bottleneck);
  }
}

PipelineBounds::Bound PipelineBounds::bound(int cut, int kind, const Room& room, const Rear& rear,
                                            std::span<const Run> runs, const Worth& worth, double cutoff) const {
  Bound bound;
  for (std::size_t g = 0; g < views_.size(); ++g) {
    const View& view = views_[g];
    Bound here{kInfinity, kInfinity};
    const double* front = cut == stages_.layers() ? view.whole.data() : &view.table[place(view, cut, kind, room[g])];
    complete(front, rear, runs, worth, [&](std::size_t, double value, double bottleneck) {
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
  for (const View& view : views_) {
    Range here{kInfinity, 0};
    complete(view.whole.data(), Rear{}, {}, worth, [&](std::size_t k, double value, double bottleneck) {
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

}  // namespace motley::planning
