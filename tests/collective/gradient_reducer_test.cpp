// What every method of exchange must do, against a plain weighted mean in double precision; and what the methods must
// have in common.
#include "motley/collective/gradient_reducer.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "motley/base/random.h"
#include "motley/collective/replaceable_reducer.h"
#include "motley/net/derived_session.h"
#include "tests/collective/ranks.h"

namespace motley::collective {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Case {
  const char* name;
  ReducerOptions options;
};

ReducerOptions with(Method method, WireType wire = WireType::kNative, bool background = true, std::size_t segment = 0) {
  return {.method = method, .wire = wire, .background_progress = background, .segment_bytes = segment};
}

const Case kCases[] = {
    {"shared_memory", with(Method::kSharedMemory)},
    {"shared_memory_without_helper", with(Method::kSharedMemory, WireType::kNative, false)},
    {"ring", with(Method::kTcpRing)},
    {"ring_without_helper", with(Method::kTcpRing, WireType::kNative, false)},
    {"ring_of_small_segments", with(Method::kTcpRing, WireType::kNative, true, 4096)},
    {"ring_in_bfloat16", with(Method::kTcpRing, WireType::kBfloat16)},
    {"ring_in_bfloat16_small_segments", with(Method::kTcpRing, WireType::kBfloat16, true, 8192)},
};

class EveryMethod : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(GradientReducer, EveryMethod, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

// What rank `rank` contributes in `step` to the elements of `bucket`, computed by everybody: in [-1, 1).
class Values {
 public:
  Values(std::uint64_t seed, int rank, std::uint64_t step, int bucket)
      : seed_(mix({seed, static_cast<std::uint64_t>(rank), step, static_cast<std::uint64_t>(bucket)})) {}
  double operator[](std::size_t e) const {
    const std::uint64_t bits = (seed_ ^ e) * 0x9e3779b97f4a7c15u;
    return static_cast<double>(static_cast<std::int64_t>(bits ^ (bits << 23))) * 0x1p-63;
  }

 private:
  std::uint64_t seed_;
};
double make_weight(std::uint64_t seed, int rank, std::uint64_t step) {
  Random random(mix({seed, 77, static_cast<std::uint64_t>(rank), step}));
  if (step % 4 == 3) return 16;                         // equal weights
  if (step % 8 == 5 || random.below(4) == 0) return 0;  // nobody, or not this one
  return static_cast<double>(1 + random.below(300));
}

template <class T>
std::span<T> values_in(GradientReducer& reducer, int bucket) {
  const auto bytes = reducer.buffer(bucket);
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}

struct Trial {
  std::uint64_t seed;
  int size;
  std::uint64_t steps;
  Layout layout;
  double tolerance;  // relative to the largest value
};

// Goes through all steps; returns all results of this rank, one after the other.
template <class T>
std::vector<T> take_part(GradientReducer& reducer, int rank, const Trial& run) {
  std::vector<T> results;
  const int buckets = static_cast<int>(run.layout.bucket_elements.size());
  for (std::uint64_t step = 0; step < run.steps; ++step) {
    const double weight = make_weight(run.seed, rank, step);
    for (int bucket = 0; bucket < buckets; ++bucket) {
      const auto values = values_in<T>(reducer, bucket);
      const Values own(run.seed, rank, step, bucket);
      for (std::size_t e = 0; e < values.size(); ++e) {
        values[e] = weight == 0 ? std::numeric_limits<T>::quiet_NaN() : static_cast<T>(own[e]);
      }
      EXPECT_TRUE(reducer.start(step, bucket, weight).has_value());
      if (mix({run.seed, step, static_cast<std::uint64_t>(rank)}) % 8 == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(300));  // "backward" goes on
      }
    }
    double total = 0;
    for (int other = 0; other < run.size; ++other) total += make_weight(run.seed, other, step);
    for (int bucket = 0; bucket < buckets; ++bucket) {
      const auto outcome = reducer.wait(bucket, Deadline::after(30));
      if (!outcome) {
        ADD_FAILURE() << "rank " << rank << ": " << outcome.error().message;
        return results;
      }
      EXPECT_EQ(outcome->total_weight, total);
      EXPECT_EQ(outcome->version, step);
      const auto values = values_in<T>(reducer, bucket);
      std::vector<double> mean(values.size());
      for (int other = 0; other < run.size && total > 0; ++other) {
        const double share = make_weight(run.seed, other, step) / total;
        const Values theirs(run.seed, other, step, bucket);
        for (std::size_t e = 0; e < values.size(); ++e)
          mean[e] += share * static_cast<double>(static_cast<T>(theirs[e]));
      }
      double worst = 0;
      for (std::size_t e = 0; e < values.size(); ++e) {
        const double error = std::fabs(static_cast<double>(values[e]) - mean[e]);
        worst = std::isnan(error) ? error : std::max(worst, error);
      }
      EXPECT_LE(worst, run.tolerance) << "rank " << rank << ", step " << step << ", bucket " << bucket;
      results.insert(results.end(), values.begin(), values.end());
    }
  }
  return results;
}

// All ranks' results.
template <class T>
std::vector<std::vector<T>> run_all(const ReducerOptions& options, const Trial& run) {
  std::vector<std::vector<T>> results(static_cast<std::size_t>(run.size));
  run_threads(run.size, true, [&](int rank, ThreadSession& session) {
    auto reducer = make_reducer(session, options);
    ASSERT_TRUE(reducer) << reducer.error().message;
    const Status prepared = (*reducer)->prepare(run.layout, Deadline::after(30));
    ASSERT_TRUE(prepared) << prepared.error().message;
    results[rank] = take_part<T>(**reducer, rank, run);
  });
  return results;
}

template <class T>
bool same_bits(const std::vector<T>& one, const std::vector<T>& other) {
  return one.size() == other.size() &&
         (one.empty() || std::memcmp(one.data(), other.data(), one.size() * sizeof(T)) == 0);
}

Layout random_layout(std::uint64_t seed, DataType type) {
  Random random(seed);
  Layout layout{.type = type, .bucket_elements = {0, 1, 3, 17}};
  for (int bucket = 0; bucket < 4; ++bucket) {
    const std::size_t most = bucket == 0 ? 120'000 : bucket == 1 ? 30'000 : 3000;
    layout.bucket_elements.push_back(random.below(most));
  }
  return layout;
}

TEST_P(EveryMethod, GivesTheWeightedMeanToAllRanksBitwiseAlikeAndRepeatably) {
  const bool rounded = GetParam().options.wire == WireType::kBfloat16;
  for (int size = 1; size <= 5; ++size) {
    const std::uint64_t seed = 100 + static_cast<std::uint64_t>(size);
    const Trial run{seed, size, 9, random_layout(seed, DataType::kFloat32), rounded ? 0.03 : 1e-6};
    const auto results = run_all<float>(GetParam().options, run);
    for (const auto& other : results) EXPECT_TRUE(same_bits(results[0], other)) << size << " ranks";
    const auto again = run_all<float>(GetParam().options, run);
    EXPECT_TRUE(same_bits(results[0], again[0])) << size << " ranks";
  }
}

TEST_P(EveryMethod, IsExactToTwelveDigitsInDouble) {
  if (GetParam().options.wire == WireType::kBfloat16) {
    run_threads(2, true, [&](int, ThreadSession& session) {
      const Status refused = (*make_reducer(session, GetParam().options))
                                 ->prepare({.type = DataType::kFloat64, .bucket_elements = {8}}, Deadline::after(5));
      ASSERT_FALSE(refused);
      EXPECT_THAT(refused.error().message, HasSubstr("float64"));
    });
    return;
  }
  for (int size : {2, 3, 4}) {
    const std::uint64_t seed = 200 + static_cast<std::uint64_t>(size);
    const Trial run{seed, size, 9, random_layout(seed, DataType::kFloat64), 1e-12};
    const auto results = run_all<double>(GetParam().options, run);
    for (const auto& other : results) EXPECT_TRUE(same_bits(results[0], other)) << size << " ranks";
  }
}

TEST_P(EveryMethod, KeepsManyRoundsApart) {
  Layout layout;
  layout.bucket_elements = {64, 5000, 1};
  const double tolerance = GetParam().options.wire == WireType::kBfloat16 ? 0.03 : 1e-6;
  const Trial run{7, 3, 400, layout, tolerance};
  run_all<float>(GetParam().options, run);
}

// The ring's bytes are known: each rank sends 2 (N - 1) / N of the values; a small bucket goes whole to every other
// rank.
TEST_P(EveryMethod, CountsWhatItSends) {
  constexpr double kValues = 600'000, kSmall = 100;
  const auto& options = GetParam().options;
  const double value_bytes = options.method == Method::kSharedMemory ? 0 : options.wire == WireType::kBfloat16 ? 2 : 4;
  run_threads(3, true, [&](int, ThreadSession& session) {
    auto reducer = std::move(*make_reducer(session, options));
    const Layout layout = {.bucket_elements = {static_cast<std::size_t>(kValues), static_cast<std::size_t>(kSmall)}};
    ASSERT_TRUE(reducer->prepare(layout, Deadline::after(30)));
    const auto before = static_cast<double>(reducer->bytes_sent());
    for (int bucket = 0; bucket < 2; ++bucket) ASSERT_TRUE(reducer->start(1, bucket, 1));
    for (int bucket = 0; bucket < 2; ++bucket) ASSERT_TRUE(reducer->wait(bucket, Deadline::after(30)));
    const double sent = static_cast<double>(reducer->bytes_sent()) - before;
    const double expected = value_bytes * (4.0 / 3 * kValues + 2 * kSmall);
    EXPECT_GE(sent, expected);
    EXPECT_LE(sent, 1.05 * expected) << "frames' headers and weights beside the values";
  });
}

TEST_P(EveryMethod, NamesTheRankThatNeverStartsABucket) {
  for (std::size_t elements : {100, 1'000'000}) {
    std::atomic<int> waiting = 2;
    std::barrier started(2);  // so that rank 1 is the only one that is late
    run_threads(3, true, [&](int rank, ThreadSession& session) {
      auto reducer = std::move(*make_reducer(session, GetParam().options));
      ASSERT_TRUE(reducer->prepare({.bucket_elements = {8, elements}}, Deadline::after(30)));
      ASSERT_TRUE(reducer->start(17, 0, 1));
      ASSERT_TRUE(reducer->wait(0, Deadline::after(30)));
      if (rank == 1) {
        while (waiting > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        return;
      }
      const Status begun = reducer->start(17, 1, 1);
      started.arrive_and_wait();
      ASSERT_TRUE(begun) << begun.error().message;
      const auto outcome = reducer->wait(1, Deadline::after(elements == 100 ? 1 : 0.2));
      --waiting;
      while (waiting > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ASSERT_FALSE(outcome);
      EXPECT_EQ(outcome.error().code, ErrorCode::kTimeout);
      // In the ring the next rank knows whom it misses; the one behind it can only name its neighbour.
      const bool knows = rank == 2 || elements == 100 || GetParam().options.method == Method::kSharedMemory;
      EXPECT_EQ(outcome.error().rank, knows ? 1 : 2) << outcome.error().message;
      EXPECT_THAT(outcome.error().message, AllOf(HasSubstr("step 17"), HasSubstr("bucket 1"), HasSubstr("phase of ")));
    });
  }
}

TEST_P(EveryMethod, AbortWakesAllWaits) {
  std::barrier prepared(3);
  run_threads(3, true, [&](int rank, ThreadSession& session) {
    auto reducer = std::move(*make_reducer(session, GetParam().options));
    const Status done = reducer->prepare({.bucket_elements = {10'000}}, Deadline::after(30));
    prepared.arrive_and_wait();
    ASSERT_TRUE(done) << done.error().message;
    if (rank == 1) {
      reducer->abort({ErrorCode::kDiverged, "the loss is not finite", -1});
      return;
    }
    std::ignore = reducer->start(3, 0, 1);
    const auto outcome = reducer->wait(0, Deadline::after(30));
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().code, ErrorCode::kDiverged) << outcome.error().message;
    EXPECT_EQ(outcome.error().rank, 1);
  });
}

TEST_P(EveryMethod, RefusesLayoutsThatDiffer) {
  std::atomic<int> refusals = 0;
  run_threads(2, true, [&](int rank, ThreadSession& session) {
    auto reducer = std::move(*make_reducer(session, GetParam().options));
    const Layout layout{.bucket_elements = {10, rank == 0 ? std::size_t{20} : std::size_t{21}}};
    refusals += !reducer->prepare(layout, Deadline::after(5));
  });
  EXPECT_EQ(refusals, 2);
}

TEST(GradientReducer, MethodsAgreeBitwiseForTwoRanksAndCloselyForMore) {
  for (int size : {2, 4}) {
    const std::uint64_t seed = 300 + static_cast<std::uint64_t>(size);
    const Trial run{seed, size, 9, random_layout(seed, DataType::kFloat32), 1e-6};
    const auto shared = run_all<float>(with(Method::kSharedMemory), run);
    const auto ring = run_all<float>(with(Method::kTcpRing), run);
    ASSERT_EQ(shared[0].size(), ring[0].size());
    if (size == 2) {
      EXPECT_TRUE(same_bits(shared[0], ring[0]));
    }
    for (std::size_t e = 0; e < shared[0].size(); ++e) ASSERT_NEAR(shared[0][e], ring[0][e], 1e-6);
  }
}

// A rank is lost after it has started: the others give their gradients again, and reduce them without it.
TEST(ReplaceableReducer, GoesOnAmongThoseWhoAreLeft) {
  const ReducerOptions cases[] = {with(Method::kSharedMemory), with(Method::kTcpRing)};
  const Layout layout = {DataType::kFloat64, {1000, 3, 40'000}};  // the last one too large to go from all to all
  for (const ReducerOptions& options : cases) {
    run_threads(3, true, [&](int rank, ThreadSession& session) {
      ReplaceableReducer reducer(*make_reducer(session, options));
      ASSERT_TRUE(reducer.prepare(layout, Deadline::after(20)));
      const int buckets = static_cast<int>(layout.bucket_elements.size());
      const auto expect = [](std::span<const std::byte> bytes, double first) {
        const std::span values(reinterpret_cast<const double*>(bytes.data()), bytes.size() / sizeof(double));
        for (std::size_t i = 0; i < values.size(); ++i) {
          ASSERT_DOUBLE_EQ(values[i], first + 0.5 * static_cast<double>(i));
        }
      };
      const auto give_all = [&](std::uint64_t step, double weight) {
        for (int bucket = 0; bucket < buckets; ++bucket) {
          const auto bytes = reducer.buffer(bucket);
          std::span values(reinterpret_cast<double*>(bytes.data()), bytes.size() / sizeof(double));
          for (std::size_t i = 0; i < values.size(); ++i) values[i] = rank + 0.5 * static_cast<double>(i);
          ASSERT_TRUE(reducer.start(step, bucket, weight));
        }
      };
      give_all(1, 1);
      for (int bucket = 0; bucket < buckets; ++bucket) {
        ASSERT_TRUE(reducer.wait(bucket, Deadline::after(20)));
        expect(reducer.buffer(bucket), 1);
      }
      ASSERT_TRUE(reducer.start(2, 0, 1));
      if (rank == 1) return;
      const auto part = net::make_partial_session(session, {0, 2}, 9);
      ASSERT_TRUE(reducer.replace(*make_reducer(*part, options), Deadline::after(20)));
      give_all(2, rank == 0 ? 1 : 3);
      for (int bucket = 0; bucket < buckets; ++bucket) {
        ASSERT_TRUE(reducer.wait(bucket, Deadline::after(20)));
        expect(reducer.buffer(bucket), 1.5);
      }
    });
  }
}

TEST(GradientReducer, SharedMemoryIsRefusedBetweenHosts) {
  run_threads(2, false, [&](int, ThreadSession& session) {
    const auto reducer = make_reducer(session, with(Method::kSharedMemory));
    ASSERT_FALSE(reducer);
    EXPECT_THAT(reducer.error().message, HasSubstr("tcp-ring"));
    EXPECT_EQ((*make_reducer(session, with(Method::kAuto)))->name(), "tcp-ring");
  });
}

TEST_P(EveryMethod, WorksBetweenProcessesAndCanBeMadeAgain) {
  const Trial run{9, 3, 5, random_layout(9, DataType::kFloat32),
                  GetParam().options.wire == WireType::kBfloat16 ? 0.03 : 1e-6};
  const auto work = [&](int rank, net::Session& session) {
    for (int time = 0; time < 2; ++time) {
      auto reducer = std::move(*make_reducer(session, GetParam().options));
      if (const Status prepared = reducer->prepare(run.layout, Deadline::after(30)); !prepared) return 2;
      take_part<float>(*reducer, rank, run);
    }
    return ::testing::Test::HasFailure() ? 1 : 0;
  };
  for (const net::Encryption encryption : {net::Encryption::kOff, net::Encryption::kOn}) {
    for (int end : run_processes(run.size, work, encryption)) {
      EXPECT_TRUE(WIFEXITED(end) && WEXITSTATUS(end) == 0) << end;
    }
  }
}

TEST_P(EveryMethod, AKilledProcessIsNamedLongBeforeTheDeadline) {
  const auto work = [&](int rank, net::Session& session) {
    auto reducer = std::move(*make_reducer(session, GetParam().options));
    if (!reducer->prepare({.bucket_elements = {500'000}}, Deadline::after(30))) return 2;
    for (std::uint64_t step = 0; step < 1000; ++step) {
      if (rank == 2 && step == 5) ::kill(::getpid(), SIGKILL);
      if (!reducer->start(step, 0, 1)) return 3;
      const double began = monotonic_seconds();
      const auto outcome = reducer->wait(0, Deadline::after(60));
      if (outcome) continue;
      if (outcome.error().rank == 2 && monotonic_seconds() - began < 30) {
        session.abort(outcome.error());
        return 0;
      }
      std::fprintf(stderr, "rank %d blames rank %d: %s\n", rank, outcome.error().rank, outcome.error().message.c_str());
      return 4;
    }
    return 5;
  };
  for (const net::Encryption encryption : {net::Encryption::kOff, net::Encryption::kOn}) {
    const auto ends = run_processes(4, work, encryption);
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == 2) {
        EXPECT_TRUE(WIFSIGNALED(ends[rank]));
      } else {
        EXPECT_TRUE(WIFEXITED(ends[rank]) && WEXITSTATUS(ends[rank]) == 0) << "rank " << rank << ": " << ends[rank];
      }
    }
  }
}

}  // namespace
}  // namespace motley::collective
