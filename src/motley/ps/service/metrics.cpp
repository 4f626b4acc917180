// The text: family after family, each with the samples of all jobs, as the format wants them together.
#include "motley/ps/service/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

namespace motley::ps {
namespace {

using Labels = std::vector<std::pair<std::string_view, std::string>>;
// What a family has one value each of.
template <class T>
using Items = std::vector<std::pair<Labels, T>>;

// Names come from the network. The format wants UTF-8: bytes beyond ASCII are spelled out, so that names that differ
// stay different.
std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\\' || c == '"') {
      result += '\\';
      result += c;
    } else if (byte < 0x20 || byte >= 0x7f) {
      result += fmt::format("\\\\x{:02x}", byte);
    } else {
      result += c;
    }
  }
  return result;
}

std::string number(double value) {
  return std::isinf(value) ? (value > 0 ? "+Inf" : "-Inf") : fmt::format("{}", value);
}

class Exposition {
 public:
  void family(std::string_view name, std::string_view type, std::string_view help) {
    name_ = fmt::format("motley_server_{}", name);
    text_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name_, help, name_, type);
  }
  void sample(const Labels& labels, double value, std::string_view suffix = "") {
    std::string inside;
    for (const auto& [key, label] : labels) {
      inside += fmt::format("{}{}=\"{}\"", inside.empty() ? "" : ",", key, escaped(label));
    }
    text_ += fmt::format("{}{}{} {}\n", name_, suffix, inside.empty() ? "" : "{" + inside + "}", number(value));
  }
  // A family with a sample of each item: `value` of it, a function or a member.
  template <class T, class Value = std::identity>
  void add(std::string_view name, std::string_view type, std::string_view help, const Items<T>& items,
           const Value& value = {}) {
    family(name, type, help);
    for (const auto& [labels, item] : items) sample(labels, static_cast<double>(std::invoke(value, item)));
  }
  std::string take() { return std::move(text_); }

 private:
  std::string name_;
  std::string text_;
};

// Of a dense job or of the sparse tables of one; `more` comes behind.
Labels make_labels(const auto& job, const Labels& more = {}) {
  Labels labels = {{"tenant", job.tenant}, {"job", job.job}};
  labels.insert(labels.end(), more.begin(), more.end());
  return labels;
}

using Jobs = std::vector<std::shared_ptr<const JobMetrics>>;

void add_threads(Exposition& out, const std::vector<ThreadMetrics>& cores) {
  Items<double> busy;
  double busiest = 0;
  double sum = 0;
  for (std::size_t core = 0; core < cores.size(); ++core) {
    busy.emplace_back(Labels{{"core", std::to_string(core)}}, cores[core].busy.get());
    busiest = std::max(busiest, busy.back().second);
    sum += busy.back().second;
  }
  out.add("cores", "gauge", "Threads that sum and update.", Items<std::size_t>{{{}, cores.size()}});
  out.add("core_busy_seconds_total", "counter", "Seconds that a core has worked or moved bytes.", busy);
  out.add("core_imbalance", "gauge", "Busy seconds of the busiest core over those of a mean one; 1 is even.",
          Items<double>{{{}, sum > 0 ? busiest * static_cast<double>(cores.size()) / sum : 1}});
}

void add_server(Exposition& out, const Metrics& metrics) {
  out.family("refused_connections_total", "counter",
             "Connections turned away: in the handshake (not Motley, wrong token, too slow), or by name after it.");
  out.sample({{"where", "handshake"}}, static_cast<double>(metrics.refused_in_handshake.get()));
  out.sample({{"where", "admission"}}, static_cast<double>(metrics.refused_after_it.get()));
  out.family("jobs_ended_total", "counter", "Jobs that left in order or failed.");
  out.sample({{"how", "left"}}, static_cast<double>(metrics.jobs_left.get()));
  out.sample({{"how", "failed"}}, static_cast<double>(metrics.jobs_failed.get()));
}

void add_tenants(Exposition& out, const Tenants& tenants, const MemoryQuota& quota) {
  std::map<std::string, std::size_t> taken = quota.taken();
  Items<const Tenant*> named;
  for (const auto& [name, tenant] : tenants.named()) {
    taken.emplace(name, 0);
    named.emplace_back(Labels{{"tenant", name}}, &tenant);
  }
  Items<std::size_t> memory;
  for (const auto& [name, bytes] : taken) memory.emplace_back(Labels{{"tenant", name}}, bytes);
  out.add("tenant_memory_bytes", "gauge", "Memory that a tenant's jobs take.", memory);
  out.add("tenant_quota_bytes", "gauge", "Memory that all jobs of a tenant may take together; 0 is no limit.", named,
          &Tenant::quota_bytes);
  out.add("tenant_share", "gauge", "Segments that a core takes of a tenant in its turn.", named, &Tenant::share);
}

