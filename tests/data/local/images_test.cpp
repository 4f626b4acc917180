// Folders of images: pixels against those that libpng and libjpeg-turbo were given, sizes changed against values worked
// out by hand, and augmentation against its definition. A scenario compares with Pillow.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <png.h>
#include <turbojpeg.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "motley/base/os/file.h"
#include "motley/data/local/augmentation.h"
#include "motley/data/local/image.h"
#include "tests/data/local/source_test.h"

namespace motley::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

using Pixels = std::vector<std::uint8_t>;

std::string png(std::uint32_t width, std::uint32_t height, const Pixels& pixels, std::uint32_t format) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = width;
  image.height = height;
  image.format = format;
  std::string bytes(1 << 16, '\0');
  png_alloc_size_t size = bytes.size();
  EXPECT_NE(png_image_write_to_memory(&image, bytes.data(), &size, 0, pixels.data(), 0, nullptr), 0) << image.message;
  bytes.resize(size);
  return bytes;
}

std::string jpeg(int width, int height, const Pixels& pixels) {
  const tjhandle encoder = tjInitCompress();
  unsigned char* packed = nullptr;
  unsigned long size = 0;
  EXPECT_EQ(tjCompress2(encoder, pixels.data(), width, 0, height, TJPF_RGB, &packed, &size, TJSAMP_444, 100, 0), 0);
  std::string bytes(reinterpret_cast<const char*>(packed), size);
  tjFree(packed);
  tjDestroy(encoder);
  return bytes;
}

Pixels count_up(std::size_t count) {
  Pixels pixels(count);
  std::iota(pixels.begin(), pixels.end(), std::uint8_t{1});
  return pixels;
}

TEST(Images, DecodesPngOfAllKindsToThreeChannels) {
  const Pixels pixels = count_up(2 * 3 * 3);
  auto image = decode_image(png(2, 3, pixels, PNG_FORMAT_RGB), "a.png");
  ASSERT_TRUE(image) << image.error().message;
  EXPECT_EQ(image->width, 2U);
  EXPECT_EQ(image->height, 3U);
  EXPECT_EQ(image->pixels, pixels);
  image = decode_image(png(1, 2, {9, 200}, PNG_FORMAT_GRAY), "a.png");
  ASSERT_TRUE(image);
  EXPECT_THAT(image->pixels, ElementsAre(9, 9, 9, 200, 200, 200));
  image = decode_image(png(1, 1, {10, 20, 30, 0}, PNG_FORMAT_RGBA), "a.png");
  ASSERT_TRUE(image);
  EXPECT_THAT(image->pixels, ElementsAre(10, 20, 30));
}

// As Pillow, which gives what is stored, whatever the file says of its gamma.
TEST(Images, TheGammaOfAPngChangesNoPixel) {
  const Pixels pixels = count_up(2 * 3 * 3);
  std::string bytes = png(2, 3, pixels, PNG_FORMAT_RGB);
  const std::string linear("\0\0\0\4gAMA\0\1\x86\xa0\x31\xe8\x96\x5f", 16);  // 1.0, and its checksum
  std::string with_gamma;
  for (std::size_t at = 8; at < bytes.size();) {
    const std::size_t end =
        at + 12 + static_cast<unsigned char>(bytes[at + 3]) + 256 * static_cast<unsigned char>(bytes[at + 2]);
    const std::string chunk = bytes.substr(at, end - at);
    if (chunk.substr(4, 4) == "IHDR") with_gamma = bytes.substr(0, 8) + chunk + linear;
    if (chunk.substr(4, 4) == "IDAT" || chunk.substr(4, 4) == "IEND") with_gamma += chunk;
    at = end;
  }
  const auto image = decode_image(with_gamma, "a.png");
  ASSERT_TRUE(image) << image.error().message;
  EXPECT_EQ(image->pixels, pixels);
}

// As many photographs have them.
TEST(Images, StrayBytesInAJpegAreNoDamage) {
  std::string bytes = jpeg(16, 16, Pixels(16 * 16 * 3, 77));
  const auto clean = decode_image(bytes, "a.jpg");
  bytes.insert(bytes.size() - 2, std::string(50, 'x'));  // before the marker of its end
  const auto image = decode_image(bytes, "a.jpg");
  ASSERT_TRUE(image) << image.error().message;
  EXPECT_EQ(image->pixels, clean->pixels);
  EXPECT_FALSE(decode_image(bytes.substr(0, bytes.size() - 2), "a.jpg")) << "it is cut off as well";
}

