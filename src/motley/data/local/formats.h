// The parsers of data files: pure functions over bytes, which fuzzing exercises. `name` is the file's, for messages.
// None takes memory beyond a small multiple of the bytes that it was given.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "motley/base/result.h"

namespace motley::data {

// An IDX file of unsigned bytes: its sizes, outermost first, and where its values stand in the bytes.
struct IdxArray {
  std::vector<std::uint32_t> sizes;
  std::string_view values;
};
Result<IdxArray> parse_idx(std::string_view bytes, const std::string& name);

bool is_gzip(std::string_view bytes);
// The bytes of a gzip file unpacked; refuses more than `limit` of them.
Result<std::string> gunzip(std::string_view bytes, const std::string& name, std::size_t limit);

// Lines of a file that do not parse, gathered where a caller can do without some of them.
struct MalformedLines {
  std::uint64_t count = 0;
  std::uint32_t first_line = 0;  // the number of the first one in the file, from 1
  std::string first;             // its message
  void add(std::uint32_t line, std::string message);
};

// The id of a category: a hash of the column's name and of the value there, byte by byte. Fixed for ever, since ids are
// in checkpoints: the same on every machine and in every version.
std::uint64_t category_id(std::string_view column, std::string_view value);

// Text that is a finite 32-bit number and nothing else, blanks around it aside.
std::optional<double> parse_finite(std::string_view text);
// Whether a cell says that there is no value: it is empty, or NA, N/A, NaN, null, None or ?, as other programs write.
bool is_missing(std::string_view cell);

// What columns of a table hold that are no numbers, by name. A column has one of these roles.
struct TableRoles {
  std::string target = {};
  std::vector<std::string> dropped = {};     // neither feature nor target
  std::vector<std::string> categories = {};  // any text, which becomes an id
  std::vector<std::string> one_hot = {};     // any text, which becomes a 0/1 feature for each value
  bool may_miss = false;  // cells of numbers may be missing (is_missing); else such a row is malformed
};

// A table with a header: comma-separated, cells quoted with " where needed (RFC 4180). Columns of texts are taken
// without the blanks around them (an empty cell is a value of its own); all others hold finite numbers.
struct Table {
  std::vector<std::string> columns;  // of the numbers, in the file's order
  std::vector<double> cells;         // the numbers, row by row; NaN where one is missing
  std::vector<std::string> targets;  // as they stand in the file, a row each
  std::vector<std::uint64_t> ids;    // row by row; within a row in the order in which the caller named the categories
  std::vector<std::string> one_hot;  // likewise
  std::vector<std::uint32_t> lines;  // of each row, for messages
  std::size_t rows() const { return lines.size(); }
};
// Where `malformed` is given, rows that do not parse are noted there and left out, each with the line of text where it
// began; without it the first is the error. What is wrong with the header is always an error.
Result<Table> parse_csv(std::string_view text, const std::string& name, const TableRoles& roles,
                        MalformedLines* malformed = nullptr);

// Lines in the format of Criteo's display advertising data: a label 0 or 1, 13 integers and 26 hexadecimal
// categories, separated by tabs, without a header; each of the 39 may be empty.
inline constexpr std::size_t kCriteoFeatures = 13;
inline constexpr std::size_t kCriteoCategories = 26;
struct CriteoLines {
  std::vector<float> features;        // rows x 13, by criteo_feature; 0 where the number is missing
  std::vector<std::uint64_t> ids;     // rows x 26, category_id of the columns C1 .. C26
  std::vector<std::int64_t> classes;  // the labels
  std::size_t rows() const { return classes.size(); }
};
// `malformed` as for parse_csv.
Result<CriteoLines> parse_criteo(std::string_view text, const std::string& name, MalformedLines* malformed = nullptr);

// log(1 + max(number, 0)): the numbers are counts of very different sizes, some below 0.
float criteo_feature(std::int64_t number);

// The name of the column of categories with this index (from 0): C1 .. C26.
std::string criteo_column(std::size_t index);

// The types of numbers in array files, little-endian; a bool is a byte.
enum class NumberType { kFloat32, kFloat64, kInt8, kUint8, kInt16, kUint16, kInt32, kUint32, kInt64, kUint64 };
std::size_t number_size(NumberType type);
bool is_floating(NumberType type);

// Calls work with a value of the type.
template <class Work>
auto with_number_type(NumberType type, const Work& work) {
  switch (type) {
    case NumberType::kFloat32:
      return work(float{});
    case NumberType::kFloat64:
      return work(double{});
    case NumberType::kInt8:
      return work(std::int8_t{});
    case NumberType::kUint8:
      return work(std::uint8_t{});
    case NumberType::kInt16:
      return work(std::int16_t{});
    case NumberType::kUint16:
      return work(std::uint16_t{});
    case NumberType::kInt32:
      return work(std::int32_t{});
    case NumberType::kUint32:
      return work(std::uint32_t{});
    case NumberType::kInt64:
      return work(std::int64_t{});
    case NumberType::kUint64:
      break;
  }
  return work(std::uint64_t{});
}

// A numpy array file, version 1 or 2.
struct NpyArray {
  NumberType type = NumberType::kFloat32;
  bool fortran_order = false;  // the first index moves fastest
  std::vector<std::uint64_t> shape;
  std::string_view values;
  std::uint64_t count() const;           // product of the shape
  double at(std::uint64_t index) const;  // as they stand in the file
};
bool is_npy(std::string_view bytes);
Result<NpyArray> parse_npy(std::string_view bytes, const std::string& name);

}  // namespace motley::data
