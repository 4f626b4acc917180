// Whether ranks that are to hold the same weights do, bit by bit: a bit that has changed in one rank's memory or
// device, or a step that one rank has computed otherwise, is not to get into a checkpoint unnoticed.
#pragma once

#include "motley/base/result.h"
#include "motley/train/loop/checkpoints.h"
#include "motley/train/loop/parts.h"

namespace motley::train {

class ReplicaCheck {
 public:
  // Compares what ranks have after the last step. kCorrupt, alike on all ranks, names those whose weights differ.
  // Replicas of which some round otherwise than others are not compared, and not later either, once who has come since
  // has its weights from one of them. Collective.
  Status compare(const RankContext& context, const RunProgress& progress, WeightsHash own);

 private:
  bool rounds_as_others_ = true;  // this rank, so far
};

}  // namespace motley::train
