// What a job's progress is worth: a function of its iterations that never falls.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "motley/base/result.h"

namespace motley::scheduling {

struct Utility {
  // With x iterations: weight * sqrt(x), so that nobody trains on for little; weight * log(1 + x), which is
  // proportional fairness; weight / (1 + exp(-steepness (x - middle))), as in GADGET's experiments; weight * x; weight
  // * what a table says, between whose points it is a straight line, and behind whose last one it does not rise.
  enum class Shape : std::uint8_t { kSquareRoot, kLogarithm, kSigmoid, kLinear, kTable };
  struct Point {
    double iterations = 0;
    double worth = 0;
    bool operator==(const Point&) const = default;
  };
  Shape shape = Shape::kSquareRoot;
  double weight = 1;
  double steepness = 1;            // of kSigmoid
  double middle = 0;               // of kSigmoid
  std::vector<Point> points = {};  // of kTable, the first one at 0; iterations rise, and worth does not fall

  double at(double iterations) const;
  // Of the least concave function that is nowhere below it, between 0 and `most` iterations: itself, but for kSigmoid
  // and kTable.
  double envelope_at(double iterations, double most) const;
  bool operator==(const Utility&) const = default;
};

inline const char* to_string(Utility::Shape shape) {
  constexpr std::array kNames = {"square-root", "logarithm", "sigmoid", "linear", "table"};
  return kNames[static_cast<std::size_t>(shape)];
}
inline std::vector<Utility::Shape> every_value(Utility::Shape) {
  return {Utility::Shape::kSquareRoot, Utility::Shape::kLogarithm, Utility::Shape::kSigmoid, Utility::Shape::kLinear,
          Utility::Shape::kTable};
}

// Errors: kInvalidInput for a table that is none, with the field and what would be accepted.
Status check(const Utility& utility);

}  // namespace motley::scheduling
