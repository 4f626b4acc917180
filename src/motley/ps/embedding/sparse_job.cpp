#include "motley/ps/embedding/sparse_job.h"

#include <algorithm>
#include <cctype>
#include <latch>
#include <ranges>

#include "motley/base/log.h"
#include "motley/base/os/signals.h"
#include "motley/base/units.h"

namespace motley::ps {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMaxStepsAhead = 1024;  // that a rank may have finished before the others
constexpr double kCloseSeconds = 60;           // for an earlier job of the same name to close its files

// A name from anywhere as the name of one folder below another, different for different names.
std::string folder_name(const std::string& name) {
  std::string text;
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    text += std::isalnum(byte) != 0 || c == '-' || c == '_' ? std::string(1, c) : fmt::format("%{:02x}", byte);
  }
  return text.empty() ? "%" : text;
}

// A checkpoint that is being written.
struct Saving {
  explicit Saving(std::size_t tables)
      : moments(static_cast<std::ptrdiff_t>(tables)), reports(tables, CheckpointReport()), unwritten(tables) {}
  std::latch moments;                             // of tables, until they have passed
  std::vector<Result<CheckpointReport>> reports;  // by table
  std::atomic<std::size_t> unwritten;             // tables
};

std::string size_text(std::size_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

}  // namespace

SparseJob::SparseJob(const net::Identity& identity, SparseLimits limits, MemoryQuota& memory,
                     std::shared_future<void> before)
    : tenant_(identity.tenant),
      job_(identity.job),
      name_(identity.tenant + "/" + identity.job),
      limits_(std::move(limits)),
      memory_(memory, identity.tenant, name_),
      folder_(limits_.folder.empty() ? fs::path()
                                     : limits_.folder / folder_name(identity.tenant) / folder_name(identity.job)),
      before_(std::move(before)) {}

SparseJob::~SparseJob() {
  join_writers();
  tables_.clear();
  if (before_.valid()) before_.wait();
  ended_.set_value();
}

void SparseJob::notify_all() {
  for (const Rank& rank : std::views::values(ranks_)) {
    if (rank.waits != nullptr) rank.waits->wake();
  }
}

void SparseJob::enter(int rank, const net::WaitSet& waits) {
  const std::lock_guard lock(mutex_);
  ranks_[rank].waits = &waits;
}

bool SparseJob::over() {
  const std::lock_guard lock(mutex_);
  return failure_ || (!ranks_.empty() && std::ranges::all_of(std::views::values(ranks_),
                                                             [](const Rank& rank) { return rank.waits == nullptr; }));
}

void SparseJob::fail_with(const Error& error) {
  const std::lock_guard lock(mutex_);
  if (failure_) return;
  spdlog::warn("sparse tables of job '{}' are closed: {}", name_, error.message);
  failure_ = error;
  notify_all();
}

void SparseJob::leave(int rank) {
  const std::lock_guard lock(mutex_);
  ranks_.at(rank).left = true;
  notify_all();
}

void SparseJob::fail_if_unreachable(int rank, std::int64_t step) {
  std::optional<int> gone;
  {
    const std::lock_guard lock(mutex_);
    if (ranks_.at(rank).finished < step) return;  // it asks ahead, and may leave as well
    for (const auto& [other, state] : ranks_) {
      if (state.left && state.finished < step) gone = other;
    }
  }
  if (!gone) return;
  fail_with({ErrorCode::kPeerLost, fmt::format("rank {} has left the job '{}', and others wait for it", *gone, name_),
             *gone});
}

