// Encodings. Heads of pulls and pushes, ids and floats stand in frames as they stand in memory, little-endian.
#include "motley/collective/sparse_protocol.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "motley/base/random.h"
#include "motley/collective/server_protocol.h"
#include "motley/net/bytes.h"

namespace motley::collective {
namespace {

using net::ByteReader;
using net::ByteWriter;

constexpr std::size_t kMaxTextBytes = 255;
constexpr std::uint32_t kMaxMembers = 4096;
constexpr std::uint32_t kMaxTables = 4096;

static_assert(std::endian::native == std::endian::little);
static_assert(sizeof(SparsePull) == 16 && sizeof(SparsePush) == 24 && sizeof(SparseFinish) == 8);

tl::unexpected<Error> malformed(const char* what, std::span<const std::byte> bytes) {
  return fail(ErrorCode::kCorrupt, "a malformed {} message of {} bytes", what, bytes.size());
}

void put_float(ByteWriter& writer, float value) {
  writer.put(std::bit_cast<std::uint32_t>(value));
}
float get_float(ByteReader& reader) {
  return std::bit_cast<float>(reader.get<std::uint32_t>());
}

void put(ByteWriter& writer, const SparseTableOptions& table) {
  writer.put_text(table.name, kMaxTextBytes);
  writer.put(static_cast<std::uint32_t>(table.dimension));
  writer.put(static_cast<std::uint8_t>(table.initializer.kind));
  put_float(writer, table.initializer.scale);
  writer.put(table.initializer.seed);
  writer.put(static_cast<std::uint8_t>(table.optimizer.kind));
  for (const float value :
       {table.optimizer.learning_rate, table.optimizer.epsilon, table.optimizer.beta1, table.optimizer.beta2}) {
    put_float(writer, value);
  }
  writer.put(table.memory_bytes);
  writer.put(table.max_rows);
  writer.put(static_cast<std::uint8_t>(table.wire));
}

// Whether it is sensible.
bool get(ByteReader& reader, SparseTableOptions& table) {
  table.name = reader.get_text(kMaxTextBytes);
  table.dimension = reader.get<std::uint32_t>();
  const auto initializer = reader.get<std::uint8_t>();
  table.initializer.kind = static_cast<RowInitializer::Kind>(initializer);
  table.initializer.scale = get_float(reader);
  table.initializer.seed = reader.get<std::uint64_t>();
  const auto optimizer = reader.get<std::uint8_t>();
  table.optimizer.kind = static_cast<RowOptimizer::Kind>(optimizer);
  for (float* value :
       {&table.optimizer.learning_rate, &table.optimizer.epsilon, &table.optimizer.beta1, &table.optimizer.beta2}) {
    *value = get_float(reader);
  }
  table.memory_bytes = reader.get<std::uint64_t>();
  table.max_rows = reader.get<std::uint64_t>();
  table.wire = static_cast<WireType>(reader.get<std::uint8_t>());
  return !table.name.empty() && table.dimension >= 1 && table.dimension <= kMaxSparseDimension && initializer <= 1 &&
         std::isfinite(table.initializer.scale) && optimizer <= 2 && RowForm::accepts(table.wire);
}

// The head at the beginning of a frame about one of the tables; the table's index is checked.
template <class Head>
bool read_head(std::span<const std::byte> bytes, std::span<const SparseTableOptions> tables, Head& head) {
  if (bytes.size() < sizeof(Head)) return false;
  std::memcpy(&head, bytes.data(), sizeof(Head));
  return head.table < tables.size();
}

}  // namespace

std::size_t shard_of(std::uint64_t id, std::size_t servers) {
  return mix({id}) % servers;
}

std::vector<std::byte> encode(const SparseOpen& open) {
  ByteWriter writer;
  for (const int value : {open.size, open.shard, open.shards, open.written_by}) {
    writer.put(static_cast<std::uint32_t>(value));
  }
  writer.put(static_cast<std::uint8_t>(open.mode));
  writer.put(static_cast<std::uint64_t>(open.step));
  writer.put(static_cast<std::uint32_t>(open.tables.size()));
  for (const SparseTableOptions& table : open.tables) put(writer, table);
  return writer.take();
}

Result<SparseOpen> decode_sparse_open(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  SparseOpen open;
  bool sensible = true;
  for (int* value : {&open.size, &open.shard, &open.shards, &open.written_by}) {
    const auto number = reader.get<std::uint32_t>();
    sensible = sensible && number <= kMaxMembers;
    *value = static_cast<int>(number);
  }
  const auto mode = reader.get<std::uint8_t>();
  open.mode = static_cast<SparseMode>(mode);
  open.step = static_cast<std::int64_t>(reader.get<std::uint64_t>());
  const auto tables = reader.get<std::uint32_t>();
  sensible = sensible && open.size >= 1 && open.shard < open.shards && mode <= 1 && open.step >= 0 && tables >= 1 &&
             tables <= kMaxTables;
  for (std::uint32_t i = 0; i < tables && sensible && reader.ok(); ++i) {
    sensible = get(reader, open.tables.emplace_back());
  }
  if (!reader.complete() || !sensible) {
    return malformed("sparse open", bytes);
  }
  return open;
}

std::vector<std::byte> encode(const Result<SparseSaved>& saved) {
  if (!saved) return encode(saved.error());
  ByteWriter writer;
  writer.put(std::uint16_t{0xffff});  // no code of an error
  writer.put(saved->rows);
  writer.put(saved->bytes);
  return writer.take();
}

Result<SparseSaved> decode_sparse_saved(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  SparseSaved saved;
  const bool good = reader.get<std::uint16_t>() == 0xffff;
  saved.rows = reader.get<std::uint64_t>();
  saved.bytes = reader.get<std::uint64_t>();
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

}  // namespace motley::collective