TEST(Images, DecodesJpegUpToItsLoss) {
  Pixels pixels(16 * 8 * 3);
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(40 + i / 48 * 5 + i % 3 * 30);
  const auto image = decode_image(jpeg(16, 8, pixels), "a.jpg");
  ASSERT_TRUE(image) << image.error().message;
  EXPECT_EQ(image->width, 16U);
  for (std::size_t i = 0; i < pixels.size(); ++i) EXPECT_NEAR(image->pixels[i], pixels[i], 3) << i;
}

TEST(Images, DamagedOnesAreNamed) {
  const std::string good = jpeg(16, 16, Pixels(16 * 16 * 3, 77)), drawn = png(40, 40, Pixels(4800, 7), PNG_FORMAT_RGB);
  const auto refuse = [](const std::string& bytes) {
    const auto image = decode_image(bytes, "cat/7.jpg");
    EXPECT_FALSE(image);
    return image ? "" : image.error().message;
  };
  EXPECT_THAT(refuse(good.substr(0, good.size() / 2)), HasSubstr("cat/7.jpg: a damaged JPEG image"));
  EXPECT_THAT(refuse(good.substr(0, 12)), HasSubstr("cat/7.jpg: a damaged JPEG image"));
  EXPECT_THAT(refuse(drawn.substr(0, drawn.size() - 20)), HasSubstr("cat/7.jpg: a damaged PNG image"));
  EXPECT_THAT(refuse("GIF89a"), HasSubstr("cat/7.jpg: neither a JPEG nor a PNG image (6 bytes)"));
  EXPECT_THAT(refuse(""), HasSubstr("(0 bytes)"));
}

TEST(Images, GrayIsTheLumaOfTheColours) {
  const Image gray =
      to_grayscale({.width = 3, .height = 1, .channels = 3, .pixels = {255, 255, 255, 255, 0, 0, 10, 200, 30}});
  EXPECT_THAT(gray.pixels, ElementsAre(255, 76, 124));  // 0.299 R + 0.587 G + 0.114 B
}

TEST(Images, ResizesByTheTriangleFilter) {
  const Image line{.width = 4, .height = 1, .channels = 1, .pixels = {0, 100, 200, 40}};
  // Half the size: pixels at distances 1.5, 0.5, 0.5 and 1.5 of a filter of width 2 weigh 1, 3, 3 and 1.
  EXPECT_THAT(resize(line, 2, 1).pixels,
              ElementsAre((3 * 0 + 3 * 100 + 200 + 3) / 7, (100 + 3 * 200 + 3 * 40 + 3) / 7));
  const Image two{.width = 2, .height = 1, .channels = 1, .pixels = {0, 100}};
  EXPECT_THAT(resize(two, 4, 1).pixels, ElementsAre(0, 25, 75, 100));
  const Image column{.width = 1, .height = 2, .channels = 3, .pixels = {0, 10, 20, 100, 110, 120}};
  EXPECT_THAT(resize(column, 1, 4).pixels, ElementsAre(0, 10, 20, 25, 35, 45, 75, 85, 95, 100, 110, 120));
  EXPECT_EQ(resize(column, 1, 2).pixels, column.pixels);
  const Image flat = resize({.width = 7, .height = 5, .channels = 1, .pixels = Pixels(35, 93)}, 3, 11);
  EXPECT_EQ(flat.pixels, Pixels(33, 93));
}

class ImageFolders : public SourceTest {
 protected:
  ImageFolders() {
    source_.format = DatasetSource::Format::kImageFolder;
    source_.features = folder_.path / "train";
    source_.images = {.height = 1, .width = 2, .grayscale = false};
    write("train/dog/b.png", png(2, 1, {1, 2, 3, 4, 5, 6}, PNG_FORMAT_RGB));
    write("train/cat/sub/c.PNG", png(2, 1, {7, 8, 9, 10, 11, 12}, PNG_FORMAT_RGB));
    write("train/cat/a.png", png(2, 1, {13, 14, 15, 16, 17, 18}, PNG_FORMAT_RGB));
  }
  void write(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories((folder_.path / name).parent_path());
    EXPECT_TRUE(write_file(folder_.path / name, bytes));
  }
};

