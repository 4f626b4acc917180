// How well the network does on the test data: the loop says when, something with tensors finds out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "motley/base/result.h"

namespace motley::train {

class Evaluator {
 public:
  struct Value {
    std::string name;  // "loss", "accuracy", "mean_absolute_error", "auc": as in metrics.jsonl
    double value = 0;
  };
  virtual ~Evaluator() = default;
  // Over all test data, as one worker would find it; none where there is no test data. Collective.
  virtual Result<std::optional<std::vector<Value>>> evaluate(std::int64_t step) = 0;
};

}  // namespace motley::train
