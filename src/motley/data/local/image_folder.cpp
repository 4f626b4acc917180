// A folder with a folder of images for each class. Images are decoded when they are read, so that none needs to be in
// memory.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>

#include "motley/base/os/file.h"
#include "motley/base/units.h"
#include "motley/data/local/array_dataset.h"
#include "motley/data/local/image.h"
#include "motley/data/local/openers.h"

namespace motley::data {
namespace {

namespace fs = std::filesystem;

constexpr std::uint32_t kMeasuredImages = 512;                // for the normalisation
constexpr std::size_t kMaxImageBytes = std::size_t{1} << 30;  // of a file

bool is_image(const fs::path& file) {
  std::string ending = file.extension().string();
  std::ranges::transform(ending, ending.begin(), [](unsigned char c) { return std::tolower(c); });
  return ending == ".jpg" || ending == ".jpeg" || ending == ".png";
}

class ImageFolder final : public Dataset {
 public:
  explicit ImageFolder(const DatasetSource& source)
      : folder_(source.features),
        images_(source.images),
        shape_{source.images.grayscale ? 1 : 3, source.images.height, source.images.width} {}

  std::uint32_t size() const override { return static_cast<std::uint32_t>(files_.size()); }
  const std::vector<std::int64_t>& feature_shape() const override { return shape_; }
  TargetKind target_kind() const override { return TargetKind::kClass; }
  std::uint32_t class_count() const override { return preprocessing_.class_count; }
  std::uint32_t target_width() const override { return 1; }
  const ByteFeatures* byte_features() const override { return &form_; }

  // Finds the images, in the order of their classes' and their own names.
  Status list(const DatasetSource& source) {
    std::error_code error;
    for (fs::directory_iterator at(folder_, error), end; !error && at != end; at.increment(error)) {
      std::error_code unknown;  // of what leads nowhere, such as a link to itself, which is no class
      if (at->is_directory(unknown)) preprocessing_.class_names.push_back(at->path().filename().string());
    }
    if (error || preprocessing_.class_names.empty()) {
      return fail(ErrorCode::kInvalidInput,
                  "'{}' {}; accepted: a folder with a folder of .jpg, .jpeg and .png images for each class",
                  folder_.string(), error ? "cannot be read: " + error.message() : "has no folders in it");
    }
    std::ranges::sort(preprocessing_.class_names);
    const std::vector<std::string> own = preprocessing_.class_names;
    if (source.preprocessing != nullptr) preprocessing_ = *source.preprocessing;
    const LabelClasses classes(preprocessing_.class_names);
    for (const std::string& name : own) {
      MOTLEY_ASSIGN(const std::int64_t value, classes.find(name, fmt::format("'{}'", folder_.string())));
      MOTLEY_TRY(list_class(name, value));
    }
    preprocessing_.class_count = static_cast<std::uint32_t>(preprocessing_.class_names.size());
    MOTLEY_TRY(sample_count(files_.size(), folder_.string()));
    notes_.push_back(fmt::format("'{}' has {} of {}: {}", folder_.string(), format_count(files_.size(), "image"),
                                 format_count(own.size(), "class", "es"), list_first(own)));
    if (others_ > 0) {
      notes_.push_back(
          fmt::format("{} files below '{}' are no .jpg, .jpeg or .png images and are left out; the first: {}", others_,
                      folder_.string(), first_other_));
    }
    return {};
  }

  // The same shift and scale for all pixels of a channel, as measured on images spread evenly.
  Status measure() {
    const auto channels = static_cast<std::size_t>(shape_[0]), pixels = feature_count() / channels;
    std::vector<double> sums(channels, 0), squares(channels, 0);
    std::vector<std::uint8_t> bytes(feature_count());
    const std::uint64_t count = std::min(size(), kMeasuredImages);
    for (std::uint64_t i = 0; i < count; ++i) {
      const auto sample = static_cast<std::uint32_t>(i * size() / count);
      MOTLEY_TRY(read({&sample, 1}, {.features = {}, .classes = {}, .values = {}, .ids = {}, .bytes = bytes}));
      for (std::size_t k = 0; k < bytes.size(); ++k) {
        const double value = bytes[k] / 255.0;
        sums[k / pixels] += value;
        squares[k / pixels] += value * value;
      }
    }
    Normalisation measured;
    for (std::size_t channel = 0; channel < channels; ++channel) {
      const double total = static_cast<double>(count * pixels), mean = sums[channel] / total;
      const double variance = std::max(0.0, squares[channel] / total - mean * mean);
      measured.mean.insert(measured.mean.end(), pixels, static_cast<float>(mean));
      measured.deviation.insert(measured.deviation.end(), pixels,
                                variance > 1e-12 ? static_cast<float>(std::sqrt(variance)) : 1.0F);
    }
    set_normalisation(std::move(measured));
    return {};
  }
  void set_normalisation(Normalisation normalisation) {
    preprocessing_.normalisation = form_.normalisation = std::move(normalisation);
  }

