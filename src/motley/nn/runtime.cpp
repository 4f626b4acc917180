#include "motley/nn/runtime.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/ranges.h>

#include <cmath>
#include <cstdlib>
#include <mutex>

#include "motley/base/random.h"
#include "motley/nn/emulated/emulated_accelerator.h"

namespace motley::nn {
namespace {

thread_local std::shared_ptr<const RandomSamples> current_samples;

// SplitMix64 (Steele, Lea, Flood 2014): the state's next number.
std::uint64_t scramble(std::uint64_t state) {
  state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9;
  state = (state ^ (state >> 27)) * 0x94d049bb133111eb;
  return state ^ (state >> 31);
}

template <class Value>
void fill_mask(torch::Tensor& mask, const RandomSamples& samples, double share, std::uint64_t place) {
  constexpr std::uint64_t kStride = 0x9e3779b97f4a7c15;
  const auto below = static_cast<std::uint64_t>(std::ldexp(share, 32));  // of 32 random bits
  const auto kept = static_cast<Value>(1 / (1 - share));
  const auto width = static_cast<std::size_t>(mask.numel()) / samples.samples.size();
  auto* value = mask.data_ptr<Value>();
  for (const std::uint32_t sample : samples.samples) {
    const std::uint64_t base = mix({samples.seed, samples.step, sample, place});
    for (std::size_t i = 0; i < width; ++i) {
      *value++ = (scramble(base + i * kStride) >> 32) < below ? Value(0) : kept;
    }
  }
}

// By the name of an accelerator; nothing where PyTorch knows none of that name.
std::optional<torch::DeviceType> accelerator_type(const std::string& name) {
  try {
    const torch::DeviceType type = torch::Device(name).type();
    return at::isAccelerator(type) ? std::optional(type) : std::nullopt;
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

}  // namespace

Result<torch::Device> parse_device(const std::string& text) {
  if (text == "cpu") return torch::Device(torch::kCPU);
  if (text == "auto") {
    if (emulated::is_asked_for()) MOTLEY_TRY(emulated::enable());
    const auto accelerator = find_accelerator();
    return accelerator ? torch::Device(*accelerator, 0) : torch::Device(torch::kCPU);
  }
  const std::string name = text.substr(0, text.find(':'));
  const std::string digits = name.size() == text.size() ? "0" : text.substr(name.size() + 1);
  if (name == emulated::kDeviceName) MOTLEY_TRY(emulated::enable());
  const auto type = accelerator_type(name);
  if (!type || digits.empty() || digits.size() > 2 || digits.find_first_not_of("0123456789") != std::string::npos) {
    return fail(ErrorCode::kInvalidInput,
                "device: '{}' is not a device; accepted: auto, cpu, cuda, xpu, mps, emulated, with or without a number "
                "as in cuda:1",
                text);
  }
  const int index = std::stoi(digits), count = count_devices(*type);
  if (count == 0) {
    return fail(
        ErrorCode::kUnavailable,
        "device: '{}' was asked for, but this libtorch sees no such device (cuda needs a CUDA build of PyTorch, "
        "an NVIDIA driver and a GPU); 'cpu' works here",
        text);
  }
  if (index >= count) {
    return fail(ErrorCode::kInvalidInput, "device: '{}' does not exist; this machine has {}:0 to {}:{}", text, name,
                name, count - 1);
  }
  return torch::Device(*type, static_cast<c10::DeviceIndex>(index));
}

int count_devices(torch::DeviceType type) {
  return c10::impl::hasDeviceGuardImpl(type) ? c10::impl::getDeviceGuardImpl(type)->deviceCount() : 0;
}

std::optional<torch::DeviceType> find_accelerator() {
  const auto type = at::getAccelerator();
  return type && count_devices(*type) > 0 ? type : std::nullopt;
}

double device_memory_bytes(torch::Device device) {
  try {
    return static_cast<double>(at::getDeviceAllocator(device.type())->getMemoryInfo(device.index()).second);
  } catch (const c10::Error&) {
    return 0;
  }
}

void synchronize(torch::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

Result<torch::Dtype> parse_dtype(const std::string& text) {
  if (text == "float32") return torch::kFloat32;
  if (text == "float64") return torch::kFloat64;
  return fail(ErrorCode::kInvalidInput, "model.dtype: '{}' is not a type of weights; accepted: float32, float64", text);
}

void set_threads(int threads) {
  at::set_num_threads(threads);
  // libtorch accepts the number of threads *between* operations once in a process.
  static std::once_flag once;
  std::call_once(once, [] { at::set_num_interop_threads(1); });
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

std::shared_ptr<const RandomSamples> random_samples() {
  return current_samples;
}

void set_random_samples(std::shared_ptr<const RandomSamples> samples) {
  current_samples = std::move(samples);
}

void seed_randomness(std::uint64_t seed, std::uint64_t step, int rank, std::int64_t micro_batch,
                     std::span<const std::uint32_t> samples) {
  current_samples = samples.empty()
                        ? nullptr
                        : std::make_shared<RandomSamples>(RandomSamples{seed, step, {samples.begin(), samples.end()}});
  torch::manual_seed(mix({seed, step, static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(micro_batch)}));
}

RandomState::RandomState(torch::Device device) : samples_(current_samples) {
  std::vector<torch::Device> devices = {torch::kCPU};
  if (!device.is_cpu()) devices.push_back(device);
  for (const torch::Device each : devices) {
    at::Generator generator = at::globalContext().defaultGenerator(each);
    const std::lock_guard lock(generator.mutex());
    generators_.emplace_back(generator, generator.get_state());
  }
}

void RandomState::restore() const {
  for (auto [generator, state] : generators_) {
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
  current_samples = samples_;
}

torch::Tensor sample_dropout(const torch::Tensor& values, double share, std::uint64_t place) {
  if (share == 0) return values;
  if (!current_samples) return torch::dropout(values, share, /*train=*/true);
  TORCH_CHECK(values.size(0) == static_cast<std::int64_t>(current_samples->samples.size()), "dropout reads ",
              values.size(0), " samples and was told of ", current_samples->samples.size());
  const bool is_double = values.scalar_type() == torch::kFloat64;
  torch::Tensor mask = torch::empty(values.sizes(), is_double ? torch::kFloat64 : torch::kFloat32);
  is_double ? fill_mask<double>(mask, *current_samples, share, place)
            : fill_mask<float>(mask, *current_samples, share, place);
  return values * mask.to(values.options());
}

Autocast::Autocast(torch::Device device, bool enabled) : type_(device.type()), enabled_(enabled) {
  if (!enabled_) return;
  was_enabled_ = at::autocast::is_autocast_enabled(type_);
  was_dtype_ = at::autocast::get_autocast_dtype(type_);
  at::autocast::set_autocast_enabled(type_, true);
  at::autocast::set_autocast_dtype(type_, torch::kBFloat16);
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (!enabled_) return;
  if (at::autocast::decrement_nesting() == 0) {
    at::autocast::clear_cache();  // the cached casts of weights are stale after the next update
  }
  at::autocast::set_autocast_dtype(type_, was_dtype_);
  at::autocast::set_autocast_enabled(type_, was_enabled_);
}

std::string format_shape(c10::IntArrayRef shape) {
  return shape.empty() ? "scalar" : fmt::format("{}", fmt::join(shape.begin(), shape.end(), "x"));
}

}  // namespace motley::nn
