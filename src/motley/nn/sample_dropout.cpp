#include "motley/nn/sample_dropout.h"

#include <cmath>

#include "motley/base/random.h"

namespace motley::nn {
namespace {

thread_local std::shared_ptr<const RandomSamples> current;

// SplitMix64 (Steele, Lea, Flood 2014): the state's next number.
std::uint64_t scramble(std::uint64_t state) {
  state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9;
  state = (state ^ (state >> 27)) * 0x94d049bb133111eb;
  return state ^ (state >> 31);
}

template <class Value>
void fill(torch::Tensor& mask, const RandomSamples& samples, double share, std::uint64_t place) {
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

}  // namespace

std::shared_ptr<const RandomSamples> random_samples() {
  return current;
}

void set_random_samples(std::shared_ptr<const RandomSamples> samples) {
  current = std::move(samples);
}

torch::Tensor sample_dropout(const torch::Tensor& values, double share, std::uint64_t place) {
  if (share == 0) return values;
  if (!current) return torch::dropout(values, share, /*train=*/true);
  TORCH_CHECK(values.size(0) == static_cast<std::int64_t>(current->samples.size()), "dropout reads ", values.size(0),
              " samples and was told of ", current->samples.size());
  const bool is_double = values.scalar_type() == torch::kFloat64;
  torch::Tensor mask = torch::empty(values.sizes(), is_double ? torch::kFloat64 : torch::kFloat32);
  is_double ? fill<double>(mask, *current, share, place) : fill<float>(mask, *current, share, place);
  return values * mask.to(values.options());
}

}  // namespace motley::nn
