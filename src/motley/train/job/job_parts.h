// From the job's keys to the values that the other modules take: network, optimizer, exchange, partition, devices.
// Errors name the key.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <string>

#include "motley/base/result.h"
#include "motley/cluster/cluster.h"
#include "motley/data/local/batch_split.h"
#include "motley/data/local/dataset.h"
#include "motley/data/local/loader.h"
#include "motley/nn/networks.h"
#include "motley/nn/optimizer.h"
#include "motley/nn/schedule.h"
#include "motley/ps/client/server_options.h"
#include "motley/train/job/job.h"

namespace motley::train {

// What follows from the keys alone.
struct JobParts {
  nn::OptimizerSpec optimizer;
  ps::ServerOptions gradient_sync;
};
JobParts make_parts(const Job& job);
// Of the value of a key such as gradient_sync.comm_dtype.
collective::WireType parse_wire_type(const std::string& name);

// The parameter servers that the job names, or that the launcher started, and the token for them.
Result<std::vector<ps::ServerAddress>> read_servers(const Job& job);
// Names the file of MOTLEY_TOKEN_FILE in the keys that leave it open, before a launcher gives its workers another one.
void name_token_files(Job& job);
inline constexpr const char* kServersVariable = "MOTLEY_SERVERS";

nn::ScheduleSpec make_lr_schedule(const Job& job, std::int64_t steps);

// The network with its input shape and outputs filled in from the data where the job leaves them open.
Result<nn::NetworkSpec> make_network_spec(const Job& job, const data::Dataset& training);

Result<data::BatchSplitOptions> make_split_options(const Job& job, const cluster::Cluster& cluster,
                                                   bool has_batch_norm);

// Whether what the job names is there, as far as can be told at once: files that open, shares that suit the workers.
Status check_inputs(const Job& job, const cluster::Cluster& cluster);

// "cpu", "cuda" or "cuda:N" for a rank; ranks of one host that only say "cuda" get a device each.
std::string find_device(const Job& job, const cluster::Cluster& cluster, int rank, int local_rank);

// Cores that this process may run on, and binding it to those that the cluster file gives the worker.
int available_cores();
Status pin_to_cores(const cluster::Worker& worker);

// A batch that was read, as tensors on the device: features [n, feature_shape...] and targets [n, target_width].
torch::Tensor batch_inputs(const data::Batch& batch, const data::Dataset& dataset, torch::Device device,
                           torch::Dtype dtype);
torch::Tensor batch_targets(const data::Batch& batch, const data::Dataset& dataset, torch::Device device,
                            torch::Dtype dtype);

}  // namespace motley::train
