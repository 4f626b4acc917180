// A server in each rack against one server for all, and against the ring: the same weights whatever the racks, and what
// everybody is told when someone is lost or does not agree.
#include <gmock/gmock.h>

#include <barrier>
#include <cmath>
#include <optional>

#include "motley/base/random.h"
#include "motley/ps/client/server_reducer.h"
#include "motley/ps/protocol/chunk_map.h"
#include "motley/ps/protocol/server_protocol.h"
#include "motley/ps/service/service.h"
#include "motley/train/sync/choose_method.h"
#include "motley/train/sync/link_probe.h"
#include "tests/collective/ranks.h"
#include "tests/no_threads.h"
#include "tests/ps/dense/servers.h"

namespace motley::ps {
namespace {

using collective::Layout;
using collective::WireType;
using kernels::UpdateRule;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Held = std::vector<std::vector<float>>;  // by bucket

ServerOptions options_for(const std::vector<ServerAddress>& servers, std::vector<int> racks,
                          UpdateRule rule = UpdateRule::kMomentum) {
  ServerOptions options;
  options.method = collective::Method::kParameterServer;
  options.servers = servers;
  options.rank_racks = std::move(racks);
  options.servers_share_memory = false;
  // Adam divides by the root of a mean of squares: where that is tiny, rounding the mean gradient otherwise would show.
  options.update = {.rule = rule, .momentum = 0.9, .weight_decay = 0.01, .epsilon = 1e-2};
  return options;
}

Layout random_layout(std::uint64_t seed) {
  Layout layout;
  Random random(seed);
  for (int bucket = 0; bucket < 3; ++bucket) layout.bucket_elements.push_back(1 + random.below(30000));
  return layout;
}

ServerState random_state(std::uint64_t seed, const Layout& layout) {
  ServerState state;
  Random random(mix({seed, 1234}));
  for (const std::size_t elements : layout.bucket_elements) {
    auto& values = state.weights.emplace_back();
    for (std::size_t e = 0; e < elements; ++e) values.push_back(static_cast<float>(random.uniform()));
  }
  return state;
}

// A third of all is zero; in step 1 only rank 0 has something, in step 2 nobody has.
double sparse_weight(std::uint64_t seed, int rank, std::uint64_t step) {
  if (step == 1 || step == 2) return step == 1 && rank == 0 ? 7 : 0;
  Random random(mix({seed, 9, static_cast<std::uint64_t>(rank), step}));
  return random.below(3) == 0 ? 0 : static_cast<double>(1 + random.below(40));
}

Status take_part(const train::SyncMethod& sync, std::uint64_t seed, int rank, const Layout& layout, std::uint64_t first,
                 std::uint64_t steps, Held& held) {
  collective::GradientReducer& reducer = *sync.reducer;
  for (std::uint64_t step = first; step < first + steps; ++step) {
    if (sync.server_optimizer != nullptr) {
      sync.server_optimizer->set_learning_rate(0.1 / static_cast<double>(step + 1));
    }
    const double weight = sparse_weight(seed, rank, step);
    for (std::size_t b = 0; b < layout.bucket_elements.size(); ++b) {
      auto* values = reinterpret_cast<float*>(reducer.buffer(static_cast<int>(b)).data());
      Random random(mix({seed, static_cast<std::uint64_t>(rank), step, b}));
      for (std::size_t e = 0; e < layout.bucket_elements[b]; ++e) {
        const auto value = static_cast<float>(2 * random.uniform() - 1);
        values[e] = weight == 0 ? NAN : value;
      }
      MOTLEY_TRY(reducer.start(step, static_cast<int>(b), weight));
    }
    held.clear();
    for (std::size_t b = 0; b < layout.bucket_elements.size(); ++b) {
      const int bucket = static_cast<int>(b);
      MOTLEY_TRY(reducer.wait(bucket, Deadline::after(30)));
      const auto* values = sync.server_optimizer != nullptr
                               ? sync.server_optimizer->weights(bucket).data()
                               : reinterpret_cast<const float*>(reducer.buffer(bucket).data());
      held.emplace_back(values, values + layout.bucket_elements[b]);
    }
  }
  return {};
}

// What all ranks hold after some steps of a job of its own; `saved`: also the state that rank 0 then saves.
std::vector<Held> train(const ServerOptions& options, int size, std::uint64_t seed, std::uint64_t first,
                        std::uint64_t steps, const ServerState& from, ServerState* saved = nullptr) {
  const Layout layout = random_layout(seed);
  std::vector<Held> held(static_cast<std::size_t>(size));
  collective::run_threads(size, true, [&](int rank, collective::ThreadSession& session) {
    const auto work = [&]() -> Status {
      MOTLEY_ASSIGN(const auto sync, train::make_reducer(session, options));
      MOTLEY_TRY(sync.reducer->prepare(layout, Deadline::after(30)));
      if (sync.server_optimizer != nullptr) MOTLEY_TRY(sync.server_optimizer->load(from, Deadline::after(30)));
      MOTLEY_TRY(take_part(sync, seed, rank, layout, first, steps, held[static_cast<std::size_t>(rank)]));
      if (rank == 0 && saved != nullptr) {
        MOTLEY_ASSIGN(*saved, sync.server_optimizer->save(Deadline::after(30)));
      }
      return {};
    };
    if (const Status worked = work(); !worked) {
      ADD_FAILURE() << "rank " << rank << ": " << worked.error().message;
      session.abort(worked.error());
    }
  });
  return held;
}

double largest_difference(const Held& a, const Held& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (std::size_t bucket = 0; bucket < std::min(a.size(), b.size()); ++bucket) {
    for (std::size_t e = 0; e < a[bucket].size(); ++e) {
      const double error = std::fabs(a[bucket][e] - b[bucket][e]);
      largest = std::isnan(error) ? INFINITY : std::max(largest, error);
    }
  }
  return largest;
}

struct Hierarchy {
  const char* name;
  std::vector<int> racks;  // of ranks
  std::vector<int> cores;  // of servers
  UpdateRule rule;
  WireType wire = WireType::kNative;
  std::size_t chunk_bytes = 4096;
};

const Hierarchy kHierarchies[] = {
    {"two_racks_sum", {0, 0, 1, 1}, {1, 1}, UpdateRule::kSum},
    {"two_racks_sgd", {0, 0, 1, 1}, {2, 2}, UpdateRule::kSgd},
    {"two_racks_momentum_other_cores", {0, 0, 1, 1}, {3, 1}, UpdateRule::kMomentum},
    {"unequal_racks_nesterov", {0, 1, 1, 1}, {1, 2}, UpdateRule::kNesterov},
    {"three_racks_adam", {0, 1, 2, 1, 0, 1}, {2, 2, 3}, UpdateRule::kAdam},
    {"servers_in_another_order_adamw", {2, 0, 1, 2}, {1, 1, 1}, UpdateRule::kAdamW},
    {"three_racks_sum_huge_chunks", {0, 0, 1, 2, 2}, {2, 2, 2}, UpdateRule::kSum, WireType::kNative, 1 << 20},
    {"one_rank_a_rack_momentum", {0, 1}, {2, 2}, UpdateRule::kMomentum, WireType::kNative, 256},
    {"two_racks_bfloat16", {0, 0, 1, 1}, {2, 2}, UpdateRule::kMomentum, WireType::kBfloat16},
    {"two_racks_float16_sum", {0, 1, 1}, {2, 1}, UpdateRule::kSum, WireType::kFloat16},
};

void PrintTo(const Hierarchy& c, std::ostream* out) {
  *out << c.name;
}

class EveryHierarchy : public ::testing::TestWithParam<Hierarchy> {};
INSTANTIATE_TEST_SUITE_P(Racks, EveryHierarchy, ::testing::ValuesIn(kHierarchies),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(EveryHierarchy, DoesWhatOneServerDoes) {
  const Hierarchy& c = GetParam();
  const int size = static_cast<int>(c.racks.size());
  for (const std::uint64_t seed : {1u, 2u}) {
    const ServerState start = random_state(seed, random_layout(seed));
    const Servers racks(c.cores);
    ServerOptions options = options_for(racks.addresses, c.racks, c.rule);
    options.wire = c.wire;
    options.chunk_bytes = c.chunk_bytes;
    const auto held = train(options, size, seed, 0, 5, start);
    const Servers one({2});
    options.servers = one.addresses;
    options.rank_racks.clear();
    const auto flat = train(options, size, seed, 0, 5, start);
    const double tolerance = c.wire == WireType::kNative ? 1e-6 : c.wire == WireType::kBfloat16 ? 0.03 : 2e-3;
    for (const Held& mine : held) {
      EXPECT_EQ(mine, held[0]);
      EXPECT_LE(largest_difference(mine, flat[0]), tolerance);
    }
  }
}

TEST(Racks, GiveTheMeanThatTheRingGives) {
  for (const std::vector<int>& racks : {std::vector<int>{0, 0, 1, 1}, {0, 1, 1, 2, 0}}) {
    const int size = static_cast<int>(racks.size());
    const Servers servers(std::vector<int>(static_cast<std::size_t>(racks.back() == 0 ? 3 : 2), 1));
    const ServerOptions options = options_for(servers.addresses, racks, UpdateRule::kSum);
    const auto held = train(options, size, 3, 0, 4, random_state(3, random_layout(3)));
    ServerOptions ring;
    ring.method = collective::Method::kTcpRing;
    const auto mean = train(ring, size, 3, 0, 4, {});
    for (std::size_t rank = 0; rank < held.size(); ++rank) {
      EXPECT_LE(largest_difference(held[rank], mean[rank]), 1e-6) << rank;
    }
  }
}

TEST(Racks, StateGoesFromRacksToOneServerAndBack) {
  const std::vector<int> racks = {0, 1, 1, 0};
  const ServerState start = random_state(5, random_layout(5));
  const Servers one({2});
  const Servers two({2, 1});
  const ServerOptions flat = options_for(one.addresses, {}, UpdateRule::kAdam);
  const ServerOptions hierarchical = options_for(two.addresses, racks, UpdateRule::kAdam);
  const auto straight = train(flat, 4, 5, 0, 9, start);
  ServerState third;
  ServerState sixth;
  train(hierarchical, 4, 5, 0, 3, start, &third);
  EXPECT_EQ(third.updates, 3);
  train(flat, 4, 5, 3, 3, third, &sixth);
  const auto held = train(hierarchical, 4, 5, 6, 3, sixth);
  for (const Held& mine : held) EXPECT_LE(largest_difference(mine, straight[0]), 1e-6);
}

enum class Part { kWorks, kIsIdle, kLeaves };

// The errors of the ranks of a job with two racks of two. All begin at once; `part` says what each does then. Ranks
// that do not leave stay until all have their errors.
std::vector<Error> collect_errors(const std::vector<ServerAddress>& servers,
                                  const std::function<Part(int, ServerReducer&)>& part, double seconds = 20) {
  const Layout layout = random_layout(7);
  std::vector<Error> errors(4);
  std::barrier begun(4);
  std::barrier answered(4);
  collective::run_threads(4, true, [&](int rank, collective::ThreadSession& session) {
    session.set_silence(std::max(seconds, 4.0));
    auto reducer = ServerReducer::create(session, options_for(servers, {0, 0, 1, 1}));
    const collective::LeaveTogether end(answered);
    Status prepared = (*reducer)->prepare(layout, Deadline::after(20));
    if (prepared) prepared = (*reducer)->load(random_state(7, layout), Deadline::after(20));
    session.forget_failure();  // each learns it from its server
    begun.arrive_and_wait();
    ASSERT_TRUE(prepared) << prepared.error().message;
    const Part mine = part(rank, **reducer);
    if (mine == Part::kLeaves) reducer->reset();
    if (mine != Part::kWorks) return;
    const auto work = [&]() -> Status {
      for (std::uint64_t step = 0; step < 1000; ++step) {
        for (int bucket = 0; bucket < 3; ++bucket) MOTLEY_TRY((*reducer)->start(step, bucket, 1));
        for (int bucket = 0; bucket < 3; ++bucket) MOTLEY_TRY((*reducer)->wait(bucket, Deadline::after(seconds)));
      }
      return {};
    };
    const Status worked = work();
    ASSERT_FALSE(worked);
    errors[static_cast<std::size_t>(rank)] = worked.error();
  });
  return errors;
}

// A server in a process of its own.
class ServerProcess {
 public:
  ServerProcess() {
    int ends[2];
    if (::pipe(ends) != 0) return;
    process_ = ::fork();
    if (process_ == 0) {
      const auto service = Service::start({.cores = 1}, token());
      const std::uint16_t port = service ? (*service)->endpoint().port : 0;
      if (::write(ends[1], &port, sizeof(port)) < 0) std::_Exit(1);
      for (;;) ::pause();
    }
    if (::read(ends[0], &endpoint_.port, sizeof(endpoint_.port)) <= 0) endpoint_.port = 0;
    ::close(ends[0]);
    ::close(ends[1]);
  }
  ~ServerProcess() { kill(); }
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;
  void stop() const { ::kill(process_, SIGSTOP); }
  void kill() {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
    process_ = -1;
  }
  const net::Endpoint& endpoint() const { return endpoint_; }

 private:
  pid_t process_ = -1;
  net::Endpoint endpoint_;
};

TEST(Racks, AKilledServerIsNamedInAllRacks) {
  const auto secret = token();  // before the fork: both sides have the same
  ServerProcess first;
  ServerProcess second;
  const auto errors =
      collect_errors({{first.endpoint(), secret}, {second.endpoint(), secret}}, [&](int rank, ServerReducer&) {
        if (rank == 0) second.kill();
        return Part::kWorks;
      });
  for (int rank = 0; rank < 4; ++rank) {
    const Error& error = errors[static_cast<std::size_t>(rank)];
    EXPECT_EQ(error.code, ErrorCode::kServerLost) << rank << ": " << error.message;
    EXPECT_THAT(error.message,
                AllOf(HasSubstr(fmt::format("server at 127.0.0.1:{}", second.endpoint().port)), HasSubstr("lost")))
        << rank;
  }
}

TEST(Racks, AStoppedServerIsNamedInItsRack) {
  const auto secret = token();
  ServerProcess first;
  ServerProcess second;
  const auto errors = collect_errors(
      {{first.endpoint(), secret}, {second.endpoint(), secret}},
      [&](int rank, ServerReducer&) {
        if (rank == 0) second.stop();
        return Part::kWorks;
      },
      2);
  const auto names_it = [&](const Error& error) {
    return error.code == ErrorCode::kServerLost &&
           error.message.find(fmt::format("server at 127.0.0.1:{} was lost: it did not answer",
                                          second.endpoint().port)) != std::string::npos;
  };
  EXPECT_TRUE(std::ranges::any_of(errors, names_it));
}

TEST(Server, IsLostToTheRankThatHandsItTheWeightsWhereItIsStopped) {
  const auto secret = token();
  ServerProcess server;
  const Layout layout{.bucket_elements = {16 << 20}};  // more than sockets hold
  ServerState state;
  state.weights.emplace_back(layout.bucket_elements[0]);
  collective::run_threads(1, true, [&](int, collective::ThreadSession& session) {
    auto reducer = ServerReducer::create(session, options_for({{server.endpoint(), secret}}, {}));
    const Status prepared = (*reducer)->prepare(layout, Deadline::after(20));
    ASSERT_TRUE(prepared) << prepared.error().message;
    server.stop();
    session.set_silence(2);
    const Status loaded = (*reducer)->load(state, Deadline::after(60));
    ASSERT_FALSE(loaded);
    EXPECT_EQ(loaded.error().code, ErrorCode::kServerLost) << loaded.error().message;
  });
}

TEST(Racks, ALostRankIsNamedInAllRacks) {
  const Servers servers({1, 1});
  const auto errors = collect_errors(servers.addresses, [&](int rank, ServerReducer& reducer) {
    if (rank == 3) reducer.abort({ErrorCode::kInternal, "rank 3 has had enough", 3});
    return rank == 3 ? Part::kLeaves : Part::kWorks;
  });
  for (int rank = 0; rank < 3; ++rank) {
    const Error& error = errors[static_cast<std::size_t>(rank)];
    EXPECT_EQ(error.rank, 3) << rank << ": " << error.message;
    EXPECT_THAT(error.message, HasSubstr("rank 3 of job")) << rank;
  }
}

TEST(Racks, AMissingRankOfAnotherRackIsNamedAtTheDeadline) {
  const Servers servers({1, 2});
  const auto errors = collect_errors(
      servers.addresses, [&](int rank, ServerReducer&) { return rank == 2 ? Part::kIsIdle : Part::kWorks; }, 2);
  for (const int rank : {0, 1, 3}) {
    const Error& error = errors[static_cast<std::size_t>(rank)];
    EXPECT_EQ(error.code, ErrorCode::kTimeout) << rank << ": " << error.message;
    EXPECT_EQ(error.rank, 2) << rank << ": " << error.message;
  }
}

Status prepare_with(collective::ThreadSession& session, const ServerOptions& options, double seconds) {
  MOTLEY_ASSIGN(const auto reducer, ServerReducer::create(session, options));
  Status prepared = reducer->prepare(random_layout(1), Deadline::after(seconds));
  if (!prepared) session.abort(prepared.error());
  return prepared;
}

TEST(Racks, RanksThatDoNotAgreeAreRefused) {
  for (const std::vector<int>& other : {std::vector<int>{0, 1, 0, 1}, {0, 0, 1, 0}, {1, 1, 0, 0}}) {
    const Servers servers({1, 1});
    collective::run_threads(4, true, [&](int rank, collective::ThreadSession& session) {
      const ServerOptions options = options_for(servers.addresses, rank == 3 ? other : std::vector<int>{0, 0, 1, 1});
      const Status prepared = prepare_with(session, options, 1);
      if (prepared) ADD_FAILURE() << "rank " << rank << " was let in";
    });
  }
  const Servers servers({1, 1});
  collective::run_threads(4, true, [&](int rank, collective::ThreadSession& session) {
    const std::vector<int> racks = rank == 3 ? std::vector<int>{0, 1, 1, 1} : std::vector<int>{0, 0, 1, 1};
    const Status prepared = prepare_with(session, options_for(servers.addresses, racks), 3);
    ASSERT_FALSE(prepared) << rank;
    if (rank >= 2) {
      EXPECT_THAT(prepared.error().message, HasSubstr("the division into racks is [0, "));
    }
  });
}

TEST(Racks, AnAbsentServerIsNamed) {
  Servers servers({1, 1});
  std::vector<ServerAddress> addresses = servers.addresses;
  servers.services[1].reset();
  collective::run_threads(2, true, [&](int rank, collective::ThreadSession& session) {
    const Status prepared = prepare_with(session, options_for(addresses, {0, 1}), 3);
    ASSERT_FALSE(prepared);
    EXPECT_THAT(prepared.error().message, HasSubstr(net::to_string(addresses[1].endpoint))) << rank;
  });
}

TEST(Racks, WithoutAThreadToConnectServersOneJobIsRefusedAlone) {
  const Servers servers({1, 1});
  const ServerOptions options = options_for(servers.addresses, {0, 1});
  std::optional<NoThreads> none;
  std::barrier all(2);
  collective::run_threads(2, true, [&](int rank, collective::ThreadSession& session) {
    session.forget_failure();  // each learns it from its server
    all.arrive_and_wait();
    if (rank == 0) none.emplace();
    all.arrive_and_wait();
    const Status prepared = prepare_with(session, options, 20);
    all.arrive_and_wait();
    if (rank == 0) none.reset();
    ASSERT_FALSE(prepared);
    EXPECT_EQ(prepared.error().code, ErrorCode::kUnavailable) << rank;
    EXPECT_THAT(prepared.error().message, HasSubstr("no thread could be started")) << rank;
  });
  train(options, 2, 9, 0, 2, random_state(9, random_layout(9)));
}

TEST(Racks, RanksAgreeOnTheSpeedsOfTheirLinks) {
  const Servers servers({1, 1});
  std::vector<train::RackSpeeds> speeds(3);
  collective::run_threads(3, true, [&](int rank, collective::ThreadSession& session) {
    const auto group = collective::make_group(session);
    ASSERT_TRUE(group);
    const auto found = train::measure_racks(session, **group, servers.addresses, {0, 1, 0}, Deadline::after(20));
    ASSERT_TRUE(found) << found.error().message;
    speeds[static_cast<std::size_t>(rank)] = *found;
  });
  for (const train::RackSpeeds& found : speeds) {
    EXPECT_GT(found.worker_bytes_per_second, 0);
    EXPECT_GE(found.server_bytes_per_second, found.worker_bytes_per_second);
    EXPECT_GE(found.uplink_bytes_per_second, 0);
    EXPECT_EQ(found.worker_bytes_per_second, speeds[0].worker_bytes_per_second);
    EXPECT_EQ(found.server_bytes_per_second, speeds[0].server_bytes_per_second);
    EXPECT_EQ(found.uplink_bytes_per_second, speeds[0].uplink_bytes_per_second);
  }
}

TEST(Shards, OfServersWithOtherSpeedsGiveTheSameWeights) {
  const Servers servers({2, 1, 1});
  ServerOptions options = options_for(servers.addresses, {}, UpdateRule::kNesterov);
  const ServerState start = random_state(6, random_layout(6));
  const auto even = train(options, 3, 6, 0, 5, start);
  options.server_speeds = {1, 5, 0.5};
  EXPECT_EQ(train(options, 3, 6, 0, 5, start), even);  // sums are taken in the same order wherever
}

TEST(Shards, ThatRanksDivideOtherwiseAreRefused) {
  const Servers servers({1, 1});
  collective::run_threads(2, true, [&](int rank, collective::ThreadSession& session) {
    ServerOptions options = options_for(servers.addresses, {});
    options.server_speeds = {1, rank == 0 ? 1.0 : 2.0};
    const Status prepared = prepare_with(session, options, 20);
    ASSERT_FALSE(prepared);
    EXPECT_THAT(prepared.error().message, HasSubstr("the measured speed of servers differs"));
  });
}

// When the last bin to be done got its last segment, no other would have been done with that earlier.
TEST(Shards, FollowTheSpeedsOfServers) {
  Random random(8);
  for (int trial = 0; trial < 100; ++trial) {
    std::vector<std::size_t> buckets;
    for (std::uint64_t i = 0; i < 1 + random.below(8); ++i) buckets.push_back(1 + random.below(300'000));
    std::vector<double> speeds;
    for (std::uint64_t i = 0; i < 1 + random.below(5); ++i) speeds.push_back(0.1 + random.uniform());
    const auto map = make_chunk_map(buckets, 4096, static_cast<int>(speeds.size()), speeds);
    std::vector<double> load(speeds.size());
    double largest = 0;
    double total = 0;
    for (const Segment& segment : map.segments) {
      load[static_cast<std::size_t>(segment.bin)] += static_cast<double>(segment.count);
      largest = std::max(largest, static_cast<double>(segment.count));
      total += static_cast<double>(segment.count);
    }
    double speed = 0;
    double last = 0;
    for (std::size_t bin = 0; bin < speeds.size(); ++bin) {
      EXPECT_EQ(load[bin], static_cast<double>(map.load[bin]));
      speed += speeds[bin];
      last = std::max(last, load[bin] / speeds[bin]);
    }
    EXPECT_LE(last, (total + largest * static_cast<double>(speeds.size() - 1)) / speed * (1 + 1e-12)) << trial;
  }
}

TEST(RackPlan, ListsRacksByTheirLowestRanks) {
  const std::vector<std::string> servers = {"a:1", "b:2", "c:3"};
  const auto plan = make_rack_plan(servers, std::vector<int>{2, 0, 2, 1, 0}, 5);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_THAT(plan->list_racks(), ElementsAre(2, 0, 1));
  EXPECT_THAT(plan->list_ranks(0), ElementsAre(1, 4));
  const auto with_empty = make_rack_plan(servers, std::vector<int>{2, 0, 2}, 3, true);
  ASSERT_TRUE(with_empty) << with_empty.error().message;
  EXPECT_THAT(with_empty->list_racks(), ElementsAre(2, 0));
  EXPECT_EQ(with_empty->racks(), 3);
}

TEST(RackPlan, SaysWhatIsWrong) {
  const std::vector<std::string> servers = {"a:1", "b:2"};
  const auto message = [&](std::vector<int> racks, int size) {
    const auto plan = make_rack_plan(servers, racks, size);
    return plan ? std::string() : plan.error().message;
  };
  EXPECT_EQ(message({0, 1, 1}, 3), "");
  EXPECT_THAT(message({0, 1}, 3), HasSubstr("2 numbers are given for 3 workers"));
  EXPECT_THAT(message({0, 2, 1}, 3), HasSubstr("worker 1 is given server 2; accepted: 0 to 1"));
  EXPECT_THAT(message({0, -1, 1}, 3), HasSubstr("worker 1 is given server -1"));
  EXPECT_THAT(message({0, 0, 0}, 3), HasSubstr("no worker is given the server b:2"));
}

TEST(RackPlan, TravelsWithTheJob) {
  ServerJoin join = {.size = 3, .chunk_bytes = 4096, .bucket_elements = {10}};
  join.racks = *make_rack_plan(std::vector<std::string>{"a:1", "b:2"}, std::vector<int>{0, 1, 0}, 3);
  join.racks.seconds = 2.5;
  const std::vector<std::byte> bytes = encode(join);
  const auto read = decode_server_join(bytes);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->racks, join.racks);
  EXPECT_DOUBLE_EQ(read->racks.seconds, 2.5);
  join.size = 4;  // a rank without a rack
  EXPECT_FALSE(decode_server_join(encode(join)));
  join.size = 3;
  join.racks.rank_racks = {1, 1, 1};  // a rack without a rank
  EXPECT_FALSE(decode_server_join(encode(join)));
  join.elastic.kept_seconds = 1;
  EXPECT_TRUE(decode_server_join(encode(join)));
  join.elastic.keeper = "c:3";
  EXPECT_FALSE(decode_server_join(encode(join)));
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(decode_server_join(std::span(bytes).first(length))) << length;
  }
}

}  // namespace
}  // namespace motley::ps
