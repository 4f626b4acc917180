// How long a planned stage takes on a device that is not here, by a profile: what its workers are emulated at.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "motley/base/result.h"
#include "motley/model/profile.h"
#include "motley/planning/plan/plan.h"

namespace motley::train {

struct EmulatedStageTiming {
  model::Affine forward;      // seconds of a micro-batch, by its rows
  model::Affine backward;     // and forward once more, where the stage recomputes
  double update_seconds = 0;  // once a step, of the optimizer
  std::vector<std::string> layers;
  std::vector<model::Affine> layer_backward;

  // Of the backward pass of so many rows, until this layer of the stage is done; 1 for one that the stage does not
  // have.
  double share_of_backward(const std::string& layer, double rows) const;

  // Of the plan's stage on a device type: the sums over its layers. Errors (kInvalidInput): a file that is no profile,
  // one of other layers than the plan's, or without this type.
  static Result<EmulatedStageTiming> read(const std::filesystem::path& profile, const planning::Plan& plan,
                                          const planning::Stage& stage, const std::string& type);
};

}  // namespace motley::train
