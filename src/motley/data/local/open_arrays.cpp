// IDX and npy files: arrays that are mapped, with the classes or values of their samples in a second file.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "motley/data/local/array_dataset.h"
#include "motley/data/local/file_bytes.h"
#include "motley/data/local/openers.h"

namespace motley::data {
namespace {

constexpr std::uint64_t kMostChannels = 4;  // that an axis is taken for where nobody says

// Whether the channels of a sample of this shape are its last axis.
Result<bool> has_channels_last(const std::vector<std::uint64_t>& shape, ChannelOrder order, const std::string& name) {
  const std::size_t axes = shape.size() - 1;
  if (order == ChannelOrder::kLast && axes < 2) {
    return fail(ErrorCode::kInvalidInput,
                "data.channels: last, but '{}' has shape ({}), samples with one axis; accepted: auto, first", name,
                fmt::join(shape, ", "));
  }
  if (order != ChannelOrder::kAuto || axes != 3) return order == ChannelOrder::kLast;
  const bool may_be_first = shape[1] <= kMostChannels, may_be_last = shape[3] <= kMostChannels;
  if (may_be_first != may_be_last) return may_be_last;
  return fail(
      ErrorCode::kInvalidInput,
      "data.channels: auto cannot tell which axis of '{}' holds the channels: its shape is ({}), and {} of the "
      "first and last axis of a sample is up to {}; accepted: first (N x C x H x W, taken as it is), last (N x H "
      "x W x C)",
      name, fmt::join(shape, ", "), may_be_first ? "each" : "none", kMostChannels);
}

// Where the numbers of samples stand in the file, in the order of a sample's shape, whose last axis is moved to the
// front where it holds the channels. `shape` becomes the sample's.
SampleNumbers place_numbers(const NpyArray& array, bool channels_last, std::vector<std::int64_t>& shape) {
  const std::size_t axes = array.shape.size();
  std::vector<std::uint64_t> strides(axes, 1);
  if (array.fortran_order) {
    for (std::size_t i = 1; i < axes; ++i) strides[i] = strides[i - 1] * array.shape[i - 1];
  } else {
    for (std::size_t i = axes - 1; i > 0; --i) strides[i - 1] = strides[i] * array.shape[i];
  }
  SampleNumbers numbers{.owner = nullptr,
                        .begin = array.values.data(),
                        .type = array.type,
                        .sample_stride = strides[0],
                        .offsets = {},
                        .name = {}};
  std::vector<std::size_t> order(axes - 1);  // the array's axes as the sample has them
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = channels_last ? (i == 0 ? axes - 1 : i) : i + 1;
  for (const std::size_t axis : order) shape.push_back(static_cast<std::int64_t>(array.shape[axis]));
  if (!array.fortran_order && !channels_last) return numbers;
  numbers.offsets = {0};
  for (const std::size_t axis : order) {
    std::vector<std::uint64_t> further;
    for (const std::uint64_t offset : numbers.offsets) {
      for (std::uint64_t i = 0; i < array.shape[axis]; ++i) further.push_back(offset + i * strides[axis]);
    }
    numbers.offsets = std::move(further);
  }
  return numbers;
}

Status check_finite(const NpyArray& array, const std::string& name) {
  if (!is_floating(array.type)) return {};
  return with_number_type(array.type, [&]<class T>(T value) -> Status {
    for (std::uint64_t i = 0; i < array.count(); ++i) {
      std::memcpy(&value, array.values.data() + i * sizeof(T), sizeof(T));
      if (std::isfinite(static_cast<float>(value))) continue;
      return fail(ErrorCode::kInvalidInput, "{}: value {} (counted from 0) is {}; finite 32-bit numbers are wanted",
                  name, i, value);
    }
    return {};
  });
}

// Classes that a file has as integers, or, with data.target_kind label, as any.
Status take_classes(std::vector<double> values, const DatasetSource& source, ArrayContents& contents) {
  const std::string name = source.targets.string();
  const auto where = [&](std::size_t i) { return fmt::format("{}: value {} (counted from 0)", name, i); };
  contents.classes.reserve(values.size());
  if (source.labels != ClassLabels::kLabel) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      MOTLEY_ASSIGN(const std::int64_t value, read_class(values[i], source, where(i)));
      contents.classes.push_back(value);
    }
    return {};
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) {
      return fail(ErrorCode::kInvalidInput, "{}: label {}; finite numbers are accepted", where(i), values[i]);
    }
    values[i] += 0.0;  // -0 is 0
  }
  std::vector<double> different = values;
  std::ranges::sort(different);
  different.erase(std::unique(different.begin(), different.end()), different.end());
  std::vector<std::string>& names = contents.preprocessing.class_names;
  if (source.preprocessing != nullptr) {
    names = source.preprocessing->class_names;
  } else {
    for (const double value : different) names.push_back(fmt::format("{}", value));
  }
  const LabelClasses classes(names);
  for (std::size_t i = 0; i < values.size(); ++i) {
    MOTLEY_ASSIGN(const std::int64_t value, classes.find(fmt::format("{}", values[i]), where(i)));
    contents.classes.push_back(value);
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Dataset>> open_idx(const DatasetSource& source) {
  const std::string images_name = source.features.string(), labels_name = source.targets.string();
  MOTLEY_ASSIGN(const auto image_file, FileBytes::open(source.features, source.limit_bytes));
  MOTLEY_ASSIGN(const IdxArray images, parse_idx(image_file->view(), images_name));
  MOTLEY_ASSIGN(const auto label_file, FileBytes::open(source.targets, source.limit_bytes));
  MOTLEY_ASSIGN(const IdxArray labels, parse_idx(label_file->view(), labels_name));
  if (labels.sizes.size() != 1 || images.sizes.size() < 2 || labels.sizes[0] != images.sizes[0]) {
    return fail(ErrorCode::kInvalidInput,
                "{} has sizes {} and {} has sizes {}: as many labels as images are wanted (images NxHxW, labels N)",
                images_name, fmt::join(images.sizes, "x"), labels_name, fmt::join(labels.sizes, "x"));
  }
  if (source.target_kind != TargetKind::kClass) {
    return fail(ErrorCode::kInvalidInput, "{}: IDX labels are classes; real targets are accepted from CSV and npy",
                labels_name);
  }
  ArrayContents contents;
  MOTLEY_ASSIGN(contents.size, sample_count(images.sizes[0], images_name));
  if (images.sizes.size() == 3) {
    contents.shape.push_back(1);  // grey images have one channel
  }
  contents.shape.insert(contents.shape.end(), images.sizes.begin() + 1, images.sizes.end());
  contents.scale = 255;
  contents.features = {.owner = image_file,
                       .begin = images.values.data(),
                       .type = NumberType::kUint8,
                       .sample_stride = contents.size == 0 ? 0 : images.values.size() / contents.size,
                       .offsets = {},
                       .name = images_name};
  std::vector<double> classes;
  for (const char label : labels.values) classes.push_back(static_cast<unsigned char>(label));
  MOTLEY_TRY(take_classes(std::move(classes), source, contents));
  return make_array_dataset(std::move(contents), source);
}

Result<std::unique_ptr<Dataset>> open_npy(const DatasetSource& source) {
  const std::string name = source.features.string(), targets_name = source.targets.string();
  MOTLEY_ASSIGN(const auto feature_file, FileBytes::open(source.features, source.limit_bytes));
  MOTLEY_ASSIGN(const NpyArray features, parse_npy(feature_file->view(), name));
  MOTLEY_ASSIGN(const auto target_file, FileBytes::open(source.targets, source.limit_bytes));
  MOTLEY_ASSIGN(const NpyArray targets, parse_npy(target_file->view(), targets_name));
  const bool classes = source.target_kind == TargetKind::kClass;
  if (features.shape.size() < 2 || targets.shape.empty() || targets.shape.size() > (classes ? 1 : 2) ||
      features.shape[0] != targets.shape[0]) {
    return fail(ErrorCode::kInvalidInput,
                "{} has shape ({}) and {} has shape ({}): features (N, ...) and targets {} are wanted", name,
                fmt::join(features.shape, ", "), targets_name, fmt::join(targets.shape, ", "),
                classes ? "(N) of classes" : "(N) or (N, width)");
  }
  ArrayContents contents;
  contents.kind = source.target_kind;
  MOTLEY_ASSIGN(contents.size, sample_count(features.shape[0], name));
  bool& channels_last = contents.preprocessing.channels_last;
  if (source.preprocessing != nullptr) {
    channels_last = source.preprocessing->channels_last;
  } else {
    MOTLEY_ASSIGN(channels_last, has_channels_last(features.shape, source.channels, name));
  }
  contents.features = place_numbers(features, channels_last, contents.shape);
  contents.features.owner = feature_file;
  contents.features.name = name;
  contents.features.is_checked = !is_floating(features.type) || features.values.size() <= source.checked_bytes;
  if (contents.features.is_checked) MOTLEY_TRY(check_finite(features, name));
  if (channels_last && source.channels == ChannelOrder::kAuto) {
    contents.notes.push_back(fmt::format("'{}' has shape ({}), whose last axis is taken for the channels", name,
                                         fmt::join(features.shape, ", ")));
  }
  std::vector<double> values(targets.count());
  for (std::uint64_t i = 0; i < values.size(); ++i) values[i] = targets.at(i);
  if (classes) {
    const bool is_wide = targets.type == NumberType::kInt64 || targets.type == NumberType::kUint64;
    for (std::uint64_t i = 0; is_wide && i < values.size(); ++i) {
      if (std::abs(values[i]) < 0x1p53) continue;  // else two labels could become one
      return fail(ErrorCode::kInvalidInput, "{}: label {} (counted from 0) is {:.0f}; accepted: integers below 2^53",
                  targets_name, i, values[i]);
    }
    MOTLEY_TRY(take_classes(std::move(values), source, contents));
    return make_array_dataset(std::move(contents), source);
  }
  MOTLEY_TRY(check_finite(targets, targets_name));
  contents.target_width = targets.shape.size() == 2 ? static_cast<std::uint32_t>(targets.shape[1]) : 1;
  if (contents.target_width == 0) {
    return fail(ErrorCode::kInvalidInput, "{}: targets of width 0; at least one value a sample is wanted",
                targets_name);
  }
  contents.values.resize(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    // Fortran order holds all samples' first values first.
    const std::size_t from =
        targets.fortran_order ? i % contents.target_width * contents.size + i / contents.target_width : i;
    contents.values[i] = static_cast<float>(values[from]);
  }
  return make_array_dataset(std::move(contents), source);
}

}  // namespace motley::data
