// Datasets: samples with features and a target, read from the formats that people have (IDX, CSV, npy, text, token
// arrays, folders of images, Criteo's). Arrays, texts and tokens stay in their files, which are mapped.
// A Dataset never changes after it was opened, so that any number of threads may read it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "motley/base/result.h"

namespace motley::data {

enum class TargetKind {
  kClass,  // target_width indices 0 .. class_count-1
  kReal,   // target_width real values
};

// What of a sample is read: its inputs (features and ids), its targets, or both.
struct Parts {
  bool inputs = true;
  bool targets = true;
  bool operator==(const Parts&) const = default;
};

// Where a read puts its samples, one after the other; sizes as the dataset says, times the number of samples. What is
// empty is not read; of the two targets the dataset has one kind.
struct ReadTarget {
  std::span<float> features;
  std::span<std::int64_t> classes;
  std::span<float> values;
  std::span<std::uint64_t> ids = {};
  std::span<std::uint8_t> bytes = {};  // features as the file has them, where that is bytes (Dataset::byte_features)
};

// Lines of a file that did not parse and are not in the dataset, as DatasetSource::malformed_share allowed.
struct Skipped {
  std::uint64_t lines = 0;
  std::string first;  // the message of the first one: file, line, what was found and what would be accepted
};

// Features are made (x - mean) / deviation, with one pair for all or one a feature.
struct Normalisation {
  std::vector<float> mean;
  std::vector<float> deviation;
  bool operator==(const Normalisation&) const = default;
};

// How features come from the bytes of a file: byte / scale, then normalised.
struct ByteFeatures {
  float scale = 1;
  Normalisation normalisation;
  bool operator==(const ByteFeatures&) const = default;
};
// The features of samples of `width` bytes each; as many as there are bytes.
void convert_features(std::span<const std::uint8_t> bytes, const ByteFeatures& form, std::size_t width,
                      std::span<float> features);
// The same of features that have been read as they are.
void normalise_features(std::span<float> features, const ByteFeatures& form, std::size_t width);

// What is learnt from the training set and holds for all sets, so that a network meets the same features and classes in
// each of them.
struct Preprocessing {
  Normalisation normalisation;
  std::uint32_t class_count = 0;
  std::vector<std::string> class_names;  // the labels in the order of their classes; empty: classes are the file's own
  bool channels_last = false;            // of arrays of images
  // Of tables: the columns of numbers, what a missing cell is filled with, which columns have a feature that says that
  // it was missing, and the values of each one-hot column.
  std::vector<std::string> columns;
  std::vector<double> fills;
  std::vector<bool> has_indicator;
  std::vector<std::vector<std::string>> one_hot_values;
};

class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual std::uint32_t size() const = 0;
  // Of one sample, outermost first: {1, 28, 28} for a grey image, {columns} for a table ({0} where it has categories
  // only), {sequence} for a text.
  virtual const std::vector<std::int64_t>& feature_shape() const = 0;
  virtual TargetKind target_kind() const = 0;
  virtual std::uint32_t class_count() const = 0;   // 0 for real targets
  virtual std::uint32_t target_width() const = 0;  // classes or real values a sample
  // Ids a sample, one for each column of categories: a hash of the column and of the value there, so that equal values
  // of one column have the same id in every file. 0 where there are none.
  virtual std::uint32_t categories() const { return 0; }
  // Null where features are no bytes in the file.
  virtual const ByteFeatures* byte_features() const { return nullptr; }
  virtual Skipped skipped() const { return {}; }
  const Preprocessing& preprocessing() const { return preprocessing_; }
  // Sentences on what was done to the samples beyond reading them, such as cells that were filled.
  const std::vector<std::string>& notes() const { return notes_; }

  // Copies these samples, in this order. Thread-safe and deterministic.
  virtual Status read(std::span<const std::uint32_t> samples, const ReadTarget& into) const = 0;
  // Says that these parts of these samples will be read, after those that were said before unless these are skipped: a
  // dataset that is elsewhere asks for them ahead. Never blocks.
  virtual void expect(std::span<const std::uint32_t> /*samples*/, Parts /*parts*/) const {}

  std::size_t feature_count() const;  // product of feature_shape

 protected:
  // What a read is given must be of the right size or empty.
  void check_room(std::span<const std::uint32_t> samples, const ReadTarget& into) const;

  Preprocessing preprocessing_;
  std::vector<std::string> notes_;
};

