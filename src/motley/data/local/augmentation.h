// Images of a batch varied at random, as training on images does: moved within a border (torchvision's RandomCrop with
// padding) and mirrored. What is drawn is a pure function of seed, epoch and sample, so that every worker that computes
// a sample of an epoch computes the same one, and a run replays bitwise.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace motley::data {

struct Augmentation {
  std::uint32_t crop_padding = 0;  // pixels by which an image moves at most, in each direction; 0: it does not
  bool horizontal_flip = false;    // half of the images are mirrored
  std::uint64_t seed = 0;

  bool is_none() const { return crop_padding == 0 && !horizontal_flip; }
};

// Features of samples of this shape, channels x height x width; pixels from beyond an image's border are 0.
void augment(const Augmentation& augmentation, std::uint64_t epoch, std::span<const std::uint32_t> samples,
             std::span<const std::int64_t> shape, std::span<float> features);

}  // namespace motley::data
