// The tables of all stages, and the dynamic program behind the bounds of an exact search over pipelines.
#include "motley/planning/exact/pipeline_bounds.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace motley::planning {
namespace {

constexpr double kThresholdRounding = 1 + 1e-12;  // a threshold is passed only by more than rounding
constexpr double kMaxTableBytes = 256e6;          // of a view
constexpr double kFinestStep = 0.01;              // between thresholds, relative

// The most micro-batches, up to `most`, with which a device's memory is not exceeded.
std::int64_t fitting(PipelineStage stage, double replicas, bool recompute, double memory, std::int64_t most) {
  const auto fits = [&](std::int64_t count) {
    stage.in_flight = static_cast<double>(count);
    return memory == 0 || stage.memory_bytes(replicas, recompute) <= memory * (1 + kTolerance);
  };
  std::int64_t least = 0;
  while (least < most) {
    const std::int64_t middle = most - (most - least) / 2;
    if (fits(middle)) {
      least = middle;
    } else {
      most = middle - 1;
    }
  }
  return least;
}

}  // namespace

PlanValue make_plan_value(const Problem& problem, const Objective& objective) {
  const auto batch = static_cast<double>(problem.batch);
  const double cost = problem.total_samples / batch / 3600;  // of a second's step at a price of 1 an hour
  PlanValue plan_value;
  if (objective.criterion == Criterion::kMinCost) {
    plan_value.per_step_and_price = cost;
  } else {
    plan_value.per_step_second = objective.criterion == Criterion::kMaxThroughput ? 1 / batch : 1;
  }
  if (objective.min_throughput > 0) {
    plan_value.max_step = batch / objective.min_throughput * (1 + 2 * kTolerance);
  }
  plan_value.max_hourly_cost = objective.max_hourly_cost * (1 + 2 * kTolerance);
  plan_value.max_product = objective.max_cost / cost * (1 + 2 * kTolerance);
  return plan_value;
}

std::int64_t PipelineStages::in_flight(std::int64_t stages) const {
  return one_forward_one_backward() ? std::min(problem_.micro_batches, stages) : problem_.micro_batches;
}

PipelineStages::PipelineStages(const Problem& problem) : problem_(problem) {
  for (int type = 0; type < problem.type_count(); ++type) {
    for (std::int64_t k = 1; k <= problem.max_replicas(type); ++k) kinds_.push_back({type, k});
  }
  const double samples = static_cast<double>(problem.batch) / static_cast<double>(problem.micro_batches);
  for (const double bytes : problem.cut_bytes) cut_bytes_.push_back(samples * bytes);
  for (const Kind& from : kinds_) {
    for (const Kind& to : kinds_) {
      ways_.push_back({problem.link(from.type, to.type).latency_seconds,
                       problem.seconds_per_byte(from.type, static_cast<double>(from.replicas), to.type,
                                                static_cast<double>(to.replicas))});
    }
  }

  times_.resize(index(layers() * (layers() + 1) / 2) * kinds_.size());
  for (int first = 0; first < layers(); ++first) {
    for (int end = first + 1; end <= layers(); ++end) {
      StageTimes* times = &times_[place(first, end, 0)];
      for (int type = 0; type < problem.type_count(); ++type) {
        const PipelineStage stage = pipeline_stage(problem, first, end - 1, type, -1, 0, 1);
        const Type& devices = problem.type(type);
        for (std::int64_t replicas = 1; replicas <= problem.max_replicas(type); ++replicas, ++times) {
          const auto k = static_cast<double>(replicas);
          times->forward = stage.forward_seconds(k);
          times->backward = stage.backward_seconds(k, false);
          times->recomputing_backward = stage.backward_seconds(k, true);
          times->closing = stage.closing_seconds(k);
          times->fitting = fitting(stage, k, false, devices.memory_bytes, problem.micro_batches);
          times->fitting_recomputing =
              problem.allow_recompute ? fitting(stage, k, true, devices.memory_bytes, problem.micro_batches) : 0;
        }
      }
    }
  }
}

PipelineBounds::PipelineBounds(const PipelineStages& stages, const Range& range, int thresholds, double additions,
                               const std::function<bool()>& over)
    : stages_(stages) {
  const Problem& problem = stages_.problem();
  for (const Type& type : problem.types) {
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
      const LayerOnType& times = problem.at(layer, static_cast<int>(type));
      seconds[type] += times.forward.per_sample + times.backward.per_sample;
    }
  }
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return seconds[a] < seconds[b]; });
  const auto kinds = static_cast<double>(stages_.kind_count());
  const auto layers = static_cast<double>(stages_.layers());
  const double a_cell = kinds * layers * static_cast<double>(block());
  const double max_cells =
      std::min(kMaxTableBytes / (a_cell * sizeof(double)), additions / (a_cell * (layers / 2 + kinds)));
  views_.push_back(make_view(order, order.size() / 2, max_cells));
  const std::set<std::size_t> pools(views_[0].strides.begin(), views_[0].strides.end());
  if (pools.size() < order.size() && order.size() > 2) {
    views_.push_back(make_view(order, 1, max_cells));
    views_.push_back(make_view(order, order.size() - 1, max_cells));
  }
  for (View& view : views_) is_whole_ = is_whole_ && fill(view, over);
}

