// Linear and mixed-integer programs, to be maximised: HiGHS behind as little as policies need of it.
#pragma once

#include <limits>
#include <utility>
#include <vector>

#include "motley/base/result.h"

namespace motley::scheduling {

// Whether this Motley was built with HiGHS.
bool has_program_solver();

class Program {
 public:
  static constexpr double kUnlimited = std::numeric_limits<double>::infinity();

  // Returns its number, from 0.
  int add_variable(double objective, double lower, double upper, bool is_integer = false);
  // lower <= sum of factor * variable <= upper.
  using Terms = std::vector<std::pair<int, double>>;  // variable, factor; no variable twice
  void add_limit(const Terms& terms, double lower, double upper);

  struct Answer {
    std::vector<double> values;  // of the variables
    double objective = 0;
    double bound = 0;  // that no answer exceeds
    // Of each limit, its dual value; empty where variables are whole.
    std::vector<double> prices;
  };
  struct Limits {
    double seconds = 60;
    double gap = 1e-4;  // of the bound: near enough, where variables are whole
  };
  // The best answer found within the limits. Errors: kInvalidInput where there is none at all; kUnavailable without
  // HiGHS or where it found none in time.
  Result<Answer> maximise(const Limits& limits) const;
  Result<Answer> maximise() const { return maximise(Limits()); }

 private:
  std::vector<double> objective_, lower_, upper_;  // of each variable
  std::vector<int> kinds_;                         // likewise; 1: it is whole
  std::vector<double> limit_lower_, limit_upper_;
  std::vector<int> begins_;  // of each limit's terms
  std::vector<int> indices_;
  std::vector<double> factors_;
};

}  // namespace motley::scheduling
