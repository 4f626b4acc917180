#include "motley/data/local/augmentation.h"

#include "motley/base/random.h"
#include "motley/base/result.h"

namespace motley::data {
namespace {

// A pixel of the image comes from `down` and `right` further in the one that was read, which was mirrored first.
struct Draw {
  bool mirrored = false;
  std::int64_t down = 0;
  std::int64_t right = 0;
};

Draw draw(const Augmentation& augmentation, std::uint64_t epoch, std::uint32_t sample) {
  Random random(mix({augmentation.seed, epoch, sample}));
  const auto move = [&] {
    return static_cast<std::int64_t>(random.below(2 * std::uint64_t{augmentation.crop_padding} + 1)) -
           augmentation.crop_padding;
  };
  Draw drawn;
  drawn.down = move();
  drawn.right = move();
  drawn.mirrored = random.below(2) == 1 && augmentation.horizontal_flip;
  return drawn;
}

}  // namespace

void augment(const Augmentation& augmentation, std::uint64_t epoch, std::span<const std::uint32_t> samples,
             std::span<const std::int64_t> shape, std::span<float> features) {
  if (augmentation.is_none() || features.empty()) return;
  MOTLEY_INVARIANT(shape.size() == 3, "images with {} axes", shape.size());
  const std::int64_t channels = shape[0], height = shape[1], width = shape[2];
  const auto size = static_cast<std::size_t>(channels * height * width);
  std::vector<float> image(size);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const Draw drawn = draw(augmentation, epoch, samples[i]);
    const std::span<float> own = features.subspan(i * size, size);
    image.assign(own.begin(), own.end());
    for (std::int64_t at = 0; at < static_cast<std::int64_t>(size); ++at) {
      const std::int64_t row = at / width % height + drawn.down, column = at % width + drawn.right;
      const bool is_inside = row >= 0 && row < height && column >= 0 && column < width;
      const std::int64_t from =
          at / (width * height) * height * width + row * width + (drawn.mirrored ? width - 1 - column : column);
      own[static_cast<std::size_t>(at)] = is_inside ? image[static_cast<std::size_t>(from)] : 0;
    }
  }
}

}  // namespace motley::data
