// The dense parameter server against the optimizer written out in double precision: every path, every rule, several
// servers, jobs beside each other, and what happens when someone leaves.
#include <gmock/gmock.h>

#include <barrier>
#include <cmath>
#include <cstring>
#include <latch>

#include "motley/base/random.h"
#include "motley/ps/client/server_reducer.h"
#include "motley/ps/protocol/chunk_map.h"
#include "motley/ps/service/service.h"
#include "tests/collective/ranks.h"
#include "tests/ps/dense/servers.h"
#include "tests/ps/service/metric_value.h"

namespace motley::ps {
namespace {

using collective::Layout;
using collective::WireType;
using kernels::UpdateRule;
using ::testing::HasSubstr;

enum Memory { kShared, kNotShared, kSharedByRank0 };

struct Case {
  const char* name;
  Memory memory;
  int servers;
  int cores;
  WireType wire;
  UpdateRule rule;
  std::size_t chunk_bytes = 32 << 10;
  net::Encryption encryption = net::Encryption::kAuto;
};

const Case kCases[] = {
    {"memory_momentum", kShared, 1, 2, WireType::kNative, UpdateRule::kMomentum},
    {"memory_adamw_one_core", kShared, 1, 1, WireType::kNative, UpdateRule::kAdamW},
    {"memory_sum", kShared, 1, 2, WireType::kNative, UpdateRule::kSum, 4096},
    {"memory_sgd_huge_chunks", kShared, 1, 3, WireType::kNative, UpdateRule::kSgd, 4 << 20},
    {"memory_of_three_servers", kShared, 3, 1, WireType::kNative, UpdateRule::kMomentum},
    {"memory_of_two_servers_sum", kShared, 2, 2, WireType::kNative, UpdateRule::kSum},
    {"memory_of_rank_0", kSharedByRank0, 1, 2, WireType::kNative, UpdateRule::kMomentum},
    {"memory_of_rank_0_three_servers", kSharedByRank0, 3, 1, WireType::kNative, UpdateRule::kAdamW},
    {"memory_of_rank_0_sum", kSharedByRank0, 2, 1, WireType::kNative, UpdateRule::kSum},
    {"memory_of_rank_0_bfloat16", kSharedByRank0, 1, 2, WireType::kBfloat16, UpdateRule::kMomentum},
    {"channels_momentum", kNotShared, 1, 2, WireType::kNative, UpdateRule::kMomentum},
    {"channels_nesterov_small_chunks", kNotShared, 1, 1, WireType::kNative, UpdateRule::kNesterov, 256},
    {"channels_adamw_three_servers", kNotShared, 3, 2, WireType::kNative, UpdateRule::kAdamW},
    {"channels_momentum_encrypted", kNotShared, 2, 2, WireType::kNative, UpdateRule::kMomentum, 32 << 10,
     net::Encryption::kOn},
    {"channels_sum", kNotShared, 2, 1, WireType::kNative, UpdateRule::kSum},
    {"channels_bfloat16", kNotShared, 1, 2, WireType::kBfloat16, UpdateRule::kMomentum},
    {"channels_float16_sum", kNotShared, 1, 2, WireType::kFloat16, UpdateRule::kSum},
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

class EveryPath : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Server, EveryPath, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

kernels::UpdateOptions make_update(UpdateRule rule) {
  return {.rule = rule, .momentum = 0.9, .weight_decay = 0.01};
}

double gradient(std::uint64_t seed, int rank, std::uint64_t step, int bucket, std::size_t e) {
  Random random(mix({seed, static_cast<std::uint64_t>(rank), step, static_cast<std::uint64_t>(bucket), e}));
  return static_cast<float>(2 * random.uniform() - 1);
}
double make_weight(std::uint64_t seed, int rank, std::uint64_t step) {
  if (step == 2) return 16;
  return static_cast<double>(Random(mix({seed, 9, static_cast<std::uint64_t>(rank), step})).below(50));
}

// The weights and state after some steps of one worker that sees all gradients.
class Reference {
 public:
  Reference(kernels::UpdateOptions options, std::vector<double> weights)
      : options_(options), weights_(std::move(weights)), state_(2, std::vector<double>(weights_.size())) {}
  void step(const std::vector<double>& mean, double rate) {
    ++steps_;
    const auto& o = options_;
    for (std::size_t e = 0; e < weights_.size(); ++e) {
      double g = mean[e];
      double& w = weights_[e];
      if (o.rule == UpdateRule::kSum) {
        w = g;
        continue;
      }
      if (o.rule == UpdateRule::kAdamW) {
        w -= rate * o.weight_decay * w;
      } else {
        g += o.weight_decay * w;
      }
      double& m = state_[0][e];
      double& v = state_[1][e];
      switch (o.rule) {
        case UpdateRule::kSum:
        case UpdateRule::kSgd:
          w -= rate * g;
          break;
        case UpdateRule::kMomentum:
        case UpdateRule::kNesterov:
          m = o.momentum * m + g;
          w -= rate * (o.rule == UpdateRule::kNesterov ? g + o.momentum * m : m);
          break;
        case UpdateRule::kAdam:
        case UpdateRule::kAdamW:
          m = o.beta1 * m + (1 - o.beta1) * g;
          v = o.beta2 * v + (1 - o.beta2) * g * g;
          w -= rate * (m / (1 - std::pow(o.beta1, steps_))) /
               (std::sqrt(v / (1 - std::pow(o.beta2, steps_))) + o.epsilon);
          break;
      }
    }
  }
  const std::vector<double>& weights() const { return weights_; }

 private:
  kernels::UpdateOptions options_;
  std::vector<double> weights_;
  std::vector<std::vector<double>> state_;
  int steps_ = 0;
};

Layout make_layout(std::uint64_t seed, int buckets, std::size_t largest) {
  Layout layout;
  Random random(seed);
  for (int bucket = 0; bucket < buckets; ++bucket) layout.bucket_elements.push_back(1 + random.below(largest));
  return layout;
}

ServerState initial_state(std::uint64_t seed, const Layout& layout) {
  ServerState state;
  for (std::size_t bucket = 0; bucket < layout.bucket_elements.size(); ++bucket) {
    auto& values = state.weights.emplace_back();
    Random random(mix({seed, 1234, bucket}));
    for (std::size_t e = 0; e < layout.bucket_elements[bucket]; ++e) {
      values.push_back(static_cast<float>(random.uniform()));
    }
  }
  return state;
}

// One rank of a job for some steps; returns what it then holds: weights, or the last gradients.
std::vector<std::vector<float>> take_part(ServerReducer& reducer, std::uint64_t seed, int rank, const Layout& layout,
                                          std::uint64_t first, std::uint64_t steps) {
  std::vector<std::vector<float>> held;
  for (std::uint64_t step = first; step < first + steps; ++step) {
    reducer.set_learning_rate(0.1 / static_cast<double>(step + 1));
    const double weight = make_weight(seed, rank, step);
    for (std::size_t b = 0; b < layout.bucket_elements.size(); ++b) {
      const int bucket = static_cast<int>(b);
      auto* values = reinterpret_cast<float*>(reducer.buffer(bucket).data());
      for (std::size_t e = 0; e < layout.bucket_elements[b]; ++e) {
        values[e] = weight == 0 ? NAN : static_cast<float>(gradient(seed, rank, step, bucket, e));
      }
      const Status started = reducer.start(step, bucket, weight);
      EXPECT_TRUE(started) << started.error().message;
    }
    held.clear();
    for (std::size_t b = 0; b < layout.bucket_elements.size(); ++b) {
      const int bucket = static_cast<int>(b);
      const auto outcome = reducer.wait(bucket, Deadline::after(30));
      if (!outcome) {
        ADD_FAILURE() << "rank " << rank << ": " << outcome.error().message;
        return held;
      }
      EXPECT_EQ(outcome->version, step);
      const auto* values = reducer.updates_weights() ? reducer.weights(bucket).data()
                                                     : reinterpret_cast<const float*>(reducer.buffer(bucket).data());
      held.emplace_back(values, values + layout.bucket_elements[b]);
    }
  }
  return held;
}

void expect_near(const std::vector<std::vector<float>>& held, const std::vector<Reference>& references,
                 double tolerance, const std::string& who) {
  ASSERT_EQ(held.size(), references.size());
  for (std::size_t bucket = 0; bucket < held.size(); ++bucket) {
    double worst = 0;
    for (std::size_t e = 0; e < held[bucket].size(); ++e) {
      const double error = std::fabs(held[bucket][e] - references[bucket].weights()[e]);
      worst = std::isnan(error) ? error : std::max(worst, error);
    }
    EXPECT_LE(worst, tolerance) << who << ", bucket " << bucket;
  }
}

std::vector<Reference> reference_after(std::uint64_t seed, int size, const Layout& layout, UpdateRule rule,
                                       std::uint64_t steps) {
  const ServerState start = initial_state(seed, layout);
  std::vector<Reference> references;
  for (std::size_t bucket = 0; bucket < layout.bucket_elements.size(); ++bucket) {
    references.emplace_back(make_update(rule),
                            std::vector<double>(start.weights[bucket].begin(), start.weights[bucket].end()));
    for (std::uint64_t step = 0; step < steps; ++step) {
      double total = 0;
      for (int rank = 0; rank < size; ++rank) total += make_weight(seed, rank, step);
      std::vector<double> mean(layout.bucket_elements[bucket]);
      for (int rank = 0; rank < size && total > 0; ++rank) {
        for (std::size_t e = 0; e < mean.size(); ++e) {
          mean[e] += make_weight(seed, rank, step) / total * gradient(seed, rank, step, static_cast<int>(bucket), e);
        }
      }
      references.back().step(mean, 0.1 / static_cast<double>(step + 1));
    }
  }
  return references;
}

TEST_P(EveryPath, DoesWhatOneWorkerWouldDo) {
  const Case& c = GetParam();
  for (const int size : {1, 2, 4}) {
    const std::uint64_t seed = mix({static_cast<std::uint64_t>(size), 5});
    Servers servers(std::vector<int>(static_cast<std::size_t>(c.servers), c.cores));
    const Layout layout = make_layout(seed, 4, 40000);
    const std::uint64_t steps = 5;
    const auto references = reference_after(seed, size, layout, c.rule, steps);
    std::vector<std::vector<std::vector<float>>> held(static_cast<std::size_t>(size));
    collective::run_threads(size, true, [&](int rank, collective::ThreadSession& session) {
      for (int other = 1; other < size && c.memory == kSharedByRank0; ++other) session.move_elsewhere(other);
      ServerOptions options;
      options.method = collective::Method::kParameterServer;
      options.wire = c.wire;
      options.servers = servers.addresses;
      options.servers_share_memory = c.memory != kNotShared;
      options.update = make_update(c.rule);
      options.chunk_bytes = c.chunk_bytes;
      session.set_encryption(c.encryption);
      auto reducer = ServerReducer::create(session, options);
      ASSERT_TRUE(reducer) << reducer.error().message;
      const Status prepared = (*reducer)->prepare(layout, Deadline::after(30));
      ASSERT_TRUE(prepared) << prepared.error().message;
      const Status loaded = (*reducer)->load(initial_state(seed, layout), Deadline::after(30));
      ASSERT_TRUE(loaded) << loaded.error().message;
      held[static_cast<std::size_t>(rank)] = take_part(**reducer, seed, rank, layout, 0, steps);
      const bool is_here = c.memory == kShared || (c.memory == kSharedByRank0 && rank == 0);
      const bool in_memory = is_here && (c.wire == WireType::kNative || (c.servers == 1 && size == 1));
      std::size_t elements = 0;
      for (const std::size_t bucket : layout.bucket_elements) elements += bucket;
      EXPECT_EQ((*reducer)->bytes_sent() < elements, in_memory) << (*reducer)->bytes_sent();
    });
    const double tolerance = c.wire == WireType::kNative ? 2e-6 : c.wire == WireType::kBfloat16 ? 0.03 : 2e-3;
    for (int rank = 0; rank < size; ++rank) {
      expect_near(held[static_cast<std::size_t>(rank)], references, tolerance, fmt::format("rank {}", rank));
      EXPECT_EQ(held[static_cast<std::size_t>(rank)], held[0]);
    }
  }
}

// More cores than processors and rounds of microseconds: cores fall rounds behind and must pass on without touching
// what others have done. Buckets are waited for one by one or all together, by turns.
TEST(SharedMemory, CoresThatComeLateDoNothingTwice) {
  constexpr int kSize = 3;
  constexpr std::uint64_t kSteps = 400;
  const Layout layout{.type = collective::DataType::kFloat32, .bucket_elements = {50, 3000, 1, 700}};
  Servers servers({6});
  collective::run_threads(kSize, true, [&](int rank, collective::ThreadSession& session) {
    ServerOptions options;
    options.method = collective::Method::kParameterServer;
    options.servers = servers.addresses;
    options.update = {.rule = UpdateRule::kSgd};
    options.chunk_bytes = 64;
    auto reducer = ServerReducer::create(session, options);
    ASSERT_TRUE(reducer) << reducer.error().message;
    ASSERT_TRUE((*reducer)->prepare(layout, Deadline::after(30)));
    ServerState zeros;
    for (const std::size_t elements : layout.bucket_elements) zeros.weights.emplace_back(elements);
    ASSERT_TRUE((*reducer)->load(zeros, Deadline::after(30)));
    // Sums of small integers have no rounding: the mean of ranks 0, 1, 2 is 1, times the rate's -1/4.
    (*reducer)->set_learning_rate(0.25);
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      const bool together = step % 3 == 0;
      for (int bucket = 0; bucket < 4; ++bucket) {
        const auto values = (*reducer)->buffer(bucket);
        std::fill_n(reinterpret_cast<float*>(values.data()), values.size() / sizeof(float), static_cast<float>(rank));
        ASSERT_TRUE((*reducer)->start(step, bucket, 1));
        if (!together) {
          ASSERT_TRUE((*reducer)->wait(bucket, Deadline::after(30)));
        }
      }
      for (int bucket = 0; bucket < 4; ++bucket) {
        if (together) {
          ASSERT_TRUE((*reducer)->wait(bucket, Deadline::after(30)));
        }
        EXPECT_THAT((*reducer)->weights(bucket), ::testing::Each(-0.25F * static_cast<float>(step + 1)));
      }
    }
  });
}

// A job of one bucket's arrays, updated in place by the kernel alone.
struct PlainJob {
  std::vector<float> weights;
  std::vector<float> first, second;

