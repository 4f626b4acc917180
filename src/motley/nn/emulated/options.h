// What an emulated accelerator is like. MOTLEY_EMULATED says it for a process and those that it starts, as
// "devices=2,memory=1GB,host_link=2GB/s".
#pragma once

#include <string>
#include <string_view>

#include "motley/base/result.h"

namespace motley::nn::emulated {

struct Options {
  int devices = 1;
  double memory_bytes = 4e9;           // of a device
  double link_bytes_per_second = 0;    // between host and device, each way; 0: as fast as this machine copies
  double link_seconds = 0;             // that a copy takes besides
  double flops_per_second = 0;         // of matrix products and convolutions; 0: as fast as this machine computes
  double memory_bytes_per_second = 0;  // at which kernels read and write; 0: likewise
  double kernel_seconds = 0;           // that a kernel takes at least
  // For tests: a copy that is asked not to block and has to, since its memory is not pinned, is an error; which place
  // to leave out (omissions.h), and the file that lists all places when the process ends.
  bool refuses_pageable = false;
  std::string omit = {};
  std::string survey = {};

  // Pairs of key and value, parted by commas: devices, memory, host_link, host_link_latency, flops, memory_bandwidth,
  // kernel_overhead; pageable=refused, omit, survey. kInvalidInput names the variable, the key and what is accepted.
  static Result<Options> parse(std::string_view text);
};

}  // namespace motley::nn::emulated
