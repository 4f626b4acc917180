#include "motley/data/local/array_dataset.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace motley::data {
namespace {

// A class is an integer from 0 to a count that a network can have outputs for.
constexpr double kMaxClasses = 1 << 24;

class ArrayDataset final : public Dataset {
 public:
  explicit ArrayDataset(ArrayContents contents) : contents_(std::move(contents)) {
    preprocessing_ = std::move(contents_.preprocessing);
    notes_ = std::move(contents_.notes);
    form_ = {contents_.scale, preprocessing_.normalisation};
  }

  std::uint32_t size() const override { return contents_.size; }
  const std::vector<std::int64_t>& feature_shape() const override { return contents_.shape; }
  TargetKind target_kind() const override { return contents_.kind; }
  std::uint32_t class_count() const override { return preprocessing_.class_count; }
  std::uint32_t target_width() const override { return contents_.target_width; }
  std::uint32_t categories() const override { return contents_.categories; }
  const ByteFeatures* byte_features() const override {
    return contents_.features.type == NumberType::kUint8 ? &form_ : nullptr;
  }
  Skipped skipped() const override { return contents_.skipped; }

  Status measure() {
    MOTLEY_ASSIGN(preprocessing_.normalisation, measure_normalisation(*this));
    form_.normalisation = preprocessing_.normalisation;
    return {};
  }

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
      MOTLEY_TRY(read_features(sample, into.features.subspan(i * features, features)));
      copy_numbers<std::uint8_t>(sample, into.bytes.subspan(i * bytes, bytes));
      std::copy_n(contents_.ids.data() + sample * categories, categories, into.ids.data() + i * categories);
      std::copy_n(contents_.classes.data() + sample * classes, classes, into.classes.data() + i * classes);
      std::copy_n(contents_.values.data() + sample * values, values, into.values.data() + i * values);
    }
    return {};
  }

 private:
  // The sample's numbers, which are of the type Stored.
  template <class Stored, class T>
  void copy_numbers(std::size_t sample, std::span<T> into) const {
    const SampleNumbers& from = contents_.features;
    const char* const begin = from.begin + sample * from.sample_stride * sizeof(Stored);
    const auto copy = [&](std::size_t k, std::uint64_t offset) {
      Stored value;
      std::memcpy(&value, begin + offset * sizeof(Stored), sizeof(Stored));
      into[k] = static_cast<T>(value);
    };
    if (from.offsets.empty()) {
      for (std::size_t k = 0; k < into.size(); ++k) copy(k, k);
    } else {
      for (std::size_t k = 0; k < into.size(); ++k) copy(k, from.offsets[k]);
    }
  }

  Status read_features(std::size_t sample, std::span<float> into) const {
    const SampleNumbers& from = contents_.features;
    with_number_type(from.type, [&](auto stored) { copy_numbers<decltype(stored)>(sample, into); });
    const auto wrong =
        from.is_checked ? into.end() : std::ranges::find_if_not(into, [](float x) { return std::isfinite(x); });
    if (wrong != into.end()) {
      return fail(ErrorCode::kInvalidInput,
                  "{}: feature {} of sample {} (counted from 0) is {}; finite 32-bit numbers are wanted", from.name,
                  wrong - into.begin(), sample, *wrong);
    }
    normalise_features(into, form_, feature_count());
    return {};
  }

  ArrayContents contents_;
  ByteFeatures form_;
};

Status check_normalisation(const Normalisation& normalisation, std::size_t features, const std::string& name) {
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
  return {};
}

// As the user or the training set says; 0: nobody does.
std::uint32_t given_class_count(const DatasetSource& source) {
  return source.preprocessing != nullptr ? source.preprocessing->class_count : source.class_count;
}

// The number of classes: the given one or, where none is, that of all from 0 to the largest, each of which must occur.
Result<std::uint32_t> count_classes(std::span<const std::int64_t> classes, const DatasetSource& source,
                                    const std::string& name) {
  if (const std::uint32_t given = given_class_count(source); given > 0) return given;
  const std::int64_t largest = std::ranges::max(classes);
  std::vector<bool> occurs(static_cast<std::size_t>(largest) + 1, false);
  for (const std::int64_t one : classes) occurs[static_cast<std::size_t>(one)] = true;
  std::vector<std::size_t> absent;
  for (std::size_t one = 0; one < occurs.size(); ++one) {
    if (!occurs[one]) absent.push_back(one);
  }
  if (absent.empty()) return static_cast<std::uint32_t>(occurs.size());
  return fail(ErrorCode::kInvalidInput,
              "{}: classes are {} to {}, but no sample has class {}; accepted: classes from 0 on that all occur; "
              "data.target_kind: label, which numbers the labels that occur; or data.num_classes: {}, where classes "
              "may have no sample",
              name, std::ranges::min(classes), largest, list_first(absent), occurs.size());
}

}  // namespace

