// A sparse table's checkpoints in a folder of its own: a manifest for each step (sparse-00000120.json) that names the
// files of rows which, read in order, give the table at that step: a full one, then what changed from one to the next.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "motley/base/result.h"
#include "motley/ps/row_file.h"
#include "motley/ps/row_optimizer.h"

namespace motley::ps {

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