Status SparseJob::open(int rank, const SparseOpen& open) {
  {
    const std::lock_guard lock(mutex_);
    Rank& own = ranks_.at(rank);
    if (own.open) return fail(ErrorCode::kCorrupt, "rank {} of job '{}' has opened its tables already", rank, name_);
    if (!seen_) seen_ = open;
    // A rank must see the job as the first that came does.
    const auto refuse = [&](const char* what) {
      return fail(ErrorCode::kInvalidInput, "job '{}': the ranks do not agree about {}", name_, what);
    };
    if (open.size != seen_->size) return refuse("the number of ranks");
    if (open.shard != seen_->shard || open.shards != seen_->shards) return refuse("the servers of sparse tables");
    if (open.mode != seen_->mode) return refuse("whether sparse tables are synchronous");
    if (open.step != seen_->step || open.written_by != seen_->written_by || open.written_for != seen_->written_for) {
      return refuse("the checkpoint to go on from");
    }
    if (open.tables != seen_->tables) return refuse("the sparse tables");
    if (open.keep_checkpoints != seen_->keep_checkpoints) return refuse("how many checkpoints to keep");
    if (const int last = ranks_.rbegin()->first; last >= open.size) {
      return fail(ErrorCode::kInvalidInput, "job '{}' has {} ranks, but rank {} is here", name_, open.size, last);
    }
    own.open = true;
    own.finished = open.step;
    own.steps.emplace_back().pushes.resize(open.tables.size());
    const bool all =
        static_cast<int>(ranks_.size()) == open.size && std::ranges::all_of(std::views::values(ranks_), &Rank::open);
    if (!all) return {};
  }
  open_ = open;
  MOTLEY_TRY(open_tables());
  applied_ = open.step;
  asynchronous_ = open.mode == SparseMode::kAsynchronous;
  opened_ = true;
  spdlog::info("job '{}': {} ranks, {} sparse tables, shard {} of {}", name_, open.size, tables_.size(), open.shard,
               open.shards);
  const std::lock_guard lock(mutex_);
  notify_all();
  return {};
}

Status SparseJob::take(std::size_t bytes) {
  if (limits_.quota_bytes > 0 && table_bytes_ + waiting_bytes_ + bytes > limits_.quota_bytes) {
    return fail(ErrorCode::kRefused, "job '{}': what waits for ranks takes {} beside tables of {}; its quota is {}",
                name_, size_text(waiting_bytes_ + bytes), size_text(table_bytes_), size_text(limits_.quota_bytes));
  }
  MOTLEY_TRY(memory_.take(bytes));
  waiting_bytes_ += bytes;
  return {};
}

void SparseJob::let_go(std::size_t bytes) {
  waiting_bytes_ -= bytes;
  memory_.release(bytes);
}

Result<std::shared_ptr<void>> SparseJob::hold_pull(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (const Status taken = take(bytes); !taken) {
    return fail(taken.error().within("a pull that waits for a step to come"));
  }
  return std::shared_ptr<void>(this, [this, bytes](void*) {
    const std::lock_guard lock(mutex_);
    let_go(bytes);
  });
}

Status SparseJob::open_tables() {
  const std::size_t quota = limits_.quota_bytes;
  for (const SparseTableOptions& table : open_.tables) {
    const bool is_too_much = table.memory_bytes > std::numeric_limits<std::size_t>::max() - table_bytes_;
    table_bytes_ += is_too_much ? 0 : table.memory_bytes;
    const bool unbounded = table.memory_bytes == 0 && (quota > 0 || limits_.tenant_quota_bytes > 0);
    if (unbounded || is_too_much || (quota > 0 && table_bytes_ > quota)) {
      return fail(ErrorCode::kRefused, "job '{}': table '{}' asks for {} here; all its tables together may have {}",
                  name_, table.name, table.memory_bytes == 0 ? "unbounded memory" : size_text(table.memory_bytes),
                  size_text(quota > 0 ? quota : limits_.tenant_quota_bytes));
    }
  }
  MOTLEY_TRY(memory_.take(table_bytes_));
  if (!folder_.empty()) {
    const int threads = 2 * static_cast<int>(open_.tables.size());  // each table's prefetcher and writer
    MOTLEY_ASSIGN(threads_, limits_.use->take(tenant_, {{&TenantCounts::threads, threads}}));
  }
  if (before_.valid() && before_.wait_for(std::chrono::duration<double>(kCloseSeconds)) != std::future_status::ready) {
    return fail(ErrorCode::kRefused, "job '{}': an earlier run of it has not closed its tables within {} s", name_,
                kCloseSeconds);
  }
  for (const SparseTableOptions& options : open_.tables) {
    MOTLEY_ASSIGN(auto table, open_table(options));
    tables_.push_back(std::move(table));
  }
  return {};
}

fs::path SparseJob::make_folder_path(const fs::path& job, const SparseTableOptions& table, int shard, int shards) {
  return job / folder_name(table.name) / fmt::format("{}-of-{}", shard, shards);
}

