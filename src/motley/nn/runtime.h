// What a process sets in libtorch before and while it computes: device, threads, determinism, randomness, precision;
// and the one place where libtorch's exceptions become errors as values.
#pragma once

#include <torch/torch.h>

#include <concepts>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "motley/base/result.h"
#include "motley/nn/sample_dropout.h"

namespace motley::nn {

using Tensors = std::vector<torch::Tensor>;

struct NamedTensor {
  std::string name;
  torch::Tensor tensor;
};
// Wherever several tensors are named, their order is part of the value and the same on all ranks.
using NamedTensors = std::vector<NamedTensor>;

// "cpu", "cuda" (the first device) or "cuda:N"; an error where this libtorch or this machine has no such device.
Result<torch::Device> parse_device(const std::string& text);

// "float32" or "float64".
Result<torch::Dtype> parse_dtype(const std::string& text);

// How many threads libtorch uses within one operation. Call at the start, before the first tensor operation.
void set_threads(int threads);

// Lets malloc keep what is freed: each step frees what the next one needs again, and malloc would give large blocks
// back to the system, which zeroes every page of new ones. Call at the start; the process stays as large as it ever
// was.
void keep_freed_memory();

// The same bits from run to run: deterministic kernels, no cuDNN search. Call before the first use of CUDA.
void set_deterministic(bool on);

// Seeds all generators for one micro-batch, and the dropout of our own networks (nn/sample_dropout.h) by `samples`,
// one a row; none: not known, and dropout draws from the generators. Randomness is a function of these numbers and not
// of what ran before, so a resumed run needs no saved generator state.
void seed_randomness(std::uint64_t seed, std::uint64_t step, int rank, std::int64_t micro_batch,
                     std::span<const std::uint32_t> samples);

// The generators of the CPU and of one device and the samples, to run a computation twice with the same random numbers.
class RandomState {
 public:
  static RandomState capture(torch::Device device);
  void restore() const;

 private:
  explicit RandomState(torch::Device device) : device_(device) {}
  torch::Device device_;
  torch::Tensor cpu_;
  torch::Tensor gpu_;
  std::shared_ptr<const RandomSamples> samples_;
};

// While it lives, operations on this device that gain by it compute in bfloat16 (weights stay as they are). Does
// nothing when not enabled. Holds for the calling thread.
class Autocast {
 public:
  Autocast(torch::Device device, bool enabled);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  torch::DeviceType type_;
  bool enabled_;
  bool was_enabled_ = false;
  torch::Dtype was_dtype_ = torch::kBFloat16;
};

// "1x28x28", for messages.
std::string format_shape(c10::IntArrayRef shape);

// The current exception, which libtorch threw, as an error with `code`; out of memory is always kUnavailable.
// Call within a catch block.
Error error_of_current_exception(ErrorCode code, const std::string& doing);

// Runs `body` and turns what libtorch throws into an error: catch_torch(code, "computing the loss", [&] {...}).
template <class Body>
auto catch_torch(ErrorCode code, const std::string& doing, Body&& body) -> Result<decltype(body())> {
  try {
    if constexpr (std::is_void_v<decltype(body())>) {
      body();
      return {};
    } else {
      return body();
    }
  } catch (...) {
    return fail(error_of_current_exception(code, doing));
  }
}

}  // namespace motley::nn
