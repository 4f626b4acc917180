// The data that a job names: opened here, or at the data node that has it. Errors name the key.
#pragma once

#include <memory>
#include <string>

#include "motley/base/result.h"
#include "motley/data/local/dataset.h"
#include "motley/data/remote/remote_dataset.h"
#include "motley/train/job/job.h"

namespace motley::train {

Result<std::unique_ptr<data::Dataset>> open_training_data(const Job& job);
bool has_test_data(const Job& job);
// Normalised as the training data is.
Result<std::unique_ptr<data::Dataset>> open_test_data(const Job& job, const data::Dataset& training);

// How a job that reads alone gets at its data node (data.node). A worker of several puts in who it is.
Result<data::NodeAccess> node_access(const Job& job, data::Set set);
inline constexpr const char* kDataTokenVariable = "MOTLEY_DATA_TOKEN";

// The keys that say which data is meant, as a job and its data node compare them: lines "key: value", of files their
// names without folders.
std::string data_keys(const Job& job);

// Whether files open, or the data node's address and token can be read, as far as can be told at once.
Status check_data(const Job& job);

}  // namespace motley::train