  explicit PlainJob(std::vector<float> start)
      : weights(std::move(start)), first(weights.size()), second(weights.size()) {}
  void update(const std::vector<std::vector<float>>& gradients, const collective::Mean& mean, float factor,
              const kernels::UpdateOptions& options) {
    std::vector<kernels::WireInput> inputs;
    for (const int rank : mean.ranks) inputs.push_back({gradients[static_cast<std::size_t>(rank)].data()});
    const std::vector<float> coefficients(mean.coefficients.begin(), mean.coefficients.end());
    float* const state[] = {first.data(), second.data()};
    kernels::fused_update(inputs, coefficients, static_cast<float>(mean.scale) * factor, options, weights.data(), state,
                          nullptr, kernels::WireFormat::kFloat32, weights.size());
  }
};

// What a step's ranks bring: gradients by rank, and their mean's coefficients.
struct Brought {
  std::vector<std::vector<float>> gradients;
  collective::Mean mean;

  Brought(std::uint64_t seed, int size, std::uint64_t step, int bucket, std::size_t elements) {
    std::vector<double> ranks_weights;
    for (int rank = 0; rank < size; ++rank) {
      ranks_weights.push_back(make_weight(seed, rank, step));
      auto& values = gradients.emplace_back();
      for (std::size_t e = 0; e < elements; ++e) {
        values.push_back(static_cast<float>(gradient(seed, rank, step, bucket, e)));
      }
    }
    mean = collective::weighted_mean(ranks_weights);
  }
  double squares() const {
    double sum = 0;
    for (std::size_t e = 0; e < gradients[0].size(); ++e) {
      double value = 0;
      for (std::size_t at = 0; at < mean.ranks.size(); ++at) {
        value += mean.coefficients[at] * gradients[static_cast<std::size_t>(mean.ranks[at])][e];
      }
      sum += std::pow(value * mean.scale, 2);
    }
    return sum;
  }
};

class Reversible : public ::testing::TestWithParam<UpdateRule> {};
INSTANTIATE_TEST_SUITE_P(Server, Reversible,
                         ::testing::Values(UpdateRule::kSgd, UpdateRule::kMomentum, UpdateRule::kAdamW));

// Some steps are taken back, once or twice, and made again with the gradient scaled: weights and state are bitwise what
// a job has that knew the factor before, whoever asks for them, and so is the number of steps.
TEST_P(Reversible, AStepThatIsTakenBackLeavesNothing) {
  constexpr std::uint64_t kSteps = 7;
  for (const int size : {1, 3}) {
    const std::uint64_t seed = mix({static_cast<std::uint64_t>(size), 17});
    const Layout layout = make_layout(seed, 3, 90000);
    Servers servers({3});
    const kernels::UpdateOptions update = make_update(GetParam());
    const auto redone = [](std::uint64_t step) { return step % 3; };  // times
    const auto factor = [](std::uint64_t step, std::uint64_t time) {
      return 1 / (1.7 + static_cast<double>(step + time));
    };
    collective::run_threads(size, true, [&](int rank, collective::ThreadSession& session) {
      ServerOptions options;
      options.method = collective::Method::kParameterServer;
      options.servers = servers.addresses;
      options.update = update;
      options.chunk_bytes = 4096;
      options.reversible = true;
      auto reducer = ServerReducer::create(session, options);
      ASSERT_TRUE(reducer) << reducer.error().message;
      ASSERT_TRUE((*reducer)->prepare(layout, Deadline::after(30)));
      ASSERT_TRUE((*reducer)->is_reversible());
      const ServerState start = initial_state(seed, layout);
      ASSERT_TRUE((*reducer)->load(start, Deadline::after(30)));
      std::vector<PlainJob> plain;
      for (const auto& weights : start.weights) plain.emplace_back(weights);
      const auto take_round = [&](std::uint64_t step) {
        for (int bucket = 0; bucket < 3; ++bucket) {
          ASSERT_TRUE((*reducer)->start(step, bucket, make_weight(seed, rank, step)));
        }
        for (int bucket = 0; bucket < 3; ++bucket) ASSERT_TRUE((*reducer)->wait(bucket, Deadline::after(30)));
      };
      for (std::uint64_t step = 0; step < kSteps; ++step) {
        (*reducer)->set_learning_rate(0.1);
        std::vector<Brought> brought;
        for (int bucket = 0; bucket < 3; ++bucket) {
          brought.emplace_back(seed, size, step, bucket, layout.bucket_elements[static_cast<std::size_t>(bucket)]);
          std::ranges::copy(brought.back().gradients[static_cast<std::size_t>(rank)],
                            reinterpret_cast<float*>((*reducer)->buffer(bucket).data()));
        }
        take_round(step);
        for (int bucket = 0; bucket < 3; ++bucket) {
          const double squares = brought[static_cast<std::size_t>(bucket)].squares();
          EXPECT_NEAR((*reducer)->squares(bucket), squares, 1e-5 * squares);
        }
        for (std::uint64_t time = 0; time < redone(step); ++time) {
          (*reducer)->take_back(factor(step, time));
          take_round(step);
        }
        const double last = redone(step) == 0 ? 1 : factor(step, redone(step) - 1);
        kernels::UpdateOptions own = update;
        own.learning_rate = 0.1;
        own.step = static_cast<double>(step + 1);
        for (std::size_t bucket = 0; bucket < plain.size(); ++bucket) {
          plain[bucket].update(brought[bucket].gradients, brought[bucket].mean, static_cast<float>(last), own);
          EXPECT_THAT((*reducer)->weights(static_cast<int>(bucket)),
                      ::testing::ElementsAreArray(plain[bucket].weights));
        }
      }
      const auto saved = (*reducer)->save(Deadline::after(30));
      ASSERT_TRUE(saved) << saved.error().message;
      EXPECT_EQ(saved->updates, kSteps);
      for (std::size_t bucket = 0; bucket < plain.size(); ++bucket) {
        EXPECT_EQ(saved->weights[bucket], plain[bucket].weights);
        const std::vector<float>* const state[] = {&plain[bucket].first, &plain[bucket].second};
        for (std::size_t array = 0; array < saved->optimizer.size(); ++array) {
          EXPECT_EQ(saved->optimizer[array][bucket], *state[array]);
        }
      }
    });
  }
}

// What one rank does with a job until something fails; the last error.
Status try_to_train(collective::ThreadSession& session, const ServerOptions& options, const Layout& layout, int steps,
                    double seconds = 20) {
  MOTLEY_ASSIGN(const auto reducer, ServerReducer::create(session, options));
  MOTLEY_TRY(reducer->prepare(layout, Deadline::after(seconds)));
  MOTLEY_TRY(reducer->load(initial_state(1, layout), Deadline::after(seconds)));
  reducer->set_learning_rate(0.1);
  for (int step = 0; step < steps; ++step) {
    for (std::size_t bucket = 0; bucket < layout.bucket_elements.size(); ++bucket) {
      MOTLEY_TRY(reducer->start(static_cast<std::uint64_t>(step), static_cast<int>(bucket), 1));
    }
    for (std::size_t bucket = 0; bucket < layout.bucket_elements.size(); ++bucket) {
      MOTLEY_TRY(reducer->wait(static_cast<int>(bucket), Deadline::after(seconds)));
    }
  }
  return {};
}

ServerOptions options_for(const Servers& servers, bool shares_memory) {
  ServerOptions options;
  options.method = collective::Method::kParameterServer;
  options.servers = servers.addresses;
  options.servers_share_memory = shares_memory;
  options.update = make_update(UpdateRule::kMomentum);
  return options;
}

// Both ways to the server.
class EitherWay : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Server, EitherWay, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "memory" : "channels"; });

