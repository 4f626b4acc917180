#include "motley/ps/embedding/cold_store.h"

#ifdef MOTLEY_HAS_ROCKSDB

#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/perf_level.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>
#include <vector>

#include "motley/base/log.h"
#include "motley/base/os/file.h"
#include "motley/ps/protocol/row_index.h"

namespace motley::ps {
namespace {

namespace fs = std::filesystem;

// The top bits of the id's hash, by which a table divides its rows into partitions; then the id, big-endian. So what
// one partition writes at a time lies in one range of the keys, and costs few comparisons in their order.
using Key = std::array<char, 9>;

std::uint64_t big_endian(std::uint64_t id) {
  return std::endian::native == std::endian::little ? __builtin_bswap64(id) : id;
}

Key encode_key(std::uint64_t id) {
  Key key;
  key[0] = static_cast<char>(hash_id(id) >> 56);
  const std::uint64_t big = big_endian(id);
  std::memcpy(key.data() + 1, &big, sizeof(big));
  return key;
}

std::uint64_t decode_id(const rocksdb::Slice& key) {
  std::uint64_t big = 0;
  std::memcpy(&big, key.data() + 1, sizeof(big));
  return big_endian(big);
}

class RocksStore final : public ColdStore {
 public:
  RocksStore(std::unique_ptr<rocksdb::DB> db, fs::path folder, std::size_t record_bytes)
      : db_(std::move(db)), folder_(std::move(folder)), record_bytes_(record_bytes) {}

  Status read(std::span<const std::uint64_t> ids, std::byte* records, std::uint8_t* found) override {
    rocksdb::SetPerfLevel(rocksdb::PerfLevel::kDisable);  // of this thread: it counts every comparison else
    std::vector<Key> keys(ids.size());
    std::vector<rocksdb::Slice> slices(ids.size());
    std::vector<rocksdb::PinnableSlice> values(ids.size());
    std::vector<rocksdb::Status> statuses(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      keys[i] = encode_key(ids[i]);
      slices[i] = {keys[i].data(), keys[i].size()};
    }
    db_->MultiGet({}, db_->DefaultColumnFamily(), ids.size(), slices.data(), values.data(), statuses.data());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      found[i] = statuses[i].ok();
      if (statuses[i].ok()) {
        MOTLEY_TRY(check_size(ids[i], values[i]));
        std::memcpy(records + i * record_bytes_, values[i].data(), record_bytes_);
      } else if (!statuses[i].IsNotFound()) {
        return problem("cannot read from", statuses[i]);
      }
    }
    return {};
  }

  Status write(std::span<const std::uint64_t> ids, std::span<const std::byte* const> records) override {
    rocksdb::SetPerfLevel(rocksdb::PerfLevel::kDisable);
    std::vector<std::pair<Key, const std::byte*>> sorted;
    sorted.reserve(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) sorted.emplace_back(encode_key(ids[i]), records[i]);
    std::ranges::sort(sorted, [](const auto& one, const auto& other) {
      return std::memcmp(one.first.data(), other.first.data(), sizeof(Key)) < 0;
    });
    rocksdb::WriteBatch batch(ids.size() * (record_bytes_ + sizeof(Key) + 8));
    for (const auto& [key, record] : sorted) {
      const rocksdb::Status put =
          batch.Put({key.data(), key.size()}, {reinterpret_cast<const char*>(record), record_bytes_});
      if (!put.ok()) return problem("cannot write to", put);
    }
    rocksdb::WriteOptions options;
    options.disableWAL = true;
    const rocksdb::Status written = db_->Write(options, &batch);
    return written.ok() ? Status() : problem("cannot write to", written);
  }

  ColdSnapshot snapshot() override {
    const std::shared_ptr<const rocksdb::Snapshot> moment(
        db_->GetSnapshot(), [this](const rocksdb::Snapshot* over) { db_->ReleaseSnapshot(over); });
    return [this, moment](const VisitRecord& visit) -> Status {
      rocksdb::ReadOptions options;
      options.snapshot = moment.get();
      options.fill_cache = false;
      options.readahead_size = std::size_t{2} << 20;
      const std::unique_ptr<rocksdb::Iterator> rows(db_->NewIterator(options));
      for (rows->SeekToFirst(); rows->Valid(); rows->Next()) {
        if (rows->key().size() != sizeof(Key)) {
          return problem("cannot read from", rocksdb::Status::Corruption("a key is not an id"));
        }
        MOTLEY_TRY(check_size(decode_id(rows->key()), rows->value()));
        MOTLEY_TRY(visit(decode_id(rows->key()), std::as_bytes(std::span(rows->value().data(), rows->value().size()))));
      }
      return rows->status().ok() ? Status() : problem("cannot read from", rows->status());
    };
  }

