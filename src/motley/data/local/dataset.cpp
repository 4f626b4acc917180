#include "motley/data/local/dataset.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "motley/base/os/file.h"
#include "motley/data/local/formats.h"

namespace motley::data {
namespace {

std::size_t count_elements(const std::vector<std::int64_t>& shape) {
  return static_cast<std::size_t>(std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>()));
}

// All samples as they lie in the files: images as bytes (four times smaller), the rest as floats.
struct Contents {
  std::uint32_t size = 0;
  std::vector<std::int64_t> shape;
  TargetKind kind = TargetKind::kClass;
  std::uint32_t class_count = 0;
  std::uint32_t target_width = 1;
  std::string bytes;  // the unpacked IDX file; its values start at bytes_begin
  std::size_t bytes_begin = 0;
  std::vector<float> floats;
  std::vector<std::int64_t> classes;
  std::vector<float> values;
  std::uint32_t categories = 0;
  std::vector<std::uint64_t> ids;
  ByteFeatures form = {.scale = 255, .normalisation = {}};  // of bytes; floats have the normalisation alone
  Skipped skipped;
};

// Of samples of `width` features each.
void normalise(std::span<float> features, const Normalisation& by, std::size_t width) {
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

class MemoryDataset final : public Dataset {
 public:
  explicit MemoryDataset(Contents contents) : contents_(std::move(contents)) {}

  std::uint32_t size() const override { return contents_.size; }
  const std::vector<std::int64_t>& feature_shape() const override { return contents_.shape; }
  TargetKind target_kind() const override { return contents_.kind; }
  std::uint32_t class_count() const override { return contents_.class_count; }
  std::uint32_t target_width() const override { return contents_.target_width; }
  std::uint32_t categories() const override { return contents_.categories; }
  const ByteFeatures* byte_features() const override { return contents_.bytes.empty() ? nullptr : &contents_.form; }
  Skipped skipped() const override { return contents_.skipped; }

  Status read(std::span<const std::uint32_t> samples, const ReadTarget& into) const override {
    check_room(samples, into);
    const std::size_t width = feature_count();
    const std::size_t features = into.features.empty() ? 0 : width;
    const std::size_t bytes = into.bytes.empty() ? 0 : width;
    const std::size_t categories = into.ids.empty() ? 0 : contents_.categories;
    const std::size_t classes = into.classes.empty() ? 0 : 1;
    const std::size_t values = into.values.empty() ? 0 : contents_.target_width;
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const std::size_t sample = samples[i];
      MOTLEY_INVARIANT(sample < contents_.size, "sample {} of a dataset of {}", sample, contents_.size);
      const std::span<float> own = into.features.subspan(i * features, features);
      if (contents_.bytes.empty()) {
        std::copy_n(contents_.floats.data() + sample * features, features, own.data());
        normalise(own, contents_.form.normalisation, width);
      } else {
        const std::span<const std::uint8_t> stored = stored_bytes(sample);
        convert_features(stored.first(features), contents_.form, width, own);
        std::copy_n(stored.data(), bytes, into.bytes.data() + i * bytes);
      }
      std::copy_n(contents_.ids.data() + sample * categories, categories, into.ids.data() + i * categories);
      std::copy_n(contents_.classes.data() + sample * classes, classes, into.classes.data() + i * classes);
      std::copy_n(contents_.values.data() + sample * values, values, into.values.data() + i * values);
    }
    return {};
  }

 private:
  std::span<const std::uint8_t> stored_bytes(std::size_t sample) const {
    const std::size_t width = feature_count();
    const char* const begin = contents_.bytes.data() + contents_.bytes_begin + sample * width;
    return {reinterpret_cast<const std::uint8_t*>(begin), width};
  }

  Contents contents_;
};

// The windows of a text (see open_dataset), which must hold them all and the byte after the last one.
class TextDataset final : public Dataset {
 public:
  TextDataset(std::string text, std::uint32_t sequence, std::uint32_t size)
      : text_(std::move(text)), shape_{sequence}, sequence_(sequence), size_(size) {}