TEST_F(ImageFolders, AreReadInTheOrderOfTheirNames) {
  const auto dataset = open();
  EXPECT_EQ(dataset->size(), 3U);
  EXPECT_THAT(dataset->feature_shape(), ElementsAre(3, 1, 2));
  EXPECT_THAT(dataset->preprocessing().class_names, ElementsAre("cat", "dog"));
  Batch batch;
  batch.samples = {0, 1, 2};
  ASSERT_TRUE(read_batch(*dataset, batch, {}, 2));
  EXPECT_THAT(batch.classes, ElementsAre(0, 0, 1));
  std::vector<int> pixels;
  for (const float feature : batch.features) pixels.push_back(static_cast<int>(std::lround(feature * 255)));
  EXPECT_THAT(pixels, ElementsAre(13, 16, 14, 17, 15, 18, 7, 10, 8, 11, 9, 12, 1, 4, 2, 5, 3, 6));
}

TEST_F(ImageFolders, ChannelsAreNormalisedByThemselves) {
  source_.normalise = true;
  const auto training = open();
  Batch batch;
  batch.samples = {0, 1, 2};
  ASSERT_TRUE(read_batch(*training, batch));
  for (std::size_t channel = 0; channel < 3; ++channel) {
    double sum = 0, squares = 0;
    for (const std::size_t sample : {0U, 1U, 2U}) {
      for (const std::size_t pixel : {0U, 1U}) {
        const double value = batch.features[sample * 6 + channel * 2 + pixel];
        sum += value;
        squares += value * value;
      }
    }
    EXPECT_NEAR(sum, 0, 1e-4);
    EXPECT_NEAR(squares / 6, 1, 1e-4);
  }
  source_.preprocessing = &training->preprocessing();
  EXPECT_EQ(open()->preprocessing().normalisation, training->preprocessing().normalisation);
}

TEST_F(ImageFolders, ClassesAreTheTrainingSets) {
  const auto training = open();
  source_.preprocessing = &training->preprocessing();
  source_.features = folder_.path / "test";
  write("test/dog/x.png", png(2, 1, {1, 2, 3, 4, 5, 6}, PNG_FORMAT_RGB));
  const auto test = open();
  EXPECT_EQ(test->class_count(), 2U);
  std::int64_t value = 0;
  const std::uint32_t first = 0;
  ASSERT_TRUE(test->read({&first, 1}, {{}, {&value, 1}, {}}));
  EXPECT_EQ(value, 1);
  write("test/cow/x.png", "");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("label 'cow'"), HasSubstr("accepted: cat, dog")));
}

TEST_F(ImageFolders, WhatIsNoImageIsSaid) {
  write("train/cat/notes.txt", "furry");
  write("train/cat/d.webp", "x");
  EXPECT_THAT(open()->notes(), ElementsAre(HasSubstr("has 3 images of 2 classes: cat, dog"),
                                           AllOf(HasSubstr("2 files below"), HasSubstr("the first: cat/d.webp"))));
  write("train/dog/broken.jpg", "\xff\xd8\xff\xe0 and no more");
  const auto dataset = open();
  Batch batch;
  batch.samples = {0, 3};
  const Status status = read_batch(*dataset, batch);
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message, HasSubstr("train/dog/broken.jpg: a damaged JPEG image"));
  write("train/fish/notes.txt", "wet");
  EXPECT_THAT(refusal(), HasSubstr("train/fish' has no image; accepted:"));
  source_.features = folder_.path / "train/dog";
  EXPECT_THAT(refusal(), HasSubstr("has no folders in it; accepted: a folder with a folder"));
  source_.features = folder_.path / "nowhere";
  EXPECT_THAT(refusal(), HasSubstr("nowhere' cannot be read"));
}

// To files of other names, and to a folder, as a part of a data set is made without copies.
TEST_F(ImageFolders, LinksAreReadUnderTheirOwnNames) {
  write("pool/21.png", png(2, 1, Pixels(6, std::uint8_t{21}), PNG_FORMAT_RGB));
  write("pool/22.png", png(2, 1, Pixels(6, std::uint8_t{22}), PNG_FORMAT_RGB));
  write("more/23.png", png(2, 1, Pixels(6, std::uint8_t{23}), PNG_FORMAT_RGB));
  const std::filesystem::path dog = folder_.path / "train/dog";
  std::filesystem::create_symlink(folder_.path / "pool/22.png", dog / "a.png");
  std::filesystem::create_symlink(folder_.path / "pool/21.png", dog / "c.png");
  std::filesystem::create_directory_symlink(folder_.path / "more", dog / "d");
  const auto dataset = open();
  ASSERT_EQ(dataset->size(), 6U);
  const Batch batch = read(*dataset, {2, 3, 4, 5});
  EXPECT_THAT(batch.classes, ElementsAre(1, 1, 1, 1));
  std::vector<int> first;  // red of each
  for (std::size_t i = 0; i < 4; ++i) first.push_back(static_cast<int>(std::lround(batch.features[6 * i] * 255)));
  EXPECT_THAT(first, ElementsAre(22, 1, 21, 23));
}

