// JPEG and PNG images as pixels, and their sizes changed: as Pillow decodes, converts and resizes them, up to rounding.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "motley/base/result.h"

namespace motley::data {

// Pixels row by row, of each its channels: one (grey) or three (red, green, blue).
struct Image {
  std::uint32_t width = 0;
  std::uint32_t height = 0;
  std::uint32_t channels = 3;
  std::vector<std::uint8_t> pixels;
};

// In three channels; transparency is left out. Errors name the file.
Result<Image> decode_image(std::string_view bytes, const std::string& name);

// In one channel, by the luma of ITU-R 601.
Image to_grayscale(const Image& image);

// By bilinear interpolation, over all pixels that one of a smaller image covers.
Image resize(const Image& image, std::uint32_t width, std::uint32_t height);

}  // namespace motley::data
