// A sparse table's checkpoints in a folder of its own: a manifest for each step (sparse-00000120.json) that names the
// files of rows which, read in order, give the table at that step: a full one, then what changed from one to the next.
//
// Files of rows are written as a stream: a table need not fit in memory twice. A header of 16 bytes ("motleyrw",
// version, floats a row), then (id, floats) for each row, little-endian. Length and CRC-32C stand in the manifest.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "motley/base/os/descriptor.h"
#include "motley/base/result.h"
#include "motley/ps/embedding/row_optimizer.h"

namespace motley::ps {

constexpr std::size_t kDimensionLimit = std::size_t{1} << 20;  // values of a row

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

// What must agree between a checkpoint and the table that is made from it.
struct TableForm {
  std::string name;
  std::size_t dimension = 0;
  RowOptimizer::Kind optimizer = RowOptimizer::Kind::kAdagrad;
  RowInitializer initializer;
};

struct SparseManifest {
  std::int64_t step = 0;
  TableForm form;
  std::vector<RowFile> files;
};

// Pure, over text from anywhere. kCorrupt names the field.
Result<SparseManifest> parse_sparse_manifest(std::string_view text);
std::string to_json(const SparseManifest& manifest);

Status write_sparse_manifest(const std::filesystem::path& folder, const SparseManifest& manifest);
// kInvalidInput where there is none of this step.
Result<SparseManifest> read_sparse_manifest(const std::filesystem::path& folder, std::int64_t step);
// The steps that have a manifest, oldest first.
std::vector<std::int64_t> sparse_checkpoint_steps(const std::filesystem::path& folder);

// Leaves the newest `keep` manifests up to `step` and the files that they name. Later steps are gone too: a table that
// writes `step` after them was rolled back. Removes nothing where a manifest that stays cannot be read.
void prune_sparse_checkpoints(const std::filesystem::path& folder, std::int64_t step, int keep);

}  // namespace motley::ps