  std::uint32_t size() const override { return size_; }
  const std::vector<std::int64_t>& feature_shape() const override { return shape_; }
  TargetKind target_kind() const override { return TargetKind::kClass; }
  std::uint32_t class_count() const override { return 256; }
  std::uint32_t target_width() const override { return sequence_; }
  const ByteFeatures* byte_features() const override { return &form_; }

  Status read(std::span<const std::uint32_t> samples, const ReadTarget& into) const override {
    check_room(samples, into);
    for (std::size_t i = 0; i < samples.size(); ++i) {
      MOTLEY_INVARIANT(samples[i] < size_, "sample {} of a dataset of {}", samples[i], size_);
      const auto* const tokens =
          reinterpret_cast<const std::uint8_t*>(text_.data()) + std::size_t{samples[i]} * sequence_;
      const std::size_t at = i * sequence_;
      std::copy_n(tokens, into.features.empty() ? 0 : sequence_, into.features.data() + at);
      std::copy_n(tokens, into.bytes.empty() ? 0 : sequence_, into.bytes.data() + at);
      std::copy_n(tokens + 1, into.classes.empty() ? 0 : sequence_, into.classes.data() + at);
    }
    return {};
  }

 private:
  ByteFeatures form_;  // as they are
  std::string text_;
  std::vector<std::int64_t> shape_;
  std::uint32_t sequence_;
  std::uint32_t size_;
};

// A class as the files hold it: an integer from 0 to a count that a network can have outputs for.
constexpr double kMaxClasses = 1 << 24;

// `class_count` as the user said it; 0: any.
Status check_class(std::int64_t value, std::uint32_t class_count, const std::string& where) {
  if (class_count == 0 || value < class_count) return {};
  return fail(ErrorCode::kInvalidInput, "{}: class {} was found where {} classes (0 to {}) were said to be", where,
              value, class_count, class_count - 1);
}

Result<std::int64_t> read_class(double value, std::uint32_t class_count, const std::string& where) {
  if (!(value >= 0) || value >= kMaxClasses || value != std::floor(value)) {
    return fail(ErrorCode::kInvalidInput,
                "{}: class {} is no integer from 0 to {}; real targets are accepted with the target kind 'real'", where,
                value, kMaxClasses - 1);
  }
  MOTLEY_TRY(check_class(static_cast<std::int64_t>(value), class_count, where));
  return static_cast<std::int64_t>(value);
}

// What a dataset of `rows` good lines tells of the malformed ones, or an error where there are too many of them.
Result<Skipped> skipped_lines(MalformedLines malformed, std::uint64_t rows, double accepted_share) {
  const std::uint64_t lines = rows + malformed.count;
  // The share was written as a decimal: 0.29 of 100 lines are 29, where the product is a little less.
  const double accepted = std::floor(accepted_share * static_cast<double>(lines) * (1 + 1e-12));
  if (malformed.count > 0 && static_cast<double>(malformed.count) > accepted) {
    return fail(ErrorCode::kInvalidInput,
                "{}; malformed are {} of {} lines; data.max_malformed_fraction: {} accepts {}", malformed.first,
                malformed.count, lines, accepted_share, accepted);
  }
  return Skipped{malformed.count, std::move(malformed.first)};
}

// Checks what all formats share and fills in the class count and normalisation.
Result<std::unique_ptr<Dataset>> finished(Contents contents, const DatasetSource& source) {
  const std::size_t features = count_elements(contents.shape);
  const std::string name = source.features.string();
  if (contents.size == 0 || (features == 0 && contents.categories == 0)) {
    return fail(ErrorCode::kInvalidInput, "{}: {} samples of {} features; at least one of each is needed", name,
                contents.size, features);
  }
  if (contents.kind == TargetKind::kClass) {
    const std::int64_t largest = std::ranges::max(contents.classes);
    MOTLEY_TRY(check_class(largest, source.class_count, source.targets.empty() ? name : source.targets.string()));
    if (contents.class_count == 0) {
      contents.class_count = source.class_count > 0 ? source.class_count : static_cast<std::uint32_t>(largest) + 1;
    }
  }
  const Normalisation& normalisation = source.normalisation;
  const std::size_t pairs = normalisation.mean.size();
  if (normalisation.deviation.size() != pairs || (pairs > 1 && pairs != features)) {
    return fail(
        ErrorCode::kInvalidInput,
        "{}: normalisation with {} means and {} deviations for {} features; none, one or one a feature is wanted", name,
        pairs, normalisation.deviation.size(), features);
  }
  for (std::size_t i = 0; i < pairs; ++i) {
    if (!std::isfinite(normalisation.mean[i]) || !(normalisation.deviation[i] > 0) ||
        !std::isfinite(normalisation.deviation[i])) {
      return fail(ErrorCode::kInvalidInput,
                  "{}: normalisation by mean {} and deviation {}; the deviation must be above 0", name,
                  normalisation.mean[i], normalisation.deviation[i]);
    }
  }
  contents.form.normalisation = normalisation;
  return std::make_unique<MemoryDataset>(std::move(contents));
}

Result<std::uint32_t> sample_count(std::uint64_t count, const std::string& name) {
  if (count >= std::numeric_limits<std::uint32_t>::max()) {
    return fail(ErrorCode::kInvalidInput, "{}: {} samples; fewer than 2^32 - 1 are accepted", name, count);
  }
  return static_cast<std::uint32_t>(count);
}

Result<std::string> read_unpacked(const std::filesystem::path& path, std::size_t limit) {
  if (const std::string hint = install_hint(path); !hint.empty() && !std::filesystem::exists(path)) {
    return fail(ErrorCode::kUnavailable, "cannot read '{}'{}", path.string(), hint);
  }
  MOTLEY_ASSIGN(std::string bytes, read_file(path, limit));
  return gunzip(std::move(bytes), path.string(), limit);
}

Result<std::unique_ptr<Dataset>> open_idx(const DatasetSource& source) {
  const std::string images_name = source.features.string(), labels_name = source.targets.string();
  Contents contents;
  MOTLEY_ASSIGN(contents.bytes, read_unpacked(source.features, source.limit_bytes));
  MOTLEY_ASSIGN(const IdxArray images, parse_idx(contents.bytes, images_name));
  MOTLEY_ASSIGN(const std::string label_bytes, read_unpacked(source.targets, source.limit_bytes));
  MOTLEY_ASSIGN(const IdxArray labels, parse_idx(label_bytes, labels_name));
  if (labels.sizes.size() != 1 || images.sizes.size() < 2 || labels.sizes[0] != images.sizes[0]) {
    return fail(ErrorCode::kInvalidInput,
                "{} has sizes {} and {} has sizes {}: as many labels as images are wanted (images NxHxW, labels N)",
                images_name, fmt::join(images.sizes, "x"), labels_name, fmt::join(labels.sizes, "x"));
  }
  if (source.target_kind != TargetKind::kClass) {
    return fail(ErrorCode::kInvalidInput, "{}: IDX labels are classes; real targets are accepted from CSV and npy",
                labels_name);
  }
  MOTLEY_ASSIGN(contents.size, sample_count(images.sizes[0], images_name));
  contents.bytes_begin = contents.bytes.size() - images.values.size();
  if (images.sizes.size() == 3) {
    contents.shape.push_back(1);  // grey images have one channel
  }
  contents.shape.insert(contents.shape.end(), images.sizes.begin() + 1, images.sizes.end());
  for (const char label : labels.values) contents.classes.push_back(static_cast<unsigned char>(label));
  return finished(std::move(contents), source);
}

Result<std::unique_ptr<Dataset>> open_csv(const DatasetSource& source) {
  const std::string name = source.features.string();
  if (std::ranges::find(source.categories, source.target_column) != source.categories.end()) {
    return fail(ErrorCode::kInvalidInput,
                "{}: column '{}' is the target and named in data.categorical_columns; accepted there: columns besides "
                "the target",
                name, source.target_column);
  }
  MOTLEY_ASSIGN(const std::string text, read_unpacked(source.features, source.limit_bytes));
  MalformedLines malformed;
  MOTLEY_ASSIGN(const Table table, parse_csv(text, name, source.drop_columns, source.categories, &malformed));
  const auto found = std::ranges::find(table.columns, source.target_column);
  if (found == table.columns.end()) {
    return fail(ErrorCode::kInvalidInput, "{}: has no column '{}' for the target; its columns are {}", name,
                source.target_column, fmt::join(table.columns, ", "));
  }
  const auto target = static_cast<std::size_t>(found - table.columns.begin());
  const std::size_t columns = table.columns.size(), categories = source.categories.size();
  Contents contents;
  contents.kind = source.target_kind;
  contents.shape = {static_cast<std::int64_t>(columns - 1)};
  contents.categories = static_cast<std::uint32_t>(categories);
  std::uint64_t rows = 0;
  for (std::size_t row = 0; row < table.rows(); ++row) {
    const double* const cells = table.cells.data() + row * columns;
    if (source.target_kind == TargetKind::kReal) {
      contents.values.push_back(static_cast<float>(cells[target]));
    } else {
      auto value = read_class(cells[target], source.class_count,
                              fmt::format("{}:{}: column '{}'", name, table.lines[row], source.target_column));
      if (!value) {
        malformed.add(table.lines[row], std::move(value).error().message);
        continue;
      }
      contents.classes.push_back(*value);
    }
    ++rows;
    for (std::size_t column = 0; column < columns; ++column) {
      if (column != target) contents.floats.push_back(static_cast<float>(cells[column]));
    }
    const auto ids = table.ids.begin() + static_cast<std::ptrdiff_t>(row * categories);
    contents.ids.insert(contents.ids.end(), ids, ids + static_cast<std::ptrdiff_t>(categories));
  }
  MOTLEY_ASSIGN(contents.skipped, skipped_lines(std::move(malformed), rows, source.malformed_share));
  MOTLEY_ASSIGN(contents.size, sample_count(rows, name));
  return finished(std::move(contents), source);
}

Result<std::unique_ptr<Dataset>> open_criteo(const DatasetSource& source) {
  const std::string name = source.features.string();
  if (source.target_kind != TargetKind::kClass) {
    return fail(ErrorCode::kInvalidInput, "{}: Criteo's labels are classes; real targets are accepted from CSV and npy",
                name);
  }
  MOTLEY_ASSIGN(const std::string text, read_unpacked(source.features, source.limit_bytes));
  MalformedLines malformed;
  MOTLEY_ASSIGN(CriteoLines lines, parse_criteo(text, name, &malformed));
  Contents contents;
  contents.shape = {static_cast<std::int64_t>(kCriteoFeatures)};
  contents.class_count = 2;
  contents.categories = kCriteoCategories;
  MOTLEY_ASSIGN(contents.skipped, skipped_lines(std::move(malformed), lines.rows(), source.malformed_share));
  MOTLEY_ASSIGN(contents.size, sample_count(lines.rows(), name));
  contents.floats = std::move(lines.features);
  contents.ids = std::move(lines.ids);
  contents.classes = std::move(lines.classes);
  return finished(std::move(contents), source);
}

Result<std::unique_ptr<Dataset>> open_npy(const DatasetSource& source) {
  const std::string name = source.features.string(), targets_name = source.targets.string();
  MOTLEY_ASSIGN(const std::string bytes, read_unpacked(source.features, source.limit_bytes));
  MOTLEY_ASSIGN(const NpyArray features, parse_npy(bytes, name));
  MOTLEY_ASSIGN(const std::string target_bytes, read_unpacked(source.targets, source.limit_bytes));
  MOTLEY_ASSIGN(const NpyArray targets, parse_npy(target_bytes, targets_name));
  const bool classes = source.target_kind == TargetKind::kClass;
  if (features.shape.size() < 2 || targets.shape.empty() || targets.shape.size() > (classes ? 1 : 2) ||
      features.shape[0] != targets.shape[0]) {
    return fail(ErrorCode::kInvalidInput,
                "{} has shape ({}) and {} has shape ({}): features (N, ...) and targets {} are wanted", name,
                fmt::join(features.shape, ", "), targets_name, fmt::join(targets.shape, ", "),
                classes ? "(N) of classes" : "(N) or (N, width)");
  }
  Contents contents;
  contents.kind = source.target_kind;
  MOTLEY_ASSIGN(contents.size, sample_count(features.shape[0], name));
  contents.shape.assign(features.shape.begin() + 1, features.shape.end());
  const auto finite = [](const NpyArray& array, const std::string& file, std::vector<float>& into) -> Status {
    into.reserve(array.count());
    for (std::uint64_t i = 0; i < array.count(); ++i) {
      into.push_back(static_cast<float>(array.at(i)));
      if (!std::isfinite(into.back())) {
        return fail(ErrorCode::kInvalidInput, "{}: value {} (counted from 0) is {}; finite 32-bit numbers are wanted",
                    file, i, array.at(i));
      }
    }
    return {};
  };
  MOTLEY_TRY(finite(features, name, contents.floats));
  if (classes) {
    for (std::uint64_t i = 0; i < targets.count(); ++i) {
      MOTLEY_ASSIGN(const std::int64_t value,
                    read_class(targets.at(i), 0, fmt::format("{}: value {} (counted from 0)", targets_name, i)));
      contents.classes.push_back(value);
    }
  } else {
    contents.target_width = targets.shape.size() == 2 ? static_cast<std::uint32_t>(targets.shape[1]) : 1;
    MOTLEY_TRY(finite(targets, targets_name, contents.values));
    if (contents.target_width == 0) {
      return fail(ErrorCode::kInvalidInput, "{}: targets of width 0; at least one value a sample is wanted",
                  targets_name);
    }
  }
  return finished(std::move(contents), source);
}

Result<std::unique_ptr<Dataset>> open_text(const DatasetSource& source) {
  const std::string name = source.features.string();
  MOTLEY_ASSIGN(const std::string text, read_unpacked(source.features, source.limit_bytes));
  const auto byte_at = [&](double share) { return static_cast<std::size_t>(share * static_cast<double>(text.size())); };
  std::string part = text.substr(byte_at(source.text_begin), byte_at(source.text_end) - byte_at(source.text_begin));
  if (part.size() <= source.sequence) {
    return fail(ErrorCode::kInvalidInput,
                "{}: {} of its {} bytes are used here; accepted: {} or more, which are one sequence of {} and the byte "
                "after it",
                name, part.size(), text.size(), std::size_t{source.sequence} + 1, source.sequence);
  }
  MOTLEY_ASSIGN(const std::uint32_t size, sample_count((part.size() - 1) / source.sequence, name));
  return std::make_unique<TextDataset>(std::move(part), source.sequence, size);
}

}  // namespace

