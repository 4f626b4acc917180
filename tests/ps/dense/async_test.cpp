// Bounded staleness and asynchronous jobs, over every path. Element e of the weights belongs to rank e mod size: a push
// of that rank adds its share of the step to it (a learning rate of one, a gradient of minus one), and no other push
// touches it. So the weights that a rank holds tell which pushes of each rank are in them, whatever the server says.
#include <gmock/gmock.h>

#include <atomic>
#include <barrier>
#include <cmath>
#include <cstring>

#include "motley/base/random.h"
#include "motley/ps/client/server_reducer.h"
#include "motley/ps/service/service.h"
#include "tests/collective/ranks.h"
#include "tests/ps/dense/servers.h"

namespace motley::ps {
namespace {

using collective::Layout;
using collective::WireType;
using kernels::UpdateRule;
using ::testing::HasSubstr;

constexpr double kSeconds = 30;

struct Path {
  const char* name;
  bool shares_memory;
  int servers = 1;
  WireType wire = WireType::kNative;
};
const Path kPaths[] = {{"memory", true}, {"channels", false}, {"three_servers", false, 3}};

class Async : public ::testing::TestWithParam<Path> {
 protected:
  void SetUp() override {
    for (int i = 0; i < GetParam().servers; ++i) {
      auto service = Service::start({.cores = 2}, token());
      ASSERT_TRUE(service);
      addresses_.push_back({(*service)->endpoint(), token()});
      services_.push_back(std::move(*service));
    }
  }
  ServerOptions options(std::optional<std::uint32_t> staleness, UpdateRule rule = UpdateRule::kSgd) const {
    ServerOptions options;
    options.method = collective::Method::kParameterServer;
    options.servers = addresses_;
    options.servers_share_memory = GetParam().shares_memory;
    options.wire = GetParam().wire;
    options.update = {.rule = rule, .momentum = 0.9};
    options.chunk_bytes = 1024;
    options.staleness = staleness;
    return options;
  }