TEST_P(EitherWay, StateGoesOnWhereItWasSaved) {
  const Layout layout = make_layout(3, 3, 20000);
  const auto references = reference_after(3, 2, layout, UpdateRule::kMomentum, 6);
  ServerState saved;
  std::vector<std::vector<std::vector<float>>> held(2);
  for (const int part : {0, 1}) {
    Servers servers(std::vector<int>(part == 0 || GetParam() ? 1 : 2, 2));  // onto another number of servers
    collective::run_threads(2, true, [&](int rank, collective::ThreadSession& session) {
      auto reducer = ServerReducer::create(session, options_for(servers, GetParam()));
      ASSERT_TRUE(reducer);
      ASSERT_TRUE((*reducer)->prepare(layout, Deadline::after(30)));
      const ServerState start = part == 0 ? initial_state(3, layout) : saved;
      ASSERT_TRUE((*reducer)->load(start, Deadline::after(30)));
      held[static_cast<std::size_t>(rank)] = take_part(**reducer, 3, rank, layout, part == 0 ? 0 : 3, 3);
      if (rank == 0 && part == 0) {
        auto state = (*reducer)->save(Deadline::after(30));
        ASSERT_TRUE(state) << state.error().message;
        EXPECT_EQ(state->updates, 3);
        saved = std::move(*state);
      }
    });
  }
  for (const auto& mine : held) expect_near(mine, references, 2e-6, "after the restart");
}