Result<std::unique_ptr<SparseTable>> SparseJob::open_table(const SparseTableOptions& options) {
  SparseTableSpec spec{options, {}};
  const fs::path own = make_folder_path(folder_, options, open_.shard, open_.shards);
#ifdef MOTLEY_HAS_ROCKSDB
  if (!folder_.empty() && spec.memory_bytes > 0) spec.cold_folder = own / "cold";
#endif
  if (open_.written_by == 0) return SparseTable::create(spec);
  if (folder_.empty()) {
    return fail(ErrorCode::kInvalidInput, "job '{}' goes on from a checkpoint, but this server has no folder of tables",
                name_);
  }
  // The same servers' shards are the same rows; with another number of servers each reads all shards.
  const fs::path from = open_.written_for.empty() ? folder_ : folder_.parent_path() / folder_name(open_.written_for);
  std::vector<fs::path> folders;
  for (int shard = 0; shard < open_.written_by; ++shard) {
    if (open_.written_by != open_.shards || shard == open_.shard) {
      folders.push_back(make_folder_path(from, options, shard, open_.written_by));
    }
  }
  const auto owns = [shard = static_cast<std::size_t>(open_.shard), shards = static_cast<std::size_t>(open_.shards)](
                        std::uint64_t id) { return find_shard(id, shards) == shard; };
  MOTLEY_ASSIGN(auto table, SparseTable::restore(spec, folders, open_.step, owns));
  // What was written after that step is of a run that did not happen.
  prune_sparse_checkpoints(own, open_.step, kKeepAllCheckpoints);
  return table;
}

Status SparseJob::push(int rank, const PushFrame& frame) {
  const auto& [step, weight, table, more] = frame.head;
  std::vector<Push> parts;  // of asynchronous mode
  {
    const std::lock_guard lock(mutex_);
    Rank& own = ranks_.at(rank);
    if (step != own.finished + 1) {
      return fail(ErrorCode::kCorrupt, "rank {} of job '{}' pushed gradients of step {} in step {}", rank, name_, step,
                  own.finished + 1);
    }
    const RowForm form = open_.tables[table].form();
    const std::size_t values = frame.ids.size() * form.dimension;
    const std::size_t bytes = frame.ids.size_bytes() + values * sizeof(float);
    if (const Status taken = take(bytes); !taken) {
      return fail(
          taken.error().within(fmt::format("gradients of step {} for table '{}'", step, open_.tables[table].name)));
    }
    Step& collected = own.steps.back();
    Push& arrived = collected.pushes[table].emplace_back();
    arrived = {weight, {frame.ids.begin(), frame.ids.end()}, std::vector<float>(values)};
    form.read(frame.gradients.data(), arrived.gradients);
    collected.bytes += bytes;
    if (!asynchronous_ || more != 0) return {};
    parts.swap(collected.pushes[table]);
    std::size_t ended = 0;
    for (const Push& part : parts) ended += part.bytes();
    let_go(ended);
  }
  for (std::size_t part = 1; part < parts.size(); ++part) parts[0].append(parts[part], 1);
  return tables_[table]->push(parts[0].ids, parts[0].gradients);
}

// The call that completes a step applies it, and those that others have completed meanwhile.
Status SparseJob::finish(int rank, std::int64_t step, double weight) {
  std::unique_lock lock(mutex_);
  Rank& own = ranks_.at(rank);
  if (step != own.finished + 1 || !(weight >= 0)) {
    return fail(ErrorCode::kCorrupt, "rank {} of job '{}' finished step {} with weight {} in step {}", rank, name_,
                step, weight, own.finished + 1);
  }
  if (!asynchronous_ && step > applied_ + kMaxStepsAhead) {
    return fail(ErrorCode::kRefused,
                "rank {} of job '{}' has finished step {} where {} are applied; accepted: {} ahead", rank, name_, step,
                applied_.load(), kMaxStepsAhead);
  }
  own.finished = step;
  if (asynchronous_) return {};
  own.steps.back().weight = weight;
  own.steps.emplace_back().pushes.resize(open_.tables.size());
  if (applying_) return {};
  applying_ = true;
  while (
      std::ranges::all_of(std::views::values(ranks_), [&](const Rank& other) { return other.finished > applied_; })) {
    std::vector<Step> steps;
    std::size_t bytes = 0;
    for (Rank& other : std::views::values(ranks_)) {
      bytes += other.steps.front().bytes;
      steps.push_back(std::move(other.steps.front()));
      other.steps.pop_front();
    }
    lock.unlock();
    MOTLEY_TRY(apply(std::move(steps)));
    lock.lock();
    let_go(bytes);
    ++applied_;
    notify_all();
  }
  applying_ = false;
  return {};
}

