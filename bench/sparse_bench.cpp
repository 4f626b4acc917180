// sparse-hot: two threads pull and push batches of uniformly random rows; the limit is the same copies and updates on
// rows whose places are known, without index, locks or grouping, by two pinned threads.
//
// The same with one thread stands beside FBGEMM's table on the CPU, which has rows by their number in an array;
// ours finds them by hashed ids.
//
// sparse-zipf-cold: batches of Zipf-distributed ids are pulled and pushed on a table of four times its memory. What the
// table reads from and writes to its cold store is recorded batch by batch, and replayed on a second store of the same
// content, which has nothing else to do. Both take turns.
#include "bench/sparse_bench.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <thread>

#include "bench/child_process.h"
#include "bench/temporary_folder.h"
#include "motley/base/clock.h"
#include "motley/base/os/file.h"
#include "motley/base/random.h"
#include "motley/base/units.h"
#include "motley/ps/embedding/sparse_table.h"

namespace motley::bench {
namespace {

namespace fs = std::filesystem;
using ps::ColdStore;
using ps::SparseTable;
using ps::SparseTableSpec;

constexpr std::size_t kDimension = 32;
constexpr std::size_t kBatch = 8192;
constexpr int kThreads = 2;
constexpr double kZipfExponent = 0.99;  // that of YCSB
constexpr int kTimesMemory = 4;
constexpr std::size_t kStoresBytes = std::size_t{48} << 20;  // for all that two cold stores and this program take

SparseTableSpec table_spec() {
  SparseTableSpec spec;
  spec.name = "bench";
  spec.dimension = kDimension;
  return spec;
}

ps::RowShape shape() {
  return {kDimension, kDimension + ps::state_floats(ps::RowOptimizer::Kind::kAdagrad, kDimension)};
}

void pin(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  pthread_setaffinity_np(pthread_self(), sizeof(cores), &cores);
}

// Seconds from the common start to the last end of work(thread) on so many pinned threads.
template <class Work>
double on_threads(int count, Work work) {
  std::atomic<int> ready = 0;
  std::vector<double> begin(count);
  std::vector<double> end(count);
  std::vector<std::thread> threads;
  for (int t = 0; t < count; ++t) {
    threads.emplace_back([&, t] {
      pin(t);
      ++ready;
      while (ready < count) std::this_thread::yield();
      begin[t] = monotonic_seconds();
      work(t);
      end[t] = monotonic_seconds();
    });
  }
  for (auto& thread : threads) thread.join();
  return *std::ranges::max_element(end) - *std::ranges::min_element(begin);
}

// Puts this process into a memory cgroup of its own until it ends; nothing where that is not allowed.
class MemoryLimit {
 public:
  explicit MemoryLimit(std::size_t bytes) {
    std::ifstream groups("/proc/self/cgroup");
    for (std::string line; std::getline(groups, line) && !active_;) {
      const std::size_t controller = line.find(':') + 1;
      const std::size_t path = line.find(':', controller) + 1;
      const bool first = line.compare(controller, path - controller, "memory:") == 0;
      if (!first && path != controller + 1) continue;
      parent_ = fs::path(first ? "/sys/fs/cgroup/memory" : "/sys/fs/cgroup") / line.substr(path + 1);
      group_ = parent_ / fmt::format("motley-bench-{}", ::getpid());
      std::error_code problem;
      if (!fs::create_directory(group_, problem)) continue;
      active_ = write(group_ / (first ? "memory.limit_in_bytes" : "memory.max"), bytes) &&
                write(group_ / "cgroup.procs", static_cast<std::size_t>(::getpid()));
      if (!active_) fs::remove(group_, problem);
    }
  }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;
  ~MemoryLimit() {
    std::error_code ignored;
    if (active_ && write(parent_ / "cgroup.procs", static_cast<std::size_t>(::getpid()))) ::rmdir(group_.c_str());
  }
  bool active() const { return active_; }

