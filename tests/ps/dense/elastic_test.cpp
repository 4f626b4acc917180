// An elastic job at its servers: ranks end at any moment of a step, or are cut off and go on without knowing it, others
// come, and those who are there begin another epoch. Whatever was under way, each step is taken once and with the
// gradient of all its samples, as by one worker.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cmath>
#include <cstring>
#include <random>

#include "motley/base/random.h"
#include "motley/ps/client/server_reducer.h"
#include "motley/ps/service/service.h"
#include "tests/collective/ranks.h"
#include "tests/fewer_values.h"
#include "tests/no_threads.h"
#include "tests/ps/dense/servers.h"

namespace motley::ps {
namespace {

using collective::Hub;
using collective::Layout;
using collective::ThreadSession;
using kernels::UpdateRule;

constexpr int kSamples = 12;  // of a step
constexpr double kLearningRate = 0.05;
constexpr double kMomentum = 0.9;
const Layout kLayout{.bucket_elements = {3000, 70000, 1}};

double make_gradient(int sample, std::uint64_t step, std::size_t bucket, std::size_t element) {
  Random random(mix({static_cast<std::uint64_t>(sample), step, bucket, element % 97}));
  return static_cast<float>(2 * random.uniform() - 1);
}

using Values = std::vector<std::vector<double>>;  // by bucket

ServerState initial_state() {
  ServerState state;
  for (const std::size_t elements : kLayout.bucket_elements) state.weights.emplace_back(elements, 0.5F);
  return state;
}

// The weights after so many steps of one worker, by momentum.
Values expected_weights(std::uint64_t steps) {
  Values weights;
  for (std::size_t bucket = 0; bucket < kLayout.bucket_elements.size(); ++bucket) {
    auto& values = weights.emplace_back();
    std::vector<double> moments(kLayout.bucket_elements[bucket]);
    values.assign(moments.size(), 0.5);
    for (std::uint64_t step = 1; step <= steps; ++step) {
      std::vector<double> means(97);
      for (std::size_t e = 0; e < means.size(); ++e) {
        for (int sample = 0; sample < kSamples; ++sample) means[e] += make_gradient(sample, step, bucket, e) / kSamples;
      }
      for (std::size_t e = 0; e < moments.size(); ++e) {
        moments[e] = kMomentum * moments[e] + means[e % means.size()];
        values[e] -= kLearningRate * moments[e];
      }
    }
  }
  return weights;
}

// A rank in one epoch.
class Member {
 public:
  Member(Hub& hub, int index, int size, const ServerOptions& options)
      : session_(hub, index, size), index_(index), size_(size) {
    auto reducer = ServerReducer::create(session_, options);
    if (reducer) reducer_ = std::move(*reducer);
  }

  ThreadSession& session() { return session_; }
  ServerReducer& reducer() { return *reducer_; }
  Status join(bool is_first) {
    MOTLEY_TRY(reducer_->prepare(kLayout, Deadline::after(30)));
    return is_first ? reducer_->load(initial_state(), Deadline::after(30)) : Status();
  }

  // Its share of the step's samples.
  Status start(std::uint64_t step, int bucket) {
    reducer_->set_learning_rate(kLearningRate);
    const int begin = kSamples * index_ / size_, end = kSamples * (index_ + 1) / size_;
    const auto at = static_cast<std::size_t>(bucket);
    std::vector<float> means(97);
    for (std::size_t e = 0; e < means.size(); ++e) {
      double sum = 0;
      for (int sample = begin; sample < end; ++sample) sum += make_gradient(sample, step, at, e);
      means[e] = static_cast<float>(sum / std::max(end - begin, 1));
    }
    auto* values = reinterpret_cast<float*>(reducer_->buffer(bucket).data());
    for (std::size_t e = 0; e < kLayout.bucket_elements[at]; ++e) values[e] = means[e % means.size()];
    return reducer_->start(step, bucket, end - begin);
  }

  Status wait(int bucket) {
    const auto outcome = reducer_->wait(bucket, Deadline::after(30));
    return outcome ? Status() : fail(outcome.error());
  }