SampleNumbers own_numbers(std::vector<float> values, std::size_t width, const std::string& name) {
  const auto owner = std::make_shared<const std::vector<float>>(std::move(values));
  return {.owner = owner,
          .begin = reinterpret_cast<const char*>(owner->data()),
          .type = NumberType::kFloat32,
          .sample_stride = width,
          .offsets = {},
          .name = name};
}

Result<std::uint32_t> sample_count(std::uint64_t count, const std::string& name) {
  if (count >= std::numeric_limits<std::uint32_t>::max()) {
    return fail(ErrorCode::kInvalidInput, "{}: {} samples; fewer than 2^32 - 1 are accepted", name, count);
  }
  return static_cast<std::uint32_t>(count);
}

Result<std::int64_t> read_class(double value, const DatasetSource& source, const std::string& where) {
  if (!(value >= 0) || value >= kMaxClasses || value != std::floor(value)) {
    return fail(ErrorCode::kInvalidInput,
                "{}: class {} is no integer from 0 to {}; accepted besides: any labels with data.target_kind label, "
                "real targets with data.target_kind real",
                where, value, kMaxClasses - 1);
  }
  if (const std::uint32_t count = given_class_count(source); count > 0 && value >= count) {
    return fail(ErrorCode::kInvalidInput, "{}: class {} was found where {} classes (0 to {}) were said to be", where,
                value, count, count - 1);
  }
  return static_cast<std::int64_t>(value);
}

std::vector<std::string> order_labels(std::vector<std::string> labels) {
  const bool are_numbers =
      std::ranges::all_of(labels, [](const auto& label) { return parse_finite(label).has_value(); });
  const auto number = [&](const std::string& label) { return are_numbers ? *parse_finite(label) : 0; };
  const auto order = [&](const std::string& a, const std::string& b) {
    return std::pair(number(a), std::string_view(a)) < std::pair(number(b), std::string_view(b));
  };
  std::ranges::sort(labels, order);
  labels.erase(std::unique(labels.begin(), labels.end()), labels.end());
  return labels;
}

LabelClasses::LabelClasses(const std::vector<std::string>& names) : names_(names) {
  for (std::size_t i = 0; i < names_.size(); ++i) classes_.emplace(names_[i], i);
}

std::optional<std::int64_t> LabelClasses::find(const std::string& label) const {
  const auto found = classes_.find(label);
  return found == classes_.end() ? std::nullopt : std::optional(found->second);
}

Result<std::int64_t> LabelClasses::find(const std::string& label, const std::string& where) const {
  if (const auto found = find(label)) return *found;
  return fail(ErrorCode::kInvalidInput, "{}: label '{}' is none of the training data's; accepted: {}", where, label,
              list_first(names_));
}

Result<std::unique_ptr<Dataset>> make_array_dataset(ArrayContents contents, const DatasetSource& source) {
  const std::string name = source.features.string();
  std::size_t features = 1;
  for (const std::int64_t extent : contents.shape) features *= static_cast<std::size_t>(extent);
  if (contents.size == 0 || (features == 0 && contents.categories == 0)) {
    return fail(ErrorCode::kInvalidInput, "{}: {} samples of {} features; at least one of each is needed", name,
                contents.size, features);
  }
  Preprocessing& preprocessing = contents.preprocessing;
  if (const std::size_t labels = preprocessing.class_names.size(); labels > 0) {
    if (source.preprocessing == nullptr && source.class_count > 0 && source.class_count != labels) {
      return fail(ErrorCode::kInvalidInput, "{}: {} labels were found where {} classes were said to be", name, labels,
                  source.class_count);
    }
    preprocessing.class_count = static_cast<std::uint32_t>(labels);
  } else if (!contents.classes.empty()) {
    MOTLEY_ASSIGN(preprocessing.class_count,
                  count_classes(contents.classes, source, source.targets.empty() ? name : source.targets.string()));
  }
  preprocessing.normalisation =
      source.preprocessing != nullptr ? source.preprocessing->normalisation : source.normalisation;
  MOTLEY_TRY(check_normalisation(preprocessing.normalisation, features, name));
  auto dataset = std::make_unique<ArrayDataset>(std::move(contents));
  if (source.normalise && source.preprocessing == nullptr) MOTLEY_TRY(dataset->measure());
  return dataset;
}

}  // namespace motley::data
