// The parsers of data files: pure functions over bytes, which fuzzing exercises. `name` is the file's, for messages.
// None takes memory beyond a small multiple of the bytes that it was given.
#pragma once

#include <cstdint>
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

// The bytes themselves, or unpacked when they are a gzip file; refuses more than `limit` unpacked bytes.
Result<std::string> gunzip(std::string bytes, const std::string& name, std::size_t limit);

// A table with a header: comma-separated, cells quoted with " where needed (RFC 4180), all of them finite numbers
// except in columns that are left out.
struct Table {
  std::vector<std::string> columns;  // without those left out
  std::vector<double> cells;         // row by row
  std::vector<std::uint32_t> lines;  // of each row, for messages
  std::size_t rows() const { return lines.size(); }
};
Result<Table> parse_csv(std::string_view text, const std::string& name, const std::vector<std::string>& leave_out);

// A numpy array file, version 1 or 2, C order, little-endian f4 f8 i1 u1 i2 i4 i8.
struct NpyArray {
  std::string type;  // such as "f4"
  std::vector<std::uint64_t> shape;
  std::string_view values;
  std::uint64_t count() const;           // product of the shape
  double at(std::uint64_t index) const;  // in C order
};
Result<NpyArray> parse_npy(std::string_view bytes, const std::string& name);

}  // namespace motley::data
