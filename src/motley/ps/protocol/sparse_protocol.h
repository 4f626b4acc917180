// What ranks and parameter servers say to each other about sparse tables: rows of weights by 64-bit id, cut among the
// servers by hash of the id. docs/explanation/embeddings.md tells it as a story.
//
// A rank has one connection to each server for all tables of its job. Frames are small enough for any receiver; a batch
// that needs more is cut into several.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "motley/base/result.h"
#include "motley/collective/wire_form.h"

namespace motley::ps {

// How a row begins: drawn from the seed and its id alone.
struct RowInitializer {
  enum class Kind { kUniform, kNormal };
  Kind kind = Kind::kUniform;
  float scale = 0.01F;  // uniform in [-scale, scale), or the standard deviation
  std::uint64_t seed = 0;
  bool operator==(const RowInitializer&) const = default;
};

struct RowOptimizer {
  enum class Kind { kSgd, kAdagrad, kAdam };  // Adagrad is row-wise
  Kind kind = Kind::kAdagrad;
  float learning_rate = 0.01F;
  float epsilon = 1e-8F;
  float beta1 = 0.9F;    // Adam's
  float beta2 = 0.999F;  // Adam's
  bool operator==(const RowOptimizer&) const = default;
};

// How rows, weights or gradients, stand in a frame: as float32, in 16 bits a value, or as int8 under one scale a row.
// Rows differ in size by orders of magnitude, so none shares a scale.
struct RowForm {
  collective::WireType type = collective::WireType::kNative;  // up to kInt8
  std::size_t dimension = 0;                                  // values of a row

  static bool accepts(collective::WireType type) { return type <= collective::WireType::kInt8; }
  std::size_t row_bytes() const;
  // Whole rows to a frame of row_bytes() for each, and back. `frame` is aligned to 4 bytes. int8: the rows' scales
  // (float32), then their values.
  void write(std::span<const float> rows, std::byte* frame) const;
  void read(const std::byte* frame, std::span<float> rows) const;

 private:
  kernels::WireFormat format() const { return collective::WireForm{type}.format(); }
};

struct SparseTableOptions {
  std::string name = "table";
  std::size_t dimension = 0;
  RowInitializer initializer;
  RowOptimizer optimizer;
  std::uint64_t memory_bytes = 0;  // for its rows on each server; 0: no bound, where the server has no quota
  std::uint64_t max_rows = 0;      // on each server; 0: no bound
  // Of weights and gradients in frames; the server's rows are float32. What a frame rounds away is lost.
  collective::WireType wire = collective::WireType::kNative;
  RowForm form() const { return {wire, dimension}; }
  bool operator==(const SparseTableOptions&) const = default;
};

// Which of `servers` has the rows of an id.
std::size_t find_shard(std::uint64_t id, std::size_t servers);

inline constexpr std::uint32_t kSparseConnection = 0x2001;  // purpose

// Beside these, kServerFailed, kServerLeave and kServerMissing mean what they mean for the dense part.
enum SparseFrame : std::uint16_t {
  kSparseOpen = 0x301,  // rank: the tables, as I see them
  kSparseOpened,        // server: all ranks have opened them, and they are ready
  kSparsePull,          // rank: SparsePull, ids; tag: the request's number
  kSparseRows,          // server: weights, in the order of the ids; tag: the request's number
  kSparsePush,          // rank: SparsePush, ids, gradients
  kSparseFinish,        // rank: SparseFinish, I have pushed all of this step; tag: the step
  kSparseSave,          // rank 0: write a checkpoint; tag: the step
  kSparseSaved,         // server: it is written, or an error; tag: the step
};

inline constexpr int kKeepAllCheckpoints = 1 << 30;

enum class SparseMode : std::uint8_t {
  kSynchronous,   // a step's gradients of all ranks are applied together, once
  kAsynchronous,  // each push is applied when it comes
};

struct SparseOpen {
  int size = 1;    // ranks of the job
  int shard = 0;   // which of the job's servers this one is
  int shards = 1;  // servers of the job
  SparseMode mode = SparseMode::kSynchronous;
  std::int64_t step = 0;  // finished so far
  int written_by = 0;     // servers that wrote the checkpoint of `step`, which is where rows come from; 0: rows are new
  std::string written_for;  // the job of the same tenant whose checkpoint it is; empty: this one's
  int keep_checkpoints = 2;
  std::vector<SparseTableOptions> tables;
};

struct SparsePull {
  std::int64_t after = 0;  // wait for the gradients of all steps up to this one
  std::uint32_t table = 0;
  std::uint32_t unused = 0;
};

struct SparsePush {
  std::int64_t step = 0;
  double weight = 0;  // samples that the gradients are means of
  std::uint32_t table = 0;
  std::uint32_t more = 0;  // 1: the next frame goes on with the same push
};

struct SparseFinish {
  double weight = 0;  // samples of this rank in the step
};

struct SparseSaved {
  std::uint64_t rows = 0;  // written by this checkpoint, which names earlier files for the others
  std::uint64_t bytes = 0;
};

// Rows that one frame carries, with ids and gradients, or with weights: so many that they are no larger as float32.
inline constexpr std::size_t kSparseFrameBytes = 32 << 10;
inline constexpr std::size_t kMaxSparseDimension = 32 << 10;
constexpr std::size_t rows_in_frame(std::size_t dimension) {
  return std::max<std::size_t>(1, kSparseFrameBytes / (sizeof(std::uint64_t) + dimension * sizeof(float)));
}

std::vector<std::byte> encode(const SparseOpen& open);
std::vector<std::byte> encode(const Result<SparseSaved>& saved);
// kCorrupt for bytes that are no such message.
Result<SparseOpen> decode_sparse_open(std::span<const std::byte> bytes);
// The error is the one that the server met, or kCorrupt.
Result<SparseSaved> decode_sparse_saved(std::span<const std::byte> bytes);

// A head and then whole rows. What they point at is the frame's memory.
struct PullFrame {
  SparsePull head;
  std::span<const std::uint64_t> ids;
};
struct PushFrame {
  SparsePush head;
  std::span<const std::uint64_t> ids;
  std::span<const std::byte> gradients;  // in the table's form
};
Result<PullFrame> read_pull(std::span<const std::byte> bytes, std::span<const SparseTableOptions> tables);
Result<PushFrame> read_push(std::span<const std::byte> bytes, std::span<const SparseTableOptions> tables);

}  // namespace motley::ps
