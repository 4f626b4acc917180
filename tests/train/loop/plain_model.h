// Parts of a training loop that have nothing to do, for tests that train a model of a few numbers: a model without an
// optimizer's state, without embeddings and without servers, and nobody who follows another plan.
#pragma once

#include <string>

#include "motley/train/loop/parts.h"
#include "motley/train/loop/replanner.h"

namespace motley::train {

// All but its weights.
class PlainModel : public ModelState {
 public:
  Result<std::string> optimizer(std::int64_t) override { return "none"; }
  Status load_optimizer(const std::string&) override { return {}; }
  Status start(std::int64_t, int) override { return {}; }
  Status save_embeddings() final { return {}; }
  int embedding_servers() const final { return 0; }
};

class NoFollower final : public PlanFollower {
 public:
  bool may_follow(const Replanner::Move&) const override { return false; }
  Result<const StageLayout*> follow(planning::Plan, std::vector<int>) override { return nullptr; }
};

}  // namespace motley::train
