// What the front of a pipeline must still take at least, once its rear is decided: the bounds that let an exact search
// over stages stop early.
//
// The rear of a plan is decided from the last layer backwards; the layers before a cut are open. For a ladder of
// thresholds w_1 < ... < w_K = infinity, a dynamic program over (cut, kind of the stage behind it, devices left) finds
// the least forward time, round trip and price of any front whose stages and transfers all stay within w_k. A plan's
// bottleneck W lies between two thresholds, w_{k-1} < W <= w_k, so that its step is at least what the front takes at
// w_k plus (m - 1) max(w_{k-1}, W of the rear); the least of that over k bounds all plans. A ladder that is fine where
// the optimum may lie makes the bound tight, since there the trade of latency against rate is nearly resolved.
//
// Under 1F1B every run of stages, there and back, must fit into W times its stages. What a run exceeds that by is its
// excess; of the runs that end with a front's last stage, the greatest excess is what the front brings to the runs that
// go on into the rear. The least of it over all fronts whose own runs have none is one more such table.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include "motley/planning/exact/pipeline_stages.h"

namespace motley::planning {

// The rear of a plan: the stages from one on to the last.
struct Rear {
  double exposed = 0;     // max over its stages of: forward way to the stage, its round trip, its exchange
  double round_trip = 0;  // sum of f + g + 2 c
  // 1F1B: W of these stages, and 0. Fill-drain: the longest of the forward pass, and of the backward pass.
  double bottleneck = 0;
  double bottleneck_back = 0;
  double price = 0;         // an hour
  double work = 0;          // sum of (f + g) price: no more than W times the plan's price
  std::int64_t stages = 0;  // where there are more than micro-batches, as many as those
};

// A run of stages that begins with the first of a rear: seconds there and back.
struct Run {
  double seconds = 0;
  double stages = 0;
};
// The greatest excess of runs at a pace.
inline double excess(std::span<const Run> runs, double pace) {
  double most = -std::numeric_limits<double>::infinity();
  for (const Run& run : runs) {
    most = std::max(most, run.seconds - run.stages * pace);
  }
  return most;
}

// Value of a plan with that step and price; infinity where they are not allowed. Grows with both.
struct Worth {
  double per_step_second = 0;     // value without price
  double per_step_and_price = 0;  // value with it
  double most_step = std::numeric_limits<double>::infinity();
  double most_price = std::numeric_limits<double>::infinity();
  double most_product = std::numeric_limits<double>::infinity();

  double operator()(double step, double price) const {
    if (step > most_step || price > most_price || step * price > most_product) {
      return std::numeric_limits<double>::infinity();
    }
    return step * (per_step_second + per_step_and_price * price);
  }
  // The least value of a plan whose step times price is at least that.
  double of_product(double product) const {
    return product > most_product ? std::numeric_limits<double>::infinity() : per_step_and_price * product;
  }
};

class PipelineBounds {
 public:
  // Bottlenecks, in both directions together, between which the ladder of thresholds is to be fine.
  struct Range {
    double low = 0;
    double high = 0;
  };
  // At most so many thresholds, and about so many additions to fill the tables.
  PipelineBounds(const PipelineStages& stages, const Range& range, int thresholds, double additions);

  // Devices left over, as indices into the tables of every view.
  static constexpr int kMostViews = 3;
  using Room = std::array<std::size_t, kMostViews>;
  Room all() const;
  Room without(Room room, const Kind& kind) const;

  struct Bound {
    double value = 0;       // no completed plan below `cutoff` has a value below this
    double bottleneck = 0;  // nor a bottleneck below this
  };
  // For a rear that begins at `cut` with a stage of that kind; at the last cut nothing is decided yet. runs: under
  // 1F1B, the rear's.
  Bound bound(int cut, int kind, const Room& room, const Rear& rear, std::span<const Run> runs, const Worth& worth,
              double cutoff) const;

  // The bottlenecks that plans with a value below cutoff may have.
  Range range(const Worth& worth, double cutoff) const;

 private:
  enum Sum { kForward, kRoundTrip, kExcess, kPrice, kWork, kSums };
  // Counts of devices left, where the types of a pool are counted together, as if each could stand for the others:
  // that only makes the bound lower.
  struct View {
    std::vector<std::size_t> strides;  // of every type's pool in the index of a room
    std::vector<std::size_t> sizes;    // of every type's pool: numbers of devices that may be left, 0 included
    std::size_t rooms = 1;
    std::vector<double> table;  // [cut][kind behind it][room][sum][threshold]
    std::vector<double> whole;  // [sum][threshold]: all layers on all devices
  };
  View make_view(const std::vector<std::size_t>& order, std::size_t split, double most_rooms) const;
  void fill(View& view) const;
  std::size_t block() const { return kSums * thresholds_.size(); }
  std::size_t place(const View& view, int cut, int kind, std::size_t room) const {
    return ((static_cast<std::size_t>(cut) * static_cast<std::size_t>(stages_.kind_count()) +
             static_cast<std::size_t>(kind)) *
                view.rooms +
            room) *
           block();
  }
  // Calls visit(threshold, value, bottleneck) for every threshold within which the rear can be completed.
  template <class Visit>
  void complete(const double* front, const Rear& rear, std::span<const Run> runs, const Worth& worth,
                Visit visit) const;

  const PipelineStages& stages_;
  double price_of_all_ = 0;
  std::vector<double> thresholds_;  // ascending; the last is infinity
  std::vector<View> views_;
};

}  // namespace motley::planning
