#include "motley/nn/runtime.h"

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <fmt/ranges.h>
#include <malloc.h>

#include <cstdlib>
#include <mutex>

#include "motley/base/random.h"

namespace motley::nn {

Result<torch::Device> parse_device(const std::string& text) {
  const auto refuse = [&] {
    return fail(ErrorCode::kInvalidInput, "device: '{}' is not a device; accepted: cpu, cuda, cuda:N", text);
  };
  if (text == "cpu") {
    return torch::Device(torch::kCPU);
  }
  int index = 0;
  if (text.starts_with("cuda:")) {
    const std::string digits = text.substr(5);
    if (digits.empty() || digits.size() > 3 || digits.find_first_not_of("0123456789") != std::string::npos) {
      return refuse();
    }
    index = std::stoi(digits);
  } else if (text != "cuda") {
    return refuse();
  }
  if (!torch::cuda::is_available()) {
    return fail(ErrorCode::kUnavailable,
                "device: '{}' was asked for, but this libtorch sees no CUDA device (it needs a CUDA build of PyTorch, "
                "an NVIDIA driver and a GPU); 'cpu' works here",
                text);
  }
  const int count = static_cast<int>(torch::cuda::device_count());
  if (index >= count) {
    return fail(ErrorCode::kInvalidInput, "device: '{}' does not exist; this machine has cuda:0 to cuda:{}", text,
                count - 1);
  }
  return torch::Device(torch::kCUDA, static_cast<c10::DeviceIndex>(index));
}

Result<torch::Dtype> parse_dtype(const std::string& text) {
  if (text == "float32") {
    return torch::kFloat32;
  }
  if (text == "float64") {
    return torch::kFloat64;
  }
  return fail(ErrorCode::kInvalidInput, "model.dtype: '{}' is not a type of weights; accepted: float32, float64", text);
}

void set_threads(int threads) {
  at::set_num_threads(threads);
  // libtorch accepts the number of threads *between* operations once in a process.
  static std::once_flag once;
  std::call_once(once, [] { at::set_num_interop_threads(1); });
}

void keep_freed_memory() {
  ::mallopt(M_MMAP_MAX, 0);
  ::mallopt(M_TRIM_THRESHOLD, -1);
}

void set_deterministic(bool on) {
  if (on) {
    ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);  // cuBLAS is deterministic only with a fixed workspace
  }
  at::globalContext().setDeterministicAlgorithms(on, /*warn_only=*/true);
  at::globalContext().setDeterministicCuDNN(on);
  at::globalContext().setBenchmarkCuDNN(false);
  // Filling fresh memory with NaN finds reads of uninitialised values; it is not needed for equal results.
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

void seed_randomness(std::uint64_t seed, std::uint64_t step, int rank, std::int64_t micro_batch,
                     std::span<const std::uint32_t> samples) {
  set_random_samples(
      samples.empty() ? nullptr
                      : std::make_shared<RandomSamples>(RandomSamples{seed, step, {samples.begin(), samples.end()}}));
  torch::manual_seed(mix({seed, step, static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(micro_batch)}));
}

namespace {

torch::Tensor generator_state(torch::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_generator_state(torch::Device device, const torch::Tensor& state) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace

RandomState RandomState::capture(torch::Device device) {
  RandomState state(device);
  state.cpu_ = generator_state(torch::kCPU);
  if (!device.is_cpu()) {
    state.gpu_ = generator_state(device);
  }
  state.samples_ = random_samples();
  return state;
}

void RandomState::restore() const {
  set_generator_state(torch::kCPU, cpu_);
  if (gpu_.defined()) {
    set_generator_state(device_, gpu_);
  }
  set_random_samples(samples_);
}

Autocast::Autocast(torch::Device device, bool enabled) : type_(device.type()), enabled_(enabled) {
  if (enabled_) {
    was_enabled_ = at::autocast::is_autocast_enabled(type_);
    was_dtype_ = at::autocast::get_autocast_dtype(type_);
    at::autocast::set_autocast_enabled(type_, true);
    at::autocast::set_autocast_dtype(type_, torch::kBFloat16);
    at::autocast::increment_nesting();
  }
}

Autocast::~Autocast() {
  if (enabled_) {
    if (at::autocast::decrement_nesting() == 0) {
      at::autocast::clear_cache();  // the cached casts of weights are stale after the next update
    }
    at::autocast::set_autocast_dtype(type_, was_dtype_);
    at::autocast::set_autocast_enabled(type_, was_enabled_);
  }
}

std::string format_shape(c10::IntArrayRef shape) {
  return shape.empty() ? "scalar" : fmt::format("{}", fmt::join(shape.begin(), shape.end(), "x"));
}

Error error_of_current_exception(ErrorCode code, const std::string& doing) {
  try {
    throw;
  } catch (const c10::OutOfMemoryError& error) {
    return {ErrorCode::kUnavailable, fmt::format("{}: out of memory: {}", doing, error.what_without_backtrace())};
  } catch (const c10::Error& error) {
    return {code, fmt::format("{}: {}", doing, error.what_without_backtrace())};
  } catch (const std::exception& error) {
    return {code, fmt::format("{}: {}", doing, error.what())};
  }
}

}  // namespace motley::nn