// Counts are read once, so that buckets, sum of buckets and count of one scrape agree.
void add_latency(Exposition& out, const JobMetrics& job) {
  std::array<std::uint64_t, Histogram::kBounds.size() + 1> counts{};
  double seconds = 0;
  for (const ShardMetrics& shard : job.shards) {
    for (std::size_t bucket = 0; bucket < counts.size(); ++bucket) counts[bucket] += shard.latency.count(bucket);
    seconds += shard.latency.sum();
  }
  std::uint64_t below = 0;
  for (std::size_t bucket = 0; bucket < counts.size(); ++bucket) {
    below += counts[bucket];
    const double bound = bucket < Histogram::kBounds.size() ? Histogram::kBounds[bucket] : INFINITY;
    out.sample(make_labels(job, {{"le", number(bound)}}), static_cast<double>(below), "_bucket");
  }
  out.sample(make_labels(job), seconds, "_sum");
  out.sample(make_labels(job), static_cast<double>(below), "_count");
}

// The sum over a job's cores.
auto total(const Count ShardMetrics::* count) {
  return [count](const JobMetrics* job) {
    double sum = 0;
    for (const ShardMetrics& shard : job->shards) sum += static_cast<double>((shard.*count).get());
    return sum;
  };
}

std::uint64_t steps_ahead(const JobMetrics* job) {
  std::uint64_t most = 0;
  for (const ShardMetrics& shard : job->shards) most = std::max(most, shard.ahead.get());
  return most;
}

void add_jobs(Exposition& out, const Jobs& list) {
  struct Rank {
    std::uint64_t last = 0;
    double waited = 0;
  };
  Items<const JobMetrics*> jobs;
  Items<Rank> ranks;
  Items<int> missing;
  for (const auto& job : list) {
    jobs.emplace_back(make_labels(*job), job.get());
    for (std::size_t rank = 0; rank < job->missing.size(); ++rank) {
      const Labels labels = make_labels(*job, {{"rank", std::to_string(rank)}});
      Rank& sum = ranks.emplace_back(labels, Rank{}).second;
      for (const ShardMetrics& shard : job->shards) {
        sum.last += shard.ranks[rank].last.get();
        sum.waited += shard.ranks[rank].waited.get();
      }
      if (job->missing[rank].get()) missing.emplace_back(labels, 1);
    }
  }
  out.add("job_ranks", "gauge", "Ranks of a job.", jobs, [](const auto* job) { return job->missing.size(); });
  out.add("job_memory_bytes", "gauge", "Memory that a job takes.", jobs, &JobMetrics::bytes);
  out.add("map_imbalance", "gauge", "Values on the fullest core over those on a mean one, by the job's map; 1 is even.",
          jobs, &JobMetrics::map_imbalance);
  out.add("received_bytes_total", "counter", "Gradients received; nothing is sent in shared memory.", jobs,
          total(&ShardMetrics::bytes_in));
  out.add("sent_bytes_total", "counter", "Weights sent; nothing is sent in shared memory.", jobs,
          total(&ShardMetrics::bytes_out));
  out.add("aggregated_bytes_total", "counter", "Gradients summed, as float32.", jobs,
          total(&ShardMetrics::bytes_aggregated));
  out.add("segments_total", "counter", "Segments updated.", jobs, total(&ShardMetrics::segments));
  out.add("segments_waiting", "gauge", "Segments that all ranks have brought and no core has got to.", jobs,
          [](const auto* job) { return static_cast<double>(job->waiting.get()) + total(&ShardMetrics::waiting)(job); });
  out.add("staleness_steps", "gauge", "Steps that the furthest rank is ahead of the last; 0 where all wait for all.",
          jobs, steps_ahead);
  out.add("answers_held", "gauge", "Weights that ranks ahead of the others are kept waiting for.", jobs,
          total(&ShardMetrics::held));
  out.family("segment_latency_seconds", "histogram", "From the first rank's arrival until a segment is updated.");
  for (const auto& job : list) add_latency(out, *job);
  out.add("rank_last_total", "counter", "Buckets for which a rank was the last to come.", ranks, &Rank::last);
  out.add("rank_waited_seconds_total", "counter", "Seconds for which a rank alone was missing.", ranks, &Rank::waited);
  out.add("stall_seconds", "gauge", "Seconds since anything moved, while something waits; 0 where nothing does.", jobs,
          [](const auto* job) { return job->stalled.get(); });
  out.add("missing_rank", "gauge", "1 for each rank that a job waits for.", missing);
}