TEST_P(EitherWay, ARankThatIsLostEndsTheJobAndNoOther) {
  Servers servers({2});
  const Layout layout = make_layout(4, 2, 30000);
  std::thread other([&] {
    collective::run_threads(2, true, [&](int, collective::ThreadSession& session) {
      ServerOptions options = options_for(servers, GetParam());
      EXPECT_TRUE(try_to_train(session, options, layout, 200));
    });
  });
  std::barrier all_loaded(3);  // a rank that gives up earlier would fail the others' load
  collective::run_threads(3, true, [&](int rank, collective::ThreadSession& session) {
    session.set_job("second");
    const auto reducer = ServerReducer::create(session, options_for(servers, GetParam()));
    ASSERT_TRUE((*reducer)->prepare(layout, Deadline::after(20)));
    const Status loaded = (*reducer)->load(initial_state(1, layout), Deadline::after(20));
    all_loaded.arrive_and_wait();
    ASSERT_TRUE(loaded);
    if (rank == 1) {
      (*reducer)->abort({ErrorCode::kInternal, "rank 1 has had enough", 1});
      return;  // its connections close without a word
    }
    session.forget_failure();  // only the server knows
    ASSERT_TRUE((*reducer)->start(0, 0, 1));
    const auto outcome = (*reducer)->wait(0, Deadline::after(20));
    ASSERT_FALSE(outcome);
    EXPECT_THAT(outcome.error().message, HasSubstr("rank 1"));
  });
  other.join();
}

