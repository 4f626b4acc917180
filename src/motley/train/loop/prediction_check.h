// Holds the first steps by a plan against what the plan predicts of them, and says once what came of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "motley/planning/plan/plan.h"

namespace motley::train {

class PredictionCheck {
 public:
  static constexpr std::size_t kSettlingSteps = 5;  // first, not counted
  static constexpr std::size_t kSteps = 10;         // whose median counts
  static constexpr double kTolerance = 0.1;         // of the prediction, where that does not say how far it may be off

  explicit PredictionCheck(const planning::Prediction& predicted) : predicted_(predicted) {}

  struct Finding {
    bool is_wrong = false;
    std::string text;  // "a step takes 27.7 ms, the median of 10, and the plan predicts 12.3 ms: 125 % more"
  };
  // After every step; once there are enough, what is found, and from then on nothing.
  std::optional<Finding> observe(double step_seconds);

 private:
  planning::Prediction predicted_;
  std::size_t seen_ = 0;
  std::vector<double> steps_;
};

// "27.7 ms, and the plan predicts 12.3 ms: 125 % more than predicted".
std::string compare_with_prediction(double measured, double predicted);

}  // namespace motley::train
