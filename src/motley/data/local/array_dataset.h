// Samples whose features are an array of numbers, in a mapped file or in memory, with their targets in memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "motley/data/local/dataset.h"
#include "motley/data/local/formats.h"

namespace motley::data {

// Where numbers of samples stand: sample i's k-th number at begin + (i * sample_stride + offset k) numbers of the type.
struct SampleNumbers {
  std::shared_ptr<const void> owner;  // of the memory
  const char* begin = nullptr;
  NumberType type = NumberType::kFloat32;
  std::uint64_t sample_stride = 0;
  std::vector<std::uint64_t> offsets;  // empty: 0, 1, 2, ...
  bool is_checked = true;              // all are finite
  std::string name;                    // of the file, for messages
};

// What a file gives, before what all formats share is checked and filled in (make_array_dataset).
struct ArrayContents {
  std::uint32_t size = 0;
  std::vector<std::int64_t> shape;
  SampleNumbers features;
  float scale = 1;  // features are number / scale, then normalised
  TargetKind kind = TargetKind::kClass;
  std::vector<std::int64_t> classes;  // as the file has them
  std::vector<float> values;
  std::uint32_t target_width = 1;
  std::uint32_t categories = 0;
  std::vector<std::uint64_t> ids;
  Skipped skipped;
  Preprocessing preprocessing;
  std::vector<std::string> notes;
};

// Numbers that are in memory.
SampleNumbers own_numbers(std::vector<float> values, std::size_t width, const std::string& name);

// The file's number of samples, which must fit.
Result<std::uint32_t> sample_count(std::uint64_t count, const std::string& name);

// A class as files hold it, one of those that the source or the training set says; an error says where.
Result<std::int64_t> read_class(double value, const DatasetSource& source, const std::string& where);

// The first few values, for a message.
template <class T>
std::string list_first(const std::vector<T>& values) {
  constexpr std::ptrdiff_t kShown = 8;
  const auto shown = std::min(std::ssize(values), kShown);
  return fmt::format("{}{}", fmt::join(values.begin(), values.begin() + shown, ", "),
                     shown < std::ssize(values) ? ", ..." : "");
}

// Different labels in the order of their classes: of numbers where all are, else of their bytes.
std::vector<std::string> order_labels(std::vector<std::string> labels);
class LabelClasses {
 public:
  explicit LabelClasses(const std::vector<std::string>& names);  // in the order of their classes
  std::optional<std::int64_t> find(const std::string& label) const;
  // An error says where.
  Result<std::int64_t> find(const std::string& label, const std::string& where) const;

 private:
  const std::vector<std::string>& names_;
  std::unordered_map<std::string, std::int64_t> classes_;
};

Result<std::unique_ptr<Dataset>> make_array_dataset(ArrayContents contents, const DatasetSource& source);

}  // namespace motley::data