  Status read(std::span<const std::uint32_t> samples, const ReadTarget& into) const override {
    check_room(samples, into);
    const std::size_t width = feature_count();
    std::vector<std::uint8_t> bytes(into.features.empty() && into.bytes.empty() ? 0 : width);
    for (std::size_t i = 0; i < samples.size(); ++i) {
      MOTLEY_INVARIANT(samples[i] < size(), "sample {} of a dataset of {}", samples[i], size());
      if (!into.classes.empty()) into.classes[i] = files_[samples[i]].value;
      if (bytes.empty()) continue;
      MOTLEY_TRY(decode(files_[samples[i]], bytes));
      if (!into.bytes.empty()) std::ranges::copy(bytes, into.bytes.begin() + static_cast<std::ptrdiff_t>(i * width));
      if (!into.features.empty()) convert_features(bytes, form_, width, into.features.subspan(i * width, width));
    }
    return {};
  }

 private:
  struct File {
    std::string name;  // below the folder
    std::int64_t value;
  };

  Status list_class(const std::string& name, std::int64_t value) {
    std::vector<std::string> found;
    std::error_code error;
    constexpr auto kFollow = fs::directory_options::follow_directory_symlink;
    for (fs::recursive_directory_iterator at(folder_ / name, kFollow, error), end; !error && at != end;
         at.increment(error)) {
      std::error_code unknown;
      if (at->is_directory(unknown)) continue;
      if (unknown == std::errc::too_many_symbolic_link_levels) {  // a link to a folder that it is in
        error = unknown;
        break;
      }
      std::string file = at->path().lexically_relative(folder_).string();  // not where links lead
      if (is_image(at->path())) {
        found.push_back(std::move(file));
      } else if (others_++ == 0 || file < first_other_) {
        first_other_ = std::move(file);
      }
    }
    if (error || found.empty()) {
      return fail(ErrorCode::kInvalidInput, "'{}' {}; accepted: a folder with .jpg, .jpeg or .png images",
                  (folder_ / name).string(), error ? "cannot be read: " + error.message() : "has no image");
    }
    std::ranges::sort(found);
    for (std::string& file : found) files_.push_back({std::move(file), value});
    return {};
  }

  // The image as the network gets it, channel by channel.
  Status decode(const File& file, std::span<std::uint8_t> into) const {
    const fs::path path = folder_ / file.name;
    MOTLEY_ASSIGN(const std::string packed, read_file(path, kMaxImageBytes));
    MOTLEY_ASSIGN(Image image, decode_image(packed, path.string()));
    if (images_.grayscale) image = to_grayscale(image);
    image = resize(image, images_.width, images_.height);
    const std::size_t pixels = std::size_t{image.width} * image.height;
    for (std::size_t i = 0; i < into.size(); ++i) into[i] = image.pixels[i % pixels * image.channels + i / pixels];
    return {};
  }

  const fs::path folder_;
  const ImageForm images_;
  const std::vector<std::int64_t> shape_;
  ByteFeatures form_ = {.scale = 255, .normalisation = {}};
  std::vector<File> files_;
  std::uint64_t others_ = 0;
  std::string first_other_;
};

}  // namespace

Result<std::unique_ptr<Dataset>> open_image_folder(const DatasetSource& source) {
  auto dataset = std::make_unique<ImageFolder>(source);
  MOTLEY_TRY(dataset->list(source));
  if (source.preprocessing != nullptr) {
    dataset->set_normalisation(source.preprocessing->normalisation);
  } else if (source.normalise) {
    MOTLEY_TRY(dataset->measure());
  }
  return dataset;
}

}  // namespace motley::data
