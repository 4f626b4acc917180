// Sparse tables over the network: ranks as threads, services in this process, against the library fed by hand, against
// a plain map, and against ranks and disks that fail.
#include <gmock/gmock.h>
#include <sys/mount.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "motley/ps/client/sparse_cache.h"
#include "motley/ps/client/sparse_client.h"
#include "motley/ps/protocol/server_protocol.h"
#include "motley/ps/service/service.h"
#include "tests/collective/ranks.h"
#include "tests/no_threads.h"
#include "tests/ps/embedding/sparse_support.h"
#include "tests/ps/service/metric_value.h"

namespace motley::ps {
namespace {

using collective::ThreadSession;
using testing::HasSubstr;
using Kind = RowOptimizer::Kind;

const net::Secret& token() {
  static const net::Secret secret = net::Secret::generate();
  return secret;
}

Deadline soon() {
  return Deadline::after(30);
}

struct Servers {
  std::vector<std::unique_ptr<Service>> services;
  std::vector<ServerAddress> addresses;
  explicit Servers(int count, const std::filesystem::path& tables = {}, std::size_t quota_bytes = 0) {
    ServiceOptions options;
    options.cores = 1;
    options.quota_bytes = quota_bytes;
    options.tables = tables;
    for (int i = 0; i < count; ++i) {
      services.push_back(Service::start(options, token()).value());
      addresses.push_back({services.back()->endpoint(), token()});
    }
  }
};

// One server of the tenants 'a', which has this quota, and 'b'.
Servers start_for_tenants(std::size_t quota_bytes) {
  std::map<std::string, Tenant> tenants;
  tenants.emplace("a", Tenant{.token = token(), .quota_bytes = quota_bytes});
  tenants.emplace("b", Tenant{.token = token()});
  Servers servers(0);
  servers.services.push_back(Service::start({.cores = 1}, Tenants(std::move(tenants))).value());
  servers.addresses.push_back({servers.services[0]->endpoint(), token()});
  return servers;
}

SparseTableOptions make_table_options(const std::string& name, std::size_t dimension, Kind kind) {
  SparseTableOptions table;
  table.name = name;
  table.dimension = dimension;
  table.initializer = {RowInitializer::Kind::kUniform, 0.5F, 7};
  table.optimizer.kind = kind;
  table.optimizer.learning_rate = 0.1F;
  return table;
}

SparseTableSpec make_spec(const SparseTableOptions& table) {
  return {table, {}};
}

// What a rank pushes in a step: some ids, some of them twice.
struct Batch {
  Ids ids;
  Floats gradients;
  double weight = 0;
};
Batch make_batch(std::size_t dimension, int rank, std::int64_t step, std::size_t count = 60) {
  Random random(mix({dimension, static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(step)}));
  Batch batch;
  batch.ids = random_ids(random, random.below(5) == 0 ? 0 : 1 + random.below(count), 300);
  batch.gradients = random_floats(random, batch.ids.size() * dimension);
  batch.weight = static_cast<double>(random.below(3) * 8 + (rank == 0 ? 5 : 0));
  return batch;
}

const Ids& all_ids() {
  static const Ids ids = [] {
    Ids all;
    for (std::uint64_t id = 0; id < 300; ++id) all.push_back(id * 0x10001);
    return all;
  }();
  return ids;
}

// One push with equal ids added up, as a rank's client does before it sends them.
void merge_into(const Batch& batch, std::size_t dimension, double total, Ids& ids, Floats& gradients) {
  if (batch.weight == 0) return;
  std::map<std::uint64_t, Floats> sums;
  for (std::size_t i = 0; i < batch.ids.size(); ++i) {
    Floats& sum = sums.try_emplace(batch.ids[i], dimension, 0.0F).first->second;
    for (std::size_t e = 0; e < dimension; ++e) sum[e] += batch.gradients[i * dimension + e];
  }
  for (const auto& [id, sum] : sums) {
    ids.push_back(id);
    for (const float value : sum) gradients.push_back(static_cast<float>(batch.weight / total) * value);
  }
}

// What a step does to a table in this process, and to a plain map.
void apply_step(SparseTable& table, ReferenceTable* reference, int size, std::int64_t step) {
  const std::size_t dimension = table.spec().dimension;
  double total = 0;
  for (int rank = 0; rank < size; ++rank) total += make_batch(dimension, rank, step).weight;
  Ids ids;
  Floats gradients;
  for (int rank = 0; rank < size && total > 0; ++rank) {
    merge_into(make_batch(dimension, rank, step), dimension, total, ids, gradients);
  }
  if (ids.empty()) return;
  ASSERT_TRUE(table.push(ids, gradients));
  if (reference != nullptr) reference->push(ids, gradients);
}

std::unique_ptr<SparseClient> open(ThreadSession& session, const Servers& servers,
                                   std::vector<SparseTableOptions> tables, SparseMode mode = SparseMode::kSynchronous,
                                   std::int64_t step = 0, int written_by = 0) {
  auto client = SparseClient::open(session, {servers.addresses, std::move(tables), mode, step, written_by}, soon());
  if (!client) {
    ADD_FAILURE() << client.error().message;
    throw std::runtime_error("the tables were not opened");
  }
  return std::move(*client);
}

Floats pull(SparseClient& client, std::size_t table, const Ids& ids) {
  Floats rows(ids.size() * client.table(table).dimension);
  const Status pulled = client.pull(table, ids, rows, soon());
  EXPECT_TRUE(pulled) << pulled.error().message;
  return rows;
}

void push_batch(SparseClient& client, std::size_t table, int rank) {
  Batch batch = make_batch(client.table(table).dimension, rank, client.step() + 1);
  if (batch.weight == 0) batch.gradients.assign(batch.gradients.size(), NAN);  // which are nobody's
  const Status pushed = client.push(table, batch.ids, batch.gradients, batch.weight);
  ASSERT_TRUE(pushed) << pushed.error().message;
}
void finish(SparseClient& client, double weight) {
  const Status finished = client.finish_step(weight, soon());
  ASSERT_TRUE(finished) << finished.error().message;
}
// Several tables' batches of a step weigh the same, as the samples are the same.
void take_step(SparseClient& client, int rank) {
  push_batch(client, 0, rank);
  finish(client, make_batch(client.table(0).dimension, rank, client.step() + 1).weight);
}

struct Case {
  int servers;
  int ranks;
  Kind kind;
};
class EveryNumber : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(SparseNet, EveryNumber,
                         testing::Values(Case{1, 1, Kind::kSgd}, Case{1, 3, Kind::kAdagrad}, Case{3, 1, Kind::kAdam},
                                         Case{2, 4, Kind::kAdam}, Case{3, 2, Kind::kAdagrad}));

// Bitwise the library's rows, whoever comes first, and a plain map's to rounding.
TEST_P(EveryNumber, OfServersAndRanksGivesTheRowsOfOneTable) {
  const auto [server_count, ranks, kind] = GetParam();
  const Servers servers(server_count);
  const SparseTableOptions options = make_table_options("a", 5, kind);
  const auto table = SparseTable::create(make_spec(options)).value();
  ReferenceTable reference(make_spec(options));
  collective::run_threads(ranks, true, [&](int rank, ThreadSession& session) {
    const auto client = open(session, servers, {make_table_options("other", 3, Kind::kSgd), options});
    Random pace(mix({99, static_cast<std::uint64_t>(rank)}));
    for (std::int64_t step = 1; step <= 12; ++step) {
      const Floats rows = pull(*client, 1, all_ids());
      if (rank == 0) {
        ASSERT_EQ(rows, pull_all(*table, all_ids())) << "before step " << step;
        for (std::size_t i = 0; i < all_ids().size(); ++i) {
          const auto expected = reference.row(all_ids()[i]);
          for (std::size_t e = 0; e < 5; ++e) ASSERT_NEAR(rows[i * 5 + e], expected[e], 1e-4);
        }
        apply_step(*table, &reference, ranks, step);
      }
      std::this_thread::sleep_for(std::chrono::microseconds(pace.below(2000)));
      const Batch batch = make_batch(5, rank, step);
      push_batch(*client, 1, rank);
      finish(*client, batch.weight);
    }
  });
}

// Batches of many frames, and pulls that are under way together and waited for in another order.
TEST(SparseNet, CarriesLargeBatchesAndSeveralAtOnce) {
  const Servers servers(2);
  const SparseTableOptions options = make_table_options("large", 32, Kind::kAdagrad);
  const auto table = SparseTable::create(make_spec(options)).value();
  collective::run_threads(1, true, [&](int, ThreadSession& session) {
    const auto client = open(session, servers, {options});
    Random random(3);
    std::vector<Ids> batches(4);
    for (Ids& ids : batches) {
      for (int i = 0; i < 9000; ++i) ids.push_back(random.below(20'000));
    }
    for (const Ids& ids : batches) {
      Batch batch = {ids, random_floats(random, ids.size() * 32), 4};
      ASSERT_TRUE(client->push(0, ids, batch.gradients, 4));
      finish(*client, 4);
      Ids merged;
      Floats sums;
      merge_into(batch, 32, 4, merged, sums);
      ASSERT_TRUE(table->push(merged, sums));
    }
    std::vector<SparseClient::Ticket> tickets;
    for (const Ids& ids : batches) tickets.push_back(client->start_pull(0, ids, client->step()).value());
    for (std::size_t i = batches.size(); i-- > 0;) {
      Floats rows(batches[i].size() * 32);
      ASSERT_TRUE(client->wait(tickets[i], rows, soon()));
      ASSERT_EQ(rows, pull_all(*table, batches[i]));
    }
  });
}

// Rows asked for before they are due come when they are, as they are then.
TEST(SparseNet, BringsRowsOfLaterSteps) {
  const Servers servers(2);
  const SparseTableOptions options = make_table_options("a", 4, Kind::kAdam);
  collective::run_threads(2, true, [&](int rank, ThreadSession& session) {
    const auto table = SparseTable::create(make_spec(options)).value();
    const auto client = open(session, servers, {options});
    std::deque<SparseClient::Ticket> tickets;
    for (std::int64_t after = 0; after < 3; ++after) {
      tickets.push_back(client->start_pull(0, all_ids(), after).value());
    }
    for (std::int64_t step = 1; step <= 10; ++step) {
      tickets.push_back(client->start_pull(0, all_ids(), step + 2).value());
      Floats rows(all_ids().size() * 4);
      const Status waited = client->wait(tickets.front(), rows, soon());
      ASSERT_TRUE(waited) << waited.error().message;
      tickets.pop_front();
      ASSERT_EQ(rows, pull_all(*table, all_ids())) << "rank " << rank << ", step " << step;
      take_step(*client, rank);
      apply_step(*table, nullptr, 2, step);
    }
  });
}

TEST(SparseNet, NamesServerTableAndRankWhenADeadlinePasses) {
  const Servers servers(1);
  std::atomic<bool> seen = false;
  collective::run_threads(2, true, [&](int rank, ThreadSession& session) {
    const auto client = open(session, servers, {make_table_options("users", 2, Kind::kSgd)});
    if (rank == 1) {
      while (!seen) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return;
    }
    take_step(*client, 0);
    // What needs no other rank is there at once.
    Floats rows(all_ids().size() * 2);
    ASSERT_TRUE(client->wait(client->start_pull(0, all_ids(), 0).value(), rows, soon()));
    const auto ticket = client->start_pull(0, all_ids(), 1).value();
    const Status waited = client->wait(ticket, rows, Deadline::after(0.1));
    seen = true;
    ASSERT_FALSE(waited);
    EXPECT_EQ(waited.error().code, ErrorCode::kTimeout);
    EXPECT_EQ(waited.error().rank, 1);
    EXPECT_THAT(waited.error().message, HasSubstr(net::to_string(servers.addresses[0].endpoint)));
    EXPECT_THAT(waited.error().message, HasSubstr("table 'users', pull of 300 rows after step 1"));
    EXPECT_THAT(waited.error().message, HasSubstr("rank 1"));
  });
}

TEST(SparseNet, AppliesPushesAsTheyComeInAsynchronousMode) {
  const Servers servers(2);
  const SparseTableOptions options = make_table_options("a", 3, Kind::kAdagrad);
  collective::run_threads(1, true, [&](int, ThreadSession& session) {
    const auto table = SparseTable::create(make_spec(options)).value();
    const auto client = open(session, servers, {options}, SparseMode::kAsynchronous);
    for (std::int64_t step = 1; step <= 10; ++step) {
      Batch batch = make_batch(3, 0, step, step == 5 ? 200'000 : 100);
      batch.weight = 6;
      ASSERT_TRUE(client->push(0, batch.ids, batch.gradients, 6));
      Ids ids;
      Floats gradients;
      merge_into(batch, 3, 6, ids, gradients);
      ASSERT_TRUE(table->push(ids, gradients));
      ASSERT_EQ(pull(*client, 0, all_ids()), pull_all(*table, all_ids()));
      finish(*client, 6);
    }
  });
  // SGD's updates commute: of two ranks nothing is lost and nothing done twice.
  const SparseTableOptions plain = make_table_options("plain", 1, Kind::kSgd);
  std::atomic<int> seen = 0;
  std::atomic<int> done = 0;
  collective::run_threads(2, true, [&](int rank, ThreadSession& session) {
    session.set_job("of two ranks");
    const auto client = open(session, servers, {plain}, SparseMode::kAsynchronous);
    const Floats before = pull(*client, 0, all_ids());
    ++seen;
    while (seen < 2) std::this_thread::yield();  // both have seen the rows before anything is pushed
    for (int step = 0; step < 50; ++step) {
      ASSERT_TRUE(client->push(0, all_ids(), Floats(all_ids().size(), 1.0F), 1));
      finish(*client, 1);
    }
    static_cast<void>(pull(*client, 0, all_ids()));  // after one's own pushes on the same connection
    ++done;
    while (done < 2) std::this_thread::yield();
    const Floats rows = pull(*client, 0, all_ids());
    if (rank == 0) {
      for (std::size_t i = 0; i < rows.size(); ++i) ASSERT_NEAR(rows[i], before[i] - 10, 1e-3);
    }
  });
}

// Rows as `form` restores them.
Floats rounded(const RowForm& form, const Floats& rows) {
  std::vector<std::byte> frame(rows.size() / form.dimension * form.row_bytes());
  form.write(rows, frame.data());
  Floats restored(rows.size());
  form.read(frame.data(), restored);
  return restored;
}

// In every form pulls give the table's rows as that restores them, and the table is moved by gradients that went
// through it; what is counted is what the form says.
TEST(SparseNet, CarriesRowsInTheFormOfTheirTable) {
  const Servers servers(2);
  for (const collective::WireType wire : {collective::WireType::kNative, collective::WireType::kBfloat16,
                                          collective::WireType::kFloat16, collective::WireType::kInt8}) {
    SparseTableOptions options = make_table_options("a", 10, Kind::kAdagrad);
    options.wire = wire;
    const SparseTableOptions plain = make_table_options("plain", 3, Kind::kSgd);
    const auto table = SparseTable::create(make_spec(options)).value();
    collective::run_threads(1, true, [&](int, ThreadSession& session) {
      session.set_job(fmt::format("wire {}", static_cast<int>(wire)));
      const auto client = open(session, servers, {options, plain});
      for (std::int64_t step = 1; step <= 6; ++step) {
        const Batch batch = make_batch(10, 0, step, step == 3 ? 200'000 : 100);
        Ids ids;
        Floats sums;
        Batch own = batch;
        own.weight = 5;
        merge_into(own, 10, 5, ids, sums);
        if (!ids.empty()) {
          ASSERT_TRUE(table->push(ids, rounded(options.form(), sums)));
        }
        const SparseTraffic before = client->traffic();
        ASSERT_TRUE(client->push(0, batch.ids, batch.gradients, 5));
        finish(*client, 5);
        ASSERT_EQ(pull(*client, 0, all_ids()), rounded(options.form(), pull_all(*table, all_ids())));
        // A frame's header has 48 bytes, the head of a pull 16, that of a push 24; two servers have rows of all ids.
        const std::size_t frames = 2;
        EXPECT_EQ(client->traffic().pulled_bytes - before.pulled_bytes,
                  frames * (48 + 16 + 48) + all_ids().size() * (8 + options.form().row_bytes()));
        EXPECT_EQ(client->traffic().pulled_rows - before.pulled_rows, all_ids().size());
        const std::uint64_t pushed = client->traffic().pushed_bytes - before.pushed_bytes;
        EXPECT_GE(pushed, ids.size() * (8 + options.form().row_bytes()));
        EXPECT_LE(pushed, frames * (48 + 24) + ids.size() * (8 + options.form().row_bytes()));
      }
    });
  }
}

TEST(SparseNet, RefusesFormsThatRowsDoNotHaveOrRanksDoNotAgreeOn) {
  const Servers servers(1);
  SparseTableOptions options = make_table_options("a", 2, Kind::kSgd);
  collective::run_threads(1, true, [&](int, ThreadSession& session) {
    options.wire = collective::WireType::kTopK;
    const auto client = SparseClient::open(session, {servers.addresses, {options}}, soon());
    ASSERT_FALSE(client);
    EXPECT_THAT(client.error().message, HasSubstr("accepted: float32, bfloat16, float16, int8"));
  });
  collective::run_threads(2, true, [&](int rank, ThreadSession& session) {
    SparseTableOptions own = make_table_options("a", 2, Kind::kSgd);
    own.wire = rank == 0 ? collective::WireType::kNative : collective::WireType::kInt8;
    const auto client = SparseClient::open(session, {servers.addresses, {own}}, soon());
    ASSERT_FALSE(client);
    EXPECT_THAT(client.error().message, HasSubstr("do not agree about the sparse tables"));
  });
}

TEST(SparseNet, CachesRowsForABoundedNumberOfSteps) {
  const Servers servers(1);
  const SparseTableOptions options = make_table_options("a", 2, Kind::kSgd);
  constexpr std::int64_t kStaleness = 2;
  std::vector<Floats> states;  // all rows before step i + 1
  {
    const auto table = SparseTable::create(make_spec(options)).value();
    for (std::int64_t step = 1; step <= 40; ++step) {
      states.push_back(pull_all(*table, all_ids()));
      apply_step(*table, nullptr, 2, step);
    }
  }
  collective::run_threads(2, true, [&](int rank, ThreadSession& session) {
    const auto client = open(session, servers, {options});
    SparseCache cache(2, 100, kStaleness);
    bool used = false;
    for (std::int64_t step = 1; step <= 40; ++step) {
      Random random(mix({static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(step)}));
      Ids ids(50);
      for (auto& id : ids) id = random.below(40) * 0x10001;
      Floats rows(100);
      const auto missing = cache.take(ids, client->step(), rows);
      cache.put(missing, pull(*client, 0, missing.ids), client->step(), rows);
      for (std::size_t i = 0; i < ids.size(); ++i) {
        const std::size_t at = ids[i] / 0x10001;
        bool found = false;
        for (std::int64_t seen = std::max<std::int64_t>(0, step - 1 - kStaleness); seen < step; ++seen) {
          const Floats& state = states[static_cast<std::size_t>(seen)];
          const bool same = state[2 * at] == rows[2 * i] && state[2 * at + 1] == rows[2 * i + 1];
          found = found || same;
          used =
              used || (same && seen < step - 1 && state[2 * at] != states[static_cast<std::size_t>(step - 1)][2 * at]);
        }
        ASSERT_TRUE(found) << "row " << at << " in step " << step << " is older than " << kStaleness << " steps";
      }
      const Batch batch = make_batch(2, rank, step);
      ASSERT_TRUE(client->push(0, batch.ids, batch.gradients, batch.weight));
      finish(*client, batch.weight);
    }
    EXPECT_TRUE(used) << "the bound is made use of";
  });
}

// A checkpoint is of its step although training goes on; from it any number of servers makes the same rows.
TEST(SparseNet, GoesOnFromACheckpointWithAnotherNumberOfServers) {
  TemporaryFolder folder;
  const std::vector<SparseTableOptions> tables = {make_table_options("a", 4, Kind::kAdam),
                                                  make_table_options("b/../%", 2, Kind::kAdagrad)};
  std::vector<std::unique_ptr<SparseTable>> expected;
  for (const auto& options : tables) expected.push_back(SparseTable::create(make_spec(options)).value());
  std::int64_t step = 0;
  int written_by = 0;
  for (const int count : {2, 3, 3, 1}) {
    const Servers servers(count, folder.path);
    collective::run_threads(2, true, [&](int rank, ThreadSession& session) {
      const auto client = open(session, servers, tables, SparseMode::kSynchronous, step, written_by);
      if (rank == 0) {
        for (std::size_t t = 0; t < 2; ++t) ASSERT_EQ(pull(*client, t, all_ids()), pull_all(*expected[t], all_ids()));
      }
      for (int i = 0; i < 12; ++i) {
        const double weight = rank + 1;
        for (std::size_t t = 0; t < 2; ++t) {
          const Batch batch = make_batch(tables[t].dimension, rank, client->step() + 1);
          ASSERT_TRUE(client->push(t, batch.ids, batch.gradients, weight));
        }
        finish(*client, weight);
        if (rank == 0 && (i == 3 || i == 7)) {
          if (i == 7) {
            const auto saved = client->wait_for_checkpoint(soon());
            ASSERT_TRUE(saved) << saved.error().message;
          }
          ASSERT_TRUE(client->start_checkpoint());
        }
      }
      if (rank == 0) {
        const auto saved = client->wait_for_checkpoint(soon());
        ASSERT_TRUE(saved) << saved.error().message;
        EXPECT_GT(saved->rows, 0U);
      }
      pull(*client, 0, {1});
    });
    for (std::int64_t done = step + 1; done <= step + 8; ++done) {
      for (std::size_t t = 0; t < 2; ++t) {
        Ids ids;
        Floats gradients;
        for (int rank = 0; rank < 2; ++rank) {
          Batch batch = make_batch(tables[t].dimension, rank, done);
          batch.weight = rank + 1;
          merge_into(batch, tables[t].dimension, 3, ids, gradients);
        }
        if (ids.empty()) continue;
        ASSERT_TRUE(expected[t]->push(ids, gradients));
      }
    }
    step += 8;
    written_by = count;
  }
}

// All checkpoints of a job that keeps them lead on, the later jobs' own beside them.
TEST(SparseNet, GoesOnFromAnyOfAnotherJobsCheckpoints) {
  TemporaryFolder folder;
  const std::vector<SparseTableOptions> tables = {make_table_options("a", 4, Kind::kAdam)};
  const Servers servers(1, folder.path);
  std::string job;
  std::vector<Floats> rows;  // after each step
  const auto take_saved_step = [](SparseClient& client) {
    take_step(client, 0);
    ASSERT_TRUE(client.start_checkpoint());
    ASSERT_TRUE(client.wait_for_checkpoint(soon()));
  };
  collective::run_threads(1, true, [&](int, ThreadSession& session) {
    SparseClientOptions options = {servers.addresses, tables};
    options.keep_checkpoints = kKeepAllCheckpoints;
    const auto client = SparseClient::open(session, options, soon()).value();
    job = client->job();
    rows.push_back(pull(*client, 0, all_ids()));
    for (int step = 0; step < 4; ++step) {
      take_saved_step(*client);
      rows.push_back(pull(*client, 0, all_ids()));
      ASSERT_NE(rows.back(), rows[rows.size() - 2]);
    }
  });
  for (const std::int64_t step : {1, 4, 2}) {
    collective::run_threads(1, true, [&](int, ThreadSession& session) {
      SparseClientOptions options = {servers.addresses, tables, SparseMode::kSynchronous, step, 1};
      options.job_suffix = "-again";
      options.written_for = job;
      const auto client = SparseClient::open(session, options, soon());
      ASSERT_TRUE(client) << client.error().message;
      EXPECT_EQ(pull(**client, 0, all_ids()), rows[static_cast<std::size_t>(step)]);
      take_saved_step(**client);
    });
  }
}

TEST(SparseNet, SaysWhatACheckpointLacks) {
  TemporaryFolder folder;
  const std::vector<SparseTableOptions> tables = {make_table_options("a", 4, Kind::kSgd)};
  const Servers without(1);
  collective::run_threads(1, true, [&](int, ThreadSession& session) {
    const auto client = open(session, without, tables);
    take_step(*client, 0);
    ASSERT_TRUE(client->start_checkpoint());
    const auto saved = client->wait_for_checkpoint(soon());
    ASSERT_FALSE(saved);
    EXPECT_THAT(saved.error().message, HasSubstr("--embedding-dir"));
    pull(*client, 0, all_ids());  // the job goes on
  });
  const Servers with(1, folder.path);
  collective::run_threads(1, true, [&](int, ThreadSession& session) {
    const auto client = SparseClient::open(session, {with.addresses, tables, SparseMode::kSynchronous, 8, 1}, soon());
    ASSERT_FALSE(client);
    EXPECT_THAT(client.error().message, HasSubstr("sparse-00000008.json"));
  });
}

// A connection as a rank has it, to say what no client would say.
std::unique_ptr<net::Connection> raw_rank(const Servers& servers, const ThreadSession& session) {
  net::Claim claim;
  const auto& membership = session.membership();
  claim.identity = {session.options().job, session.options().tenant, membership.rank,
                    membership.session,    membership.epoch,         kSparseConnection};
  return net::connect_to_host(servers.addresses[0].endpoint, token(), claim, soon(), false, net::Encryption::kAuto,
                              [] { return false; })
      .value();
}
std::vector<std::byte> push_frame(SparsePush head, std::uint64_t id, float gradient) {
  std::vector<std::byte> bytes(sizeof(head) + sizeof(id) + sizeof(gradient));
  std::memcpy(bytes.data(), &head, sizeof(head));
  std::memcpy(bytes.data() + sizeof(head), &id, sizeof(id));
  std::memcpy(bytes.data() + sizeof(head) + sizeof(id), &gradient, sizeof(gradient));
  return bytes;
}
SparseOpen make_open(int size, const std::vector<SparseTableOptions>& tables, std::int64_t step, int written_by,
                     SparseMode mode = SparseMode::kSynchronous) {
  return {.size = size, .mode = mode, .step = step, .written_by = written_by, .tables = tables};
}

// A rank that ends between its pushes and its word that this was all: the others learn of it, and from the checkpoint
// on nothing of its push is to be seen.
TEST(SparseNet, LeavesNothingOfARankThatDiesWhilePushing) {
  TemporaryFolder folder;
  const std::vector<SparseTableOptions> tables = {make_table_options("a", 1, Kind::kSgd)};
  for (const SparseMode mode : {SparseMode::kSynchronous, SparseMode::kAsynchronous}) {
    const Servers servers(1, folder.path / (mode == SparseMode::kSynchronous ? "one" : "other"));
    Floats before;
    std::atomic<bool> saved = false;
    collective::run_threads(2, true, [&](int rank, ThreadSession& session) {
      if (rank == 0) {
        const auto client = open(session, servers, tables, mode);
        ASSERT_TRUE(client->push(0, Ids{1, 2}, Floats{1, 2}, 1));
        finish(*client, 1);
        before = pull(*client, 0, {1, 2, 3});
        ASSERT_TRUE(client->start_checkpoint());
        ASSERT_TRUE(client->wait_for_checkpoint(soon()));
        saved = true;
        Floats rows(3);
        Status pulled;
        finish(*client, 1);
        while (pulled) pulled = client->pull(0, Ids{1, 2, 3}, rows, soon());
        EXPECT_EQ(pulled.error().code, ErrorCode::kPeerLost);
        EXPECT_EQ(pulled.error().rank, 1);
        EXPECT_THAT(pulled.error().message, HasSubstr("rank 1"));
        return;
      }
      const auto connection = raw_rank(servers, session);
      ASSERT_TRUE(connection->send(kSparseOpen, 0, encode(make_open(2, tables, 0, 0, mode)), soon(), "open"));
      ASSERT_EQ(connection->receive(soon(), "opened").value().header.type, kSparseOpened);
      const std::array<double, 1> weight = {1};
      ASSERT_TRUE(connection->send(kSparseFinish, 1, std::as_bytes(std::span(weight)), soon(), "finish"));
      while (!saved) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ASSERT_TRUE(connection->send(kSparsePush, 0, push_frame({2, 1, 0, 1}, 3, 100), soon(), "push"));
    });
    collective::run_threads(1, true, [&](int, ThreadSession& session) {
      const auto client = open(session, servers, tables, mode, 1, 1);
      EXPECT_EQ(pull(*client, 0, {1, 2, 3}), before);
    });
  }
}

// What a rank has finished before the others waits in memory that no quota counts.
TEST(SparseNet, NoRankIsAheadOfTheOthersWithoutEnd) {
  const Servers servers(1);
  const std::vector<SparseTableOptions> tables = {make_table_options("a", 1, Kind::kSgd)};
  std::atomic<bool> is_refused = false;
  collective::run_threads(2, true, [&](int rank, ThreadSession& session) {
    const auto connection = raw_rank(servers, session);
    ASSERT_TRUE(connection->send(kSparseOpen, 0, encode(make_open(2, tables, 0, 0)), soon(), "open"));
    ASSERT_EQ(connection->receive(soon(), "opened").value().header.type, kSparseOpened);
    if (rank == 1) {
      while (!is_refused) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return;
    }
    const std::array<double, 1> weight = {1};
    Status sent;
    for (std::uint64_t step = 1; step <= 1100 && sent; ++step) {
      sent = connection->send(kSparseFinish, step, std::as_bytes(std::span(weight)), soon(), "finish");
    }
    const auto answer = connection->receive(soon(), "the reason");
    is_refused = true;
    ASSERT_TRUE(answer) << answer.error().message;
    ASSERT_EQ(answer->header.type, kServerFailed);
    EXPECT_THAT(decode_server_failed(answer->payload)->message,
                HasSubstr("has finished step 1025 where 0 are applied; accepted: 1024 ahead"));
  });
}

// A rank that goes in order finishes no further step: who waits for one is told at once, not at its deadline.
TEST(SparseNet, TellsThoseWhoWaitForARankThatHasLeft) {
  const Servers servers(1);
  const std::vector<SparseTableOptions> tables = {make_table_options("a", 1, Kind::kSgd)};
  collective::run_threads(2, true, [&](int rank, ThreadSession& session) {
    const auto client = open(session, servers, tables, SparseMode::kSynchronous);
    finish(*client, 1);
    EXPECT_EQ(pull(*client, 0, {1}).size(), 1u);
    if (rank == 1) return;
    finish(*client, 1);
    Floats rows(1);
    const Status pulled = client->pull(0, Ids{1}, rows, soon());
    ASSERT_FALSE(pulled);
    EXPECT_EQ(pulled.error().code, ErrorCode::kPeerLost);
    EXPECT_EQ(pulled.error().rank, 1);
    EXPECT_THAT(pulled.error().message, HasSubstr("rank 1 has left the job"));
  });
}

// Nothing is read from a rank while a request of its waits for others; that it has ended is seen all the same.
TEST(SparseNet, NoticesARankThatDiesWhileItsRequestWaits) {
  const Servers servers(1);
  const std::vector<SparseTableOptions> tables = {make_table_options("a", 1, Kind::kSgd)};
  std::atomic<bool> is_finished = false;
  collective::run_threads(2, true, [&](int rank, ThreadSession& session) {
    if (rank == 1) {
      const auto client = open(session, servers, tables);
      finish(*client, 1);
      is_finished = true;
      Floats rows(1);
      const Status pulled = client->pull(0, Ids{1}, rows, soon());
      ASSERT_FALSE(pulled);
      EXPECT_EQ(pulled.error().rank, 0);
      EXPECT_THAT(pulled.error().message, HasSubstr("rank 0"));
      return;
    }
    const auto connection = raw_rank(servers, session);
    ASSERT_TRUE(connection->send(kSparseOpen, 0, encode(make_open(2, tables, 0, 0)), soon(), "open"));
    ASSERT_EQ(connection->receive(soon(), "opened").value().header.type, kSparseOpened);
    ASSERT_TRUE(connection->send(kSparseSave, 5, {}, soon(), "a checkpoint of a step to come"));
    for (const Deadline deadline = soon(); !is_finished && !deadline.passed();) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  });
}

TEST(SparseNet, RefusesWhatIsNoRequestAndGoesOnForOthers) {
  const Servers servers(1);
  const std::vector<SparseTableOptions> tables = {make_table_options("a", 1, Kind::kSgd)};
  collective::Hub hub(collective::unique_session());
  ThreadSession other_session(hub, 0, 1);
  other_session.set_job("other");
  const auto other = open(other_session, servers, tables);
  const auto expect_refused = [&](const std::function<void(net::Connection&)>& say, const char* why) {
    collective::run_threads(1, true, [&](int, ThreadSession& session) {
      const auto connection = raw_rank(servers, session);
      ASSERT_TRUE(connection->send(kSparseOpen, 0, encode(make_open(1, tables, 0, 0)), soon(), ""));
      ASSERT_EQ(connection->receive(soon(), "").value().header.type, kSparseOpened);
      say(*connection);
      const auto answer = connection->receive(soon(), "the reason");
      ASSERT_TRUE(answer) << answer.error().message;
      ASSERT_EQ(answer->header.type, kServerFailed);
      EXPECT_THAT(decode_server_failed(answer->payload)->message, HasSubstr(why));
    });
    take_step(*other, 0);
    pull(*other, 0, all_ids());
  };
  const auto frame = [](std::uint16_t type, std::uint64_t tag, std::vector<std::byte> payload) {
    return [=](net::Connection& connection) { ASSERT_TRUE(connection.send(type, tag, payload, soon(), "")); };
  };
  expect_refused(frame(kSparsePull, 1, {}), "malformed pull");
  expect_refused(frame(kSparsePull, 1, push_frame({0, 0, 0, 0}, 1, 1)), "malformed pull");
  expect_refused(frame(kSparsePush, 0, push_frame({1, 1, 7, 0}, 1, 1)), "malformed push");
  expect_refused(frame(kSparsePush, 0, push_frame({1, -1, 0, 0}, 1, 1)), "malformed push");
  expect_refused(frame(kSparsePush, 0, push_frame({9, 1, 0, 0}, 1, 1)), "step 9");
  expect_refused(frame(kSparsePush, 0, std::vector<std::byte>(24 + 12 * 30'000)), "malformed push");
  expect_refused(frame(kSparseFinish, 5, std::vector<std::byte>(8)), "finished step 5");
  expect_refused(frame(kSparseFinish, 1, {}), "no weight");
  expect_refused(frame(kSparseOpen, 0, encode(make_open(1, tables, 0, 0))), "already");
  expect_refused(frame(kSparseRows, 0, {}), "no such frame");
}

TEST(SparseProtocol, SurvivesAnyBytes) {
  Random random(17);
  std::vector<SparseTableOptions> tables = {make_table_options("a", 3, Kind::kAdam),
                                            make_table_options("b", 1, Kind::kSgd)};
  tables[1].wire = collective::WireType::kInt8;
  SparseOpen sent = make_open(2, tables, 4, 3);
  sent.written_for = "first";
  sent.keep_checkpoints = 7;
  const std::vector<std::byte> good = encode(sent);
  const auto decoded = decode_sparse_open(good);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->tables, tables);
  EXPECT_EQ(decoded->written_by, 3);
  EXPECT_EQ(decoded->written_for, "first");
  EXPECT_EQ(decoded->keep_checkpoints, 7);
  for (std::size_t length = 0; length < good.size(); ++length) {
    EXPECT_FALSE(decode_sparse_open(std::span(good).first(length)));
  }
  int kept = 0;
  for (int turn = 0; turn < 20'000; ++turn) {
    std::vector<std::byte> bytes = good;
    if (turn % 2 == 0) bytes.resize(random.below(200));
    for (int i = 0; i < 3; ++i) {
      if (!bytes.empty()) bytes[random.below(bytes.size())] = static_cast<std::byte>(random.below(256));
    }
    if (const auto open = decode_sparse_open(bytes)) {
      EXPECT_LT(open->shard, open->shards);
      EXPECT_EQ(open->tables.size(), 2U);
      ++kept;
    }
    if (const auto frame = read_push(bytes, tables)) {
      EXPECT_EQ(frame->gradients.size(), frame->ids.size() * tables[frame->head.table].form().row_bytes());
      EXPECT_EQ(frame->gradients.data() + frame->gradients.size(), bytes.data() + bytes.size());
    }
    if (const auto frame = read_pull(bytes, tables)) {
      EXPECT_LE(reinterpret_cast<const std::byte*>(frame->ids.data() + frame->ids.size()), bytes.data() + bytes.size());
    }
    static_cast<void>(decode_sparse_saved(bytes));
  }
  EXPECT_GT(kept, 0);
}

TEST(SparseNet, HoldsJobsToTheirQuotas) {
  const Servers servers(1, {}, 1 << 20);
  collective::Hub hub(collective::unique_session());
  const auto make_session = [&](const char* job) {
    auto session = std::make_unique<ThreadSession>(hub, 0, 1);
    session->set_job(job);
    return session;
  };
  auto table = make_table_options("wide", 64, Kind::kSgd);
  const auto refused = [&](const char* job) {
    const auto session = make_session(job);
    const auto client = SparseClient::open(*session, {servers.addresses, {table}}, soon());
    EXPECT_FALSE(client);
    return client ? Error{} : client.error();
  };
  Error error = refused("unbounded");
  EXPECT_EQ(error.code, ErrorCode::kRefused);
  EXPECT_THAT(error.message, HasSubstr("table 'wide' asks for unbounded memory"));
  table.memory_bytes = 2 << 20;
  error = refused("too much");
  EXPECT_EQ(error.code, ErrorCode::kRefused);
  EXPECT_THAT(error.message, HasSubstr("local/too much"));
  // Together they are less than nothing, by the numbers of a computer.
  auto other = make_table_options("other", 64, Kind::kSgd);
  other.memory_bytes = 1 << 19;
  table.memory_bytes = std::numeric_limits<std::uint64_t>::max() - (1 << 19) + 1;
  const auto session = make_session("wraps");
  EXPECT_FALSE(SparseClient::open(*session, {servers.addresses, {other, table}}, soon()));

  table.memory_bytes = 100'000;
  const auto good_session = make_session("good");
  const auto good = open(*good_session, servers, {table});
  {
    const auto session = make_session("grows");
    const auto client = open(*session, servers, {table});
    Status status;
    for (std::uint64_t id = 0; id < 4000 && status; id += 50) {
      Ids ids(50);
      for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = id + i;
      status = client->push(0, ids, Floats(50 * 64), 1);
      if (status) status = client->finish_step(1, soon());
      Floats rows(64);
      if (status) status = client->pull(0, Ids{1}, rows, soon());
    }
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kRefused);
    EXPECT_THAT(status.error().message, HasSubstr("table 'wide' has the"));
    EXPECT_THAT(status.error().message, HasSubstr("quota"));
  }
  {
    const auto session = make_session("pushes");
    const auto client = open(*session, servers, {table});
    Status status;
    for (int i = 0; i < 100 && status; ++i) {
      status = client->push(0, all_ids(), Floats(300 * 64), 1);
    }
    Floats rows(64);
    if (status) status = client->pull(0, Ids{1}, rows, soon());
    ASSERT_FALSE(status);
    EXPECT_THAT(status.error().message, HasSubstr("its quota is"));
  }
  ASSERT_TRUE(good->push(0, Ids{1}, Floats(64), 1));
  finish(*good, 1);
  pull(*good, 0, {1});
}

TEST(SparseNet, CountsTheTablesOfATenantTogetherAndTellsWhatTheyDo) {
  const auto service =
      Service::start({.cores = 1}, Tenants(std::map<std::string, Tenant>{{"a", {token(), 1'000'000, 1}}})).value();
  const std::vector<ServerAddress> addresses = {{service->endpoint(), token()}};
  collective::Hub hub(collective::unique_session());
  const auto open_as = [&](const char* job, int rank, int size, std::size_t memory_bytes, const auto& use) {
    ThreadSession session(hub, rank, size);
    session.set_job(job);
    session.set_tenant("a");
    auto table = make_table_options("users", 4, Kind::kSgd);
    table.memory_bytes = memory_bytes;
    const auto client = SparseClient::open(session, {addresses, {table}}, soon());
    use(client);
  };
  const auto refused_with = [](const char* words) {
    return [words](const auto& client) {
      ASSERT_FALSE(client);
      EXPECT_EQ(client.error().code, ErrorCode::kRefused);
      EXPECT_THAT(client.error().message, HasSubstr(words));
    };
  };
  open_as("unbounded", 0, 1, 0, refused_with("unbounded memory"));
  open_as("one", 0, 1, 700'000, [&](const auto& client) {
    ASSERT_TRUE(client) << client.error().message;
    open_as("two", 0, 1, 700'000, refused_with("of the quota of tenant 'a', 1 MB, 700 KB are taken"));
    EXPECT_EQ(compute_value(*service, R"(tenant_memory_bytes{tenant="a"})"), 700'000);
    ASSERT_TRUE((*client)->push(0, Ids{1, 2, 3}, Floats(12), 1));
    finish(**client, 1);
    pull(**client, 0, {1, 2});
    const std::string job = R"(tenant="a",job="one")";
    EXPECT_EQ(compute_value(*service, "table_rows{" + job + R"(,table="users"})"), 3);
    EXPECT_EQ(compute_value(*service, "table_rows_in_memory{" + job + R"(,table="users"})"), 3);
    EXPECT_GE(compute_value(*service, "table_hits_total{" + job + R"(,table="users"})"), 2);
    EXPECT_EQ(compute_value(*service, "sparse_step{" + job + "}"), 1);
    EXPECT_EQ(compute_value(*service, "sparse_waiting_bytes{" + job + "}"), 0);
  });
  // The tables' memory is free again once their job has gone, which the server learns a moment later.
  for (const Deadline deadline = soon(); compute_value(*service, R"(tenant_memory_bytes{tenant="a"})") != 0;) {
    ASSERT_FALSE(deadline.passed());
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  open_as("two", 0, 1, 700'000, [](const auto& client) { EXPECT_TRUE(client) << client.error().message; });
}

// Pulls of a step to come are memory of their tenant while they wait, and no longer.
TEST(SparseNet, CountsPullsThatWait) {
  const Servers servers = start_for_tenants(1'000'000);
  auto table = make_table_options("a", 1, Kind::kSgd);
  table.memory_bytes = 100'000;
  collective::Hub hub(collective::unique_session());
  ThreadSession good_session(hub, 0, 1);
  good_session.set_tenant("b");
  const auto good = open(good_session, servers, {table});
  ThreadSession session(hub, 0, 1);
  session.set_tenant("a");
  auto connection = raw_rank(servers, session);
  const auto wait_for_memory = [&](std::size_t bytes) {
    const std::string sample = R"(tenant_memory_bytes{tenant="a"})";
    for (const Deadline deadline = soon(); compute_value(*servers.services[0], sample) != static_cast<double>(bytes);) {
      ASSERT_FALSE(deadline.passed()) << bytes;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  };
  std::vector<std::byte> frame(sizeof(SparsePull) + rows_in_frame(1) * sizeof(std::uint64_t));
  const auto pull_after = [&](std::int64_t step) {
    const SparsePull head = {.after = step};
    std::memcpy(frame.data(), &head, sizeof(head));
    return connection->send(kSparsePull, 0, frame, soon(), "a pull");
  };
  ASSERT_TRUE(connection->send(kSparseOpen, 0, encode(make_open(1, {table}, 0, 0)), soon(), "open"));
  ASSERT_EQ(connection->receive(soon(), "opened").value().header.type, kSparseOpened);
  ASSERT_TRUE(pull_after(1));
  wait_for_memory(100'000 + frame.size());
  const std::array<double, 1> weight = {1};
  ASSERT_TRUE(connection->send(kSparseFinish, 1, std::as_bytes(std::span(weight)), soon(), "finish"));
  ASSERT_EQ(connection->receive(soon(), "rows").value().header.type, kSparseRows);
  wait_for_memory(100'000);

  Status sent;
  for (int i = 0; i < 60 && sent; ++i) sent = pull_after(5);
  const auto answer = connection->receive(soon(), "the reason");
  ASSERT_TRUE(answer) << answer.error().message;
  ASSERT_EQ(answer->header.type, kServerFailed);
  const auto reason = decode_server_failed(answer->payload);
  ASSERT_TRUE(reason);
  EXPECT_EQ(reason->code, ErrorCode::kRefused);
  EXPECT_THAT(reason->message, HasSubstr("a pull that waits for a step to come: job 'a/job' needs"));
  EXPECT_THAT(reason->message, HasSubstr("of the quota of tenant 'a', 1 MB,"));
  connection.reset();
  wait_for_memory(0);
  take_step(*good, 0);
  pull(*good, 0, all_ids());
}

TEST(SparseNet, WithoutAThreadOneConnectionIsRefusedAlone) {
  const Servers servers = start_for_tenants(0);
  const std::vector<SparseTableOptions> tables = {make_table_options("a", 2, Kind::kSgd)};
  collective::Hub hub(collective::unique_session());
  ThreadSession good_session(hub, 0, 1);
  good_session.set_tenant("a");
  const auto good = open(good_session, servers, tables);
  ThreadSession session(hub, 0, 1);
  session.set_tenant("b");
  {
    const NoThreads none;
    const auto refused = SparseClient::open(session, {servers.addresses, tables}, soon());
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
    EXPECT_THAT(refused.error().message, HasSubstr("no thread could be started"));
  }
  take_step(*good, 0);
  pull(*good, 0, all_ids());
  const auto again = open(session, servers, tables);
  take_step(*again, 0);
  pull(*again, 0, all_ids());
}

TEST(SparseNet, WithoutAThreadACheckpointIsNotWrittenAndTheJobGoesOn) {
  TemporaryFolder folder;
  const Servers servers(1, folder.path);
  collective::Hub hub(collective::unique_session());
  ThreadSession session(hub, 0, 1);
  const auto client =
      open(session, servers, {make_table_options("a", 2, Kind::kSgd), make_table_options("b", 3, Kind::kSgd)});
  take_step(*client, 0);
  {
    const NoThreads none;
    ASSERT_TRUE(client->start_checkpoint());
    const auto saved = client->wait_for_checkpoint(soon());
    ASSERT_FALSE(saved);
    EXPECT_EQ(saved.error().code, ErrorCode::kUnavailable);
    EXPECT_THAT(saved.error().message, HasSubstr("no thread could be started"));
  }
  take_step(*client, 0);
  ASSERT_TRUE(client->start_checkpoint());
  const auto saved = client->wait_for_checkpoint(soon());
  EXPECT_TRUE(saved) << saved.error().message;
}

TEST(SparseNet, TellsWhomTheTablesWaitFor) {
  const Servers servers(1);
  const Service& service = *servers.services[0];
  const std::string job = R"(tenant="local",job="job")";
  std::atomic<bool> seen = false;
  collective::run_threads(2, true, [&](int rank, ThreadSession& session) {
    const auto client = open(session, servers, {make_table_options("users", 4, Kind::kSgd)});
    if (rank == 1) {
      ASSERT_TRUE(client->push(0, Ids{1, 2, 3}, Floats(12), 1));
      finish(*client, 1);
      for (const Deadline deadline = soon();
           compute_value(service, "sparse_missing_rank{" + job + R"(,rank="0"})") != 1;) {
        ASSERT_FALSE(deadline.passed());
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      EXPECT_EQ(compute_value(service, "sparse_waiting_bytes{" + job + "}"), 3 * (8 + 4 * 4));
      seen = true;
    } else {
      for (const Deadline deadline = soon(); !seen && !deadline.passed();) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      finish(*client, 1);
    }
    pull(*client, 0, {1});
    EXPECT_EQ(compute_value(service, "sparse_missing_rank{" + job + R"(,rank="0"})"), -1);
  });
}

TEST(SparseNet, LetsOneRunOfAJobInAtATime) {
  TemporaryFolder folder;
  const Servers servers(1, folder.path);
  auto tables = std::vector{make_table_options("a", 2, Kind::kSgd)};
  tables[0].memory_bytes = 1 << 20;
  collective::Hub hub(collective::unique_session());
  collective::Hub later(collective::unique_session());
  ThreadSession session(hub, 0, 1);
  ThreadSession second_session(later, 0, 1);
  {
    const auto client = open(session, servers, tables);
    const auto second = SparseClient::open(second_session, {servers.addresses, tables}, soon());
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code, ErrorCode::kRefused);
    EXPECT_THAT(second.error().message, HasSubstr("another name"));
    take_step(*client, 0);
  }
  // Once it has left, the next may come; it waits until the files of the first are closed.
  const auto second = open(second_session, servers, tables);
  take_step(*second, 0);
  pull(*second, 0, all_ids());
}

TEST(SparseNet, ARankThatSeesOtherTablesEndsTheJobForAll) {
  const Servers servers(1);
  collective::run_threads(2, true, [&](int rank, ThreadSession& session) {
    const auto client = SparseClient::open(
        session, {servers.addresses, {make_table_options("a", 2, rank == 0 ? Kind::kSgd : Kind::kAdam)}}, soon());
    ASSERT_FALSE(client);
    EXPECT_THAT(client.error().message, HasSubstr("do not agree about the sparse tables"));
  });
}

TEST(SparseNet, RanksKeepAsManyCheckpoints) {
  const Servers servers(1);
  collective::run_threads(2, true, [&](int rank, ThreadSession& session) {
    const auto client = SparseClient::open(session,
                                           {.servers = servers.addresses,
                                            .tables = {make_table_options("a", 2, Kind::kSgd)},
                                            .keep_checkpoints = 1 + rank},
                                           soon());
    ASSERT_FALSE(client);
    EXPECT_THAT(client.error().message, HasSubstr("do not agree about how many checkpoints to keep"));
  });
}

// The cold tier fills a tiny file system: that job ends with the reason, another one does not notice.
TEST(SparseNet, AFullDiskEndsOneJobOnly) {
#ifndef MOTLEY_HAS_ROCKSDB
  GTEST_SKIP() << "needs a build with RocksDB (librocksdb-dev)";
#endif
  TemporaryFolder folder;
  if (::mount("none", folder.path.c_str(), "tmpfs", 0, "size=24m") != 0)
    GTEST_SKIP() << "needs root, to mount a small file system";
  {
    const Servers servers(1, folder.path);
    collective::Hub hub(collective::unique_session());
    ThreadSession small_session(hub, 0, 1);
    small_session.set_job("small");
    auto small_table = make_table_options("small", 4, Kind::kSgd);
    const auto small = open(small_session, servers, {small_table});
    collective::run_threads(1, true, [&](int, ThreadSession& session) {
      auto table = make_table_options("big", 256, Kind::kSgd);
      table.memory_bytes = 4 << 20;
      const auto client = open(session, servers, {table});
      Status status;
      std::uint64_t next = 0;
      while (status && next < 100'000) {  // 100 MB
        Ids ids(200);
        for (auto& id : ids) id = next++;
        status = client->push(0, ids, Floats(ids.size() * 256, 1.0F), 1);
        if (status) status = client->finish_step(1, soon());
        Floats rows(256);
        if (status) status = client->pull(0, Ids{0}, rows, soon());
      }
      ASSERT_FALSE(status);
      EXPECT_EQ(status.error().code, ErrorCode::kIo);
      EXPECT_THAT(status.error().message, HasSubstr("table 'big'"));
      EXPECT_THAT(status.error().message, HasSubstr("no space left"));
    });
    take_step(*small, 0);
    pull(*small, 0, all_ids());
  }
}

}  // namespace
}  // namespace motley::ps