  std::vector<std::unique_ptr<Service>> services_;
  std::vector<ServerAddress> addresses_;
};
INSTANTIATE_TEST_SUITE_P(Server, Async, ::testing::ValuesIn(kPaths),
                         [](const auto& info) { return std::string(info.param.name); });

ServerState zeros(const Layout& layout) {
  ServerState state;
  for (const std::size_t elements : layout.bucket_elements) state.weights.emplace_back(elements);
  return state;
}

std::unique_ptr<ServerReducer> begin(net::Session& session, const ServerOptions& options, const Layout& layout,
                                     const ServerState& state) {
  auto reducer = ServerReducer::create(session, options);
  EXPECT_TRUE(reducer);
  const Status prepared = (*reducer)->prepare(layout, Deadline::after(kSeconds));
  EXPECT_TRUE(prepared) << prepared.error().message;
  const Status loaded = (*reducer)->load(state, Deadline::after(kSeconds));
  EXPECT_TRUE(loaded) << loaded.error().message;
  (*reducer)->set_learning_rate(1);
  return std::move(*reducer);
}

void push(ServerReducer& reducer, const Layout& layout, int rank, int size, std::uint64_t step, double weight) {
  for (std::size_t b = 0; b < layout.bucket_elements.size(); ++b) {
    const int bucket = static_cast<int>(b);
    auto* values = reinterpret_cast<float*>(reducer.buffer(bucket).data());
    for (std::size_t e = 0; e < layout.bucket_elements[b]; ++e) {
      values[e] = static_cast<int>(e) % size == rank ? -1.0F : 0.0F;
    }
    const Status started = reducer.start(step, bucket, weight);
    ASSERT_TRUE(started) << started.error().message;
  }
}

// 64 samples a step, in shares that change from step to step; some ranks have none now and then.
std::vector<double> make_shares(std::uint64_t seed, std::uint64_t step, int size) {
  Random random(mix({seed, step, 77}));
  std::vector<double> shares(static_cast<std::size_t>(size));
  double left = 64;
  for (int rank = 0; rank + 1 < size; ++rank) {
    shares[static_cast<std::size_t>(rank)] = static_cast<double>(random.below(static_cast<std::uint64_t>(left) + 1));
    left -= shares[static_cast<std::size_t>(rank)];
  }
  shares.back() = left;
  return shares;
}

struct Bound {
  std::uint32_t staleness;
  std::uint64_t together_every;
};

// Random delays; after every wait the weights must hold whole pushes only, of this rank all, of the others no fewer
// than the bound allows and no more than they have begun.
TEST_P(Async, HoldsTheBoundAndEveryPushOnce) {
  constexpr std::uint64_t kSteps = 40;
  for (const auto [staleness, together_every] : {Bound{0, 100}, Bound{1, 100}, Bound{3, 7}, Bound{kAnyStaleness, 9}}) {
    for (const int size : {1, 2, 4}) {
      const std::uint64_t seed = mix({staleness, static_cast<std::uint64_t>(size)});
      Layout layout;
      layout.bucket_elements = {700, 5, 1900};
      std::vector<std::vector<double>> sums(static_cast<std::size_t>(size), {0});  // by rank and steps
      for (std::uint64_t step = 1; step <= kSteps; ++step) {
        const auto shares = make_shares(seed, step, size);
        for (std::size_t rank = 0; rank < sums.size(); ++rank) {
          sums[rank].push_back(sums[rank].back() + shares[rank] / 64);
        }
      }
      std::vector<std::atomic<std::uint64_t>> begun(static_cast<std::size_t>(size));
      collective::run_threads(size, true, [&](int rank, collective::ThreadSession& session) {
        session.set_job(fmt::format("job {} {}", staleness, size));  // the one before may still be leaving
        const auto reducer = begin(session, options(staleness), layout, zeros(layout));
        Random random(mix({seed, static_cast<std::uint64_t>(rank), 5}));
        for (std::uint64_t step = 1; step <= kSteps; ++step) {
          if (random.below(4) == 0) std::this_thread::sleep_for(std::chrono::microseconds(random.below(3000)));
          const bool together = step % together_every == 0 || step == kSteps;
          reducer->begin_step(64, together);
          begun[static_cast<std::size_t>(rank)] = step;
          push(*reducer, layout, rank, size, step, make_shares(seed, step, size)[static_cast<std::size_t>(rank)]);
          const std::uint64_t allowed = together ? 0 : staleness;
          for (std::size_t b = 0; b < layout.bucket_elements.size(); ++b) {
            const auto outcome = reducer->wait(static_cast<int>(b), Deadline::after(kSeconds));
            ASSERT_TRUE(outcome) << outcome.error().message;
            EXPECT_EQ(outcome->version, step);
            EXPECT_LE(static_cast<std::uint64_t>(outcome->staleness), std::min(allowed, step));
            EXPECT_EQ(outcome->staleness == 0, outcome->missing_ranks.empty());
            const std::span<const float> weights = reducer->weights(static_cast<int>(b));
            for (std::size_t e = 0; e < weights.size(); ++e) {
              const std::size_t owner = e % sums.size();
              const auto& whole = sums[owner];
              const std::uint64_t least = static_cast<int>(owner) == rank ? step : step - std::min(step, allowed);
              const std::uint64_t most = static_cast<int>(owner) == rank || together ? step : begun[owner].load();
              ASSERT_LE(least, most) << "a rank went on although another had not begun its step";
              const auto first = whole.begin() + static_cast<std::ptrdiff_t>(least);
              const auto last = whole.begin() + static_cast<std::ptrdiff_t>(most) + 1;
              ASSERT_NE(std::find(first, last, weights[e]), last)
                  << "rank " << rank << ", step " << step << ", element " << e << " of bucket " << b << ": "
                  << weights[e] << " is no sum of " << least << " to " << most << " pushes of rank " << owner;
            }
          }
        }
      });
    }
  }
}

// A rank may go just so far while another does nothing; then the deadline names the other.
TEST_P(Async, ARankThatIsTooFarBehindIsNamed) {
  Layout layout;
  layout.bucket_elements = {3000, 40};
  constexpr std::uint32_t kStaleness = 3;
  std::barrier two_steps(3);
  std::barrier done(3);
  collective::run_threads(3, true, [&](int rank, collective::ThreadSession& session) {
    const auto reducer = begin(session, options(kStaleness), layout, zeros(layout));
    reducer->begin_step(3, false);
    if (rank != 2) two_steps.arrive_and_wait();
    const int steps = rank == 0 ? static_cast<int>(kStaleness) + 1 : rank == 2 ? 2 : 0;
    for (int step = 1; step <= steps; ++step) {
      push(*reducer, layout, rank, 3, static_cast<std::uint64_t>(step), 1);
      for (const int bucket : {0, 1}) {
        const bool allowed = step <= static_cast<int>(kStaleness);
        const auto outcome = reducer->wait(bucket, Deadline::after(allowed ? kSeconds : 0.3));
        ASSERT_EQ(outcome.has_value(), allowed) << step;
        if (!allowed) {
          EXPECT_EQ(outcome.error().code, ErrorCode::kTimeout);
          EXPECT_EQ(outcome.error().rank, 1);
          EXPECT_THAT(outcome.error().message, HasSubstr("rank 1"));
          EXPECT_THAT(outcome.error().message, ::testing::Not(HasSubstr("rank 2")));
          break;
        }
        EXPECT_EQ(outcome->staleness, step);
        EXPECT_THAT(outcome->missing_ranks, ::testing::Contains(1));
      }
    }
    if (rank == 2) two_steps.arrive_and_wait();
    done.arrive_and_wait();
  });
}

// A mixture of numbers, the same on every call.
float compute_value(int rank, std::uint64_t step, std::size_t element) {
  Random random(mix({static_cast<std::uint64_t>(rank), step, element}));
  return static_cast<float>(2 * random.uniform() - 1);
}

void push_values(ServerReducer& reducer, const Layout& layout, int rank, std::uint64_t step, double weight) {
  for (std::size_t b = 0; b < layout.bucket_elements.size(); ++b) {
    auto* values = reinterpret_cast<float*>(reducer.buffer(static_cast<int>(b)).data());
    for (std::size_t e = 0; e < layout.bucket_elements[b]; ++e) values[e] = compute_value(rank, step, 10'000 * b + e);
    ASSERT_TRUE(reducer.start(step, static_cast<int>(b), weight));
  }
}

void wait_for_all(ServerReducer& reducer, const Layout& layout) {
  for (std::size_t b = 0; b < layout.bucket_elements.size(); ++b) {
    const auto outcome = reducer.wait(static_cast<int>(b), Deadline::after(kSeconds));
    ASSERT_TRUE(outcome) << outcome.error().message;
  }
}

std::vector<std::vector<float>> held(ServerReducer& reducer, const Layout& layout) {
  std::vector<std::vector<float>> values;
  for (std::size_t b = 0; b < layout.bucket_elements.size(); ++b) {
    const auto weights = reducer.weights(static_cast<int>(b));
    values.emplace_back(weights.begin(), weights.end());
  }
  return values;
}

// Also when it stops in the middle and goes on elsewhere from what was saved.
TEST_P(Async, OneRankDoesBitwiseWhatItDoesStepByStep) {
  Layout layout;
  layout.bucket_elements = {2500, 60};
  for (const UpdateRule rule :
       {UpdateRule::kSgd, UpdateRule::kMomentum, UpdateRule::kNesterov, UpdateRule::kAdam, UpdateRule::kAdamW}) {
    std::vector<std::vector<float>> results[2];
    for (const bool is_async : {false, true}) {
      ServerState state = zeros(layout);
      for (const std::uint64_t part : {0, 1}) {
        collective::run_threads(1, true, [&](int, collective::ThreadSession& session) {
          session.set_job(fmt::format("{} {} {}", static_cast<int>(rule), is_async, part));
          const auto reducer =
              begin(session, options(is_async ? std::optional(kAnyStaleness) : std::nullopt, rule), layout, state);
          reducer->set_learning_rate(0.01);
          for (std::uint64_t step = 1; step <= 5; ++step) {
            reducer->begin_step(32, step == 5);
            push_values(*reducer, layout, 0, part * 5 + step, 32);
            wait_for_all(*reducer, layout);
          }
          auto saved = reducer->save(Deadline::after(kSeconds));
          ASSERT_TRUE(saved);
          EXPECT_EQ(saved->updates, 5 * (part + 1));
          state = std::move(*saved);
          results[is_async] = held(*reducer, layout);
        });
      }
    }
    EXPECT_EQ(results[0], results[1]) << static_cast<int>(rule);
  }
}

// Pushes of known shares in a known order, against the kernel's fractions of a step one after the other.
TEST_P(Async, PushesAreFractionsOfAStep) {
  Layout layout;
  layout.bucket_elements = {1500};
  for (const UpdateRule rule : {UpdateRule::kMomentum, UpdateRule::kAdamW}) {
    const ServerOptions how = options(10, rule);
    std::vector<float> weights(1500);
    std::vector<float> first(1500);
    std::vector<float> second(1500);
    kernels::UpdateOptions update = how.update;
    update.step = 0;
    update.learning_rate = 0.01;
    std::barrier turn(2);
    collective::run_threads(2, true, [&](int rank, collective::ThreadSession& session) {
      session.set_job(fmt::format("job {}", static_cast<int>(rule)));
      const auto reducer = begin(session, how, layout, zeros(layout));
      reducer->set_learning_rate(0.01);
      reducer->begin_step(64, false);
      for (std::uint64_t step = 1; step <= 4; ++step) {
        for (const int whose : {0, 1}) {
          if (whose == rank) {
            const double weight = rank == 0 ? 48 : 16;
            push_values(*reducer, layout, rank, step, weight);
            wait_for_all(*reducer, layout);
            std::vector<float> gradient;
            for (std::size_t e = 0; e < weights.size(); ++e) gradient.push_back(compute_value(rank, step, e));
            const kernels::WireInput input{gradient.data(), kernels::WireFormat::kFloat32};
            const float one = 1;
            float* const state[] = {first.data(), second.data()};
            update.fraction = weight / 64;
            update.step += update.fraction;
            kernels::fused_update({&input, 1}, {&one, 1}, 1, update, weights.data(), state, nullptr,
                                  kernels::WireFormat::kFloat32, weights.size());
            EXPECT_EQ(held(*reducer, layout)[0], weights) << "step " << step << ", rank " << rank;
          }
          turn.arrive_and_wait();
        }
      }
    });
  }
}

// With a bound of none, plain SGD takes the very steps that all take together, but for the order of sums.
TEST_P(Async, NoStalenessIsStepByStep) {
  Layout layout;
  layout.bucket_elements = {2500, 60};
  std::vector<std::vector<float>> results[2];
  for (const bool is_async : {false, true}) {
    collective::run_threads(3, true, [&](int rank, collective::ThreadSession& session) {
      session.set_job(is_async ? "async" : "strict");
      const auto reducer = begin(session, options(is_async ? std::optional(0U) : std::nullopt), layout, zeros(layout));
      reducer->set_learning_rate(0.1);
      for (std::uint64_t step = 1; step <= 8; ++step) {
        const auto shares = make_shares(3, step, 3);
        reducer->begin_step(64, false);
        push_values(*reducer, layout, rank, step, shares[static_cast<std::size_t>(rank)]);
        wait_for_all(*reducer, layout);
      }
      if (rank == 1) results[is_async] = held(*reducer, layout);
    });
  }
  for (std::size_t b = 0; b < layout.bucket_elements.size(); ++b) {
    for (std::size_t e = 0; e < layout.bucket_elements[b]; ++e) {
      ASSERT_NEAR(results[0][b][e], results[1][b][e], 1e-6);
    }
  }
}

TEST_P(Async, RanksThatDisagreeAreTold) {
  Layout layout;
  layout.bucket_elements = {100};
  collective::run_threads(2, true, [&](int rank, collective::ThreadSession& session) {
    const auto reducer = ServerReducer::create(session, options(rank == 0 ? std::optional(2U) : std::nullopt));
    ASSERT_TRUE(reducer);
    const Status prepared = (*reducer)->prepare(layout, Deadline::after(kSeconds));
    ASSERT_FALSE(prepared);
    EXPECT_THAT(prepared.error().message, HasSubstr("different steps"));
  });
}

TEST_P(Async, AServerThatOnlyAddsUpIsRefused) {
  Layout layout;
  layout.bucket_elements = {100};
  collective::run_threads(1, true, [&](int, collective::ThreadSession& session) {
    const auto reducer = ServerReducer::create(session, options(2, UpdateRule::kSum));
    ASSERT_TRUE(reducer);
    const Status prepared = (*reducer)->prepare(layout, Deadline::after(kSeconds));
    ASSERT_FALSE(prepared);
    EXPECT_EQ(prepared.error().code, ErrorCode::kInvalidInput);
  });
}

// The wire's rounding is all that differs.
class AsyncNarrow : public Async {};
INSTANTIATE_TEST_SUITE_P(Server, AsyncNarrow,
                         ::testing::Values(Path{"bfloat16", false, 1, WireType::kBfloat16},
                                           Path{"float16", false, 2, WireType::kFloat16}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(AsyncNarrow, EveryPushOnce) {
  constexpr std::uint64_t kSteps = 12;
  Layout layout;
  layout.bucket_elements = {700, 1900};
  collective::run_threads(3, true, [&](int rank, collective::ThreadSession& session) {
    const auto reducer = begin(session, options(2), layout, zeros(layout));
    for (std::uint64_t step = 1; step <= kSteps; ++step) {
      reducer->begin_step(4, step == kSteps);
      push(*reducer, layout, rank, 3, step, rank == 2 ? 2 : 1);
      wait_for_all(*reducer, layout);
    }
    for (const auto& weights : held(*reducer, layout)) {
      for (std::size_t e = 0; e < weights.size(); ++e) {
        ASSERT_EQ(weights[e], e % 3 == 2 ? 6 : 3) << e;  // twelve quarters, or halves: exact in 16 bits
      }
    }
  });
}

}  // namespace
}  // namespace motley::ps