TEST_P(EitherWay, AServerThatEndsIsNamed) {
  auto servers = std::make_unique<Servers>(std::vector{2});
  const Layout layout = make_layout(4, 2, 30000);
  collective::run_threads(1, true, [&](int, collective::ThreadSession& session) {
    const auto reducer = ServerReducer::create(session, options_for(*servers, GetParam()));
    ASSERT_TRUE((*reducer)->prepare(layout, Deadline::after(20)));
    ASSERT_TRUE((*reducer)->load(initial_state(1, layout), Deadline::after(20)));
    servers.reset();
    ASSERT_TRUE((*reducer)->start(0, 0, 1));
    const auto outcome = (*reducer)->wait(0, Deadline::after(20));
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().code, ErrorCode::kServerLost) << outcome.error().message;
    EXPECT_THAT(outcome.error().message, HasSubstr("server at 127.0.0.1:"));
  });
}

TEST_P(EitherWay, AMissingRankIsNamedAtTheDeadline) {
  Servers servers({2});
  const Layout layout = make_layout(4, 1, 30000);
  std::barrier answered(3);
  collective::run_threads(3, true, [&](int rank, collective::ThreadSession& session) {
    const auto reducer = ServerReducer::create(session, options_for(servers, GetParam()));
    const collective::LeaveTogether end(answered);
    ASSERT_TRUE((*reducer)->prepare(layout, Deadline::after(20)));
    ASSERT_TRUE((*reducer)->load(initial_state(1, layout), Deadline::after(20)));
    if (rank == 1) return;
    ASSERT_TRUE((*reducer)->start(0, 0, 1));
    const auto outcome = (*reducer)->wait(0, Deadline::after(2));
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().code, ErrorCode::kTimeout);
    EXPECT_EQ(outcome.error().rank, 1);
  });
}

