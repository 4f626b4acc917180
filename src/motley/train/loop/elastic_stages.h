// The stages of an elastic run: who computes which layers once ranks were lost or have joined, and whoever can build
// what a rank computes anew.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "motley/base/result.h"
#include "motley/train/loop/parts.h"
#include "motley/train/loop/stage_layout.h"

namespace motley::train {

// A plan for these ranks alone, ascending, made of one that does not suit them. Who has no place takes a stage that has
// no ranks, or else helps the one with most layers for each of its ranks. The layers of a stage that still has none go
// to the neighbour that has fewer for each of its own. `types`: of devices, by rank of the job.
StageLayout lay_out_for(std::span<const int> present, const StageLayout& before, const std::vector<std::string>& types);

// What those who are there have agreed on.
struct NextStages {
  StageLayout layout;
  // By rank: the first layer of which it has the state, and one after the last.
  std::vector<double> held;
  std::vector<int> givers = {};  // ranks that have all layers' state together; none: some layers' is nowhere

  bool has_state(int rank) const { return held[2 * static_cast<std::size_t>(rank) + 1] > 0; }
  // Whether this rank, or any of these, is to compute other layers than those of which it has the state.
  bool moves(int rank) const;
  bool some_move(std::span<const int> present) const;
};
// The layout of the rank that writes the run's files stays as long as it suits those who are there, so that who joins
// has its predecessor's place; else that of lay_out_for(), which `improve` may have a better one for. `has_state`: this
// rank has that of its layers in `layout`. Collective.
Result<NextStages> agree_on_stages(const RankContext& context, const StageLayout& layout, bool has_state,
                                   const std::vector<std::string>& types,
                                   const std::function<StageLayout(StageLayout)>& improve);

// What a regrouping asks of a rank that computes a stage. After an error the rank is as it was before.
class ElasticStages {
 public:
  virtual ~ElasticStages() = default;
  // Those who are there agree who computes what from now on. Whether they have all layers' state after the last step
  // that all have done. `has_state`: this rank has that of its own layers. Collective, as is rebuild().
  virtual Result<bool> lay_out(bool has_state) = 0;
  // Each goes on with its layers as they were laid out: with the state that it has, or that another rank has, or, where
  // all go back, with that of the last checkpoint, or of the beginning. Who computes the same layers as before, with
  // the state that it has, keeps what its runner has of the step under way.
  virtual Status rebuild(bool goes_back) = 0;
  // Of a rank that goes on with nobody: it gives all layers' state from now on; kUnavailable where it has not got that.
  virtual Status give_all_layers() = 0;
  // What has changed since the last call besides who is there; empty: nothing.
  virtual std::string take_news() = 0;
};

}  // namespace motley::train
