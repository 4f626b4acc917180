#include "motley/train/loop/prediction_check.h"

#include <cmath>

#include "motley/base/statistics.h"
#include "motley/base/units.h"

namespace motley::train {

std::string compare_with_prediction(double measured, double predicted) {
  const double off = measured / predicted - 1;
  return fmt::format("{}, and the plan predicts {}: {}", format_seconds(measured), format_seconds(predicted),
                     std::abs(off) < 0.005 ? std::string("as predicted")
                                           : fmt::format("{} {} than predicted", format_percent(std::abs(off), 0),
                                                         off > 0 ? "more" : "less"));
}

std::optional<PredictionCheck::Finding> PredictionCheck::observe(double step_seconds) {
  if (++seen_ <= kSettlingSteps || steps_.size() == kSteps) return std::nullopt;
  steps_.push_back(step_seconds);
  if (steps_.size() < kSteps) return std::nullopt;
  const double measured = median(steps_);
  const double expected = predicted_.step_seconds;
  const double low = predicted_.step_seconds_low, high = predicted_.step_seconds_high;
  const bool is_within = low > 0 && measured >= low && measured <= high;
  const bool is_near = std::abs(measured / expected - 1) <= kTolerance;
  std::string text = fmt::format("a step takes {}", compare_with_prediction(measured, expected));
  if (is_within && !is_near) {
    text += fmt::format(", within the {} to {} that were expected", format_seconds(low), format_seconds(high));
  }
  return Finding{!is_within && !is_near, std::move(text)};
}

}  // namespace motley::train