// Mean and standard deviation of each feature over the dataset as it reads, or, of one with more than 8 GiB of
// features, over samples spread evenly that have as many; a constant feature gets deviation 1.
Result<Normalisation> measure_normalisation(const Dataset& dataset);

// A real target that is not from 0 to 1, and so no probability.
struct ImprobableTarget {
  std::uint32_t sample = 0;
  float value = 0;
};
// The first one; none where there is none, and of classes.
Result<std::optional<ImprobableTarget>> find_improbable_target(const Dataset& dataset);

// The class of each of a file's labels. `label`: they are any texts or numbers, numbered in their order (of numbers
// where all are, else of the bytes).
enum class ClassLabels { kAuto, kLabel };
enum class ChannelOrder { kAuto, kFirst, kLast };
enum class MissingCells { kError, kDrop, kMean, kMedian, kZero };
enum class TokenType { kAuto, kUint16, kUint32 };

// Images as they are given to a network.
struct ImageForm {
  std::uint32_t height = 224;
  std::uint32_t width = 224;
  bool grayscale = false;  // one channel; else red, green and blue
};

struct DatasetSource {
  enum class Format { kIdx, kCsv, kArrow, kNpy, kText, kTokens, kCriteo, kImageFolder };
  Format format = Format::kIdx;
  // The images; the table with features and target; the features' array; the text; the tokens; the folder.
  std::filesystem::path features;
  std::filesystem::path targets;  // the labels' or targets' file of IDX and npy
  TargetKind target_kind = TargetKind::kClass;
  ClassLabels labels = ClassLabels::kAuto;  // IDX, CSV and npy
  std::uint32_t class_count = 0;            // 0: as many as the files have, each of which must occur

  // CSV and Arrow only; names of columns.
  std::string target_column;
  std::vector<std::string> drop_columns;  // neither feature nor target
  std::vector<std::string> categories;    // any text, which becomes ids, in this order, instead of features
  std::vector<std::string> one_hot;  // any text, which becomes a feature, 0 or 1, for each value in the training set
  MissingCells missing = MissingCells::kError;
  bool missing_indicator = false;  // a feature more for each column with missing cells in the training set
  // CSV and Criteo's: at most this share of the lines, 0 .. 1, may be malformed; they are left out (Dataset::skipped).
  double malformed_share = 0;

  // Text and tokens only.
  std::uint32_t sequence = 0;  // tokens of a sample; 0: 64, or those of a row of the array
  double text_begin = 0;       // the part of the text that is read, in shares of its length
  double text_end = 1;
  TokenType token_type = TokenType::kAuto;  // of a file that is no npy

  ChannelOrder channels = ChannelOrder::kAuto;  // npy only
  ImageForm images;                             // folders of images only

  Normalisation normalisation;  // empty: none. Pixels of IDX files and images are first scaled to 0 .. 1
  bool normalise = false;       // by what is measured on this set, which is the training set
  const Preprocessing* preprocessing = nullptr;  // of the training set, where this is another set; it has precedence

  std::size_t limit_bytes = std::size_t{8} << 30;    // of a file that is unpacked or parsed
  std::size_t checked_bytes = std::size_t{8} << 30;  // larger arrays are checked as they are read
};

// Opens and checks the files. Errors name file, place, what was found and what would be accepted.
//
// Tokens are integers from 0 to class_count - 1, of a text its bytes. A stream of them is cut into windows of
// `sequence` tokens one after the other, each of them a sample, whose targets are the tokens that follow each of its
// own; what is left at the end is too short for a sample and left out. Of an array with two dimensions each row is a
// sample, whose last token is a target only.
//
// Criteo's format has 13 features, 26 categories and two classes (see parse_criteo).
//
// A folder of images has a folder for each class, in the order of their names.
Result<std::unique_ptr<Dataset>> open_dataset(const DatasetSource& source);

// For a file that a Debian package brings, ": install it with 'apt-get install PACKAGE'"; else empty.
std::string install_hint(const std::filesystem::path& file);

// The Jargon File (public domain), as Debian's package jargon-text installs it: 1.7 MB of English.
inline constexpr const char* kJargonFile = "/usr/share/doc/jargon-text/jargon.txt.gz";

inline constexpr const char* kFashionMnistFolder = "/usr/share/datasets/fashion-mnist";

// Fashion-MNIST as Debian's package dataset-fashion-mnist installs it (or the same four files elsewhere), normalised by
// the mean 0.2860 and deviation 0.3530 of its training pixels.
DatasetSource fashion_mnist(bool training_set, const std::filesystem::path& folder = kFashionMnistFolder);

}  // namespace motley::data
