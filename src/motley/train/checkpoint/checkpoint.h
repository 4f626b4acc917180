// Checkpoints: what a run needs to go on bitwise as if nothing had happened, in files that open without Motley. Written
// aside, checksummed, synced and renamed; a damaged one is told from a good one, and the one before it is used.
//
// checkpoint/step-00000120/ holds weights.safetensors, optimizer.safetensors, state.json (step, ledger, shares),
// audit.bin (use counts of the current epoch) and manifest.json (length and CRC-32C of each file).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "motley/base/result.h"
#include "motley/data/local/ledger.h"

namespace motley::train {

// The files that each has.
inline constexpr const char* kWeightsFile = "weights.safetensors";
inline constexpr const char* kOptimizerFile = "optimizer.safetensors";
inline constexpr const char* kStateFile = "state.json";
inline constexpr const char* kAuditFile = "audit.bin";

struct Checkpoint {
  std::int64_t step = 0;
  std::map<std::string, std::string> files;  // name -> content; without the manifest
};

// Writes checkpoint.step's folder under `folder`, unless a good one is there, and removes all but the newest `keep`. On
// any failure what was there before is untouched.
Status write_checkpoint(const std::filesystem::path& folder, const Checkpoint& checkpoint, int keep);

// Whether there is any, good or damaged.
bool holds_checkpoint(const std::filesystem::path& folder);

// The newest checkpoint whose files all match their manifest, and from whose state a run can go on; warns of each
// damaged one that is passed over. kInvalidInput when there is none at all, kCorrupt when all are damaged.
Result<Checkpoint> read_newest_checkpoint(const std::filesystem::path& folder);

// state.json: where the run stands, beside weights and optimizer.
struct SavedState {
  std::int64_t step = 0;
  data::LedgerState ledger;
  std::string partition;    // as data::BatchSplitter::save gives it; empty with a plan
  std::string stage_split;  // as StageSplit::save gives it; empty without a plan
  int table_servers = 0;    // that wrote the rows of the network's table after `step`; 0: it has none
  std::int64_t evaluated_step = 0;
  double next_evaluation = 0;      // epochs
  std::int64_t not_used_once = 0;  // samples, over the epochs that ended
};

// parse_state refuses what format_state did not write of a run: numbers out of range, or that contradict each other.
std::string format_state(const SavedState& state);
Result<SavedState> parse_state(std::string_view text);

// manifest.json: what the other files are, as they were written.
struct Manifest {
  struct File {
    std::uint64_t bytes = 0;
    std::uint32_t crc32c = 0;
    bool operator==(const File&) const = default;
  };
  std::int64_t step = 0;
  std::map<std::string, File> files;
  bool operator==(const Manifest&) const = default;
};
std::string format_manifest(const Manifest& manifest);
Result<Manifest> parse_manifest(std::string_view text);

}  // namespace motley::train
