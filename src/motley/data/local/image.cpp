#include "motley/data/local/image.h"

#include <png.h>
#include <turbojpeg.h>

#include <algorithm>
#include <cmath>
#include <memory>

namespace motley::data {
namespace {

constexpr std::uint64_t kMaxPixels = std::uint64_t{1} << 28;  // before memory is taken for them

Status check_size(std::uint64_t width, std::uint64_t height, const std::string& name) {
  if (width > 0 && height > 0 && width * height <= kMaxPixels) return {};
  return fail(ErrorCode::kInvalidInput, "{}: an image of {} x {} pixels; accepted: 1 to {} pixels", name, width, height,
              kMaxPixels);
}

Result<Image> decode_jpeg(std::string_view bytes, const std::string& name) {
  const std::unique_ptr<void, decltype(&tjDestroy)> decoder(tjInitDecompress(), tjDestroy);
  if (!decoder) return fail(ErrorCode::kInternal, "{}: libjpeg-turbo does not start", name);
  const auto damaged = [&] {
    return fail(ErrorCode::kCorrupt, "{}: a damaged JPEG image: {}", name, tjGetErrorStr2(decoder.get()));
  };
  // What it warns of, others read without a word, but for images that end too soon: behind the last start of their
  // pixels there is no end.
  const auto is_good = [&](int returned) {
    if (returned == 0) return true;
    const std::size_t pixels = bytes.rfind("\xff\xda"), end = bytes.rfind("\xff\xd9");
    const bool is_whole = end != std::string_view::npos && (pixels == std::string_view::npos || pixels < end);
    return is_whole && tjGetErrorCode(decoder.get()) == TJERR_WARNING;
  };
  const auto* const data = reinterpret_cast<const unsigned char*>(bytes.data());
  int width = 0, height = 0, subsampling = 0, colours = 0;
  if (!is_good(tjDecompressHeader3(decoder.get(), data, bytes.size(), &width, &height, &subsampling, &colours))) {
    return damaged();
  }
  if (width <= 0 || height <= 0)
    return fail(ErrorCode::kCorrupt, "{}: a damaged JPEG image: it ends in its header", name);
  MOTLEY_TRY(check_size(static_cast<std::uint64_t>(width), static_cast<std::uint64_t>(height), name));
  if (colours == TJCS_CMYK || colours == TJCS_YCCK) {
    return fail(ErrorCode::kInvalidInput, "{}: a JPEG image in CMYK; accepted: RGB or grey", name);
  }
  Image image{static_cast<std::uint32_t>(width), static_cast<std::uint32_t>(height), 3, {}};
  image.pixels.resize(std::size_t{image.width} * image.height * 3);
  if (!is_good(tjDecompress2(decoder.get(), data, bytes.size(), image.pixels.data(), width, 0, height, TJPF_RGB,
                             TJFLAG_ACCURATEDCT))) {
    return damaged();
  }
  return image;
}

// A PNG image without what it says of its gamma, by which libpng would change its pixels and others do not: its header
// of 8 bytes, then chunks, each of them 4 bytes of length, 4 of type, so many of content, and 4 of checksum.
std::string without_gamma(std::string_view bytes) {
  constexpr std::size_t kHeader = 8, kAround = 12;
  std::string kept(bytes.substr(0, kHeader));
  bytes.remove_prefix(std::min(kHeader, bytes.size()));
  while (bytes.size() >= kAround) {
    std::uint32_t length = 0;
    for (int i = 0; i < 4; ++i) length = length << 8 | static_cast<unsigned char>(bytes[static_cast<std::size_t>(i)]);
    const std::string_view chunk = bytes.substr(0, kAround + length);
    const std::string_view type = chunk.substr(4, 4);
    if (type != "gAMA" && type != "iCCP" && type != "sRGB") kept += chunk;
    bytes.remove_prefix(chunk.size());
  }
  return kept.append(bytes);
}

Result<Image> decode_png(std::string_view given, const std::string& name) {
  const std::string bytes = without_gamma(given);
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  const auto damaged = [&] { return fail(ErrorCode::kCorrupt, "{}: a damaged PNG image: {}", name, png.message); };
  if (png_image_begin_read_from_memory(&png, bytes.data(), bytes.size()) == 0) return damaged();
  const std::unique_ptr<png_image, decltype(&png_image_free)> owned(&png, png_image_free);
  MOTLEY_TRY(check_size(png.width, png.height, name));
  png.format = PNG_FORMAT_RGBA;
  png.flags |= PNG_IMAGE_FLAG_16BIT_sRGB;
  std::vector<std::uint8_t> pixels(PNG_IMAGE_SIZE(png));
  if (png_image_finish_read(&png, nullptr, pixels.data(), 0, nullptr) == 0) return damaged();
  Image image{png.width, png.height, 3, {}};
  image.pixels.reserve(pixels.size() / 4 * 3);
  for (std::size_t at = 0; at < pixels.size(); at += 4) {
    image.pixels.insert(image.pixels.end(), {pixels[at], pixels[at + 1], pixels[at + 2]});
  }
  return image;
}

// What pixels of one axis are mixed into a pixel of the axis resized: the triangle of bilinear interpolation, as wide
// as the pixel is where the axis becomes shorter.
struct Mix {
  std::size_t first = 0;
  std::vector<float> weights;
};
std::vector<Mix> mix_axis(std::uint32_t from, std::uint32_t to) {
  const double scale = static_cast<double>(from) / to, radius = std::max(scale, 1.0);
  std::vector<Mix> mixes(to);
  for (std::uint32_t i = 0; i < to; ++i) {
    const double centre = (i + 0.5) * scale;
    const auto first = static_cast<std::size_t>(std::max(0.0, std::floor(centre - radius + 0.5)));
    const auto end = std::min<std::size_t>(from, static_cast<std::size_t>(std::floor(centre + radius + 0.5)));
    std::vector<double> weights;
    double sum = 0;
    for (std::size_t at = first; at < end; ++at) {
      weights.push_back(std::max(0.0, 1 - std::abs((static_cast<double>(at) + 0.5 - centre) / radius)));
      sum += weights.back();
    }
    mixes[i].first = first;
    for (const double weight : weights) mixes[i].weights.push_back(static_cast<float>(weight / sum));
  }
  return mixes;
}

std::uint8_t rounded(float value) {
  return static_cast<std::uint8_t>(std::clamp(std::floor(value + 0.5F), 0.0F, 255.0F));
}

}  // namespace

Result<Image> decode_image(std::string_view bytes, const std::string& name) {
  if (bytes.starts_with("\xff\xd8\xff")) return decode_jpeg(bytes, name);
  if (bytes.starts_with("\x89PNG\r\n\x1a\n")) return decode_png(bytes, name);
  return fail(ErrorCode::kCorrupt, "{}: neither a JPEG nor a PNG image ({} bytes)", name, bytes.size());
}

Image to_grayscale(const Image& image) {
  Image gray{image.width, image.height, 1, {}};
  gray.pixels.reserve(image.pixels.size() / 3);
  for (std::size_t at = 0; at < image.pixels.size(); at += 3) {
    const std::uint32_t luma =
        image.pixels[at] * 19595U + image.pixels[at + 1] * 38470U + image.pixels[at + 2] * 7471U + 0x8000U;
    gray.pixels.push_back(static_cast<std::uint8_t>(luma >> 16));
  }
  return gray;
}

Image resize(const Image& image, std::uint32_t width, std::uint32_t height) {
  if (image.width == width && image.height == height) return image;
  const std::size_t channels = image.channels;
  Image narrow{width, image.height, image.channels, {}};
  narrow.pixels.resize(std::size_t{width} * image.height * channels);
  const std::vector<Mix> columns = mix_axis(image.width, width);
  for (std::size_t y = 0; y < image.height; ++y) {
    const std::uint8_t* const row = image.pixels.data() + y * image.width * channels;
    for (std::size_t x = 0; x < width; ++x) {
      for (std::size_t channel = 0; channel < channels; ++channel) {
        float sum = 0;
        for (std::size_t k = 0; k < columns[x].weights.size(); ++k) {
          sum += columns[x].weights[k] * static_cast<float>(row[(columns[x].first + k) * channels + channel]);
        }
        narrow.pixels[(y * width + x) * channels + channel] = rounded(sum);
      }
    }
  }
  Image resized{width, height, image.channels, {}};
  const std::size_t line = std::size_t{width} * channels;
  resized.pixels.resize(height * line);
  const std::vector<Mix> rows = mix_axis(image.height, height);
  std::vector<float> sums(line);
  for (std::size_t y = 0; y < height; ++y) {
    std::ranges::fill(sums, 0.0F);
    for (std::size_t k = 0; k < rows[y].weights.size(); ++k) {
      const std::uint8_t* const row = narrow.pixels.data() + (rows[y].first + k) * line;
      for (std::size_t i = 0; i < line; ++i) sums[i] += rows[y].weights[k] * static_cast<float>(row[i]);
    }
    std::ranges::transform(sums, resized.pixels.begin() + static_cast<std::ptrdiff_t>(y * line), rounded);
  }
  return resized;
}

}  // namespace motley::data
