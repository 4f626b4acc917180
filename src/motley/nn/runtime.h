// What a process sets in libtorch before and while it computes: device, threads, determinism, randomness, precision.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "motley/nn/gradients/named_tensors.h"

namespace motley::nn {

// "cpu", an accelerator by PyTorch's name ("cuda", which is ROCm too, "xpu", "mps", "emulated", or a plug-in's) for the
// first one, the name with a number ("cuda:1"), or "auto": the first accelerator, and the CPU where there is none. An
// error where this libtorch or this machine has no such device. "emulated" makes the emulated accelerator known
// (nn/emulated), as "auto" does where the variable MOTLEY_EMULATED is: ask for it before the first backward pass.
Result<torch::Device> parse_device(const std::string& text);

// How many devices of a type this process can use.
int count_devices(torch::DeviceType type);
// The type of accelerator that this process can use; none: it computes on the CPU.
std::optional<torch::DeviceType> find_accelerator();
// Of an accelerator, in bytes; 0 where its allocator does not say.
double device_memory_bytes(torch::Device device);
// Waits until a device has computed what it was given. Returns at once on the CPU.
void synchronize(torch::Device device);

// "float32" or "float64".
Result<torch::Dtype> parse_dtype(const std::string& text);

// How many threads libtorch uses within one operation. Call at the start, before the first tensor operation.
void set_threads(int threads);

// The same bits from run to run: deterministic kernels, no cuDNN search. Call before the first use of CUDA.
void set_deterministic(bool on);

// The samples that a thread computes next, one a row of what its layers read. At least one.
struct RandomSamples {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  std::vector<std::uint32_t> samples;
};

// Those of the calling thread; nothing: samples are not known, and masks come from libtorch's generator.
std::shared_ptr<const RandomSamples> random_samples();
void set_random_samples(std::shared_ptr<const RandomSamples> samples);

// Seeds all generators for one micro-batch, and sample_dropout by `samples`, one a row; none: not known. Randomness is
// a function of these numbers and not of what ran before, so a resumed run needs no saved generator state.
void seed_randomness(std::uint64_t seed, std::uint64_t step, int rank, std::int64_t micro_batch,
                     std::span<const std::uint32_t> samples);

// The generators of the CPU and of one device and the samples as they are when this is made, to run a computation twice
// with the same random numbers.
class RandomState {
 public:
  explicit RandomState(torch::Device device);
  void restore() const;

 private:
  std::vector<std::pair<at::Generator, torch::Tensor>> generators_;
  std::shared_ptr<const RandomSamples> samples_;
};

// Dropout whose masks follow from the samples, not from who computes them: the same values are left out with any number
// of workers, any shares, any plan, and when a stage computes forward once more.
//
// Leaves out a share of `values` [n, ...] and scales the others so that their expectation stays. A value is left out by
// a hash of seed, step, the sample, `place` (which of the network's dropouts it is) and where in the sample it stands.
// Masks are made on the CPU. Throws as libtorch does where n is not the number of samples.
torch::Tensor sample_dropout(const torch::Tensor& values, double share, std::uint64_t place);

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

}  // namespace motley::nn
