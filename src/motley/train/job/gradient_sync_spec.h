// How the gradients of a job's workers become one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "motley/base/result.h"
#include "motley/serial/options.h"

namespace motley::train {

// How gradients are synchronised, key gradient_sync.
struct GradientSyncSpec {
  std::string method = "auto";
  std::string comm_dtype = "float32";
  double top_k = 0.01;
  double bucket_size = 4e6;  // bytes
  std::string consistency = "bsp";
  std::int64_t staleness = 0;
  std::string servers;
  std::string token_file;
  std::string tenant = "local";
  std::string placement = "auto";
  std::vector<std::int64_t> racks;
  std::int64_t server_threads = 0;
  double chunk_size = 32 << 10;  // bytes
  bool overlap = true;

  static const OptionTable<GradientSyncSpec>& options();
  Status check() const;
};

}  // namespace motley::train
