// A network whose weights parameter servers update: hands the servers what the job starts from, lets the parameters
// look at the weights that come back, and fetches the optimizer's state for checkpoints.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "motley/kernels/update.h"
#include "motley/nn/gradient_buckets.h"
#include "motley/nn/optimizer.h"
#include "motley/ps/client/server_reducer.h"

namespace motley::train {

class ServedWeights {
 public:
  // Collective. `optimizer` holds the state to start from, and is not stepped afterwards. On the CPU the parameters
  // become views of the exchange's weights; elsewhere fetch() copies them. The exchange and the buckets must outlive
  // this object, and the network must not be used after them.
  static Result<std::unique_ptr<ServedWeights>> begin(ps::ServerReducer& server, const nn::GradientBuckets& buckets,
                                                      const nn::Optimizer& optimizer, kernels::UpdateRule rule,
                                                      const Deadline& deadline);

  // After the exchange's wait for the bucket.
  Status fetch(int bucket);

  // Rank 0: what Optimizer::state() would be.
  Result<nn::NamedTensors> optimizer_state(const Deadline& deadline);

 private:
  ServedWeights(ps::ServerReducer& server, const nn::GradientBuckets& buckets, kernels::UpdateRule rule);
  torch::Tensor view(const nn::GradientBuckets::Place& place, const float* bucket) const;

  ps::ServerReducer& server_;
  const nn::GradientBuckets& buckets_;
  const std::vector<std::string> fields_;  // of the optimizer's state, one an array
};

}  // namespace motley::train
