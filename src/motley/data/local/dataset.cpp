#include "motley/data/local/dataset.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "motley/data/local/openers.h"

namespace motley::data {
namespace {

constexpr std::uint64_t kMeasuredBytes = std::uint64_t{8} << 30;  // of features, for the normalisation

}  // namespace

std::string install_hint(const std::filesystem::path& file) {
  const char* const package = file.parent_path() == kFashionMnistFolder ? "dataset-fashion-mnist"
                              : file == kJargonFile                     ? "jargon-text"
                                                                        : nullptr;
  return package == nullptr ? "" : fmt::format(": install it with 'apt-get install {}'", package);
}

void convert_features(std::span<const std::uint8_t> bytes, const ByteFeatures& form, std::size_t width,
                      std::span<float> features) {
  std::ranges::copy(bytes, features.begin());
  normalise_features(features, form, width);
}

void normalise_features(std::span<float> features, const ByteFeatures& form, std::size_t width) {
  const Normalisation& by = form.normalisation;
  if (form.scale != 1) {
    for (float& feature : features) feature /= form.scale;
  }
  if (by.mean.size() == 1) {
    for (float& feature : features) feature = (feature - by.mean[0]) / by.deviation[0];
    return;
  }
  for (std::size_t begin = 0; !by.mean.empty() && begin < features.size(); begin += width) {
    for (std::size_t k = 0; k < width; ++k) {
      features[begin + k] = (features[begin + k] - by.mean[k]) / by.deviation[k];
    }
  }
}

std::size_t Dataset::feature_count() const {
  const std::vector<std::int64_t>& shape = feature_shape();
  return static_cast<std::size_t>(std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>()));
}

void Dataset::check_room(std::span<const std::uint32_t> samples, const ReadTarget& into) const {
  const auto fits = [&](std::size_t room, bool has, std::size_t each) {
    return room == 0 || (has && room == samples.size() * each);
  };
  const bool has_classes = target_kind() == TargetKind::kClass;
  MOTLEY_INVARIANT(
      fits(into.features.size(), true, feature_count()) &&
          fits(into.bytes.size(), byte_features() != nullptr, feature_count()) &&
          fits(into.ids.size(), true, categories()) && fits(into.classes.size(), has_classes, target_width()) &&
          fits(into.values.size(), !has_classes, target_width()),
      "room for {} features, {} bytes, {} ids, {} classes and {} values to read {} samples", into.features.size(),
      into.bytes.size(), into.ids.size(), into.classes.size(), into.values.size(), samples.size());
}

Result<std::optional<ImprobableTarget>> find_improbable_target(const Dataset& dataset) {
  std::optional<ImprobableTarget> found;
  if (dataset.target_kind() != TargetKind::kReal) return found;
  std::vector<float> values(dataset.target_width());
  for (std::uint32_t sample = 0; sample < dataset.size(); ++sample) {
    MOTLEY_TRY(dataset.read({&sample, 1}, {.features = {}, .classes = {}, .values = values}));
    const auto wrong = std::ranges::find_if_not(values, [](float value) { return value >= 0 && value <= 1; });
    if (wrong == values.end()) continue;
    found = ImprobableTarget{.sample = sample, .value = *wrong};
    break;
  }
  return found;
}

Result<Normalisation> measure_normalisation(const Dataset& dataset) {
  const std::size_t width = dataset.feature_count();
  std::vector<double> mean(width, 0), squares(width, 0);
  std::vector<float> features(width);
  const std::uint64_t measured =
      std::clamp<std::uint64_t>(kMeasuredBytes / std::max<std::size_t>(1, width * sizeof(float)), 1, dataset.size());
  // Welford's update, sample by sample.
  for (std::uint64_t i = 0; i < measured; ++i) {
    const auto sample = static_cast<std::uint32_t>(i * dataset.size() / measured);
    MOTLEY_TRY(dataset.read({&sample, 1}, {features, {}, {}}));
    for (std::size_t k = 0; k < width; ++k) {
      const double off = features[k] - mean[k];
      mean[k] += off / (static_cast<double>(i) + 1);
      squares[k] += off * (features[k] - mean[k]);
    }
  }
  Normalisation result;
  for (std::size_t k = 0; k < width; ++k) {
    const double deviation = std::sqrt(squares[k] / static_cast<double>(measured));
    result.mean.push_back(static_cast<float>(mean[k]));
    result.deviation.push_back(deviation > 1e-12 ? static_cast<float>(deviation) : 1.0F);
  }
  return result;
}

Result<std::unique_ptr<Dataset>> open_dataset(const DatasetSource& source) {
  if (!(source.malformed_share >= 0 && source.malformed_share <= 1)) {
    return fail(ErrorCode::kInvalidInput, "data.max_malformed_fraction: {}; accepted: 0 to 1, a share of the lines",
                source.malformed_share);
  }
  try {
    switch (source.format) {
      case DatasetSource::Format::kIdx:
        return open_idx(source);
      case DatasetSource::Format::kCsv:
        return open_csv(source);
      case DatasetSource::Format::kArrow:
        return open_arrow(source);
      case DatasetSource::Format::kNpy:
        return open_npy(source);
      case DatasetSource::Format::kText:
        return open_text(source);
      case DatasetSource::Format::kTokens:
        return open_tokens(source);
      case DatasetSource::Format::kCriteo:
        return open_criteo(source);
      case DatasetSource::Format::kImageFolder:
        break;
    }
    return open_image_folder(source);
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kUnavailable, "{}: not enough memory to hold the dataset", source.features.string());
  }
}

DatasetSource fashion_mnist(bool training_set, const std::filesystem::path& folder) {
  const std::string stem = training_set ? "train" : "t10k";
  DatasetSource source;
  source.features = folder / (stem + "-images-idx3-ubyte.gz");
  source.targets = folder / (stem + "-labels-idx1-ubyte.gz");
  source.class_count = 10;
  source.normalisation = {{0.2860F}, {0.3530F}};
  return source;
}

}  // namespace motley::data