  Status take_step(std::uint64_t step) {
    for (int bucket = 0; bucket < kBuckets; ++bucket) MOTLEY_TRY(start(step, bucket));
    for (int bucket = 0; bucket < kBuckets; ++bucket) MOTLEY_TRY(wait(bucket));
    return {};
  }

  // As if its process had ended.
  void end() {
    reducer_->hand_over();
    reducer_.reset();
  }

  static constexpr int kBuckets = 3;

 private:
  ThreadSession session_;
  const int index_, size_;
  std::unique_ptr<ServerReducer> reducer_;
};

struct Route {
  const char* name;
  bool shares_memory;
  int servers;
  bool have_racks = false;  // a server in each
};

class ElasticServer : public ::testing::TestWithParam<Route> {
 protected:
  ElasticServer() {
    for (int i = 0; i < GetParam().servers; ++i) {
      services_.push_back(Service::start({.cores = 2}, token()).value());
      options_.servers.push_back({services_.back()->endpoint(), token()});
    }
    options_.method = collective::Method::kParameterServer;
    options_.servers_share_memory = GetParam().shares_memory;
    options_.update = {.rule = UpdateRule::kMomentum, .momentum = kMomentum};
    options_.elastic = ElasticJob{.session = collective::unique_session(), .epoch = 0};
  }

  // Of the next epoch, after so many updates.
  ServerOptions next_epoch(std::uint64_t updates) {
    ++options_.elastic->epoch;
    options_.elastic->updates = updates;
    return options_;
  }

  std::vector<std::unique_ptr<Service>> services_;
  ServerOptions options_;
};

void expect_weights(ServerReducer& reducer, std::uint64_t step) {
  const Values expected = expected_weights(step);
  for (int bucket = 0; bucket < Member::kBuckets; ++bucket) {
    const auto held = reducer.weights(bucket);
    double worst = 0;
    for (std::size_t e = 0; e < held.size(); ++e) {
      const double error = std::fabs(held[e] - expected[static_cast<std::size_t>(bucket)][e]);
      worst = std::isnan(error) ? error : std::max(worst, error);
    }
    EXPECT_LE(worst, 2e-6) << "bucket " << bucket << " after step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Dense, ElasticServer,
                         ::testing::Values(Route{"memory", true, 1}, Route{"channels", false, 1},
                                           Route{"channels_of_two_servers", false, 2}, Route{"racks", false, 3, true}),
                         [](const auto& info) { return std::string(info.param.name); });

// In each epoch some steps are done, and then one rank ends in the middle of another one: before any of its operations.
// Where it has the whole step, the others may know that all have it, or not. Racks have other ranks in each epoch, and
// some of them none.
TEST_P(ElasticServer, WhoeverEndsWhereverTheResultIsThatOfOneWorker) {
  std::mt19937 random(7);
  constexpr int kOperations = 2 * Member::kBuckets + 1;
  std::uint64_t done = 0;
  for (int epoch = 0; epoch < static_cast<int>(fewer(40)); ++epoch) {
    SCOPED_TRACE(epoch);
    const int size = 2 + static_cast<int>(random() % 3);
    const int victim = static_cast<int>(random() % static_cast<unsigned>(size));
    const int end_before = static_cast<int>(random() % kOperations);
    const bool is_known = random() % 2 == 0;
    const std::uint64_t whole = random() % 3;
    Hub hub(collective::unique_session());
    ServerOptions options = next_epoch(done);
    for (int rank = 0; rank < size && GetParam().have_racks; ++rank) {
      options.rank_racks.push_back(static_cast<int>(random() % options.servers.size()));
    }
    std::barrier all(size);
    std::atomic<int> reduced = 0;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank, first = done + 1] {
        Member member(hub, rank, size, options);
        const Status joined = member.join(epoch == 0);
        EXPECT_TRUE(joined) << joined.error().message;
        for (std::uint64_t step = first; step < first + whole; ++step) {
          const Status taken = member.take_step(step);
          EXPECT_TRUE(taken) << taken.error().message;
          member.reducer().commit();
          expect_weights(member.reducer(), step);
        }
        all.arrive_and_wait();
        const std::uint64_t step = first + whole;
        Status taken;
        for (int i = 0; i < kOperations && taken; ++i) {
          if (rank == victim && i == end_before) {
            member.end();
            hub.fail_with({ErrorCode::kPeerLost, "a rank has ended", rank});
            return;
          }
          if (i < 2 * Member::kBuckets) {
            taken = i < Member::kBuckets ? member.start(step, i) : member.wait(i - Member::kBuckets);
          }
        }
        if (taken) {
          ++reduced;
          expect_weights(member.reducer(), step);
        } else {
          EXPECT_EQ(taken.error().code, ErrorCode::kPeerLost) << taken.error().message;
        }
        member.end();
      });
    }
    for (std::thread& thread : threads) thread.join();
    done += whole;
    if (reduced == size - 1 && end_before == kOperations - 1 && is_known) ++done;
    if (HasFailure()) return;
  }
}

