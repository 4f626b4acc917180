// The state of the network and its optimizer over all ranks: put together on rank 0 for a checkpoint, and taken apart
// from one. Every stage's first rank gives what the stage has; every rank takes what is its own.
#pragma once

#include <functional>
#include <string>

#include "motley/train/job/job.h"
#include "motley/train/loop/model_state.h"
#include "motley/train/loop/rank_context.h"
#include "motley/train/loop/stage_layout.h"
#include "motley/train/step/batch_tensors.h"
#include "motley/train/step/bucketed_gradient_sync.h"
#include "motley/train/step/local_network.h"

namespace motley::train {

class NetworkState final : public ModelState {
 public:
  struct Options {
    const StageLayout* layout = nullptr;  // of a planned run
    kernels::UpdateRule rule;             // by which servers update weights
  };
  // `peers` are the ranks that compute the same layers. All that is referred to must outlive this object.
  NetworkState(const RankContext& context, const Job& job, net::Session& peers, LocalNetwork& network,
               BatchTensors& tensors, BucketedGradientSync& sync, Options options)
      : context_(context),
        job_(job),
        peers_(peers),
        network_(network),
        tensors_(tensors),
        sync_(sync),
        options_(options) {}

  Result<std::string> weights(std::int64_t step) override;
  Result<std::string> optimizer(std::int64_t step) override;
  Status load_weights(const std::string& text) override;
  Status load_optimizer(const std::string& text) override;
  Status start(std::int64_t step, int embedding_servers) override;
  Status save_embeddings() override { return tensors_.table()->save(context_.long_deadline()); }
  int embedding_servers() const override { return tensors_.table() != nullptr ? tensors_.table()->servers() : 0; }

 private:
  Result<std::string> collect(std::int64_t step, const std::function<Result<nn::NamedTensors>()>& own);
  Status open_table(const ServedTable::Start& start, const Deadline& deadline);

  const RankContext& context_;
  const Job& job_;
  net::Session& peers_;
  LocalNetwork& network_;
  BatchTensors& tensors_;
  BucketedGradientSync& sync_;
  const Options options_;
};

}  // namespace motley::train
