// Files of rows, the parts of a sparse table's checkpoint, written as a stream: a table need not fit in memory twice.
// A header of 16 bytes ("motleyrw", version, floats a row), then (id, floats) for each row, little-endian. Length and
// CRC-32C stand in the checkpoint's manifest.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "motley/base/os/descriptor.h"
#include "motley/base/result.h"

namespace motley::ps {

struct RowFile {
  std::string name;  // within the checkpoint's folder
  std::uint64_t bytes = 0;
  std::uint32_t crc = 0;
  std::uint64_t rows = 0;
};

// Writes beside the final place; the file appears there, synced, with finish(), or not at all.
class RowFileWriter {
 public:
  static Result<RowFileWriter> create(const std::filesystem::path& folder, const std::string& stem,
                                      std::size_t row_floats);
  RowFileWriter(RowFileWriter&&) = default;
  ~RowFileWriter();

  Status add(std::span<const std::byte> rows);  // whole (id, floats) records
  // The file's name is the stem and its checksum, so that no file of another run is ever replaced.
  Result<RowFile> finish();

 private:
  RowFileWriter(std::filesystem::path folder, std::string stem, std::size_t row_floats);
  Status flush();

  std::filesystem::path folder_;
  std::string stem_;
  std::filesystem::path aside_;
  std::size_t record_bytes_;
  Descriptor descriptor_;
  std::vector<std::byte> buffer_;
  RowFile file_;
};

// Calls `visit` with batches of rows after the whole file has proved sound. kCorrupt says what is wrong.
using VisitRows = std::function<Status(std::span<const std::uint64_t> ids, std::span<const float> floats)>;
Status read_row_file(const std::filesystem::path& folder, const RowFile& file, std::size_t row_floats,
                     const VisitRows& visit);

}  // namespace motley::ps
