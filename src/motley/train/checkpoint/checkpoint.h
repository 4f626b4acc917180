// Checkpoints: what a run needs to go on bitwise as if nothing had happened, in files that open without Motley. Written
// aside, checksummed, synced and renamed; a damaged one is told from a good one, and the one before it is used.
//
// checkpoint/step-00000120/ holds weights.safetensors, optimizer.safetensors, state.json (step, ledger, shares),
// audit.bin (use counts of the current epoch) and manifest.json (length and CRC-32C of each file).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "motley/base/result.h"

namespace motley::train {

struct Checkpoint {
  std::int64_t step = 0;
  std::map<std::string, std::string> files;  // name -> content; without the manifest
};

// Writes checkpoint.step's folder under `folder` and removes all but the newest `keep`. On any failure what was there
// before is untouched.
Status write_checkpoint(const std::filesystem::path& folder, const Checkpoint& checkpoint, int keep);

// Whether there is any, good or damaged.
bool holds_checkpoint(const std::filesystem::path& folder);

struct LoadedCheckpoint {
  Checkpoint checkpoint;
  std::vector<std::string> warnings;  // a sentence for each damaged one that was passed over
};

// The newest checkpoint whose files all match their manifest. kInvalidInput when there is none at all, kCorrupt when
// all are damaged.
Result<LoadedCheckpoint> read_newest_checkpoint(const std::filesystem::path& folder);

}  // namespace motley::train