 private:
  Status check_size(std::uint64_t id, const rocksdb::Slice& value) const {
    if (value.size() == record_bytes_) return {};
    return fail(ErrorCode::kCorrupt, "the cold tier in '{}' holds {} bytes for row {}; its rows have {}",
                folder_.string(), value.size(), id, record_bytes_);
  }

  Status problem(const char* what, const rocksdb::Status& status) const {
    if (status.IsNoSpace() || status.subcode() == rocksdb::Status::kNoSpace) {
      return fail(ErrorCode::kIo, "{} the cold tier in '{}': no space left on the device", what, folder_.string());
    }
    return fail(status.IsCorruption() ? ErrorCode::kCorrupt : ErrorCode::kIo, "{} the cold tier in '{}': {}", what,
                folder_.string(), status.ToString());
  }

  std::unique_ptr<rocksdb::DB> db_;
  const fs::path folder_;
  const std::size_t record_bytes_;
};

// For point lookups of small records that are seldom in any cache: filters and index in memory, binary search and a
// hash within 4 KB blocks, direct I/O on all paths, no compression (gradients make weights incompressible).
rocksdb::Options rocks_options(const ColdOptions& options) {
  rocksdb::BlockBasedTableOptions table;
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  table.data_block_index_type = rocksdb::BlockBasedTableOptions::kDataBlockBinaryAndHash;
  table.block_cache = rocksdb::NewLRUCache(options.block_cache_bytes);
  table.format_version = 5;
  rocksdb::Options rocks;
  rocks.create_if_missing = true;
  rocks.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  rocks.compression = rocksdb::kNoCompression;
  rocks.use_direct_reads = true;
  rocks.use_direct_io_for_flush_and_compaction = true;
  rocks.write_buffer_size = options.write_buffer_bytes;
  rocks.max_write_buffer_number = 2;
  rocks.target_file_size_base = options.write_buffer_bytes;
  rocks.max_bytes_for_level_base = 4 * options.write_buffer_bytes;
  rocks.level_compaction_dynamic_level_bytes = true;
  rocks.memtable_whole_key_filtering = true;
  rocks.memtable_prefix_bloom_size_ratio = 0.02;
  rocks.max_background_jobs = 2;
  rocks.avoid_flush_during_shutdown = true;
  rocks.stats_dump_period_sec = 0;
  rocks.keep_log_file_num = 1;
  rocks.info_log_level = rocksdb::WARN_LEVEL;
  return rocks;
}

}  // namespace

Result<std::unique_ptr<ColdStore>> open_cold_store(const fs::path& folder, std::size_t record_bytes,
                                                   const ColdOptions& options) {
  MOTLEY_TRY(make_folders(folder));
  std::error_code problem;
  const bool empty = fs::is_empty(folder, problem);
  if (problem || (!empty && !fs::exists(folder / "CURRENT"))) {
    return fail(ErrorCode::kInvalidInput,
                "the cold tier's folder '{}' holds other files{}; accepted: a new or empty folder, or one of an "
                "earlier cold tier (which is emptied)",
                folder.string(), problem ? " or cannot be read: " + problem.message() : "");
  }
  rocksdb::Options rocks = rocks_options(options);
  rocksdb::DB* db = nullptr;
  rocksdb::Status status = empty ? rocksdb::Status() : rocksdb::DestroyDB(folder.string(), rocks);
  if (status.ok()) status = rocksdb::DB::Open(rocks, folder.string(), &db);
  if (status.IsInvalidArgument() || status.IsNotSupported()) {
    spdlog::warn("the file system of '{}' has no direct I/O: the cold tier's reads also fill the page cache",
                 folder.string());
    rocks.use_direct_reads = false;
    rocks.use_direct_io_for_flush_and_compaction = false;
    status = rocksdb::DB::Open(rocks, folder.string(), &db);
  }
  if (!status.ok()) {
    return fail(ErrorCode::kIo, "cannot open the cold tier in '{}': {}", folder.string(), status.ToString());
  }
  return std::make_unique<RocksStore>(std::unique_ptr<rocksdb::DB>(db), folder, record_bytes);
}

}  // namespace motley::ps

#else

namespace motley::ps {

Result<std::unique_ptr<ColdStore>> open_cold_store(const std::filesystem::path& folder, std::size_t,
                                                   const ColdOptions&) {
  return fail(ErrorCode::kUnavailable,
              "a cold tier in '{}' needs RocksDB, and this Motley was built without it: install librocksdb-dev and "
              "build again, or leave the cold tier out",
              folder.string());
}

}  // namespace motley::ps

#endif
