// The text: family after family, each with the samples of all jobs, as the format wants them together.
#include "motley/ps/service/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <string_view>
#include <utility>

namespace motley::ps {
namespace {

using Labels = std::vector<std::pair<std::string_view, std::string>>;

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
  std::string take() { return std::move(text_); }

 private:
  std::string name_;
  std::string text_;
};

Labels make_labels(const JobMetrics& job) {
  return {{"tenant", job.tenant}, {"job", job.job}};
}
Labels with(Labels labels, std::string_view key, std::string value) {
  labels.emplace_back(key, std::move(value));
  return labels;
}

double total(const JobMetrics& job, const Count ShardMetrics::* count) {
  double sum = 0;
  for (const ShardMetrics& shard : job.shards) sum += static_cast<double>((shard.*count).get());
  return sum;
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
    out.sample(with(make_labels(job), "le", number(bound)), static_cast<double>(below), "_bucket");
  }
  out.sample(make_labels(job), seconds, "_sum");
  out.sample(make_labels(job), static_cast<double>(below), "_count");
}

using Jobs = std::vector<std::shared_ptr<const JobMetrics>>;

void add_threads(Exposition& out, const std::vector<ThreadMetrics>& cores) {
  out.family("cores", "gauge", "Threads that sum and update.");
  out.sample({}, static_cast<double>(cores.size()));
  out.family("core_busy_seconds_total", "counter", "Seconds that a core has worked or moved bytes.");
  double busiest = 0;
  double busy = 0;
  for (std::size_t core = 0; core < cores.size(); ++core) {
    const double seconds = cores[core].busy.get();
    busiest = std::max(busiest, seconds);
    busy += seconds;
    out.sample({{"core", std::to_string(core)}}, seconds);
  }
  out.family("core_imbalance", "gauge", "Busy seconds of the busiest core over those of a mean one; 1 is even.");
  out.sample({}, busy > 0 ? busiest * static_cast<double>(cores.size()) / busy : 1);
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
  out.family("tenant_memory_bytes", "gauge", "Memory that a tenant's jobs take.");
  std::map<std::string, std::size_t> memory = quota.taken();
  for (const auto& [name, tenant] : tenants.named()) memory.emplace(name, 0);
  for (const auto& [name, bytes] : memory) out.sample({{"tenant", name}}, static_cast<double>(bytes));
  out.family("tenant_quota_bytes", "gauge", "Memory that all jobs of a tenant may take together; 0 is no limit.");
  for (const auto& [name, tenant] : tenants.named()) {
    out.sample({{"tenant", name}}, static_cast<double>(tenant.quota_bytes));
  }
  out.family("tenant_share", "gauge", "Segments that a core takes of a tenant in its turn.");
  for (const auto& [name, tenant] : tenants.named()) out.sample({{"tenant", name}}, tenant.share);
}

// A family with a value for each job.
void add_family(Exposition& out, const Jobs& jobs, std::string_view name, std::string_view type, std::string_view help,
                const std::function<double(const JobMetrics&)>& value) {
  out.family(name, type, help);
  for (const auto& job : jobs) out.sample(make_labels(*job), value(*job));
}

void add_jobs(Exposition& out, const Jobs& jobs) {
  const auto sums_of_each = [&](std::string_view name, std::string_view type, std::string_view help,
                                const Count ShardMetrics::* count) {
    add_family(out, jobs, name, type, help, [&](const JobMetrics& job) { return total(job, count); });
  };
  add_family(out, jobs, "job_ranks", "gauge", "Ranks of a job.",
             [](const JobMetrics& job) { return static_cast<double>(job.missing.size()); });
  add_family(out, jobs, "job_memory_bytes", "gauge", "Memory that a job takes.",
             [](const JobMetrics& job) { return static_cast<double>(job.bytes); });
  add_family(out, jobs, "map_imbalance", "gauge",
             "Values on the fullest core over those on a mean one, by the job's map; 1 is even.",
             [](const JobMetrics& job) { return job.map_imbalance; });
  sums_of_each("received_bytes_total", "counter", "Gradients received; nothing is sent in shared memory.",
               &ShardMetrics::bytes_in);
  sums_of_each("sent_bytes_total", "counter", "Weights sent; nothing is sent in shared memory.",
               &ShardMetrics::bytes_out);
  sums_of_each("aggregated_bytes_total", "counter", "Gradients summed, as float32.", &ShardMetrics::bytes_aggregated);
  sums_of_each("segments_total", "counter", "Segments updated.", &ShardMetrics::segments);
  add_family(out, jobs, "segments_waiting", "gauge", "Segments that all ranks have brought and no core has got to.",
             [](const JobMetrics& job) {
               return static_cast<double>(job.waiting.get()) + total(job, &ShardMetrics::waiting);
             });
  add_family(out, jobs, "staleness_steps", "gauge",
             "Steps that the furthest rank is ahead of the last; 0 where all wait for all.", [](const JobMetrics& job) {
               std::uint64_t most = 0;
               for (const ShardMetrics& shard : job.shards) most = std::max(most, shard.ahead.get());
               return static_cast<double>(most);
             });
  sums_of_each("answers_held", "gauge", "Weights that ranks ahead of the others are kept waiting for.",
               &ShardMetrics::held);
  out.family("segment_latency_seconds", "histogram", "From the first rank's arrival until a segment is updated.");
  for (const auto& job : jobs) add_latency(out, *job);
}

