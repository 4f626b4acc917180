// What a job's progress is worth: a function of its iterations that never falls.
#pragma once

#include <cstdint>

namespace motley::schedule {

struct Utility {
  // With x iterations: weight * sqrt(x), so that nobody trains on for little; weight * log(1 + x), which is
  // proportional fairness; weight / (1 + exp(-steepness (x - middle))), as in GADGET's experiments; weight * x.
  enum class Shape : std::uint8_t { kSquareRoot, kLogarithm, kSigmoid, kLinear };
  Shape shape = Shape::kSquareRoot;
  double weight = 1;
  double steepness = 1;  // of kSigmoid
  double middle = 0;     // of kSigmoid

  double at(double iterations) const;
  // Of the least concave function that is nowhere below it, between 0 and `most` iterations: itself, but for kSigmoid.
  double envelope_at(double iterations, double most) const;
};

}  // namespace motley::schedule