// The gradients of one step of all ranks, each rank's times its share of the step's samples.
Status SparseJob::apply(std::vector<Step> steps) {
  double total = 0;
  for (const Step& step : steps) total += step.weight;
  if (!(total > 0)) return {};
  for (std::size_t table = 0; table < tables_.size(); ++table) {
    Push merged;
    std::size_t rows = 0;
    for (const Step& step : steps) {
      for (const Push& push : step.pushes[table]) rows += push.ids.size();
    }
    if (rows == 0) continue;
    merged.ids.reserve(rows);
    merged.gradients.reserve(rows * open_.tables[table].dimension);
    for (Step& step : steps) {
      for (Push& push : step.pushes[table]) {
        merged.append(push, static_cast<float>(push.weight / total));
        push = {};
      }
    }
    MOTLEY_TRY(tables_[table]->push(merged.ids, merged.gradients));
  }
  return {};
}

// Each table is written by a thread of its own, and all as they were at one moment.
Status SparseJob::save(int rank, std::int64_t step) {
  {
    const std::lock_guard lock(mutex_);
    if (rank != 0 || step != ranks_.at(0).finished) {
      return fail(ErrorCode::kCorrupt,
                  "rank {} of job '{}' asked for a checkpoint of step {}; rank 0 may after step {}", rank, name_, step,
                  ranks_.at(0).finished);
    }
  }
  if (folder_.empty()) {
    end_save(step, fail(ErrorCode::kInvalidInput,
                        "a checkpoint of sparse tables needs a folder; accepted: motley server --embedding-dir DIR"));
    return {};
  }
  join_writers();
  const auto saving = std::make_shared<Saving>(tables_.size());
  const auto end_table = [this, step, saving](std::size_t table, Result<CheckpointReport> report) {
    saving->reports[table] = std::move(report);
    if (--saving->unwritten > 0) return;
    SparseSaved total;
    for (const Result<CheckpointReport>& written : saving->reports) {
      if (!written) return end_save(step, fail(written.error()));
      total.rows += written->rows;
      total.bytes += written->bytes;
    }
    end_save(step, total);
  };
  for (std::size_t table = 0; table < tables_.size(); ++table) {
    auto writer = try_start_thread([this, table, step, saving, end_table] {
      bool passed = false;
      CheckpointOptions options;
      options.keep = open_.keep_checkpoints;
      options.at_moment = [&] {
        passed = true;
        saving->moments.count_down();
      };
      const fs::path folder = make_folder_path(folder_, open_.tables[table], open_.shard, open_.shards);
      Result<CheckpointReport> report = tables_[table]->checkpoint(folder, step, options);
      if (!passed) saving->moments.count_down();
      end_table(table, std::move(report));
    });
    if (writer) {
      writers_.push_back(std::move(*writer));
    } else {
      saving->moments.count_down();
      end_table(table, fail(std::move(writer).error()));
    }
  }
  saving->moments.wait();
  return {};
}

void SparseJob::join_writers() {
  for (std::thread& writer : writers_) writer.join();
  writers_.clear();
}

void SparseJob::end_save(std::int64_t step, Result<SparseSaved> saved) {
  const std::lock_guard lock(mutex_);
  saved_.emplace(step, std::move(saved));
  notify_all();
}

std::optional<std::pair<std::int64_t, Result<SparseSaved>>> SparseJob::saved() {
  const std::lock_guard lock(mutex_);
  return std::exchange(saved_, std::nullopt);
}

SparseJobMetrics SparseJob::metrics() {
  SparseJobMetrics metrics;
  metrics.tenant = tenant_;
  metrics.job = job_;
  if (!opened_) return metrics;
  metrics.missing_ranks = missing_ranks();
  {
    const std::lock_guard lock(mutex_);
    metrics.step = applied_;
    metrics.waiting_bytes = waiting_bytes_;
    // Where nobody has finished a step, nobody waits.
    if (metrics.missing_ranks.size() == ranks_.size()) metrics.missing_ranks.clear();
  }
  for (const auto& table : tables_) metrics.tables.push_back({table->spec().name, table->statistics()});
  return metrics;
}

std::vector<int> SparseJob::missing_ranks() {
  const std::lock_guard lock(mutex_);
  std::vector<int> missing;
  const int size = seen_ ? seen_->size : 0;
  for (int rank = 0; rank < size; ++rank) {
    const auto found = ranks_.find(rank);
    const bool here = found != ranks_.end() && found->second.open;
    if (!here || (opened_ && !asynchronous_ && found->second.finished <= applied_)) missing.push_back(rank);
  }
  return missing;
}

}  // namespace motley::ps