void add_ranks(Exposition& out, const Jobs& jobs) {
  const auto of_each_rank = [&](std::string_view name, std::string_view help, const auto& value) {
    out.family(name, "counter", help);
    for (const auto& job : jobs) {
      for (std::size_t rank = 0; rank < job->missing.size(); ++rank) {
        double sum = 0;
        for (const ShardMetrics& shard : job->shards) sum += value(shard.ranks[rank]);
        out.sample(with(make_labels(*job), "rank", std::to_string(rank)), sum);
      }
    }
  };
  of_each_rank("rank_last_total", "Buckets for which a rank was the last to come.",
               [](const ShardMetrics::Rank& rank) { return static_cast<double>(rank.last.get()); });
  of_each_rank("rank_waited_seconds_total", "Seconds for which a rank alone was missing.",
               [](const ShardMetrics::Rank& rank) { return rank.waited.get(); });
}

void add_waiting(Exposition& out, const Jobs& jobs) {
  add_family(out, jobs, "stall_seconds", "gauge",
             "Seconds since anything moved, while something waits; 0 where nothing does.",
             [](const JobMetrics& job) { return job.stalled.get(); });
  out.family("missing_rank", "gauge", "1 for each rank that a job waits for.");
  for (const auto& job : jobs) {
    for (std::size_t rank = 0; rank < job->missing.size(); ++rank) {
      if (job->missing[rank].get()) out.sample(with(make_labels(*job), "rank", std::to_string(rank)), 1);
    }
  }
}

void add_sparse(Exposition& out, const std::vector<SparseJobMetrics>& jobs) {
  const auto of_each_job = [&](std::string_view name, std::string_view help, const auto& value) {
    out.family(name, "gauge", help);
    for (const SparseJobMetrics& job : jobs) {
      out.sample({{"tenant", job.tenant}, {"job", job.job}}, static_cast<double>(value(job)));
    }
  };
  of_each_job("sparse_step", "Step whose gradients are in a job's tables; 0 where ranks do not wait for each other.",
              [](const SparseJobMetrics& job) { return job.step; });
  of_each_job("sparse_waiting_bytes", "Gradients that wait until all ranks have finished their step.",
              [](const SparseJobMetrics& job) { return job.waiting_bytes; });
  out.family("sparse_missing_rank", "gauge", "1 for each rank whose step the others have finished and wait for.");
  for (const SparseJobMetrics& job : jobs) {
    for (const int rank : job.missing_ranks) {
      out.sample({{"tenant", job.tenant}, {"job", job.job}, {"rank", std::to_string(rank)}}, 1);
    }
  }
  const auto of_each_table = [&](std::string_view name, std::string_view type, std::string_view help, auto count) {
    out.family(name, type, help);
    for (const SparseJobMetrics& job : jobs) {
      for (const SparseJobMetrics::Table& table : job.tables) {
        out.sample({{"tenant", job.tenant}, {"job", job.job}, {"table", table.name}},
                   static_cast<double>(count(table.statistics)));
      }
    }
  };
  const auto counter_of_each_table = [&](std::string_view name, std::string_view help,
                                         std::uint64_t RowCounters::* count) {
    of_each_table(name, "counter", help, [count](const SparseStatistics& now) { return now.counters.*count; });
  };
  of_each_table("table_rows", "gauge", "Rows that were pushed.", [](const SparseStatistics& now) { return now.rows; });
  of_each_table("table_rows_in_memory", "gauge", "Rows in memory; the others are in the cold tier.",
                [](const SparseStatistics& now) { return now.hot_rows; });
  counter_of_each_table("table_hits_total", "Rows pulled or pushed that were in memory.", &RowCounters::hits);
  counter_of_each_table("table_misses_total", "Rows pulled or pushed that were not.", &RowCounters::misses);
  counter_of_each_table("table_evictions_total", "Rows that left memory.", &RowCounters::evictions);
  counter_of_each_table("table_cold_writes_total", "Rows written to the cold tier.", &RowCounters::cold_writes);
  counter_of_each_table("table_prefetched_total", "Rows brought into memory ahead.", &RowCounters::prefetched);
  counter_of_each_table("table_prefetch_hits_total", "Of these, rows that were used.", &RowCounters::prefetch_hits);
  of_each_table("table_prefetches_dropped_total", "counter", "Requests to prefetch that were too many.",
                [](const SparseStatistics& now) { return now.prefetches_dropped; });
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
  out.family("jobs", "gauge", "Jobs being served.");
  out.sample({}, static_cast<double>(jobs.size()));
  out.family("job_quota_bytes", "gauge", "Memory that one job may take; 0 is no limit.");
  out.sample({}, static_cast<double>(quota_bytes_));
  add_tenants(out, tenants_, memory_);
  add_jobs(out, jobs);
  add_ranks(out, jobs);
  add_waiting(out, jobs);
  add_sparse(out, sparse_());
  return out.take();
}

}  // namespace motley::ps
