// What a server counts, against counting by hand: histograms, arrivals, turns, stalls, and the text that tells them.
#include "motley/ps/service/metrics.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include "motley/base/random.h"
#include "motley/ps/dense/dense_metrics.h"
#include "motley/ps/service/service.h"
#include "motley/ps/tenants/weighted_round_robin.h"

namespace motley::ps {
namespace {

using ::testing::HasSubstr;

TEST(Histogram, CountsEveryValueInTheFirstBucketThatHoldsIt) {
  Random random(3);
  std::vector<double> values(Histogram::kBounds.begin(), Histogram::kBounds.end());  // bounds belong to their bucket
  for (int i = 0; i < 1000; ++i) values.push_back(std::pow(10, 8 * random.uniform() - 6));
  Histogram histogram;
  double sum = 0;
  for (const double value : values) {
    histogram.observe(value);
    sum += value;
  }
  double below = 0;
  for (std::size_t bucket = 0; bucket <= Histogram::kBounds.size(); ++bucket) {
    const double bound = bucket < Histogram::kBounds.size() ? Histogram::kBounds[bucket] : INFINITY;
    below += static_cast<double>(histogram.count(bucket));
    EXPECT_EQ(below, std::ranges::count_if(values, [&](double value) { return value <= bound; })) << bucket;
  }
  EXPECT_NEAR(histogram.sum(), sum, 1e-9 * sum);
}

// Ranks bring the items of some rounds at random times; the reference keeps every time.
TEST(Arrivals, KnowWhoWasLastAndHowLongSegmentsTook) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Random random(seed);
    const std::size_t ranks = 1 + random.below(5);
    std::vector<Arrivals::Item> round;
    for (std::uint64_t bucket = 0; bucket < 1 + random.below(4); ++bucket) {
      round.push_back({.segment = false, .judged = random.below(3) > 0});
      for (std::uint64_t segment = 0; segment < 1 + random.below(4); ++segment) round.push_back({.segment = true});
    }
    ShardMetrics metrics;
    metrics.ranks = std::vector<ShardMetrics::Rank>(ranks);
    Arrivals arrivals(round, ranks, metrics);

    std::vector<std::vector<double>> times(ranks);
    std::vector<double> latencies;
    std::vector<std::uint64_t> last(ranks);
    std::vector<double> waited(ranks);
    std::uint64_t taken = 0;
    double now = 1;
    const std::uint64_t rounds = 6;
    while (taken < rounds * round.size()) {
      now += random.uniform();
      // A rank is at most a round ahead of what was taken, as channels are.
      const auto rank = static_cast<std::size_t>(random.below(ranks));
      const std::uint64_t have = times[rank].size();
      const std::uint64_t end = have + random.below(taken + round.size() - have + 1);
      times[rank].resize(end, now);
      arrivals.came(rank, end, now);
      EXPECT_EQ(arrivals.of(rank), end);
      const std::uint64_t from_all = std::ranges::min(times, {}, [](const auto& one) { return one.size(); }).size();
      while (taken < from_all && random.below(4) > 0) {
        now += random.uniform();
        const Arrivals::Item& item = round[taken % round.size()];
        std::vector<double> came;
        for (const auto& one : times) came.push_back(one[taken]);
        if (item.segment) {
          arrivals.updated(taken, now);
          latencies.push_back(now - *std::ranges::min_element(came));
        } else {
          arrivals.begun(taken);
          if (item.judged && ranks > 1) {
            const auto who = static_cast<std::size_t>(std::ranges::max_element(came) - came.begin());
            ++last[who];
            std::ranges::sort(came);
            waited[who] += came[ranks - 1] - came[ranks - 2];
          }
        }
        ++taken;
      }
      std::uint64_t waiting = 0;
      for (std::uint64_t item = taken; item < from_all; ++item) waiting += round[item % round.size()].segment ? 1 : 0;
      EXPECT_EQ(metrics.waiting.get(), waiting);
    }
    double sum = 0;
    for (const double latency : latencies) sum += latency;
    EXPECT_EQ(metrics.segments.get(), latencies.size());
    EXPECT_NEAR(metrics.latency.sum(), sum, 1e-9 * sum);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(metrics.ranks[rank].last.get(), last[rank]) << "seed " << seed;
      EXPECT_NEAR(metrics.ranks[rank].waited.get(), waited[rank], 1e-9) << "seed " << seed;
    }
  }
}