// Pools: the types before the split and those behind it; then the largest pool is halved as long as that is affordable.
PipelineBounds::View PipelineBounds::make_view(const std::vector<std::size_t>& order, std::size_t split,
                                               double max_cells) const {
  const std::vector<Type>& types = stages_.problem().types;
  const auto as_view = [&](const std::vector<std::size_t>& ends) {
    View view;
    view.strides.assign(types.size(), 0);
    view.sizes.assign(types.size(), 1);
    std::size_t begin = 0;
    for (const std::size_t end : ends) {
      std::size_t size = 1;
      for (std::size_t i = begin; i < end; ++i) size += index(types[order[i]].count);
      for (; begin < end; ++begin) {
        view.strides[order[begin]] = view.cells;
        view.sizes[order[begin]] = size;
      }
      view.cells *= size;
    }
    return view;
  };
  const auto affordable = [&](const View& view) { return static_cast<double>(view.cells) <= max_cells; };

  std::vector<std::size_t> ends{order.size()};
  View best = as_view(ends);
  if (!affordable(best)) {
    return as_view({});  // no limits at all
  }
  for (std::size_t middle = split; middle > 0 && middle < order.size();) {
    ends.insert(std::upper_bound(ends.begin(), ends.end(), middle), middle);
    View finer = as_view(ends);
    if (!affordable(finer)) break;
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

PipelineBounds::Cell PipelineBounds::all() const {
  Cell cell{};
  for (std::size_t g = 0; g < views_.size(); ++g) cell[g] = views_[g].cells - 1;
  return cell;
}

PipelineBounds::Cell PipelineBounds::without(Cell cell, const Kind& kind) const {
  for (std::size_t g = 0; g < views_.size(); ++g) {
    cell[g] -= index(kind.replicas) * views_[g].strides[index(kind.type)];
  }
  return cell;
}

bool PipelineBounds::fill(View& view, const std::function<bool()>& over) const {
  const int layers = stages_.layers();
  const int kinds = stages_.kind_count();
  const std::size_t count = thresholds_.size();
  std::vector<double> nothing(block(), 0.0);
  std::fill(nothing.begin() + static_cast<std::ptrdiff_t>(kHalf * count), nothing.end(), kInfinity);
  view.table.assign(place(view, layers, 0, 0), kInfinity);
  view.whole.assign(block(), kInfinity);
  const double directions = stages_.one_forward_one_backward() ? 1 : 2;

  const auto first_threshold = [&](double pace) {
    std::size_t first = 0;
    while (pace > thresholds_[first] * kThresholdRounding) ++first;
    return first;
  };
  // Adds what one more stage or transfer takes to the sums `from` and keeps the least, from a first threshold on.
  const auto relax = [&](const double* from, double* to, std::size_t first, double forward, double both, double price,
                         double work, bool is_stage) {
    const double added[] = {forward, both, price, work};  // by Sum
    for (std::size_t sum = 0; sum < kHalf; ++sum) {
      for (std::size_t at = sum * count + first; at < (sum + 1) * count; ++at) {
        to[at] = std::min(to[at], from[at] + added[sum]);
      }
    }
    for (std::size_t k = first; k < count; ++k) {
      const double least = is_stage && k > 0 ? thresholds_[k - 1] : 0;
      const double begun = is_stage && both > least ? from[kRoundTrip * count + k] : kInfinity;
      double& half = to[kHalf * count + k];
      double& whole = to[kWhole * count + k];
      half = std::min({half, begun, from[kHalf * count + k] + both - least / 2});
      whole = std::min({whole, begun, from[kWhole * count + k] + 2 * both - least});
    }
  };

  std::vector<double> with_stage;  // [room][sum][threshold]: the front's last stage is of one kind
  for (int end = 1; end <= layers; ++end) {
    const std::int64_t in_flight = stages_.in_flight(end == layers ? 1 : 2);
    for (int kind = 0; kind < kinds; ++kind) {
      if (over()) return false;
      const Kind& devices = stages_.kind(kind);
      const Type& type = stages_.problem().type(devices.type);
      const std::size_t stride = view.strides[index(devices.type)];
      const std::size_t size = view.sizes[index(devices.type)];
      const std::size_t taken = stride * index(devices.replicas);
      const double price = static_cast<double>(devices.replicas) * type.price_per_hour;
      const auto fits = [&](std::size_t cell) {
        return stride == 0 || cell / stride % size >= index(devices.replicas);
      };
      with_stage.assign(view.cells * block(), kInfinity);
      for (int first = 0; first < end; ++first) {
        const StageTimes& stage = stages_.at(first, end, kind);
        const bool kept = stage.fitting >= in_flight;
        if (!kept && stage.fitting_recomputing < in_flight) continue;
        const double both = stage.forward + (kept ? stage.backward : stage.recomputing_backward);
        const std::size_t threshold = first_threshold(both);
        for (std::size_t cell = end == layers ? view.cells - 1 : 0; cell < view.cells; ++cell) {
          if (fits(cell)) {
            const double* from = first == 0 ? nothing.data() : &view.table[place(view, first, kind, cell - taken)];
            relax(from, &with_stage[cell * block()], threshold, stage.forward, both, price, price * both, true);
          }
        }
      }
      if (end == layers) {
        relax(&with_stage[(view.cells - 1) * block()], view.whole.data(), 0, 0, 0, 0, 0, false);
        continue;
      }
      for (int behind = 0; behind < kinds; ++behind) {
        const double transfer = stages_.transfer(end, kind, behind);
        const std::size_t threshold = first_threshold(directions * transfer);
        for (std::size_t cell = 0; cell < view.cells; ++cell) {
          if (fits(cell)) {
            relax(&with_stage[cell * block()], &view.table[place(view, end, behind, cell)], threshold, transfer,
                  2 * transfer, 0, 0, false);
          }
        }
      }
    }
  }
  return true;
}

template <class Visit>
void PipelineBounds::complete(const double* front, const Rear& rear, std::int64_t most_stages,
                              const PlanValue& plan_value, Visit visit) const {
  const std::size_t count = thresholds_.size();
  const auto further = static_cast<double>(stages_.problem().micro_batches - 1);
  const double max_hourly_cost = std::min(plan_value.max_hourly_cost, price_of_all_);
  const bool is_1f1b = stages_.one_forward_one_backward();
  const auto behind = static_cast<double>(rear.time.stages);
  // Of the longest stage's seconds, how many times they come on top of fill and drain at least.
  const double times =
      is_1f1b ? further - std::min(further, behind + static_cast<double>(most_stages) - 1) / 2 : further;
  const double longest = rear.longest + rear.longest_back;
  for (std::size_t k = 0; k < count; ++k) {
    const double most = thresholds_[k] * kThresholdRounding;
    const double forward = front[kForward * count + k];
    if (forward == kInfinity || longest > most) continue;
    const double round_trip = rear.time.round_trip + front[kRoundTrip * count + k];
    const double before = k == 0 ? 0 : thresholds_[k - 1];
    const double work = rear.work + front[kWork * count + k];
    const double price = rear.price + front[kPrice * count + k];
    const double bottleneck = std::max({longest, before, max_hourly_cost > 0 ? work / max_hourly_cost : 0});
    if (bottleneck > most) continue;
    const double latency = std::max(rear.time.exposed + forward, round_trip);
    const double filling = is_1f1b ? round_trip : latency;
    double step = std::max(latency, filling + times * bottleneck);
    double product = times * work + filling * price;
    if (is_1f1b) {
      step = std::max({step, (further + 1) * bottleneck, rear.time.exposed_makespan + forward,
                       rear.time.makespan + front[kRoundTrip * count + k]});
      if (longest <= before) {  // the front has a longer stage, or a transfer that takes longer
        const double staying = (further + 1) * before;
        double waiting = front[kHalf * count + k] + staying + rear.time.round_trip - behind * before / 2;
        if (behind + static_cast<double>(most_stages) <= further) {
          waiting = std::max(waiting, front[kWhole * count + k] + staying + 2 * rear.time.round_trip - behind * before);
        }
        step = std::max(step, std::min(waiting, round_trip + further * before));
      }
      product = std::max(product, (further + 1) * work);
    }
    const double value = std::max(plan_value(step, price), plan_value.of_product(product));
    const double guess = plan_value(std::max(step, filling + further * bottleneck), price);
    visit(k, value, std::max(value, guess), bottleneck);
  }
}

PipelineBounds::Bound PipelineBounds::bound(int cut, int kind, const Cell& cell, const Rear& rear,
                                            std::int64_t most_stages, const PlanValue& plan_value) const {
  Bound bound;
  for (std::size_t g = 0; g < views_.size(); ++g) {
    const View& view = views_[g];
    Bound here{kInfinity, kInfinity};
    const double* front = cut == stages_.layers() ? view.whole.data() : &view.table[place(view, cut, kind, cell[g])];
    complete(front, rear, most_stages, plan_value, [&](std::size_t, double value, double estimate, double) {
      here.value = std::min(here.value, value);
      here.estimate = std::min(here.estimate, estimate);
    });
    bound.value = std::max(bound.value, here.value);
    bound.estimate = std::max(bound.estimate, here.estimate);
  }
  return bound;
}

PipelineBounds::Range PipelineBounds::range(const PlanValue& plan_value, double cutoff) const {
  Range range{0, kInfinity};
  for (const View& view : views_) {
    Range here{kInfinity, 0};
    complete(view.whole.data(), Rear{}, stages_.layers(), plan_value,
             [&](std::size_t k, double value, double, double bottleneck) {
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
