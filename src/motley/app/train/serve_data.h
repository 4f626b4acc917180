// What `motley data-server` does: serves the samples of a job's data to workers that do not have the files.
#pragma once

#include <memory>
#include <string>

#include "motley/data/remote/data_server.h"
#include "motley/serial/options.h"
#include "motley/train/job/job.h"

namespace motley::app {

struct DataRequest {
  std::string listen = "127.0.0.1:29600";
  std::string token_file;  // "": that of MOTLEY_TOKEN_FILE

  static const OptionTable<DataRequest>& options();
};

struct RunningDataServer {
  std::unique_ptr<data::DataServer> server;
  std::string address;      // really listening at
  std::string description;  // "60000 training and 10000 test samples of fashion-mnist, 784 bytes each"
};
// Errors name the flag, or the key of the job.
Result<RunningDataServer> serve_data(train::Job job, const DataRequest& request);

}  // namespace motley::app
