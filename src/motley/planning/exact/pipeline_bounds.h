// What the front of a pipeline must still take at least, once its rear is decided: the bounds that let an exact search
// over stages stop early.
//
// The rear of a plan is decided from the last layer backwards; the layers before a cut are open. For a ladder of
// thresholds w_1 < ... < w_K = infinity, a dynamic program over (cut, kind of the stage behind it, devices left) finds
// the least forward time, round trip and price of any front whose stages and transfers all stay within w_k. A plan's
// longest stage w lies between two thresholds, w_{k-1} < w <= w_k, so that its step is at least what w_{k-1} of a stage
// of the front and the sums at w_k lead to; the least of that over k bounds all plans. A ladder that is fine where the
// optimum may lie makes the bound tight, since there the trade of latency against rate is nearly resolved.
//
// Under GPipe w is that of the forward and that of the backward passes together, and a step is at least its fill and
// drain, F, and (m - 1) w. Under 1F1B (RearTime) a stage behind a front that takes A there and back, with d stages
// behind it that take R, makes a step of at least A + m w + R - d w / 2, as it waits for the first or the last
// micro-batch to come back, and where there are fewer stages than micro-batches, A + m w + 2 R - d w, as it waits for
// both. The least of both over all fronts with such a stage are two more such tables.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "motley/planning/cost/evaluation.h"

namespace motley::planning {

// What a stage may run on: 1 .. count devices of a type.
struct Kind {
  int type = 0;
  std::int64_t replicas = 1;
};

// Seconds of one micro-batch, or of one step where said so.
struct StageTimes {
  double forward = 0;
  double backward = 0;
  double recomputing_backward = 0;  // where activations are made once more
  double closing = 0;               // once a step: gradient synchronisation and the weights' update
  // So many micro-batches fit into a device's memory, at most micro_batches; 0: not even one, or not allowed.
  std::int64_t fitting = 0;
  std::int64_t fitting_recomputing = 0;
};

// What every possible stage of a synchronous pipeline takes: the equations of CostModel::kPipeline
// (motley/planning/cost/evaluation.h) put into tables, so that a search over stages need not sum over layers.
// A stage is named by the cuts around it: the layers first .. end - 1.
class PipelineStages {
 public:
  explicit PipelineStages(const Problem& problem);

  const Problem& problem() const { return problem_; }
  int layers() const { return problem_.layer_count(); }
  int kind_count() const { return static_cast<int>(kinds_.size()); }
  const Kind& kind(int kind) const { return kinds_[index(kind)]; }
  const StageTimes& at(int first, int end, int kind) const { return times_[place(first, end, kind)]; }
  // In tables of all stages: the kinds of one stand side by side, and of each first layer only the ends behind it.
  std::size_t place(int first, int end, int kind) const {
    return index(first * (2 * layers() + 1 - first) / 2 + end - first - 1) * kinds_.size() + index(kind);
  }
  // One micro-batch over a cut, in one direction.
  double transfer(int cut, int from, int to) const {
    const Way& way = ways_[index(from) * kinds_.size() + index(to)];
    return way.latency + cut_bytes_[index(cut)] * way.seconds_per_byte;
  }
  bool one_forward_one_backward() const { return problem_.schedule == PipelineSchedule::kOneForwardOneBackward; }
  // Micro-batches that a stage holds which has so many stages from itself to the last.
  std::int64_t in_flight(std::int64_t stages) const;

 private:
  struct Way {  // from a stage of one kind to one of another
    double latency = 0;
    double seconds_per_byte = 0;
  };

  const Problem& problem_;
  std::vector<Kind> kinds_;
  std::vector<StageTimes> times_;
  std::vector<Way> ways_;
  std::vector<double> cut_bytes_;  // of a micro-batch
};

// The rear of a plan: the stages from one on to the last.
struct Rear {
  RearTime time;            // GPipe: `exposed`, `round_trip` and `stages` of it
  double longest = 0;       // 1F1B: of its stages, forward and backward. GPipe: the longest of the forward pass
  double longest_back = 0;  // GPipe: of the backward pass
  double price = 0;         // an hour
  double work = 0;          // sum of (f + g) price: no more than `longest` times the plan's price
};

// Value of a plan with that step and price; infinity where they are not allowed. Grows with both.
struct PlanValue {
  double per_step_second = 0;     // value without price
  double per_step_and_price = 0;  // value with it
  double max_step = kInfinity;
  double max_hourly_cost = kInfinity;
  double max_product = kInfinity;

  double operator()(double step, double price) const {
    if (step > max_step || price > max_hourly_cost || step * price > max_product) return kInfinity;
    return step * (per_step_second + per_step_and_price * price);
  }
  // The least value of a plan whose step times price is at least that.
  double of_product(double product) const { return product > max_product ? kInfinity : per_step_and_price * product; }
};

PlanValue make_plan_value(const Problem& problem, const Objective& objective);

class PipelineBounds {
 public:
  // Bottlenecks, in both directions together, between which the ladder of thresholds is to be fine.
  struct Range {
    double low = 0;
    double high = 0;
  };
  // At most so many thresholds, and about so many additions to fill the tables, until the time is over.
  PipelineBounds(const PipelineStages& stages, const Range& range, int thresholds, double additions,
                 const std::function<bool()>& over);
  bool is_whole() const { return is_whole_; }  // false: the time was over, and nothing here is a bound

  // Devices left over, as indices into the tables of every view.
  static constexpr int kMaxViews = 3;
  using Cell = std::array<std::size_t, kMaxViews>;
  Cell all() const;
  Cell without(Cell cell, const Kind& kind) const;

  struct Bound {
    double value = 0;     // no completed plan has a value below this
    double estimate = 0;  // a guess of the best, no less than that
  };
  // For a rear that begins at `cut` with a stage of that kind; at the last cut nothing is decided yet. most_stages:
  // that may come before it.
  Bound bound(int cut, int kind, const Cell& cell, const Rear& rear, std::int64_t most_stages,
              const PlanValue& plan_value) const;

  // The longest stages that plans with a value below cutoff may have.
  Range range(const PlanValue& plan_value, double cutoff) const;

 private:
  enum Sum { kForward, kRoundTrip, kPrice, kWork, kHalf, kWhole, kSums };
  // Counts of devices left, where the types of a pool are counted together, as if each could stand for the others:
  // that only makes the bound lower.
  struct View {
    std::vector<std::size_t> strides;  // of every type's pool in the index of a module
    std::vector<std::size_t> sizes;    // of every type's pool: numbers of devices that may be left, 0 included
    std::size_t cells = 1;
    std::vector<double> table;  // [cut][kind behind it][room][sum][threshold]
    std::vector<double> whole;  // [sum][threshold]: all layers on all devices
  };
  View make_view(const std::vector<std::size_t>& order, std::size_t split, double max_cells) const;
  bool fill(View& view, const std::function<bool()>& over) const;
  std::size_t block() const { return kSums * thresholds_.size(); }
  std::size_t place(const View& view, int cut, int kind, std::size_t cell) const {
    return ((index(cut) * index(stages_.kind_count()) + index(kind)) * view.cells + cell) * block();
  }
  // Calls visit(threshold, value, estimate, bottleneck) for every threshold within which the rear can be completed.
  template <class Visit>
  void complete(const double* front, const Rear& rear, std::int64_t most_stages, const PlanValue& plan_value,
                Visit visit) const;

  const PipelineStages& stages_;
  double price_of_all_ = 0;
  bool is_whole_ = true;
  std::vector<double> thresholds_;  // ascending; the last is infinity
  std::vector<View> views_;
};

}  // namespace motley::planning
