// What the devices of this machine are like, measured in about a second each.
#pragma once

#include <string>
#include <vector>

#include "motley/base/result.h"

namespace motley::nn {

struct DeviceSpeed {
  std::string device;                  // "cpu", "cuda:0"
  double memory_bytes = 0;             // 0: not known, as of the CPU, whose is the machine's
  double memory_bytes_per_second = 0;  // read and written by a copy within its memory
  double flops_per_second = 0;         // float32, of a product of large matrices
};

// By a name that parse_device() takes; the CPU with the threads that libtorch has. Errors: those of parse_device; what
// libtorch throws.
Result<DeviceSpeed> measure_device(const std::string& device);
// The CPU with this many threads, and each accelerator that this process can use: the emulated one where the variable
// MOTLEY_EMULATED is.
Result<std::vector<DeviceSpeed>> measure_devices(int threads);

}  // namespace motley::nn
