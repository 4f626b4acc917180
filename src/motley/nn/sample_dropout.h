// Dropout whose masks follow from the samples, not from who computes them: the same values are left out with any number
// of workers, any shares, any plan, and when a stage computes forward once more.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace motley::nn {

// The samples that the calling thread computes next, one a row of what its layers read. At least one.
struct RandomSamples {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  std::vector<std::uint32_t> samples;
};

// Those of the calling thread; nothing: samples are not known, and masks come from libtorch's generator.
std::shared_ptr<const RandomSamples> random_samples();
void set_random_samples(std::shared_ptr<const RandomSamples> samples);

// Leaves out a share of `values` [n, ...] and scales the others so that their expectation stays. A value is left out by
// a hash of seed, step, the sample, `place` (which of the network's dropouts it is) and where in the sample it stands.
// Masks are made on the CPU. Throws as libtorch does where n is not the number of samples.
torch::Tensor sample_dropout(const torch::Tensor& values, double share, std::uint64_t place);

class SampleDropout : public torch::nn::Module {
 public:
  SampleDropout(double share, std::uint64_t place) : share_(share), place_(place) {}
  torch::Tensor forward(const torch::Tensor& values) {
    return is_training() ? sample_dropout(values, share_, place_) : values;
  }

 private:
  const double share_;
  const std::uint64_t place_;
};

}  // namespace motley::nn