TEST(Server, TurnsAwayAnotherToken) {
  Servers servers({1});
  servers.addresses[0].token = net::Secret::generate();
  collective::run_threads(1, true, [&](int, collective::ThreadSession& session) {
    const Status tried = try_to_train(session, options_for(servers, true), make_layout(1, 1, 100), 1);
    ASSERT_FALSE(tried);
    EXPECT_EQ(tried.error().code, ErrorCode::kRefused) << tried.error().message;
  });
}

TEST(Server, NamesWhatDiffersBetweenRanks) {
  Servers servers({1});
  collective::run_threads(2, true, [&](int rank, collective::ThreadSession& session) {
    Layout layout;
    layout.bucket_elements = {rank == 0 ? 100u : 200u};
    const Status tried = try_to_train(session, options_for(servers, true), layout, 1);
    ASSERT_FALSE(tried);
    EXPECT_THAT(tried.error().message, HasSubstr("the number of values in a bucket is 100 and 200")) << rank;
  });
}

TEST(Server, HasOneJobOfAName) {
  Servers servers({1});
  const Layout layout = make_layout(1, 1, 100);
  collective::run_threads(1, true, [&](int, collective::ThreadSession& session) {
    const auto reducer = ServerReducer::create(session, options_for(servers, true));
    ASSERT_TRUE((*reducer)->prepare(layout, Deadline::after(20)));
    collective::run_threads(1, true, [&](int, collective::ThreadSession& second) {
      const Status tried = try_to_train(second, options_for(servers, true), layout, 1);
      ASSERT_FALSE(tried);
      EXPECT_THAT(tried.error().message, HasSubstr("is running here already"));
    });
    EXPECT_TRUE((*reducer)->load(initial_state(1, layout), Deadline::after(20)));
  });
}