void add_sparse(Exposition& out, const std::vector<SparseJobMetrics>& list) {
  Items<const SparseJobMetrics*> jobs;
  Items<int> missing;
  Items<const SparseStatistics*> tables;
  Items<const RowCounters*> rows;
  for (const SparseJobMetrics& job : list) {
    jobs.emplace_back(make_labels(job), &job);
    for (const int rank : job.missing_ranks)
      missing.emplace_back(make_labels(job, {{"rank", std::to_string(rank)}}), 1);
    for (const SparseJobMetrics::Table& table : job.tables) {
      tables.emplace_back(make_labels(job, {{"table", table.name}}), &table.statistics);
      rows.emplace_back(tables.back().first, &table.statistics.counters);
    }
  }
  out.add("sparse_step", "gauge",
          "Step whose gradients are in a job's tables; 0 where ranks do not wait for each other.", jobs,
          &SparseJobMetrics::step);
  out.add("sparse_waiting_bytes", "gauge", "Gradients and pulls that wait until all ranks have finished their step.",
          jobs, &SparseJobMetrics::waiting_bytes);
  out.add("sparse_missing_rank", "gauge", "1 for each rank whose step the others have finished and wait for.", missing);
  out.add("table_rows", "gauge", "Rows that were pushed.", tables, &SparseStatistics::rows);
  out.add("table_rows_in_memory", "gauge", "Rows in memory; the others are in the cold tier.", tables,
          &SparseStatistics::hot_rows);
  out.add("table_hits_total", "counter", "Rows pulled or pushed that were in memory.", rows, &RowCounters::hits);
  out.add("table_misses_total", "counter", "Rows pulled or pushed that were not.", rows, &RowCounters::misses);
  out.add("table_evictions_total", "counter", "Rows that left memory.", rows, &RowCounters::evictions);
  out.add("table_cold_writes_total", "counter", "Rows written to the cold tier.", rows, &RowCounters::cold_writes);
  out.add("table_prefetched_total", "counter", "Rows brought into memory ahead.", rows, &RowCounters::prefetched);
  out.add("table_prefetch_hits_total", "counter", "Of these, rows that were used.", rows, &RowCounters::prefetch_hits);
  out.add("table_prefetches_dropped_total", "counter", "Requests to prefetch that were too many.", tables,
          &SparseStatistics::prefetches_dropped);
}

}  // namespace

Metrics::Metrics(int core_count, std::size_t quota_bytes, const Tenants& tenants, const MemoryQuota& memory,
                 std::function<std::vector<SparseJobMetrics>()> sparse)
    : cores(static_cast<std::size_t>(core_count)),
      quota_bytes_(quota_bytes),
      tenants_(tenants),
      memory_(memory),
      sparse_(std::move(sparse)) {}

void Metrics::add(std::shared_ptr<const JobMetrics> job) {
  const std::lock_guard lock(mutex_);
  jobs_.push_back(std::move(job));
}

void Metrics::remove(const JobMetrics* job) {
  const std::lock_guard lock(mutex_);
  std::erase_if(jobs_, [&](const auto& other) { return other.get() == job; });
}

std::string Metrics::text() const {
  Jobs jobs;
  {
    const std::lock_guard lock(mutex_);
    jobs = jobs_;
  }
  Exposition out;
  add_threads(out, cores);
  add_server(out, *this);
  out.add("jobs", "gauge", "Jobs being served.", Items<std::size_t>{{{}, jobs.size()}});
  out.add("job_quota_bytes", "gauge", "Memory that one job may take; 0 is no limit.",
          Items<std::size_t>{{{}, quota_bytes_}});
  add_tenants(out, tenants_, memory_);
  add_jobs(out, jobs);
  add_sparse(out, sparse_());
  return out.take();
}

}  // namespace motley::ps
