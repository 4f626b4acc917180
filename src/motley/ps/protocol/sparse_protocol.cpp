// Encodings. Heads of pulls and pushes, ids and floats stand in frames as they stand in memory, little-endian.
#include "motley/ps/protocol/sparse_protocol.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "motley/base/random.h"
#include "motley/kernels/convert.h"
#include "motley/net/message_fields.h"
#include "motley/ps/protocol/server_protocol.h"

namespace motley::ps {
namespace {

constexpr int kMaxMembers = 4096;
constexpr std::size_t kMaxTables = 4096;
constexpr std::uint16_t kSaved = 0xffff;  // no code of an error

static_assert(std::endian::native == std::endian::little);
static_assert(sizeof(SparsePull) == 16 && sizeof(SparsePush) == 24 && sizeof(SparseFinish) == 8);

tl::unexpected<Error> malformed(const char* what, std::span<const std::byte> bytes) {
  return fail(ErrorCode::kCorrupt, "a malformed {} message of {} bytes", what, bytes.size());
}

// The head at the beginning of a frame about one of the tables; the table's index is checked.
template <class Head>
bool read_head(std::span<const std::byte> bytes, std::span<const SparseTableOptions> tables, Head& head) {
  if (bytes.size() < sizeof(Head)) return false;
  std::memcpy(&head, bytes.data(), sizeof(Head));
  return head.table < tables.size();
}

}  // namespace

std::size_t RowForm::row_bytes() const {
  return type == collective::WireType::kInt8 ? sizeof(float) + dimension : dimension * kernels::byte_size(format());
}

void RowForm::write(std::span<const float> rows, std::byte* frame) const {
  if (type != collective::WireType::kInt8) return kernels::write_format(format(), rows, frame);
  auto* values = reinterpret_cast<std::int8_t*>(frame + rows.size() / dimension * sizeof(float));
  kernels::quantize_int8_blocks(rows, values, reinterpret_cast<float*>(frame), dimension);
}

void RowForm::read(const std::byte* frame, std::span<float> rows) const {
  if (type != collective::WireType::kInt8) return kernels::read_format(format(), frame, rows);
  const auto* values = reinterpret_cast<const std::int8_t*>(frame + rows.size() / dimension * sizeof(float));
  kernels::dequantize_int8_blocks({values, rows.size()}, reinterpret_cast<const float*>(frame), rows.data(), dimension);
}

std::size_t find_shard(std::uint64_t id, std::size_t servers) {
  return mix({id}) % servers;
}

template <class Archive>
void fields(Archive& archive, SparseTableOptions& table) {
  archive.required("name", table.name);
  archive.required("dimension", table.dimension, NumberIs::between(1, kMaxSparseDimension));
  archive.required("initializer", table.initializer.kind, NumberIs::between(0, 1));
  archive.required("scale", table.initializer.scale, NumberIs::kFinite);
  archive.required("seed", table.initializer.seed);
  archive.required("optimizer", table.optimizer.kind, NumberIs::between(0, 2));
  archive.required("learning_rate", table.optimizer.learning_rate, NumberIs::kFinite);
  archive.required("epsilon", table.optimizer.epsilon, NumberIs::kFinite);
  archive.required("beta1", table.optimizer.beta1, NumberIs::kFinite);
  archive.required("beta2", table.optimizer.beta2, NumberIs::kFinite);
  archive.required("memory_bytes", table.memory_bytes);
  archive.required("max_rows", table.max_rows);
  archive.required("wire", table.wire, NumberIs::between(0, static_cast<int>(collective::WireType::kInt8)));
}

template <class Archive>
void fields(Archive& archive, SparseOpen& open) {
  archive.required("size", open.size, NumberIs::between(1, kMaxMembers));
  archive.required("shard", open.shard, NumberIs::between(0, kMaxMembers));
  archive.required("shards", open.shards, NumberIs::between(1, kMaxMembers));
  archive.required("written_by", open.written_by, NumberIs::between(0, kMaxMembers));
  archive.required("written_for", open.written_for);
  archive.required("keep_checkpoints", open.keep_checkpoints, NumberIs::between(1, kKeepAllCheckpoints));
  archive.required("mode", open.mode, NumberIs::between(0, 1));
  archive.required("step", open.step);
  archive.required("tables", open.tables);
}

std::vector<std::byte> encode(const SparseOpen& open) {
  return net::encode_message(open);
}

Result<SparseOpen> decode_sparse_open(std::span<const std::byte> bytes) {
  MOTLEY_ASSIGN(auto open, net::decode_message<SparseOpen>(bytes, "sparse open"));
  const bool sensible = open.shard < open.shards && !open.tables.empty() && open.tables.size() <= kMaxTables &&
                        std::ranges::none_of(open.tables, &std::string::empty, &SparseTableOptions::name);
  if (!sensible) return malformed("sparse open", bytes);
  return open;
}

std::vector<std::byte> encode(const Result<SparseSaved>& saved) {
  if (!saved) return encode(saved.error());
  net::ByteWriter writer;
  writer.put(kSaved);
  writer.put(saved->rows);
  writer.put(saved->bytes);
  return writer.take();
}

Result<SparseSaved> decode_sparse_saved(std::span<const std::byte> bytes) {
  net::ByteReader reader(bytes);
  const bool good = reader.get<std::uint16_t>() == kSaved;
  const SparseSaved saved = {.rows = reader.get<std::uint64_t>(), .bytes = reader.get<std::uint64_t>()};
  if (good && reader.complete()) return saved;
  MOTLEY_ASSIGN(Error error, decode_server_failed(bytes));
  return fail(std::move(error));
}

Result<PullFrame> read_pull(std::span<const std::byte> bytes, std::span<const SparseTableOptions> tables) {
  PullFrame frame;
  const bool good = read_head(bytes, tables, frame.head);
  const std::size_t count = good ? (bytes.size() - sizeof(SparsePull)) / sizeof(std::uint64_t) : 0;
  if (count == 0 || (bytes.size() - sizeof(SparsePull)) % sizeof(std::uint64_t) != 0 ||
      count > rows_in_frame(tables[frame.head.table].dimension)) {
    return malformed("pull", bytes);
  }
  frame.ids = {reinterpret_cast<const std::uint64_t*>(bytes.data() + sizeof(SparsePull)), count};
  return frame;
}

Result<PushFrame> read_push(std::span<const std::byte> bytes, std::span<const SparseTableOptions> tables) {
  PushFrame frame;
  if (!read_head(bytes, tables, frame.head)) return malformed("push", bytes);
  const std::size_t dimension = tables[frame.head.table].dimension;
  const std::size_t row_bytes = sizeof(std::uint64_t) + tables[frame.head.table].form().row_bytes();
  const std::size_t count = (bytes.size() - sizeof(SparsePush)) / row_bytes;
  const bool weighs = frame.head.weight > 0 && std::isfinite(frame.head.weight);
  if (count == 0 || (bytes.size() - sizeof(SparsePush)) % row_bytes != 0 || count > rows_in_frame(dimension) ||
      frame.head.more > 1 || !weighs) {
    return malformed("push", bytes);
  }
  const std::byte* ids = bytes.data() + sizeof(SparsePush);
  frame.ids = {reinterpret_cast<const std::uint64_t*>(ids), count};
  frame.gradients = bytes.subspan(sizeof(SparsePush) + frame.ids.size_bytes());
  return frame;
}

}  // namespace motley::ps