 private:
  static bool write(const fs::path& path, std::size_t number) {
    std::ofstream file(path);
    file << number << std::flush;
    return file.good();
  }
  fs::path parent_;
  fs::path group_;
  bool active_ = false;
};

// What one batch asked of a cold store.
struct Traffic {
  std::vector<std::vector<std::uint64_t>> reads;
  struct Write {
    std::vector<std::uint64_t> ids;
    std::vector<std::byte> records;
  };
  std::vector<Write> writes;
};

class RecordingStore final : public ColdStore {
 public:
  RecordingStore(std::unique_ptr<ColdStore> store, std::size_t record_bytes, Traffic& traffic)
      : store_(std::move(store)), record_bytes_(record_bytes), traffic_(traffic) {}

  Status read(std::span<const std::uint64_t> ids, std::byte* records, std::uint8_t* found) override {
    traffic_.reads.emplace_back(ids.begin(), ids.end());
    return store_->read(ids, records, found);
  }
  Status write(std::span<const std::uint64_t> ids, std::span<const std::byte* const> records) override {
    Traffic::Write& write = traffic_.writes.emplace_back();
    write.ids.assign(ids.begin(), ids.end());
    for (const std::byte* record : records) {
      write.records.insert(write.records.end(), record, record + record_bytes_);
    }
    return store_->write(ids, records);
  }
  ps::ColdSnapshot snapshot() override { return store_->snapshot(); }

 private:
  std::unique_ptr<ColdStore> store_;
  std::size_t record_bytes_;
  Traffic& traffic_;
};

// A batch's reads in one call and its writes in another, as a program would that uses the store alone.
Status replay(ColdStore& store, std::size_t record_bytes, const Traffic& traffic) {
  std::vector<std::uint64_t> reads;
  for (const auto& ids : traffic.reads) reads.insert(reads.end(), ids.begin(), ids.end());
  std::vector<std::byte> records(reads.size() * record_bytes);
  std::vector<std::uint8_t> found(reads.size());
  if (!reads.empty()) {
    MOTLEY_TRY(store.read(reads, records.data(), found.data()));
  }
  std::vector<std::uint64_t> writes;
  std::vector<const std::byte*> written;
  for (const Traffic::Write& write : traffic.writes) {
    for (std::size_t i = 0; i < write.ids.size(); ++i) {
      writes.push_back(write.ids[i]);
      written.push_back(write.records.data() + i * record_bytes);
    }
  }
  return writes.empty() ? Status() : store.write(writes, written);
}

class SparseBench {
 public:
  explicit SparseBench(const BenchOptions& options) : options_(options), pairs_(options.quick ? 5 : 11) {}

  Result<std::vector<BenchRow>> run() {
    MOTLEY_TRY(hot());
#ifdef MOTLEY_HAS_ROCKSDB
    MOTLEY_TRY(cold());
#else
    say("sparse-zipf-cold left out: built without RocksDB");
#endif
    return std::move(rows_);
  }

 private:
  void say(const std::string& line) const {
    if (options_.progress) options_.progress(line);
  }

