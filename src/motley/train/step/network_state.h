// The state of the network and its optimizer over all ranks: put together on rank 0 for a checkpoint, and taken apart
// from one. Every stage's first rank gives what the stage has; every rank takes what is its own.
#pragma once

#include <functional>
#include <string>

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
  explicit NetworkState(const Parts& parts) : parts_(parts) {}

  Result<std::string> weights(std::int64_t step) override;
  Result<std::string> optimizer(std::int64_t step) override;
  Status load_weights(const std::string& text) override;
  Status load_optimizer(const std::string& text) override;
  Status start(std::int64_t step, int embedding_servers) override;
  Status save_embeddings() override { return parts_.tensors.table()->save(parts_.context.long_deadline()); }
  bool has_optimizer() const override { return !parts_.sync.is_served(); }
  int embedding_servers() const override {
    return parts_.tensors.table() != nullptr ? parts_.tensors.table()->servers() : 0;
  }

 private:
  Result<std::string> collect(std::int64_t step, const std::function<Result<nn::NamedTensors>()>& own);

  const Parts parts_;
};

}  // namespace motley::train
