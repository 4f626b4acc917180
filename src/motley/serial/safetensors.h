// The safetensors format, version-less and public: 8 bytes little-endian length of a JSON header, the header, then raw
// little-endian tensors. Here without any tensor library: names, types, shapes and byte ranges. The parser is a pure
// function over bytes from anywhere: it validates everything before it takes memory in proportion to what a header
// says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "motley/base/result.h"

namespace motley {

struct SafetensorsEntry {
  std::string name;
  std::string type;  // BOOL, U8, I8, I16, U16, F16, BF16, I32, U32, F32, F64, I64, U64
  std::vector<std::int64_t> shape;
  std::size_t begin = 0;  // bytes, from the start of the data
  std::size_t end = 0;
};

struct SafetensorsFile {
  std::vector<SafetensorsEntry> entries;        // by position in the data
  std::map<std::string, std::string> metadata;  // "__metadata__"
  std::span<const std::byte> data;              // within the bytes that were parsed

  std::span<const std::byte> bytes_of(const SafetensorsEntry& entry) const {
    return data.subspan(entry.begin, entry.end - entry.begin);
  }
};

// Bytes of one value; 0 for a type that does not exist.
std::size_t safetensors_type_bytes(const std::string& type);

// Accepts what the reference implementation accepts: a header of at most 100 MB, tensors that cover the data without
// holes or overlaps, byte ranges of exactly the shape's size. Each name once, at most 16 dimensions. kCorrupt names the
// tensor and the field. The result refers to `bytes`.
Result<SafetensorsFile> parse_safetensors(std::span<const std::byte> bytes);

struct SafetensorsTensor {
  std::string name;
  std::string type;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
};

// The file's bytes. Names must differ, none may be "__metadata__", and sizes must fit shapes. Tensors are laid out by
// falling width of their type, then in the order given, so that each is aligned to its type.
std::string encode_safetensors(const std::vector<SafetensorsTensor>& tensors,
                               const std::map<std::string, std::string>& metadata = {});

}  // namespace motley