TEST_F(ImageFolders, ALinkToAFolderThatItIsInIsAnError) {
  for (const char* target : {"train/dog", "train"}) {
    const std::filesystem::path link = folder_.path / "train/dog/again";
    std::filesystem::create_directory_symlink(folder_.path / target, link);
    EXPECT_THAT(refusal(), HasSubstr("train/dog' cannot be read: ")) << target;
    std::filesystem::remove(link);
  }
}

TEST_F(ImageFolders, ALinkToItselfBesideTheClassesIsNoClass) {
  std::filesystem::create_symlink("loop", folder_.path / "train/loop");
  const auto dataset = open();
  ASSERT_NE(dataset, nullptr);
  EXPECT_THAT(dataset->preprocessing().class_names, ElementsAre("cat", "dog"));
}

constexpr std::int64_t kShape[] = {2, 4, 5};

std::vector<float> make_images(std::size_t count) {
  std::vector<float> images(count * 40);
  std::iota(images.begin(), images.end(), 1.0F);
  return images;
}

// Which move and mirroring made this image, or nothing.
std::optional<std::array<int, 3>> find_draw(std::span<const float> image, std::span<const float> from, int padding) {
  for (int mirrored = 0; mirrored < 2; ++mirrored) {
    for (int down = -padding; down <= padding; ++down) {
      for (int right = -padding; right <= padding; ++right) {
        bool is_it = true;
        for (int at = 0; at < 40; ++at) {
          const int channel = at / 20, row = at / 5 % 4 + down, column = at % 5 + right;
          const bool inside = row >= 0 && row < 4 && column >= 0 && column < 5;
          const int source = channel * 20 + row * 5 + (mirrored == 1 ? 4 - column : column);
          is_it = is_it && image[static_cast<std::size_t>(at)] == (inside ? from[static_cast<std::size_t>(source)] : 0);
        }
        if (is_it) return std::array{mirrored, down, right};
      }
    }
  }
  return std::nullopt;
}

TEST(Augmentation, MovesAndMirrorsEveryWay) {
  const Augmentation augmentation{.crop_padding = 1, .horizontal_flip = true, .seed = 3};
  std::vector<std::uint32_t> samples(400);
  std::iota(samples.begin(), samples.end(), 0);
  const std::vector<float> before = make_images(samples.size());
  std::vector<float> after = before;
  augment(augmentation, 0, samples, kShape, after);
  std::set<std::array<int, 3>> draws;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const auto draw = find_draw(std::span(after).subspan(i * 40, 40), std::span(before).subspan(i * 40, 40), 1);
    ASSERT_TRUE(draw) << i;
    draws.insert(*draw);
  }
  EXPECT_EQ(draws.size(), 18U);  // 3 x 3 moves, mirrored or not
}

TEST(Augmentation, IsOfSeedEpochAndSampleAlone) {
  Augmentation augmentation{.crop_padding = 2, .horizontal_flip = true, .seed = 3};
  const std::vector<float> before = make_images(1);
  const auto once = [&](std::uint64_t epoch, std::uint32_t sample) {
    std::vector<float> image = before;
    augment(augmentation, epoch, {&sample, 1}, kShape, image);
    return image;
  };
  std::vector<float> two = before;
  two.insert(two.end(), before.begin(), before.end());
  const std::uint32_t samples[] = {9, 4};
  augment(augmentation, 1, samples, kShape, two);
  EXPECT_EQ(std::vector<float>(two.begin(), two.begin() + 40), once(1, 9));
  EXPECT_EQ(std::vector<float>(two.begin() + 40, two.end()), once(1, 4));
  std::set<std::vector<float>> by_epoch, by_sample, by_seed;
  for (std::uint32_t i = 0; i < 20; ++i) {
    by_epoch.insert(once(i, 9));
    by_sample.insert(once(1, i));
  }
  for (augmentation.seed = 0; augmentation.seed < 20; ++augmentation.seed) by_seed.insert(once(1, 9));
  EXPECT_GT(by_epoch.size(), 5U);
  EXPECT_GT(by_sample.size(), 5U);
  EXPECT_GT(by_seed.size(), 5U);
}

TEST(Augmentation, OfNothingChangesNothing) {
  std::vector<float> image = make_images(1);
  const std::uint32_t sample = 5;
  augment({.seed = 4}, 1, {&sample, 1}, kShape, image);
  EXPECT_EQ(image, make_images(1));
}

}  // namespace
}  // namespace motley::data
