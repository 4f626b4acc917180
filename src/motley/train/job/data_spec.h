// The data that a job trains and tests on.
#pragma once

#include <cstdint>
#include <string>

#include "motley/base/result.h"
#include "motley/serial/options.h"

namespace motley::train {

// The training and test data, key data.
struct DataSpec {
  std::string name = "fashion-mnist";
  std::string folder = "/usr/share/datasets/fashion-mnist";
  std::string train;
  std::string train_targets;
  std::string test;
  std::string test_targets;
  std::string target;
  std::string target_kind = "class";
  std::string drop_columns;
  std::string categorical_columns;
  double max_malformed_fraction = 0;
  double num_samples = 1e6;
  double num_categories = 1e6;
  double zipf = 1.05;
  std::int64_t sequence_length = 64;
  double test_fraction = 0.1;
  bool normalise = true;
  std::string server;
  std::string token_file;
  std::int64_t prefetch = 2;

  static const OptionTable<DataSpec>& options();
  Status check() const;
};

}  // namespace motley::train