  Status hot() {
    const std::uint64_t row_count = options_.quick ? 500'000 : 2'000'000;
    const int batches = options_.quick ? 10 : 60;  // of each thread in a round
    say(fmt::format("sparse-hot: {} rows in memory", row_count));
    MOTLEY_ASSIGN(const auto table, SparseTable::create(table_spec()));
    const std::vector<float> gradients(kBatch * kDimension, 0.01F);
    std::vector<std::uint64_t> ids(kBatch);
    for (std::uint64_t begin = 0; begin < row_count; begin += kBatch) {
      for (std::size_t i = 0; i < kBatch; ++i) ids[i] = mix({(begin + i) % row_count});
      MOTLEY_TRY(table->push(ids, gradients));
    }
    // The same rows in one piece, for the limit.
    const std::size_t stride = shape().stride() / sizeof(float);
    std::vector<float> flat(row_count * stride, 0.01F);
    std::vector<double> ours;
    std::vector<double> bare;
    std::vector<Status> statuses(kThreads);
    for (int pair = 0; pair < pairs_ + 1; ++pair) {
      std::vector<std::vector<std::uint64_t>> order(kThreads);
      for (int t = 0; t < kThreads; ++t) {
        Random random(mix({static_cast<std::uint64_t>(pair), static_cast<std::uint64_t>(t)}));
        for (std::size_t i = 0; i < batches * kBatch; ++i) order[t].push_back(random.below(row_count));
      }
      const auto run_ours = [&] {
        std::vector<std::vector<std::uint64_t>> all(kThreads);
        for (int t = 0; t < kThreads; ++t) {
          for (const std::uint64_t row : order[t]) all[t].push_back(mix({row}));
        }
        return on_threads(kThreads, [&](int t) {
          std::vector<float> rows(kBatch * kDimension);
          for (int b = 0; b < batches && statuses[t]; ++b) {
            const auto batch = std::span(all[t]).subspan(b * kBatch, kBatch);
            statuses[t] = table->pull(batch, rows);
            if (statuses[t]) statuses[t] = table->push(batch, gradients);
          }
        });
      };
      const auto run_bare = [&] {
        return on_threads(kThreads, [&](int t) { bare_rows(flat, stride, order[t], gradients); });
      };
      double our_seconds = 0;
      double bare_seconds = 0;
      for (int turn = 0; turn < 2; ++turn) {
        (turn == pair % 2 ? our_seconds : bare_seconds) = turn == pair % 2 ? run_ours() : run_bare();
      }
      for (const Status& status : statuses) MOTLEY_TRY(status);
      if (pair == 0) continue;  // warms both up
      ours.push_back(our_seconds);
      bare.push_back(bare_seconds);
    }
    const double operations = 2.0 * kThreads * batches * kBatch;
    const double value = operations / median(ours) / 1e6;
    const double limit = operations / median(bare) / 1e6;
    rows_.push_back(
        {"sparse-hot",
         "million_rows_per_second",
         value,
         "M/s",
         true,
         {},
         limit,
         {},
         fmt::format("pulls and pushes of {} uniformly random rows a batch, {} threads, {} rows of {} floats "
                     "with row-wise Adagrad; limit: the same copies and updates at known places",
                     kBatch, kThreads, row_count, kDimension)});
    say(fmt::format("sparse-hot {:.1f} million rows a second, at known places {:.1f}", value, limit));
    return beside_fbgemm(*table, row_count, batches);
  }

  Status beside_fbgemm(SparseTable& table, std::uint64_t row_count, int batches) {
    if (!has_module(options_.python, "fbgemm_gpu")) {
      say("sparse-hot, ratio_to_fbgemm left out: needs the Python module fbgemm_gpu (tools/setup --nightly)");
      return {};
    }
    MOTLEY_ASSIGN(const TemporaryFolder folder, TemporaryFolder::create());
    const fs::path file = folder.path() / "rows";
    MOTLEY_ASSIGN(
        const auto peer,
        ChildProcess::start({options_.python.string(), (options_.source_folder / "bench/peers/fbgemm_rows.py").string(),
                             fmt::format("{}", row_count), fmt::format("{}", kDimension)}));
    const std::vector<float> gradients(kBatch * kDimension, 0.01F);
    std::vector<double> ours, theirs, ratios;
    std::size_t batch = 0;  // of the peer, in its fastest run
    for (int pair = 0; pair < pairs_ + 1; ++pair) {
      Random random(mix({static_cast<std::uint64_t>(pair), 2}));
      std::vector<std::uint64_t> order(static_cast<std::size_t>(batches) * kBatch);
      for (auto& row : order) row = random.below(row_count);
      MOTLEY_TRY(write_file(file, {reinterpret_cast<const char*>(order.data()), order.size() * sizeof(order[0])}));
      std::vector<std::uint64_t> ids;
      for (const std::uint64_t row : order) ids.push_back(mix({row}));
      Status status;
      const auto run_ours = [&] {
        return on_threads(1, [&](int) {
          std::vector<float> rows(kBatch * kDimension);
          for (std::size_t begin = 0; begin < ids.size() && status; begin += kBatch) {
            const auto part = std::span(ids).subspan(begin, kBatch);
            status = table.pull(part, rows);
            if (status) status = table.push(part, gradients);
          }
        });
      };
      double our_seconds = pair % 2 == 0 ? run_ours() : 0;
      MOTLEY_TRY(peer->write_line(file.string()));
      MOTLEY_ASSIGN(const std::string line, peer->read_line(Deadline::after(120)));
      std::size_t peer_batch = 0;
      double peer_seconds = 0;
      if (!(std::istringstream(line) >> peer_batch >> peer_seconds)) {
        return fail(ErrorCode::kInternal, "bench/peers/fbgemm_rows.py answers '{}'; accepted: a batch size and seconds",
                    line);
      }
      if (pair % 2 != 0) our_seconds = run_ours();
      MOTLEY_TRY(status);
      if (pair == 0) continue;  // warms both up
      if (theirs.empty() || peer_seconds < std::ranges::min(theirs)) batch = peer_batch;
      ours.push_back(our_seconds);
      theirs.push_back(peer_seconds);
      ratios.push_back(peer_seconds / our_seconds);
    }
    const double rows = static_cast<double>(batches) * kBatch / 1e6;
    rows_.push_back(
        {"sparse-hot",
         "ratio_to_fbgemm",
         median(ratios),
         "x",
         true,
         0.8,
         {},
         1,
         fmt::format("measured; {:.2f} and {:.2f} million rows a second looked up and updated, one pinned "
                     "thread each, {} rows of {} floats, row-wise Adagrad, bags of one, the same uniformly "
                     "random rows: ours by hashed ids, {} a batch; FBGEMM's CPU table by places in an array, "
                     "the fastest of three batch sizes ({})",
                     rows / median(ours), rows / median(theirs), row_count, kDimension, kBatch, batch)});
    say(fmt::format("sparse-hot ratio_to_fbgemm {:.2f}", median(ratios)));
    return {};
  }

