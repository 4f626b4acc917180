// The state of the network and its optimizer over all ranks: put together on rank 0 for a checkpoint, and taken apart
// from one. One rank of each stage gives what the stage has; every rank takes what is its own.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "motley/train/job/job.h"
#include "motley/train/loop/parts.h"
#include "motley/train/loop/stage_layout.h"
#include "motley/train/step/bucketed_gradient_sync.h"
#include "motley/train/step/local_network.h"

namespace motley::train {

class NetworkState final : public ModelState {
 public:
  // All that is referred to must outlive this object.
  struct Parts {
    const RankContext& context;
    const Job& job;
    net::Session& peers;  // the ranks that compute the same layers
    LocalNetwork& network;
    BatchTensors& tensors;
    BucketedGradientSync& sync;
    const StageLayout* layout = nullptr;  // of a planned run
  };
  explicit NetworkState(const Parts& parts);

  // From now on these ranks give what they have, in place of each stage's first; returns who did before. Of what
  // several have, one's counts.
  std::vector<int> collect_from(std::vector<int> ranks) { return std::exchange(givers_, std::move(ranks)); }
  // What this rank has alone, for one that takes its place.
  Status hand_to(NetworkState& other) const;

  Result<std::string> weights(std::int64_t step) override;
  Result<std::string> optimizer(std::int64_t step) override;
  Status load_weights(const std::string& text) override;
  Status load_optimizer(const std::string& text) override;
  Status start(std::int64_t step, int embedding_servers) override;
  Result<WeightsHash> hash_weights() const override;
  Status save_embeddings() override { return parts_.tensors.table()->save(parts_.context.long_deadline()); }
  bool has_optimizer() const override { return !parts_.sync.is_served(); }
  int embedding_servers() const override {
    return parts_.tensors.table() != nullptr ? parts_.tensors.table()->servers() : 0;
  }

 private:
  Result<std::string> collect(std::int64_t step, const std::function<Result<nn::NamedTensors>()>& own);

  const Parts parts_;
  std::vector<int> givers_;
};

}  // namespace motley::train
