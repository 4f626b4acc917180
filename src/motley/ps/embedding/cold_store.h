// Where a sparse table's rows rest that memory has no room for: an abstract store of fixed-size records by id, and
// RocksDB behind it. The store is scratch space: it begins empty, and its content is only as durable as the table's
// checkpoints make it (so there is no write-ahead log).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>

#include "motley/base/result.h"

namespace motley::ps {

// Visits every record that a store had at one moment, once and in any order, until a visit fails; writes go on beside
// it. Must not outlive the store.
using VisitRecord = std::function<Status(std::uint64_t id, std::span<const std::byte> record)>;
using ColdSnapshot = std::function<Status(const VisitRecord& visit)>;

// Thread-safe. Errors are kIo (a full disk says so) or kCorrupt, and name the folder.
class ColdStore {
 public:
  virtual ~ColdStore() = default;
  // Record i is written to records + i * the record's bytes; found[i] says whether there is one. Ids are distinct.
  virtual Status read(std::span<const std::uint64_t> ids, std::byte* records, std::uint8_t* found) = 0;
  // All or nothing. Ids are distinct.
  virtual Status write(std::span<const std::uint64_t> ids, std::span<const std::byte* const> records) = 0;
  virtual ColdSnapshot snapshot() = 0;
};

struct ColdOptions {
  std::size_t write_buffer_bytes = std::size_t{16} << 20;  // of two buffers that take writes before the disk does
  std::size_t block_cache_bytes = std::size_t{8} << 20;    // small: what is hot is kept by the table itself
};

// A store in RocksDB. What an earlier one left in the folder is removed; a folder with anything else in it is refused.
// kUnavailable where Motley was built without RocksDB.
Result<std::unique_ptr<ColdStore>> open_cold_store(const std::filesystem::path& folder, std::size_t record_bytes,
                                                   const ColdOptions& options = {});

}  // namespace motley::ps