TEST(Arrivals, KnowWhereABucketEnds) {
  ShardMetrics metrics;
  const Arrivals arrivals({{false}, {true}, {true}, {false}, {true}}, 1, metrics);
  EXPECT_EQ(arrivals.end_of_bucket(0), 3);
  EXPECT_EQ(arrivals.end_of_bucket(3), 5);
  EXPECT_EQ(arrivals.end_of_bucket(5), 8);
}

// Segments that each job gets of so many turns, when those in `busy` always have work.
std::map<std::uint64_t, int> count_taken(WeightedRoundRobin& turns, int count, const std::set<std::uint64_t>& busy) {
  std::map<std::uint64_t, int> taken;
  for (int turn = 0; turn < count; ++turn) {
    EXPECT_TRUE(turns.take([&](std::uint64_t job) {
      if (!busy.contains(job)) return false;
      ++taken[job];
      return true;
    }));
  }
  return taken;
}

TEST(WeightedRoundRobin, GiveATenantOfEightJobsNoMoreThanATenantOfOne) {
  WeightedRoundRobin turns;
  std::set<std::uint64_t> all;
  for (std::uint64_t job = 1; job <= 8; ++job) turns.add(job, "many", 1);
  turns.add(9, "one", 1);
  for (std::uint64_t job = 1; job <= 9; ++job) all.insert(job);
  const auto taken = count_taken(turns, 1600, all);
  EXPECT_EQ(taken.at(9), 800);
  for (std::uint64_t job = 1; job <= 8; ++job) EXPECT_EQ(taken.at(job), 100) << job;
}

TEST(WeightedRoundRobin, FollowShares) {
  WeightedRoundRobin turns;
  turns.add(1, "a", 3);
  turns.add(2, "b", 1);
  turns.add(3, "b", 1);
  const auto taken = count_taken(turns, 800, {1, 2, 3});
  EXPECT_EQ(taken.at(1), 600);
  EXPECT_EQ(taken.at(2), 100);
  EXPECT_EQ(taken.at(3), 100);
}

TEST(WeightedRoundRobin, LeaveNothingUndoneAndSaveNothingUp) {
  WeightedRoundRobin turns;
  EXPECT_FALSE(turns.take([](std::uint64_t) { return true; }));
  turns.add(1, "a", 2);
  turns.add(2, "b", 5);
  EXPECT_FALSE(turns.take([](std::uint64_t) { return false; }));
  EXPECT_EQ(count_taken(turns, 500, {1}).at(1), 500);  // b has nothing to do
  const auto taken = count_taken(turns, 700, {1, 2});  // and gets no more for it later
  EXPECT_EQ(taken.at(1), 200);
  EXPECT_EQ(taken.at(2), 500);
  turns.remove(2);
  EXPECT_EQ(count_taken(turns, 10, {1, 2}).at(1), 10);
  turns.remove(1);
  EXPECT_FALSE(turns.take([](std::uint64_t) { return true; }));
}

TEST(StallWatch, SpeaksOnceAStall) {
  StallWatch watch;
  EXPECT_EQ(watch.look(5, false, 100), 0);
  EXPECT_EQ(watch.look(5, false, 200), 0);  // nothing waits: the ranks compute
  EXPECT_EQ(watch.look(6, true, 201), 0);
  EXPECT_FALSE(watch.is_due(watch.look(6, true, 210), 10));
  EXPECT_EQ(watch.look(6, true, 211), 10);
  EXPECT_TRUE(watch.is_due(10, 10));
  EXPECT_FALSE(watch.is_due(watch.look(6, true, 300), 10));
  EXPECT_EQ(watch.look(7, true, 301), 0);
  EXPECT_FALSE(watch.is_due(watch.look(7, true, 302), 10));
  EXPECT_TRUE(watch.is_due(watch.look(7, true, 320), 10));
}

