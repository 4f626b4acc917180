#include "motley/nn/device_speed.h"

#include <algorithm>
#include <limits>

#include "motley/base/clock.h"
#include "motley/nn/runtime.h"

namespace motley::nn {
namespace {

constexpr double kLongPass = 0.02;  // seconds, in which starting a kernel counts for nothing
constexpr double kEnoughTime = 0.2;
constexpr int kPasses = 5;
constexpr std::int64_t kFewestValues = 1 << 16;
constexpr std::int64_t kMostValues = 1 << 26;  // 256 MB: more than caches hold
constexpr double kCopiedShare = 0.5;           // of a device's memory, at most
constexpr std::int64_t kSmallestMatrix = 64;
constexpr std::int64_t kLargestMatrix = 8192;

// Seconds of the fastest of a few passes.
template <class Pass>
double time_passes(torch::Device device, const Pass& pass) {
  double fastest = std::numeric_limits<double>::infinity(), spent = 0;
  for (int i = 0; i < kPasses && spent < kEnoughTime; ++i) {
    synchronize(device);
    const double began = monotonic_seconds();
    pass();
    synchronize(device);
    const double seconds = monotonic_seconds() - began;
    fastest = std::min(fastest, seconds);
    spent += seconds;
  }
  return fastest;
}

// Of as many values as are copied long enough, or fit.
double measure_copy(torch::Device device, double memory_bytes) {
  for (std::int64_t values = kFewestValues;; values *= 2) {
    const torch::Tensor from = torch::ones({values}, torch::device(device));
    torch::Tensor into = torch::zeros_like(from);
    const double seconds = time_passes(device, [&] { into.copy_(from); });
    const double moved = 2 * static_cast<double>(from.nbytes());
    const bool fits_twice = memory_bytes == 0 || 2 * moved < kCopiedShare * memory_bytes;
    if (seconds >= kLongPass || values >= kMostValues || !fits_twice) return moved / seconds;
  }
}

// Of matrices so large that a product takes long enough.
double measure_product(torch::Device device) {
  for (std::int64_t size = kSmallestMatrix;; size *= 2) {
    const torch::Tensor one = torch::ones({size, size}, torch::device(device));
    torch::Tensor product = torch::zeros_like(one);
    const double seconds = time_passes(device, [&] { at::mm_out(product, one, one); });
    const auto width = static_cast<double>(size);
    if (seconds >= kLongPass || size >= kLargestMatrix) return 2 * width * width * width / seconds;
  }
}

}  // namespace

Result<DeviceSpeed> measure_device(const std::string& name) {
  MOTLEY_ASSIGN(const torch::Device device, parse_device(name));
  return catch_torch(ErrorCode::kUnavailable, "measuring " + device.str(), [&] {
    const torch::NoGradGuard no_grad;
    const double memory = device.is_cpu() ? 0 : device_memory_bytes(device);
    return DeviceSpeed{device.str(), memory, measure_copy(device, memory), measure_product(device)};
  });
}

Result<std::vector<DeviceSpeed>> measure_devices(int threads) {
  MOTLEY_ASSIGN(const torch::Device accelerator, parse_device("auto"));
  set_threads(threads);
  std::vector<DeviceSpeed> speeds;
  MOTLEY_ASSIGN(speeds.emplace_back(), measure_device("cpu"));
  const int count = accelerator.is_cpu() ? 0 : count_devices(accelerator.type());
  for (int i = 0; i < count; ++i) {
    const torch::Device device(accelerator.type(), static_cast<torch::DeviceIndex>(i));
    MOTLEY_ASSIGN(speeds.emplace_back(), measure_device(device.str()));
  }
  return speeds;
}

}  // namespace motley::nn
