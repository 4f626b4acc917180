// From the job's keys to what libtorch needs: network, optimizer, devices, tensors. Errors name the key.
#pragma once

#include <torch/torch.h>

#include <string>

#include "motley/base/result.h"
#include "motley/cluster/cluster.h"
#include "motley/data/local/dataset.h"
#include "motley/data/local/loader.h"
#include "motley/nn/networks.h"
#include "motley/nn/optimizer.h"
#include "motley/ps/client/server_options.h"
#include "motley/train/job/job.h"

namespace motley::train {

// What follows from the keys alone.
struct JobParts {
  nn::OptimizerSpec optimizer;
  ps::ServerOptions gradient_sync;  // without the servers' addresses
};
JobParts make_parts(const Job& job);

nn::ScheduleSpec make_lr_schedule(const Job& job, std::int64_t steps);

// The network with its input shape and outputs filled in from the data where the job leaves them open.
Result<nn::NetworkSpec> make_network_spec(const Job& job, const data::Dataset& training);

// "cpu", "cuda" or "cuda:N" for a rank; ranks of one host that only say "cuda" get a device each.
std::string find_device(const Job& job, const cluster::Cluster& cluster, int rank, int local_rank);

// A batch that was read, as tensors on the device: features [n, feature_shape...] and targets [n, target_width].
torch::Tensor batch_inputs(const data::Batch& batch, const data::Dataset& dataset, torch::Device device,
                           torch::Dtype dtype);
torch::Tensor batch_targets(const data::Batch& batch, const data::Dataset& dataset, torch::Device device,
                            torch::Dtype dtype);

}  // namespace motley::train