std::string install_hint(const std::filesystem::path& file) {
  const char* const package = file.parent_path() == kFashionMnistFolder ? "dataset-fashion-mnist"
                              : file == kJargonFile                     ? "jargon-text"
                                                                        : nullptr;
  return package == nullptr ? "" : fmt::format(": install it with 'apt-get install {}'", package);
}

void convert_features(std::span<const std::uint8_t> bytes, const ByteFeatures& form, std::size_t width,
                      std::span<float> features) {
  std::ranges::transform(bytes, features.begin(), [&](std::uint8_t byte) { return byte / form.scale; });
  normalise(features, form.normalisation, width);
}

std::size_t Dataset::feature_count() const {
  return count_elements(feature_shape());
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

Result<Normalisation> measure_normalisation(const Dataset& dataset) {
  const std::size_t width = dataset.feature_count();
  std::vector<double> mean(width, 0), squares(width, 0);
  std::vector<float> features(width);
  // Welford's update, sample by sample.
  for (std::uint32_t sample = 0; sample < dataset.size(); ++sample) {
    MOTLEY_TRY(dataset.read({&sample, 1}, {features, {}, {}}));
    for (std::size_t k = 0; k < width; ++k) {
      const double off = features[k] - mean[k];
      mean[k] += off / (sample + 1.0);
      squares[k] += off * (features[k] - mean[k]);
    }
  }
  Normalisation result;
  for (std::size_t k = 0; k < width; ++k) {
    const double deviation = std::sqrt(squares[k] / dataset.size());
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
    using enum DatasetSource::Format;
    const auto open = source.format == kIdx    ? open_idx
                      : source.format == kCsv  ? open_csv
                      : source.format == kNpy  ? open_npy
                      : source.format == kText ? open_text
                                               : open_criteo;
    return open(source);
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
