// From the job's keys to what libtorch needs: network and optimizer. Errors name the key.
#pragma once

#include "motley/base/result.h"
#include "motley/data/local/dataset.h"
#include "motley/nn/networks.h"
#include "motley/nn/optimizer.h"
#include "motley/train/job/job.h"

namespace motley::train {

nn::OptimizerSpec make_optimizer_spec(const Job& job);
// The network with its input shape and outputs filled in from the data where the job leaves them open.
Result<nn::NetworkSpec> make_network_spec(const Job& job, const data::Dataset& training);

}  // namespace motley::train