  static void bare_rows(std::vector<float>& flat, std::size_t stride, const std::vector<std::uint64_t>& order,
                        const std::vector<float>& gradients) {
    constexpr std::size_t kAhead = 16;
    const ps::RowOptimizer optimizer;
    std::vector<float> out(kBatch * kDimension);
    const auto bring = [&](std::size_t i) {
      if (i >= order.size()) return;
      for (std::size_t e = 0; e < stride; e += 16) __builtin_prefetch(&flat[order[i] * stride + e], 1);
    };
    for (std::size_t begin = 0; begin < order.size(); begin += kBatch) {
      for (std::size_t i = 0; i < kBatch; ++i) {
        bring(begin + i + kAhead);
        std::memcpy(&out[i * kDimension], &flat[order[begin + i] * stride], kDimension * sizeof(float));
      }
      for (std::size_t i = 0; i < kBatch; ++i) {
        bring(begin + i + kAhead);
        ps::update_row(optimizer, std::span(gradients).subspan(i * kDimension, kDimension),
                       &flat[order[begin + i] * stride]);
      }
    }
  }

  Status cold() {
    MOTLEY_ASSIGN(const TemporaryFolder folder, TemporaryFolder::create());
    return cold_in(folder.path());
  }

  Status cold_in(const fs::path& folder) {
    SparseTableSpec spec = table_spec();
    spec.memory_bytes = std::size_t{options_.quick ? 32U : 96U} << 20;
    const std::size_t record_bytes = SparseTable::make_shape(spec).record_bytes();
    const std::uint64_t row_count = kTimesMemory * spec.memory_bytes / shape().resident_bytes();
    const ps::ColdOptions cold_options{.write_buffer_bytes = std::size_t{4} << 20,
                                       .block_cache_bytes = std::size_t{4} << 20};
    std::vector<double> cumulative(row_count);
    double sum = 0;
    for (std::uint64_t rank = 0; rank < row_count; ++rank) {
      cumulative[rank] = sum += std::pow(static_cast<double>(rank + 1), -kZipfExponent);
    }
    std::vector<float> rows(kBatch * kDimension);
    const std::vector<float> gradients(kBatch * kDimension, 0.01F);
    std::vector<std::uint64_t> ids(kBatch);
    // The rows in memory and both stores' buffers fit; the table's rest does not.
    const std::size_t limit_bytes = 2 * spec.memory_bytes + kStoresBytes;
    const MemoryLimit limit(limit_bytes);
    say(fmt::format("sparse-zipf-cold: {} rows, a quarter in memory{}", row_count,
                    limit.active() ? "" : "; memory is not limited: that takes root and a memory cgroup"));

    Traffic traffic;
    MOTLEY_ASSIGN(auto store, ps::open_cold_store(folder / "ours", record_bytes, cold_options));
    MOTLEY_ASSIGN(const auto peer, ps::open_cold_store(folder / "peer", record_bytes, cold_options));
    MOTLEY_ASSIGN(const auto table,
                  SparseTable::create(spec, std::make_unique<RecordingStore>(std::move(store), record_bytes, traffic)));
    for (std::uint64_t begin = 0; begin < row_count; begin += kBatch) {
      for (std::size_t i = 0; i < kBatch; ++i) ids[i] = mix({(begin + i) % row_count});
      traffic = {};
      MOTLEY_TRY(table->push(ids, gradients));
      MOTLEY_TRY(replay(*peer, record_bytes, traffic));
    }
    Random random(1);
    const int batches = options_.quick ? 5 : 20;  // in a round
    std::vector<double> shares;
    double our_seconds = 0;
    double peer_seconds = 0;
    ps::SparseStatistics before;
    for (int pair = 0; pair < pairs_ + 2; ++pair) {
      if (pair == 2) {  // the first rounds bring the hot rows in
        our_seconds = peer_seconds = 0;
        before = table->statistics();
      }
      std::vector<Traffic> round;
      double ours = 0;
      for (int b = 0; b < batches; ++b) {
        for (auto& id : ids) {
          const auto rank = std::ranges::lower_bound(cumulative, random.uniform() * sum) - cumulative.begin();
          id = mix({static_cast<std::uint64_t>(rank)});
        }
        traffic = {};
        const double begin = monotonic_seconds();
        MOTLEY_TRY(table->pull(ids, rows));
        MOTLEY_TRY(table->push(ids, gradients));
        ours += monotonic_seconds() - begin;
        round.push_back(std::move(traffic));
      }
      double theirs = 0;
      for (const Traffic& batch : round) {
        const double begin = monotonic_seconds();
        MOTLEY_TRY(replay(*peer, record_bytes, batch));
        theirs += monotonic_seconds() - begin;
      }
      our_seconds += ours;
      peer_seconds += theirs;
      if (pair >= 2) shares.push_back(theirs / ours);
    }
    const ps::RowCounters& was = before.counters;
    const ps::RowCounters now = table->statistics().counters;
    const double hits = static_cast<double>(now.hits - was.hits);
    const double misses = static_cast<double>(now.misses - was.misses);
    const double ids_per_second = pairs_ * batches * static_cast<double>(kBatch) / our_seconds;
    rows_.push_back({"sparse-zipf-cold",
                     "share_of_rocksdb",
                     median(shares),
                     "",
                     true,
                     0.7,
                     {},
                     1.0,
                     fmt::format("{} ids a second pulled and pushed, {:.1f} % found in memory (Zipf {}, {} rows of {} "
                                 "floats, memory for a quarter), {} a batch of {}, RocksDB alone {}; {}",
                                 format_number(ids_per_second), 100 * hits / (hits + misses), kZipfExponent, row_count,
                                 kDimension, format_seconds(our_seconds / (pairs_ * batches)), kBatch,
                                 format_seconds(peer_seconds / (pairs_ * batches)),
                                 limit.active() ? fmt::format("memory limited to {} by cgroup",
                                                              format_bytes(static_cast<double>(limit_bytes)))
                                                : "memory not limited (takes root and a memory cgroup), direct I/O")});
    say(fmt::format("sparse-zipf-cold share_of_rocksdb {:.3f}", median(shares)));
    return {};
  }

  const BenchOptions& options_;
  const int pairs_;
  std::vector<BenchRow> rows_;
};

}  // namespace

Result<std::vector<BenchRow>> sparse_rows(const BenchOptions& options) {
  return SparseBench(options).run();
}

}  // namespace motley::bench
