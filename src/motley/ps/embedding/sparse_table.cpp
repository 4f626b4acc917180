#include "motley/ps/embedding/sparse_table.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <limits>

#include "motley/base/log.h"
#include "motley/base/os/file.h"
#include "motley/base/os/signals.h"

namespace motley::ps {
namespace {

constexpr std::size_t kLookAhead = 16;  // ids whose index entries, and then rows, are on their way from memory
constexpr double kChainLimit = 2;       // changed rows in a chain, as a multiple of the table's rows

Status check_sizes(const SparseTableSpec& spec, std::size_t ids, std::size_t floats) {
  if (floats != ids * spec.dimension || ids >= RowBatch::kEnd) {
    return fail(ErrorCode::kInvalidInput, "table '{}': {} ids came with {} values; accepted: {} values an id",
                spec.name, ids, floats, spec.dimension);
  }
  return {};
}

// Looks up all items and hands each to work(item, slot), in order, while later ones are fetched from memory: of the
// rows their headers and so many bytes of floats. Stops where that gives false.
template <class Work>
void look_up(RowPartition& partition, std::span<RowBatch::Item> items, std::size_t bytes, Work work) {
  const std::size_t count = items.size();
  for (std::size_t i = 0; i < std::min(kLookAhead, count); ++i) partition.prefetch(items[i].hash);
  std::array<std::uint32_t, kLookAhead> slots;  // of the items whose rows are on their way
  for (std::size_t i = 0; i < count + kLookAhead; ++i) {
    if (i >= kLookAhead && !work(items[i - kLookAhead], slots[i % kLookAhead])) return;
    if (i + kLookAhead < count) partition.prefetch(items[i + kLookAhead].hash);
    if (i < count) {
      slots[i % kLookAhead] = partition.find(items[i].id, items[i].hash);
      if (slots[i % kLookAhead] != RowIndex::kNone) partition.prefetch_row(slots[i % kLookAhead], bytes);
    }
  }
}

}  // namespace

RowShape SparseTable::make_shape(const SparseTableSpec& spec) {
  return {spec.dimension, spec.dimension + state_floats(spec.optimizer.kind, spec.dimension)};
}

SparseTable::SparseTable(SparseTableSpec spec, std::unique_ptr<ColdStore> cold)
    : spec_(std::move(spec)),
      shape_(make_shape(spec_)),
      cold_(std::move(cold)),
      learning_rate_(spec_.optimizer.learning_rate) {
  max_rows_ = std::numeric_limits<std::uint64_t>::max();
  const auto limit = [this](std::uint64_t rows, std::string reason) {
    if (rows < max_rows_) {
      max_rows_ = rows;
      max_rows_reason_ = std::move(reason);
    }
  };
  if (spec_.max_rows > 0) limit(spec_.max_rows, fmt::format("max_rows = {}", spec_.max_rows));
  const std::uint64_t rows_in_memory = spec_.memory_bytes / shape_.resident_bytes();
  if (spec_.memory_bytes > 0 && !cold_) {
    limit(rows_in_memory, fmt::format("memory_bytes = {} without a cold tier", spec_.memory_bytes));
  }
  const std::size_t capacity = cold_ ? rows_in_memory / kPartitions : 0;
  max_rows_at_once_ = capacity == 0 ? RowBatch::kEnd : capacity * kPartitions;
  for (std::size_t p = 0; p < kPartitions; ++p) {
    partitions_.push_back(std::make_unique<RowPartition>(shape_, capacity, cold_.get()));
  }
}

SparseTable::~SparseTable() {
  if (prefetcher_.joinable()) {
    {
      const std::lock_guard lock(prefetch_mutex_);
      stopping_ = true;
    }
    prefetch_changed_.notify_all();
    prefetcher_.join();
  }
}

Result<std::unique_ptr<SparseTable>> SparseTable::create(const SparseTableSpec& spec, std::unique_ptr<ColdStore> cold) {
  const auto refuse = [&spec](const char* field, auto value, const std::string& accepted) {
    return fail(ErrorCode::kInvalidInput, "table '{}': {} is {}; accepted: {}", spec.name, field, value, accepted);
  };
  if (spec.dimension < 1 || spec.dimension > kDimensionLimit) {
    return refuse("dimension", spec.dimension, fmt::format("1 to {}", kDimensionLimit));
  }
  const RowOptimizer& optimizer = spec.optimizer;
  if (!(optimizer.learning_rate >= 0)) return refuse("learning_rate", optimizer.learning_rate, "0 or more");
  if (!(optimizer.epsilon > 0)) return refuse("epsilon", optimizer.epsilon, "above 0");
  for (const auto& [field, beta] : {std::pair("beta1", optimizer.beta1), std::pair("beta2", optimizer.beta2)}) {
    if (!(beta >= 0 && beta < 1)) return refuse(field, beta, "from 0 to below 1");
  }
  const bool has_cold = cold || !spec.cold_folder.empty();
  const std::uint64_t min_memory = kPartitions * make_shape(spec).resident_bytes();
  if (has_cold && spec.memory_bytes < min_memory) {
    return refuse("memory_bytes", spec.memory_bytes,
                  fmt::format("with a cold tier at least {} ({} rows)", min_memory, kPartitions));
  }
  if (!cold && has_cold) {
    MOTLEY_ASSIGN(cold, open_cold_store(spec.cold_folder, make_shape(spec).record_bytes()));
  }
  std::unique_ptr<SparseTable> table(new SparseTable(spec, std::move(cold)));
  if (has_cold) {
    auto prefetcher = try_start_thread([raw = table.get()] { raw->prefetch_in_background(); });
    if (!prefetcher) return fail(prefetcher.error().within(fmt::format("table '{}'", spec.name)));
    table->prefetcher_ = std::move(*prefetcher);
  }
  return table;
}

// Calls work(partition, its items) for each partition with items, under its lock: those that are free first, starting
// at a place that differs from thread to thread.
template <class Work>
Status SparseTable::each_partition(RowBatch& batch, Work work) {
  static std::atomic<std::size_t> threads = 0;
  thread_local const std::size_t offset = 5 * threads++;
  std::uint64_t busy = 0;
  static_assert(kPartitions <= 64);
  for (std::size_t i = 0; i < kPartitions; ++i) {
    const std::size_t p = (i + offset) % kPartitions;
    const std::span<RowBatch::Item> items = batch.of(p);
    if (items.empty()) continue;
    const std::unique_lock lock(partitions_[p]->mutex, std::try_to_lock);
    if (!lock.owns_lock()) {
      busy |= std::uint64_t{1} << p;
      continue;
    }
    MOTLEY_TRY(work(*partitions_[p], items));
  }
  for (std::size_t p = 0; busy != 0; ++p, busy >>= 1) {
    if (busy & 1) {
      const std::lock_guard lock(partitions_[p]->mutex);
      MOTLEY_TRY(work(*partitions_[p], batch.of(p)));
    }
  }
  return {};
}

Status SparseTable::pull(std::span<const std::uint64_t> ids, std::span<float> rows) {
  MOTLEY_TRY(check_sizes(spec_, ids.size(), rows.size()));
  thread_local RowBatch batch;
  thread_local std::vector<Missing> missing;
  const std::size_t bytes = shape_.dimension * sizeof(float);
  const auto out = [&](std::uint32_t position) { return rows.data() + position * shape_.dimension; };
  batch.group(ids, kPartitionBits);
  missing.clear();
  MOTLEY_TRY(each_partition(batch, [&](RowPartition& partition, std::span<RowBatch::Item> items) {
    const std::uint64_t stamp = partition.stamp();
    const std::size_t missing_before = missing.size();
    look_up(partition, items, bytes, [&](const RowBatch::Item& item, std::uint32_t slot) {
      if (slot == RowIndex::kNone) {
        missing.push_back({item.id, item.hash, item.first, stamp});
      } else {
        partition.use(partition.header(slot));
        std::memcpy(out(item.first), partition.values(slot), bytes);
      }
      return true;
    });
    partition.counters.misses += missing.size() - missing_before;
    partition.counters.hits += items.size() - (missing.size() - missing_before);
    return Status();
  }));
  if (!cold_) {
    for (const Missing& row : missing) {
      initialize_row(spec_.initializer, row.id, shape_.dimension, {out(row.item), shape_.dimension});
    }
    return {};
  }
  return fetch(missing, false, [&](RowPartition&, const Missing& row, std::uint32_t, const float* values) -> Status {
    std::memcpy(out(row.item), values, bytes);
    return {};
  });
}

// The records of the distinct ids of `missing`, which is in order of hashes.
Status SparseTable::read_cold(const std::vector<Missing>& missing, Fetched& fetched) {
  fetched.ids.clear();
  for (const Missing& row : missing) {
    if (fetched.ids.empty() || fetched.ids.back() != row.id) fetched.ids.push_back(row.id);
  }
  const std::size_t record_bytes = shape_.record_bytes();
  fetched.found.resize(fetched.ids.size());
  fetched.records.resize(fetched.ids.size() * record_bytes);
  const Status read = cold_->read(fetched.ids, fetched.records.data(), fetched.found.data());
  if (!read) return fail(read.error().within(fmt::format("table '{}'", spec_.name)));
  for (std::size_t i = 0; i < fetched.ids.size(); ++i) {
    if (!fetched.found[i]) initialize_record(fetched.ids[i], fetched.records.data() + i * record_bytes);
  }
  return {};
}

void SparseTable::initialize_record(std::uint64_t id, std::byte* record) const {
  std::memset(record, 0, sizeof(std::uint32_t));  // generation zero: never pushed
  initialize_row(spec_.initializer, id, shape_.dimension,
                 {reinterpret_cast<float*>(record + sizeof(std::uint32_t)), shape_.floats});
}

// Brings rows in from the cold store and hands each to use(partition, missing, slot, values) under its partition's
// lock. Rows that found no room have no slot; with must_stay all have one, or it is an error.
//
// The store is read without locks. Where a row has come in meanwhile, the one in memory counts; where it may have come
// in, changed and left again, it is read once more.
template <class Use>
Status SparseTable::fetch(std::vector<Missing>& missing, bool must_stay, Use use) {
  Fetched fetched;
  std::vector<Missing> again;
  while (!missing.empty()) {
    std::ranges::sort(missing, {}, &Missing::hash);
    MOTLEY_TRY(read_cold(missing, fetched));
    again.clear();
    std::size_t distinct = 0;
    for (std::size_t begin = 0; begin < missing.size();) {
      RowPartition& partition = find_partition(missing[begin].hash);
      std::size_t end = begin;
      while (end < missing.size() && &find_partition(missing[end].hash) == &partition) ++end;
      const std::lock_guard lock(partition.mutex);
      Result<std::size_t> room = partition.make_room(end - begin);
      if (!room && must_stay) return fail(room.error().within(fmt::format("table '{}'", spec_.name)));
      std::size_t left = room.value_or(0);
      for (std::size_t i = begin; i < end; ++distinct) {
        const Missing& row = missing[i];
        const std::byte* record = fetched.records.data() + distinct * shape_.record_bytes();
        std::uint32_t slot = partition.find(row.id, row.hash);
        const bool stale = slot == RowIndex::kNone && !partition.unchanged_since(row.hash, row.stamp);
        if (slot == RowIndex::kNone && !stale && (left > 0 || must_stay)) {
          slot = partition.insert(row.id, row.hash, record);
          left -= left > 0 ? 1 : 0;
        }
        const float* values = slot == RowIndex::kNone ? reinterpret_cast<const float*>(record + sizeof(std::uint32_t))
                                                      : partition.values(slot);
        for (; i < end && missing[i].id == row.id; ++i) {
          if (stale) {
            again.push_back({row.id, row.hash, missing[i].item, partition.stamp()});
          } else {
            MOTLEY_TRY(use(partition, missing[i], slot, values));
          }
        }
      }
      begin = end;
    }
    missing.swap(again);
  }
  return {};
}

// Counts the row among the table's, if it is new, and makes it stay in its slot.
Status SparseTable::pin(RowPartition& partition, std::uint32_t slot) {
  RowHeader& row = partition.header(slot);
  if (!row.counted) {
    if (rows_.fetch_add(1) >= max_rows_) {
      --rows_;
      return fail(ErrorCode::kRefused,
                  "table '{}' has the {} rows of its quota ({}); accepted: pushes to rows that exist", spec_.name,
                  max_rows_, max_rows_reason_);
    }
    row.counted = true;
  }
  ++row.pins;
  return {};
}

void SparseTable::unpin(RowPartition& partition, std::uint32_t slot) {
  RowHeader& row = partition.header(slot);
  if (--row.pins > 0 || row.pushed) return;
  if (row.counted) {  // the push that brought it was not applied
    row.counted = false;
    --rows_;
  }
  if (!cold_) partition.remove(slot);
}

// Brings the rows of a merged batch into memory, pins them and notes their slots.
Status SparseTable::hold(RowBatch& batch) {
  std::vector<Missing> missing;
  std::vector<RowBatch::Item*> items_missing;
  std::vector<std::byte> fresh(shape_.record_bytes());
  const auto keep = [this](RowPartition& partition, RowBatch::Item& item, std::uint32_t slot) -> Status {
    MOTLEY_TRY(pin(partition, slot));
    item.slot = slot;
    return {};
  };
  MOTLEY_TRY(each_partition(batch, [&](RowPartition& partition, std::span<RowBatch::Item> items) {
    const std::uint64_t stamp = partition.stamp();
    Status held;
    look_up(partition, items, 0, [&](RowBatch::Item& item, std::uint32_t slot) {
      if (slot == RowIndex::kNone && cold_) {
        missing.push_back({item.id, item.hash, static_cast<std::uint32_t>(items_missing.size()), stamp});
        items_missing.push_back(&item);
        return true;
      }
      const bool is_new = slot == RowIndex::kNone;
      if (is_new) {
        initialize_record(item.id, fresh.data());
        slot = partition.insert(item.id, item.hash, fresh.data());
      }
      held = keep(partition, item, slot);
      if (!held && is_new) partition.remove(slot);
      return held.has_value();
    });
    return held;
  }));
  return fetch(missing, true, [&](RowPartition& partition, const Missing& row, std::uint32_t slot, const float*) {
    return keep(partition, *items_missing[row.item], slot);
  });
}

// Holds the batch's rows, then calls change(item, floats) on all of them, or on none.
template <class Change>
Status SparseTable::update(RowBatch& batch, Change change) {
  Status held = hold(batch);
  std::shared_lock applying(applying_, std::defer_lock);
  {
    const std::lock_guard turn(turnstile_);
    applying.lock();
  }
  MOTLEY_TRY(each_partition(batch, [&](RowPartition& partition, std::span<RowBatch::Item> items) -> Status {
    for (std::size_t i = 0; i < items.size(); ++i) {
      RowBatch::Item& item = items[i];
      if (i + kLookAhead < items.size() && items[i + kLookAhead].slot != RowIndex::kNone) {
        partition.prefetch_row(items[i + kLookAhead].slot, shape_.payload_bytes());
      }
      if (item.slot == RowIndex::kNone) continue;
      if (held) {
        partition.before_change(item.slot);
        change(item, partition.values(item.slot));
        RowHeader& row = partition.header(item.slot);
        row.dirty = true;
        row.pushed = true;
        row.generation = epoch_;
      }
      unpin(partition, item.slot);
    }
    return {};
  }));
  return held;
}

Status SparseTable::push(std::span<const std::uint64_t> ids, std::span<const float> gradients) {
  MOTLEY_TRY(check_sizes(spec_, ids.size(), gradients.size()));
  thread_local RowBatch batch;
  thread_local std::vector<float> sum;
  batch.group(ids, kPartitionBits);
  batch.merge();
  std::size_t distinct = 0;
  for (std::size_t p = 0; p < kPartitions; ++p) distinct += batch.of(p).size();
  if (distinct > max_rows_at_once_) {
    return fail(ErrorCode::kRefused,
                "table '{}': a push of {} rows was not applied; accepted: at most the {} rows that "
                "memory_bytes = {} has room for",
                spec_.name, distinct, max_rows_at_once_, spec_.memory_bytes);
  }
  RowOptimizer optimizer = spec_.optimizer;
  optimizer.learning_rate = learning_rate_;
  const Status applied = update(batch, [&](const RowBatch::Item& item, float* row) {
    const auto gradient = [&](std::uint32_t position) {
      return gradients.subspan(position * shape_.dimension, shape_.dimension);
    };
    std::span<const float> total = gradient(item.first);
    if (item.first != item.last) {
      sum.assign(total.begin(), total.end());
      for (std::uint32_t at = batch.next(item.first); at != RowBatch::kEnd; at = batch.next(at)) {
        std::ranges::transform(sum, gradient(at), sum.begin(), std::plus());
      }
      total = sum;
    }
    update_row(optimizer, total, row);
  });
  if (!applied) return fail(applied.error().within(fmt::format("a push of {} rows was not applied", distinct)));
  return {};
}

// Rows as a checkpoint has them, weights and state; of equal ids the last counts.
Status SparseTable::put(std::span<const std::uint64_t> ids, std::span<const float> floats) {
  RowBatch batch;
  batch.group(ids, kPartitionBits);
  batch.merge();
  return update(batch, [&](const RowBatch::Item& item, float* row) {
    std::memcpy(row, floats.data() + item.last * shape_.floats, shape_.payload_bytes());
  });
}

void SparseTable::prefetch(std::span<const std::uint64_t> ids) {
  if (!cold_) return;
  {
    const std::lock_guard lock(prefetch_mutex_);
    if (prefetches_.size() >= kPrefetchesWaiting) {
      ++prefetches_dropped_;
      return;
    }
    prefetches_.emplace_back(ids.begin(), ids.end());
  }
  prefetch_changed_.notify_all();
}

Status SparseTable::drain_prefetches(const Deadline& deadline) {
  std::unique_lock lock(prefetch_mutex_);
  const auto idle = [this] { return prefetches_.empty() && !prefetching_; };
  if (!prefetch_changed_.wait_for(lock, std::chrono::duration<double>(deadline.remaining()), idle)) {
    return fail(ErrorCode::kTimeout, "table '{}': {} prefetches were not done within {} s", spec_.name,
                prefetches_.size() + (prefetching_ ? 1 : 0), deadline.allowed());
  }
  return {};
}

void SparseTable::prefetch_in_background() {
  std::unique_lock lock(prefetch_mutex_);
  for (;;) {
    prefetch_changed_.wait(lock, [this] { return stopping_ || !prefetches_.empty(); });
    if (stopping_) return;
    const std::vector<std::uint64_t> ids = std::move(prefetches_.front());
    prefetches_.pop_front();
    prefetching_ = true;
    lock.unlock();
    if (const Status done = prefetch_now(ids); !done) {
      spdlog::warn("rows were not prefetched: {}", done.error().message);
    }
    lock.lock();
    prefetching_ = false;
    prefetch_changed_.notify_all();
  }
}

Status SparseTable::prefetch_now(std::span<const std::uint64_t> ids) {
  RowBatch batch;
  std::vector<Missing> missing;
  batch.group(ids, kPartitionBits);
  const auto protect = [](RowPartition& partition, std::uint32_t slot) {
    if (slot != RowIndex::kNone && partition.may_protect()) partition.protect(partition.header(slot));
  };
  MOTLEY_TRY(each_partition(batch, [&](RowPartition& partition, std::span<RowBatch::Item> items) {
    const std::uint64_t stamp = partition.stamp();
    look_up(partition, items, 0, [&](const RowBatch::Item& item, std::uint32_t slot) {
      if (slot == RowIndex::kNone) {
        missing.push_back({item.id, item.hash, item.first, stamp});
      }
      protect(partition, slot);
      return true;
    });
    return Status();
  }));
  return fetch(missing, false,
               [&](RowPartition& partition, const Missing&, std::uint32_t slot, const float*) -> Status {
                 protect(partition, slot);
                 return {};
               });
}

// The rows of the running save that are in memory, as they were at its moment.
Result<RowFile> SparseTable::save_hot(const std::filesystem::path& folder, const std::string& stem) {
  MOTLEY_ASSIGN(RowFileWriter writer, RowFileWriter::create(folder, stem + "-hot", shape_.floats));
  std::vector<std::byte> bytes;
  for (const auto& partition : partitions_) {
    for (bool more = true; more;) {
      bytes.clear();
      {
        const std::lock_guard lock(partition->mutex);
        more = partition->save_some(bytes);
      }
      MOTLEY_TRY(writer.add(bytes));
    }
  }
  return writer.finish();
}

// The rows that the cold store had at that moment and that changed after epoch `since`.
Result<RowFile> SparseTable::save_cold(const std::filesystem::path& folder, const std::string& stem,
                                       std::uint32_t since, const ColdSnapshot& cold) {
  MOTLEY_ASSIGN(RowFileWriter writer, RowFileWriter::create(folder, stem + "-cold", shape_.floats));
  std::vector<std::byte> bytes;
  MOTLEY_TRY(cold([&](std::uint64_t id, std::span<const std::byte> record) -> Status {
    std::uint32_t generation = 0;
    std::memcpy(&generation, record.data(), sizeof(generation));
    if (generation <= since) return {};
    const auto* id_bytes = reinterpret_cast<const std::byte*>(&id);
    bytes.assign(id_bytes, id_bytes + sizeof(id));
    bytes.insert(bytes.end(), record.begin() + sizeof(generation), record.end());
    return writer.add(bytes);
  }));
  return writer.finish();
}

// Rows in memory are saved first, while they may still be copied aside, but are named last: where the cold store has an
// older state of a row, the one from memory counts when the files are read.
Result<std::vector<RowFile>> SparseTable::save_rows(const std::filesystem::path& folder, const std::string& stem,
                                                    std::uint32_t since, const ColdSnapshot& cold) {
  std::vector<RowFile> files;
  MOTLEY_ASSIGN(RowFile hot, save_hot(folder, stem));
  if (cold) {
    MOTLEY_ASSIGN(RowFile rest, save_cold(folder, stem, since, cold));
    files.push_back(std::move(rest));
  }
  files.push_back(std::move(hot));
  return files;
}

Result<CheckpointReport> SparseTable::checkpoint(const std::filesystem::path& folder, std::int64_t step,
                                                 const CheckpointOptions& options) {
  const std::lock_guard one_at_a_time(checkpointing_);
  MOTLEY_TRY(make_folders(folder));
  const bool full = chain_.empty() || chain_folder_ != folder ||
                    static_cast<double>(chain_changes_) > kChainLimit * static_cast<double>(rows_);
  const std::uint32_t since = full ? 0 : chain_cut_;
  std::uint32_t cut = 0;
  ColdSnapshot cold;
  {
    const std::lock_guard turn(turnstile_);
    const std::lock_guard between_pushes(applying_);
    std::vector<std::unique_lock<std::mutex>> locks;
    for (const auto& partition : partitions_) locks.emplace_back(partition->mutex);
    cut = epoch_++;
    if (cold_) cold = cold_->snapshot();
    for (const auto& partition : partitions_) partition->begin_save(since, cut);
  }
  if (options.at_moment) options.at_moment();
  CheckpointReport report{.full = full};
  SparseManifest manifest{step, {spec_.name, spec_.dimension, spec_.optimizer.kind, spec_.initializer}, {}};
  if (!full) manifest.files = chain_;
  const auto write = [&]() -> Status {
    MOTLEY_ASSIGN(const auto files, save_rows(folder, fmt::format("sparse-{:08}", step), since, cold));
    for (const RowFile& file : files) {
      report.rows += file.rows;
      report.bytes += file.bytes;
      manifest.files.push_back(file);
    }
    return write_sparse_manifest(folder, manifest);
  };
  if (const Status written = write(); !written) {
    for (const auto& partition : partitions_) {
      const std::lock_guard lock(partition->mutex);
      partition->end_save();
    }
    return fail(written.error().within(fmt::format(
        "table '{}': the checkpoint of step {} was not written (earlier ones are intact)", spec_.name, step)));
  }
  chain_folder_ = folder;
  chain_ = std::move(manifest.files);
  chain_cut_ = cut;
  chain_changes_ = full ? 0 : chain_changes_ + report.rows;
  prune_sparse_checkpoints(folder, step, std::max(options.keep, 1));
  return report;
}

Result<std::unique_ptr<SparseTable>> SparseTable::restore(const SparseTableSpec& spec,
                                                          const std::vector<std::filesystem::path>& folders,
                                                          std::int64_t step,
                                                          const std::function<bool(std::uint64_t)>& owns,
                                                          std::unique_ptr<ColdStore> cold) {
  MOTLEY_ASSIGN(auto table, create(spec, std::move(cold)));
  for (const std::filesystem::path& folder : folders) {
    MOTLEY_ASSIGN(const SparseManifest manifest, read_sparse_manifest(folder, step));
    const TableForm& form = manifest.form;
    if (form.dimension != spec.dimension || form.optimizer != spec.optimizer.kind ||
        form.initializer != spec.initializer) {
      return fail(
          ErrorCode::kInvalidInput,
          "the checkpoint of step {} in '{}' is of a table with dimension {}, {} and {} initializer of scale {} "
          "and seed {}; table '{}' has dimension {}, {} and {} initializer of scale {} and seed {}",
          step, folder.string(), form.dimension, to_string(form.optimizer), to_string(form.initializer.kind),
          form.initializer.scale, form.initializer.seed, spec.name, spec.dimension, to_string(spec.optimizer.kind),
          to_string(spec.initializer.kind), spec.initializer.scale, spec.initializer.seed);
    }
    const std::size_t width = table->shape_.floats;
    std::vector<std::uint64_t> ids;
    std::vector<float> floats;
    for (const RowFile& file : manifest.files) {
      MOTLEY_TRY(
          read_row_file(folder, file, width, [&](std::span<const std::uint64_t> all, std::span<const float> values) {
            ids.clear();
            floats.clear();
            for (std::size_t i = 0; i < all.size(); ++i) {
              if (owns(all[i])) {
                ids.push_back(all[i]);
                floats.insert(floats.end(), values.begin() + i * width, values.begin() + (i + 1) * width);
              }
            }
            return table->put(ids, floats);
          }));
    }
  }
  return table;
}

SparseStatistics SparseTable::statistics() {
  SparseStatistics statistics;
  statistics.rows = rows_;
  for (const auto& partition : partitions_) {
    const std::lock_guard lock(partition->mutex);
    const RowCounters& counters = partition->counters;
    statistics.hot_rows += partition->rows();
    statistics.counters.hits += counters.hits;
    statistics.counters.misses += counters.misses;
    statistics.counters.evictions += counters.evictions;
    statistics.counters.cold_writes += counters.cold_writes;
    statistics.counters.prefetched += counters.prefetched;
    statistics.counters.prefetch_hits += counters.prefetch_hits;
  }
  const std::lock_guard lock(prefetch_mutex_);
  statistics.prefetches_dropped = prefetches_dropped_;
  return statistics;
}

}  // namespace motley::ps
