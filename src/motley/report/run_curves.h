// Curves of a run over its steps: how it learned and how fast it went, for its page; and the parts of them that a
// comparison of runs draws, too.
#pragma once

#include <string>

#include "motley/report/page/chart.h"
#include "motley/report/run.h"

namespace motley::report {

// An exponential mean over about a fiftieth of a run's steps, but at least ten; corrected for its start. Values that
// are not finite are passed over.
class Smoothing {
 public:
  explicit Smoothing(std::size_t steps) : keep_(1 - 1 / std::max(10.0, static_cast<double>(steps) / 50)) {}
  // The mean with this value, which counts as much as `weight`.
  double add(double value, double weight = 1);

 private:
  double keep_;
  double sum_ = 0, weight_ = 0;
};

// Cards, each a chart over the steps: loss, accuracy, learning rate, samples per second, step time, the batch split.
std::string run_curves(const Run& run, const Figures& figures);

}  // namespace motley::report