TEST(Server, RefusesAJobBeyondItsQuota) {
  auto service = Service::start({.cores = 1, .quota_bytes = 1 << 20}, token());
  ASSERT_TRUE(service);
  ServerOptions options;
  options.method = collective::Method::kParameterServer;
  options.servers = {{(*service)->endpoint(), token()}};
  options.update = make_update(UpdateRule::kAdam);
  collective::run_threads(1, true, [&](int, collective::ThreadSession& session) {
    Layout layout;
    layout.bucket_elements = {100'000};
    const Status tried = try_to_train(session, options, layout, 1);
    ASSERT_FALSE(tried);
    EXPECT_THAT(tried.error().message, HasSubstr("its quota is"));
    layout.bucket_elements = {50'000};
    EXPECT_TRUE(try_to_train(session, options, layout, 2));
  });
}

TEST_P(EitherWay, MetricsNameWhoIsMissingAndWhoWasLast) {
  Servers servers({2});
  const Service& service = *servers.services[0];
  const Layout layout = make_layout(4, 3, 100'000);
  std::size_t elements = 0;
  for (const std::uint64_t count : layout.bucket_elements) elements += count;
  const std::string job = R"(tenant="local",job="job")";
  std::latch begun(1);
  std::barrier both(2);
  collective::run_threads(2, true, [&](int rank, collective::ThreadSession& session) {
    const auto reducer = ServerReducer::create(session, options_for(servers, GetParam()));
    ASSERT_TRUE((*reducer)->prepare(layout, Deadline::after(20)));
    ASSERT_TRUE((*reducer)->load(initial_state(1, layout), Deadline::after(20)));
    if (rank == 1) {
      const std::string missing = "missing_rank{" + job + R"(,rank="1"})";
      for (const Deadline deadline = Deadline::after(20); !begun.try_wait() || compute_value(service, missing) != 1;) {
        ASSERT_FALSE(deadline.passed());
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    }
    for (int bucket = 0; bucket < 3; ++bucket) ASSERT_TRUE((*reducer)->start(0, bucket, 1));
    if (rank == 0) begun.count_down();
    for (int bucket = 0; bucket < 3; ++bucket) ASSERT_TRUE((*reducer)->wait(bucket, Deadline::after(20)));
    both.arrive_and_wait();
    if (rank == 0) {
      const auto map = make_chunk_map(layout.bucket_elements, 32 << 10, 2);
      EXPECT_EQ(compute_value(service, "segments_total{" + job + "}"), static_cast<double>(map.segments.size()));
      EXPECT_EQ(compute_value(service, "segment_latency_seconds_count{" + job + "}"),
                static_cast<double>(map.segments.size()));
      EXPECT_EQ(compute_value(service, "aggregated_bytes_total{" + job + "}"), 8.0 * static_cast<double>(elements));
      const double sent = GetParam() ? 0 : 8.0 * static_cast<double>(elements);
      EXPECT_EQ(compute_value(service, "received_bytes_total{" + job + "}"), sent);
      EXPECT_EQ(compute_value(service, "sent_bytes_total{" + job + "}"), sent);
      // In memory this is looked up four times a second.
      for (const Deadline deadline = Deadline::after(20);
           compute_value(service, "segments_waiting{" + job + "}") != 0;) {
        ASSERT_FALSE(deadline.passed());
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      // Over a channel the one that began before may be overtaken in its later buckets, on a busy machine.
      const double first = compute_value(service, "rank_last_total{" + job + R"(,rank="0"})");
      const double second = compute_value(service, "rank_last_total{" + job + R"(,rank="1"})");
      EXPECT_EQ(first + second, 3);
      EXPECT_GE(second, GetParam() ? 3 : 1);
      EXPECT_GT(compute_value(service, "rank_waited_seconds_total{" + job + R"(,rank="1"})"), 0);
      EXPECT_EQ(compute_value(service, "job_ranks{" + job + "}"), 2);
    }
    both.arrive_and_wait();
  });
}

// A server of two tenants, each with a token of its own.
struct TwoTenants {
  net::Secret tokens[2] = {net::Secret::generate(), net::Secret::generate()};
  std::unique_ptr<Service> service;
  TwoTenants(std::size_t quota_bytes) {
    auto started = Service::start({.cores = 1}, Tenants(std::map<std::string, Tenant>{
                                                    {"a", {tokens[0], quota_bytes, 1}}, {"b", {tokens[1], 0, 3}}}));
    if (started) service = std::move(*started);
  }
  ServerOptions options(int token) const {
    ServerOptions options;
    options.method = collective::Method::kParameterServer;
    options.servers = {{service->endpoint(), tokens[token]}};
    options.update = make_update(UpdateRule::kAdam);
    return options;
  }
};

TEST(Tenants, OpenTheirOwnJobsOnly) {
  const TwoTenants server(0);
  ASSERT_TRUE(server.service);
  const Layout layout = make_layout(1, 1, 1000);
  std::string words;
  for (const auto& [tenant, token] : {std::pair("b", 0), std::pair("a", 1), std::pair("nobody", 0)}) {
    collective::run_threads(1, true, [&](int, collective::ThreadSession& session) {
      session.set_tenant(tenant);
      const Status tried = try_to_train(session, server.options(token), layout, 1);
      ASSERT_FALSE(tried) << tenant;
      EXPECT_EQ(tried.error().code, ErrorCode::kRefused);
      EXPECT_THAT(tried.error().message, HasSubstr("secret differs"));
      // A tenant that is not there is told what a wrong token is told.
      EXPECT_TRUE(words.empty() || words == tried.error().message) << tried.error().message;
      words = tried.error().message;
    });
  }
  // The server counts a refusal after it has sent it.
  const std::string refused = R"(refused_connections_total{where="handshake"})";
  for (const Deadline deadline = Deadline::after(20); compute_value(*server.service, refused) != 3;) {
    ASSERT_FALSE(deadline.passed()) << compute_value(*server.service, refused) << " refusals were counted";
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

TEST(Tenants, MayUseOneNameForTheirJobs) {
  const TwoTenants server(0);
  ASSERT_TRUE(server.service);
  const Layout layout = make_layout(1, 2, 30'000);
  collective::run_threads(2, true, [&](int number, collective::ThreadSession&) {  // a job each
    collective::run_threads(1, true, [&](int, collective::ThreadSession& session) {
      session.set_tenant(number == 0 ? "a" : "b");
      const Status tried = try_to_train(session, server.options(number), layout, 50);
      EXPECT_TRUE(tried) << tried.error().message;
    });
  });
}

TEST(Tenants, HaveAQuotaOverAllTheirJobs) {
  const TwoTenants server(1 << 20);
  ASSERT_TRUE(server.service);
  Layout layout;
  layout.bucket_elements = {50'000};  // with Adam's state 600 KB
  const auto run_job = [&](const std::string& name, const char* tenant, int token,
                           const std::function<void()>& during) {
    collective::run_threads(1, true, [&](int, collective::ThreadSession& session) {
      session.set_job(name);
      session.set_tenant(tenant);
      const auto reducer = ServerReducer::create(session, server.options(token));
      const Status prepared = (*reducer)->prepare(layout, Deadline::after(20));
      if (!during) {
        ASSERT_FALSE(prepared) << name;
        EXPECT_THAT(prepared.error().message, HasSubstr("the quota of tenant 'a'"));
        return;
      }
      ASSERT_TRUE(prepared) << prepared.error().message;
      during();
      ASSERT_TRUE((*reducer)->load(initial_state(1, layout), Deadline::after(20)));
    });
  };
  run_job("first", "a", 0, [&] {
    run_job("second", "a", 0, nullptr);
    run_job("second", "b", 1, [] {});
  });
  // The first has left, which the server learns a moment later.
  for (const Deadline deadline = Deadline::after(20); compute_value(*server.service, "jobs") != 0;) {
    ASSERT_FALSE(deadline.passed());
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  run_job("second", "a", 0, [] {});
}

TEST(ChunkMap, IsALongestProcessingTimeFirstPacking) {
  Random random(7);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<std::size_t> buckets;
    for (std::uint64_t i = 0; i < 1 + random.below(12); ++i) buckets.push_back(random.below(300'000));
    const int bins = 1 + static_cast<int>(random.below(6));
    const std::size_t chunk = 64 << random.below(12);
    const ChunkMap map = make_chunk_map(buckets, chunk, bins);
    std::vector<std::size_t> load(static_cast<std::size_t>(bins));
    std::vector<std::size_t> covered(buckets.size());
    std::size_t largest = 0;
    std::size_t total = 0;
    for (const Segment& segment : map.segments) {
      const auto bucket = static_cast<std::size_t>(segment.bucket);
      EXPECT_EQ(segment.begin, covered[bucket]);  // in order and without a gap
      EXPECT_GT(segment.count, 0u);
      covered[bucket] += segment.count;
      load[static_cast<std::size_t>(segment.bin)] += segment.count;
      largest = std::max(largest, segment.count);
      total += segment.count;
    }
    EXPECT_EQ(covered, buckets);
    EXPECT_EQ(load, map.load);
    // Graham's bound, with the best possible load bounded from below.
    const double best = std::max(static_cast<double>(total) / bins, static_cast<double>(largest));
    const double heaviest = static_cast<double>(*std::ranges::max_element(load));
    EXPECT_LE(heaviest, best + static_cast<double>(largest)) << trial;
    // No segment of the heaviest bin would have been better off elsewhere when its turn came: with the smallest of its
    // segments taken away it is no heavier than any other bin.
    const auto bin = std::ranges::max_element(load) - load.begin();
    std::size_t smallest = SIZE_MAX;
    for (const Segment& segment : map.segments) {
      if (segment.bin == bin) smallest = std::min(smallest, segment.count);
    }
    if (!map.segments.empty()) {
      EXPECT_LE(load[static_cast<std::size_t>(bin)] - smallest, *std::ranges::min_element(load)) << trial;
    }
  }
}

}  // namespace
}  // namespace motley::ps
