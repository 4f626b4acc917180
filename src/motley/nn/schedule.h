// The learning rate as a pure function of the step, so that a resumed run needs nothing but the step's number.
#pragma once

#include <cstdint>
#include <string>

#include "motley/base/result.h"

namespace motley::nn {

struct ScheduleSpec {
  std::string name = "constant";  // constant, step, cosine
  std::int64_t warmup_steps = 0;  // rises linearly over these steps, to the full rate in the last of them
  std::int64_t step_size = 0;     // step: the rate is multiplied by `factor` after every so many steps
  double factor = 0.1;            // step
  std::int64_t total_steps = 0;   // cosine: the step at which the minimum is reached, warm-up included
  double minimum = 0;             // cosine: the share of the full rate at the end, in [0, 1]
};

// An error names the key ("schedule.name") and what would be accepted.
Status check_schedule(const ScheduleSpec& spec);

// The factor on the learning rate in this step, counted from 0. With s steps after the warm-up of w:
//   step:   factor^floor(s / step_size)
//   cosine: minimum + (1 - minimum) (1 + cos(pi min(1, s / (total_steps - w)))) / 2      (Loshchilov, Hutter 2017)
double learning_rate_factor(const ScheduleSpec& spec, std::int64_t step);

}  // namespace motley::nn