// One that was cut off goes on with its step after the others have begun another epoch.
TEST_P(ElasticServer, WhatComesFromAnEpochThatIsOverCountsForNothing) {
  Hub before(collective::unique_session()), after(collective::unique_session());
  ServerOptions first = next_epoch(0), second = next_epoch(1);
  if (GetParam().have_racks) {
    first.rank_racks = {1, 1, 0};
    second.rank_racks = {1, 1};
  }
  std::barrier began(3), went_on(3), ended(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      std::optional<Member> member(std::in_place, before, rank, 3, first);
      ASSERT_TRUE(member->join(true));
      ASSERT_TRUE(member->take_step(1));
      ASSERT_TRUE(member->start(2, 0));
      if (rank == 2) {
        member->session().forget_failure();
        began.arrive_and_wait();
        went_on.arrive_and_wait();
        Status done;
        for (int bucket = 1; bucket < Member::kBuckets && done; ++bucket) done = member->start(2, bucket);
        for (int bucket = 0; bucket < Member::kBuckets && done; ++bucket) done = member->wait(bucket);
        EXPECT_FALSE(done);
        EXPECT_EQ(done.error().code, ErrorCode::kPeerLost) << done.error().message;
        const ServerOptions late = first;
        Member again(before, rank, 3, late);
        again.session().forget_failure();
        const Status refused = again.join(false);
        ASSERT_FALSE(refused);
        EXPECT_NE(refused.error().message.find("epoch 2 of job"), std::string::npos) << refused.error().message;
        ended.arrive_and_wait();
        return;
      }
      began.arrive_and_wait();
      for (int bucket = 1; bucket < Member::kBuckets; ++bucket) ASSERT_TRUE(member->start(2, bucket));
      member->reducer().hand_over();
      member.emplace(after, rank, 2, second);
      ASSERT_TRUE(member->join(false));
      ASSERT_TRUE(member->take_step(2));
      member->reducer().commit();
      went_on.arrive_and_wait();
      ASSERT_TRUE(member->take_step(3));
      member->reducer().commit();
      expect_weights(member->reducer(), 3);
      const auto state = member->reducer().save(Deadline::after(30));
      ASSERT_TRUE(state) << state.error().message;
      EXPECT_EQ(state->updates, 3U);
      ended.arrive_and_wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// One of several servers ends in the middle of a step. The next one has kept its state, and what all ranks have.
TEST(ElasticServers, WhicheverIsLostTheNextOneHasItsState) {
  std::mt19937 random(3);
  for (int round = 0; round < 30; ++round) {
    SCOPED_TRACE(round);
    std::vector<std::unique_ptr<Service>> services;
    ServerOptions options;
    options.method = collective::Method::kParameterServer;
    options.update = {.rule = UpdateRule::kMomentum, .momentum = kMomentum};
    options.elastic = ElasticJob{.session = collective::unique_session(), .replicates = true};
    const int count = 2 + static_cast<int>(random() % 2);
    for (int i = 0; i < count; ++i) {
      services.push_back(Service::start({.cores = 1 + i % 2}, token()).value());
      options.servers.push_back({services.back()->endpoint(), token()});
    }
    const auto lost = static_cast<std::size_t>(random() % static_cast<unsigned>(count));
    const int size = 1 + static_cast<int>(random() % 3);
    const int end_before = static_cast<int>(random() % (2 * Member::kBuckets + 1));
    const bool is_known = random() % 2 == 0;
    const std::uint64_t whole = random() % 3;
    std::atomic<int> reduced = 0;
    std::vector<int> cores;
    Hub before(collective::unique_session()), after(collective::unique_session());
    std::barrier all(size);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        std::optional<Member> member(std::in_place, before, rank, size, options);
        const Status joined = member->join(true);
        EXPECT_TRUE(joined) << joined.error().message;
        if (rank == 0) cores = member->reducer().server_cores();
        for (std::uint64_t step = 1; step <= whole; ++step) {
          const Status taken = member->take_step(step);
          EXPECT_TRUE(taken) << taken.error().message;
          member->reducer().commit();
        }
        all.arrive_and_wait();
        Status taken;
        for (int i = 0; i <= 2 * Member::kBuckets; ++i) {
          if (rank == 0 && i == end_before) services[lost].reset();
          if (!taken || i == 2 * Member::kBuckets) continue;
          taken = i < Member::kBuckets ? member->start(whole + 1, i) : member->wait(i - Member::kBuckets);
        }
        if (taken) {
          ++reduced;
        } else {
          EXPECT_EQ(taken.error().code, ErrorCode::kServerLost) << taken.error().message;
        }
        all.arrive_and_wait();
        member->end();
        ServerOptions next = options;
        next.elastic->epoch = 2;
        next.elastic->updates = whole + (reduced == size && is_known ? 1 : 0);
        next.elastic->server_cores = cores;
        next.elastic->lost_server = static_cast<int>(lost);
        member.emplace(after, rank, size, next);
        const Status again = member->join(false);
        EXPECT_TRUE(again) << again.error().message;
        EXPECT_TRUE(member->reducer().list_servers_without_state().empty());
        for (std::uint64_t step = next.elastic->updates + 1; step <= 4; ++step) {
          const Status went_on = member->take_step(step);
          EXPECT_TRUE(went_on) << went_on.error().message;
          member->reducer().commit();
        }
        expect_weights(member->reducer(), 4);
        all.arrive_and_wait();
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (::testing::Test::HasFailure()) return;
  }
}

// One of two servers ends between two epochs, when nobody has a connection to it by which that would be seen.
TEST(ElasticServers, OneThatLetsNobodyInIsLostWhereAnotherOneHasItsState) {
  for (const std::size_t lost : {0U, 1U}) {
    SCOPED_TRACE(lost);
    std::vector<std::unique_ptr<Service>> services;
    ServerOptions options;
    options.method = collective::Method::kParameterServer;
    options.update = {.rule = UpdateRule::kMomentum, .momentum = kMomentum};
    options.elastic = ElasticJob{.session = collective::unique_session(), .replicates = true};
    for (int i = 0; i < 2; ++i) {
      services.push_back(Service::start({.cores = 1}, token()).value());
      options.servers.push_back({services.back()->endpoint(), token()});
    }
    constexpr int kSize = 2;
    Hub first(collective::unique_session()), second(collective::unique_session()), third(collective::unique_session());
    std::barrier all(kSize);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kSize; ++rank) {
      threads.emplace_back([&, rank] {
        ServerOptions next = options;
        std::optional<Member> member(std::in_place, first, rank, kSize, next);
        EXPECT_TRUE(member->join(true));
        EXPECT_TRUE(member->take_step(1));
        member->reducer().commit();
        next.elastic->has_replicas = member->reducer().has_replicas();
        EXPECT_TRUE(next.elastic->has_replicas);
        next.elastic->server_cores = member->reducer().server_cores();
        next.elastic->updates = 1;
        all.arrive_and_wait();
        member->end();
        if (rank == 0) services[lost].reset();
        all.arrive_and_wait();
        next.elastic->epoch = 2;
        member.emplace(second, rank, kSize, next);
        member->session().set_silence(4);
        const Status joined = member->join(false);
        EXPECT_FALSE(joined);
        EXPECT_EQ(joined.error().code, ErrorCode::kServerLost) << joined.error().message;
        EXPECT_EQ(member->reducer().lost_server(), static_cast<int>(lost));
        all.arrive_and_wait();
        member->end();
        next.elastic->epoch = 3;
        next.elastic->lost_server = static_cast<int>(lost);
        member.emplace(third, rank, kSize, next);
        const Status again = member->join(false);
        EXPECT_TRUE(again) << again.error().message;
        EXPECT_TRUE(member->reducer().list_servers_without_state().empty());
        for (std::uint64_t step = 2; step <= 4; ++step) {
          EXPECT_TRUE(member->take_step(step));
          member->reducer().commit();
        }
        expect_weights(member->reducer(), 4);
        all.arrive_and_wait();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

// The server of a rack is lost in the middle of a step, be it of one without ranks. Another one in its place gets its
// part of the state from the ranks, and the others keep what they have.
TEST(ElasticServers, AnotherOneInTheRackOfALostOneGetsItsPartAlone) {
  for (const auto& [racks, lost, gets_moments] :
       {std::tuple(std::vector{0, 1, 1}, 0U, true), std::tuple(std::vector{0, 1, 1}, 1U, true),
        std::tuple(std::vector{1, 0, 1}, 1U, false), std::tuple(std::vector{1, 1, 1}, 0U, true)}) {
    SCOPED_TRACE(fmt::format("[{}] without {}", fmt::join(racks, ", "), lost));
    std::vector<std::unique_ptr<Service>> services;
    ServerOptions options;
    options.method = collective::Method::kParameterServer;
    options.update = {.rule = UpdateRule::kMomentum, .momentum = kMomentum};
    options.elastic = ElasticJob{.session = collective::unique_session()};
    options.rank_racks = racks;
    for (int i = 0; i < 2; ++i) {
      services.push_back(Service::start({.cores = 1 + i}, token()).value());
      options.servers.push_back({services.back()->endpoint(), token()});
    }
    Hub before(collective::unique_session()), after(collective::unique_session());
    std::barrier all(3);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank, lost = lost, gets_moments = gets_moments] {
        std::optional<Member> member(std::in_place, before, rank, 3, options);
        ASSERT_TRUE(member->join(true));
        ASSERT_TRUE(member->take_step(1));
        member->reducer().commit();
        auto state = member->reducer().save(Deadline::after(30));
        ASSERT_TRUE(state) << state.error().message;
        Status taken = member->start(2, 0);
        all.arrive_and_wait();
        if (rank == 0) services[lost].reset();
        for (int bucket = 1; bucket < Member::kBuckets && taken; ++bucket) taken = member->start(2, bucket);
        for (int bucket = 0; bucket < Member::kBuckets && taken; ++bucket) taken = member->wait(bucket);
        ASSERT_FALSE(taken);
        EXPECT_EQ(taken.error().code, ErrorCode::kServerLost) << taken.error().message;
        all.arrive_and_wait();
        member->end();
        if (rank == 0) {
          services[lost] =
              Service::start({.listen = options.servers[lost].endpoint, .cores = 1 + static_cast<int>(lost)}, token())
                  .value();
        }
        ServerOptions next = options;
        next.elastic->epoch = 2;
        next.elastic->updates = 1;
        member.emplace(after, rank, 3, next);
        const Status again = member->join(false);
        ASSERT_TRUE(again) << again.error().message;
        EXPECT_THAT(member->reducer().list_servers_without_state(),
                    ::testing::ElementsAre("server at " + net::to_string(options.servers[lost].endpoint)));
        if (!gets_moments) state->optimizer.clear();
        ASSERT_TRUE(member->reducer().load(*state, Deadline::after(30)));
        ASSERT_TRUE(member->take_step(2));
        member->reducer().commit();
        if (gets_moments) {
          expect_weights(member->reducer(), 2);
        } else {
          const std::span<const float> held = member->reducer().weights(1);
          const Values expected = expected_weights(2);
          std::size_t right = 0;
          for (std::size_t e = 0; e < held.size(); ++e) right += std::fabs(held[e] - expected[1][e]) < 2e-6 ? 1 : 0;
          EXPECT_GT(right, held.size() / 8);
          EXPECT_LT(right, held.size() * 7 / 8);
        }
        all.arrive_and_wait();
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (::testing::Test::HasFailure()) return;
  }
}

// A server whose threads have nothing to do, as a rank does not come, makes progress all the same.
TEST(ElasticServers, OneThatWaitsForARankIsNotLost) {
  const auto service = Service::start({.cores = 2}, token()).value();
  ServerOptions options;
  options.method = collective::Method::kParameterServer;
  options.servers = {{service->endpoint(), token()}};
  options.servers_share_memory = false;
  options.update = {.rule = UpdateRule::kMomentum, .momentum = kMomentum};
  options.elastic = ElasticJob{.session = collective::unique_session()};
  Hub hub(collective::unique_session());
  std::barrier all(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Member member(hub, rank, 2, options);
      member.session().set_silence(2);
      member.session().set_patience(1.5);
      EXPECT_TRUE(member.join(true));
      if (rank == 0) {
        EXPECT_TRUE(member.start(1, 0));
        const auto waited = member.reducer().wait(0, Deadline::after(5));
        EXPECT_FALSE(waited);
        EXPECT_EQ(waited.error().code, ErrorCode::kTimeout) << waited.error().message;
        EXPECT_EQ(waited.error().rank, 1) << waited.error().message;
      }
      all.arrive_and_wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Unless the job says so: two or more servers, not all on the ranks' host.
TEST(ElasticServers, KeepEachOthersStateWhereTheLossOfAHostWouldTakeAll) {
  std::vector<std::unique_ptr<Service>> services;
  for (int i = 0; i < 2; ++i) services.push_back(Service::start({.cores = 1}, token()).value());
  struct Case {
    bool is_one_host;
    std::size_t servers;
    std::optional<bool> replicates;
    bool expected;
  };
  for (const Case& it : {Case{true, 2, {}, false}, Case{false, 2, {}, true}, Case{false, 1, {}, false},
                         Case{false, 2, false, false}, Case{true, 2, true, true}}) {
    ServerOptions options;
    options.method = collective::Method::kParameterServer;
    options.update = {.rule = UpdateRule::kMomentum, .momentum = kMomentum};
    options.elastic = ElasticJob{.session = collective::unique_session(), .replicates = it.replicates};
    for (std::size_t i = 0; i < it.servers; ++i) options.servers.push_back({services[i]->endpoint(), token()});
    Hub hub(collective::unique_session());
    ThreadSession session(hub, 0, 1, it.is_one_host);
    session.set_job(fmt::format("{} {} {}", it.is_one_host, it.servers, it.expected));
    const auto reducer = ServerReducer::create(session, options).value();
    const Status joined = reducer->prepare(kLayout, Deadline::after(30));
    ASSERT_TRUE(joined) << joined.error().message;
    EXPECT_EQ(reducer->has_replicas(), it.expected) << session.options().job;
  }
}

TEST(ElasticServers, WithoutAThreadToReachItsKeeperAJobGoesOn) {
  std::vector<std::unique_ptr<Service>> services;
  ServerOptions options;
  options.method = collective::Method::kParameterServer;
  options.update = {.rule = UpdateRule::kMomentum, .momentum = kMomentum};
  options.elastic = ElasticJob{.session = collective::unique_session(), .replicates = true};
  options.background_progress = false;  // which would be a thread of the rank
  for (int i = 0; i < 2; ++i) {
    services.push_back(Service::start({.cores = 1}, token()).value());
    options.servers.push_back({services.back()->endpoint(), token()});
  }
  Hub hub(collective::unique_session());
  Member member(hub, 0, 1, options);
  {
    const NoThreads none;
    const Status joined = member.join(true);
    ASSERT_TRUE(joined) << joined.error().message;
  }
  for (std::uint64_t step = 1; step <= 2; ++step) {
    ASSERT_TRUE(member.take_step(step));
    member.reducer().commit();
    expect_weights(member.reducer(), step);
  }
}

// Whoever has the token can ask a server to keep what it keeps for nobody: it is turned away, and the job goes on.
TEST(ElasticServers, ReplicasThatNobodyHasAreTurnedAway) {
  std::vector<std::unique_ptr<Service>> services;
  ServerOptions options;
  options.method = collective::Method::kParameterServer;
  options.update = {.rule = UpdateRule::kMomentum, .momentum = kMomentum};
  options.elastic = ElasticJob{.session = collective::unique_session(), .replicates = true};
  for (int i = 0; i < 2; ++i) {
    services.push_back(Service::start({.cores = 1}, token()).value());
    options.servers.push_back({services.back()->endpoint(), token()});
  }
  Hub hub(collective::unique_session());
  Member member(hub, 0, 1, options);
  ASSERT_TRUE(member.join(true));
  const net::SessionOptions& own = member.session().options();
  for (const std::uint32_t core : {1000U, 0x80000000U, 0xffff0000U}) {
    for (const ServerAddress& server : options.servers) {
      const net::Claim claim = {
          .identity = {own.job, own.tenant, 0, options.elastic->session, options.elastic->epoch, kServerReplica + core},
          .fingerprint = own.fingerprint};
      const auto connection = net::connect_to_host(server.endpoint, server.token, claim, Deadline::after(30),
                                                   own.payload_checksum, own.encryption, [] { return false; });
      ASSERT_TRUE(connection) << connection.error().message;
      const auto answer = (*connection)->receive(Deadline::after(30), "what the server says");
      ASSERT_TRUE(answer) << answer.error().message;
      EXPECT_EQ(answer->header.type, kServerFailed);
    }
  }
  ASSERT_TRUE(member.take_step(1));
  member.reducer().commit();
  expect_weights(member.reducer(), 1);
}

// A server has more cores than a job uses, and nothing of the job on those; nor has it a keeper's place in a job that
// keeps nothing. What a client asks for there is turned away before it is looked up.
TEST(Server, TurnsAwayChannelsThatAJobDoesNotHave) {
  auto service = Service::start({.cores = 4}, token()).value();
  const auto session = collective::unique_session();
  const auto connect = [&](std::uint32_t purpose) {
    const net::Claim claim = {.identity = {"job", "local", 0, session, 0, purpose}};
    return net::connect_to_host(service->endpoint(), token(), claim, Deadline::after(30), false, {},
                                [] { return false; });
  };
  auto control = connect(kServerControl);
  ASSERT_TRUE(control) << control.error().message;
  ASSERT_TRUE((*control)->receive(Deadline::after(30), "what the server is"));
  ServerJoin join;
  join.size = 1;
  join.bins = 8;
  join.cores = 1;
  join.chunk_bytes = 64 << 10;
  join.host_id = "elsewhere";
  join.bucket_elements = {100'000};
  join.elastic.kept = {0, 1};
  ASSERT_TRUE((*control)->send(kServerJoin, 0, encode(join), Deadline::after(30), "joining"));
  const auto joined = (*control)->receive(Deadline::after(30), "the job to begin");
  ASSERT_TRUE(joined) << joined.error().message;
  ASSERT_EQ(joined->header.type, kServerJoined);
  for (const std::uint32_t purpose : {kServerChannel + 1, kServerChannel + 3, kServerReplica + 0}) {
    auto channel = connect(purpose);
    ASSERT_TRUE(channel) << channel.error().message;
    const auto answer = (*channel)->receive(Deadline::after(10), "what the server says");
    EXPECT_TRUE(answer ? answer->header.type == kServerFailed : answer.error().code != ErrorCode::kTimeout) << purpose;
  }
  EXPECT_TRUE(connect(kServerChannel));
}

}  // namespace
}  // namespace motley::ps
