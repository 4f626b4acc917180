// The data that a job names: opened here, or at the data server that has it, or served to workers without the files.
// Errors name the key.
#pragma once

#include <memory>
#include <string>

#include "motley/base/result.h"
#include "motley/data/local/augmentation.h"
#include "motley/data/local/dataset.h"
#include "motley/data/remote/data_server.h"
#include "motley/data/remote/remote_dataset.h"
#include "motley/train/job/job.h"

namespace motley::train {

Result<std::unique_ptr<data::Dataset>> open_training_data(const Job& job);
bool has_test_data(const Job& job);
// With the training data's preprocessing.
Result<std::unique_ptr<data::Dataset>> open_test_data(const Job& job, const data::Dataset& training);

// How training samples are varied at random, which must be images.
Result<data::Augmentation> make_augmentation(const Job& job, const data::Dataset& training);

// How a job that reads alone gets at its data server (data.server). A worker of several puts in who it is.
Result<data::DataServerAccess> data_server_access(const Job& job, data::Set set);

// Whether the targets that a data server says it has suit the job's loss, as those of files are looked at.
Status check_served_targets(const Job& job, data::Set set, const data::Description& served);

// The keys that say which data is meant, as a job and its data server compare them: lines "key: value", of files their
// names without folders.
std::string data_keys(const Job& job);

// The job's samples served at an address; `token_file` is that of the token that workers must know, "": that of
// MOTLEY_TOKEN_FILE.
struct RunningDataServer {
  std::unique_ptr<data::DataServer> server;
  std::string address;      // really listening at
  std::string description;  // "60000 training and 10000 test samples of fashion-mnist, 784 bytes each"
};
Result<RunningDataServer> serve_data(Job job, const std::string& listen, const std::string& token_file);

// Whether files open, or the data server's address and token can be read, as far as can be told at once.
Status check_data(const Job& job);

}  // namespace motley::train