TEST(Metrics, TextNamesEveryFamilyOnceBeforeItsSamples) {
  const Tenants tenants(std::map<std::string, Tenant>{{"a", {net::Secret::generate(), 500, 2}}});
  MemoryQuota memory(tenants);
  MemoryQuota::Lease lease(memory, "a", "a/odd");
  ASSERT_TRUE(lease.take(300));
  SparseJobMetrics sparse;
  sparse.tenant = "a";
  sparse.job = "embedding";
  sparse.missing_ranks = {2};
  sparse.tables.push_back({"users", {.rows = 9, .counters = {.hits = 4}}});
  Metrics metrics(2, 1000, tenants, memory, [&] { return std::vector{sparse}; });
  auto job = std::make_shared<JobMetrics>(2, 2);
  job->tenant = "a";
  job->job = "odd \"name\"\\ \xc3\xa9\n";
  job->bytes = 300;
  job->shards[1].bytes_in.add(7);
  job->shards[0].bytes_in.add(5);
  job->missing[1].set(true);
  metrics.add(job);
  const std::string text = metrics.text();
  std::set<std::string> helped;
  std::string family;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string first;
    std::string kind;
    std::string name;
    words >> first;
    if (first == "#") {
      words >> kind >> name;
      if (kind == "HELP") {
        EXPECT_TRUE(helped.insert(name).second) << name;
        family = name;
      } else {
        EXPECT_EQ(kind, "TYPE");
        EXPECT_EQ(name, family);
      }
      continue;
    }
    EXPECT_TRUE(line.starts_with(family)) << line;
  }
  const std::string labels = R"({tenant="a",job="odd \"name\"\\ \\xc3\\xa9\\x0a"})";
  EXPECT_THAT(text, HasSubstr("motley_server_received_bytes_total" + labels + " 12\n"));
  EXPECT_THAT(text, HasSubstr("motley_server_tenant_memory_bytes{tenant=\"a\"} 300\n"));
  EXPECT_THAT(text, HasSubstr("motley_server_tenant_quota_bytes{tenant=\"a\"} 500\n"));
  EXPECT_THAT(text, HasSubstr("\\\\x0a\",rank=\"1\"} 1\n"));
  EXPECT_THAT(text, HasSubstr(R"(motley_server_table_rows{tenant="a",job="embedding",table="users"} 9)"));
  EXPECT_THAT(text, HasSubstr(R"(motley_server_table_hits_total{tenant="a",job="embedding",table="users"} 4)"));
  EXPECT_THAT(text, HasSubstr(R"(motley_server_sparse_missing_rank{tenant="a",job="embedding",rank="2"} 1)"));
  EXPECT_THAT(text,
              HasSubstr("_bucket{tenant=\"a\",job=\"odd \\\"name\\\"\\\\ \\\\xc3\\\\xa9\\\\x0a\",le=\"+Inf\"} 0\n"));
  metrics.remove(job.get());
  EXPECT_THAT(metrics.text(), HasSubstr("motley_server_jobs 0\n"));
}

TEST(MemoryQuota, HoldsForAllJobsOfATenantTogether) {
  const Tenants tenants(
      std::map<std::string, Tenant>{{"a", {net::Secret::generate(), 100, 1}}, {"b", {net::Secret::generate(), 0, 1}}});
  MemoryQuota memory(tenants);
  MemoryQuota::Lease first(memory, "a", "a/first");
  ASSERT_TRUE(first.take(60));
  {
    MemoryQuota::Lease second(memory, "a", "a/second");
    ASSERT_TRUE(second.take(40));
    const Status more = first.take(1);
    ASSERT_FALSE(more);
    EXPECT_EQ(more.error().code, ErrorCode::kRefused);
    EXPECT_THAT(more.error().message, HasSubstr("'a/first' needs 1 B here; of the quota of tenant 'a', 100 B, 100 B"));
    second.release(10);
    EXPECT_TRUE(first.take(10));
  }
  EXPECT_EQ(memory.taken().at("a"), 70u);
  EXPECT_FALSE(first.take(~std::size_t{0}));
  EXPECT_TRUE(first.take(30));
  MemoryQuota::Lease unbounded(memory, "b", "b/any");
  EXPECT_TRUE(unbounded.take(std::size_t{1} << 40));
}

}  // namespace
}  // namespace motley::ps
