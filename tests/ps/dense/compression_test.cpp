// Lossy exchanges through a server, against the same written out by itself: sorting and rounding instead of kernels,
// what was left out kept as sums of w g. Ranks have all the same weights, and nothing but what is late is missing.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "motley/base/random.h"
#include "motley/ps/client/server_reducer.h"
#include "motley/ps/protocol/chunk_map.h"
#include "motley/ps/service/service.h"
#include "motley/train/sync/choose_method.h"
#include "tests/collective/ranks.h"
#include "tests/ps/dense/servers.h"

namespace motley::ps {
namespace {

using collective::Layout;
using collective::WireType;
using kernels::UpdateRule;
using ::testing::HasSubstr;

using Values = std::vector<double>;

constexpr double kRate = 0.1;
constexpr double kTopK = 0.05;

double gradient(int rank, std::uint64_t step, int bucket, std::size_t e) {
  Random random(mix({91, static_cast<std::uint64_t>(rank), step, static_cast<std::uint64_t>(bucket), e}));
  return static_cast<float>(2 * random.uniform() - 1);
}
// Changes from step to step; rank 1 has nothing in step 2, nobody in step 4.
double make_weight(int rank, std::uint64_t step) {
  if (step == 4 || (step == 2 && rank == 1)) return 0;
  return 8.0 * static_cast<double>(1 + (static_cast<std::uint64_t>(rank) + step) % 3);
}
double start_weight(int bucket, std::size_t e) {
  Random random(mix({92, static_cast<std::uint64_t>(bucket), e}));
  return static_cast<float>(random.uniform());
}

struct Case {
  const char* name;
  WireType wire;
  UpdateRule rule;
  int servers;
};
const Case kCases[] = {{"int8", WireType::kInt8, UpdateRule::kMomentum, 1},
                       {"int8_sum", WireType::kInt8, UpdateRule::kSum, 2},
                       {"top_k", WireType::kTopK, UpdateRule::kSgd, 1},
                       {"top_k_momentum_two_servers", WireType::kTopK, UpdateRule::kMomentum, 2},
                       {"top_k_sum", WireType::kTopK, UpdateRule::kSum, 1}};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

class Lossy : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Server, Lossy, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

// What is sent of the values; the rest stays in them.
Values send_top_k(Values& values, double density) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](std::size_t e) { return std::fabs(values[e]); });
  const auto kept =
      std::max<std::size_t>(1, static_cast<std::size_t>(std::ceil(density * static_cast<double>(values.size()))));
  Values sent(values.size());
  for (std::size_t i = 0; i < kept; ++i) std::swap(sent[order[i]], values[order[i]]);
  return sent;
}
Values send_int8(Values& values) {
  Values sent(values.size());
  for (std::size_t begin = 0; begin < values.size(); begin += 256) {
    const std::size_t end = std::min(begin + 256, values.size());
    double largest = 0;
    for (std::size_t e = begin; e < end; ++e) largest = std::max(largest, std::fabs(values[e]));
    for (std::size_t e = begin; e < end && largest > 0; ++e) {
      sent[e] = std::nearbyint(values[e] * 127 / largest) * largest / 127;
      values[e] -= sent[e];
    }
  }
  return sent;
}

// One segment of the model as all ranks and the server see it.
class Reference {
 public:
  Reference(const Case& c, int size, const Segment& segment)
      : case_(c),
        segment_(segment),
        left_(static_cast<std::size_t>(size), Values(segment.count)),
        weights_(segment.count),
        acknowledged_(segment.count),
        momentum_(segment.count) {
    for (std::size_t e = 0; e < segment.count && c.rule != UpdateRule::kSum; ++e) {
      weights_[e] = acknowledged_[e] = start_weight(segment.bucket, segment.begin + e);
    }
  }
  // What the ranks then hold.
  Values step(std::uint64_t step) {
    const std::size_t size = left_.size();
    Values sum(segment_.count);
    double total = 0;
    for (std::size_t rank = 0; rank < size; ++rank) {
      const double weight = make_weight(static_cast<int>(rank), step);
      total += weight;
      if (weight == 0) continue;
      for (std::size_t e = 0; e < segment_.count; ++e) {
        left_[rank][e] += weight * gradient(static_cast<int>(rank), step, segment_.bucket, segment_.begin + e);
      }
      const Values sent = case_.wire == WireType::kInt8 ? send_int8(left_[rank]) : send_top_k(left_[rank], kTopK);
      for (std::size_t e = 0; e < segment_.count; ++e) sum[e] += sent[e];
    }
    if (case_.rule == UpdateRule::kSum) {
      if (total == 0) return Values(segment_.count);
      for (std::size_t e = 0; e < segment_.count; ++e) acknowledged_[e] += sum[e] / total;
      return answer(acknowledged_, size);
    }
    for (std::size_t e = 0; e < segment_.count; ++e) {
      const double mean = total == 0 ? 0 : sum[e] / total;
      momentum_[e] = (case_.rule == UpdateRule::kMomentum ? 0.9 : 0) * momentum_[e] + mean;
      weights_[e] -= kRate * momentum_[e];
    }
    Values change(segment_.count);
    for (std::size_t e = 0; e < segment_.count; ++e) change[e] = weights_[e] - acknowledged_[e];
    const Values sent = answer(change, size);
    for (std::size_t e = 0; e < segment_.count; ++e) acknowledged_[e] += sent[e];
    return acknowledged_;
  }

 private:
  Values answer(Values& values, std::size_t ranks) const {
    const double density = kTopK * static_cast<double>(ranks);
    const bool dense = case_.wire == WireType::kInt8 || case_.rule == UpdateRule::kMomentum || density > 0.12;
    return dense ? send_int8(values) : send_top_k(values, density);
  }

  const Case case_;
  const Segment segment_;
  std::vector<Values> left_;  // by rank: of w g
  Values weights_, acknowledged_, momentum_;
};

struct Servers {
  std::vector<std::unique_ptr<Service>> services;
  ServerOptions options;
  Servers(int count, int cores) {
    options.method = collective::Method::kParameterServer;
    options.servers_share_memory = false;
    options.chunk_bytes = 1000;
    for (int i = 0; i < count; ++i) {
      auto service = Service::start({.cores = cores}, token());
      if (!service) throw std::runtime_error(service.error().message);
      options.servers.push_back({(*service)->endpoint(), token()});
      services.push_back(std::move(*service));
    }
  }
};

Status run_rank(net::Session& session, const ServerOptions& options, const Layout& layout, std::uint64_t steps,
                std::vector<std::vector<float>>& held) {
  MOTLEY_ASSIGN(const auto reducer, ServerReducer::create(session, options));
  MOTLEY_TRY(reducer->prepare(layout, Deadline::after(20)));
  if (reducer->updates_weights()) {
    ServerState start;
    for (std::size_t bucket = 0; bucket < layout.bucket_elements.size(); ++bucket) {
      auto& values = start.weights.emplace_back();
      for (std::size_t e = 0; e < layout.bucket_elements[bucket]; ++e) {
        values.push_back(static_cast<float>(start_weight(static_cast<int>(bucket), e)));
      }
    }
    MOTLEY_TRY(reducer->load(start, Deadline::after(20)));
  }
  reducer->set_learning_rate(kRate);
  const int rank = session.membership().rank;
  const int buckets = static_cast<int>(layout.bucket_elements.size());
  for (std::uint64_t step = 0; step < steps; ++step) {
    const double weight = make_weight(rank, step);
    for (int bucket = 0; bucket < buckets; ++bucket) {
      const auto bytes = reducer->buffer(bucket);
      const std::span values(reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float));
      for (std::size_t e = 0; e < values.size(); ++e) {
        values[e] = weight == 0 ? NAN : static_cast<float>(gradient(rank, step, bucket, e));
      }
      MOTLEY_TRY(reducer->start(step, bucket, weight));
    }
    held.clear();
    for (int bucket = 0; bucket < buckets; ++bucket) {
      MOTLEY_TRY(reducer->wait(bucket, Deadline::after(20)));
      const auto* values = reducer->updates_weights() ? reducer->weights(bucket).data()
                                                      : reinterpret_cast<const float*>(reducer->buffer(bucket).data());
      held.emplace_back(values, values + layout.bucket_elements[static_cast<std::size_t>(bucket)]);
    }
  }
  return {};
}

TEST_P(Lossy, EqualsTheReference) {
  const Case& c = GetParam();
  constexpr int kCores = 2;
  Layout layout;
  layout.bucket_elements = {5000, 1, 12345, 700};
  for (const int size : {1, 2, 4}) {
    for (const std::uint64_t steps : {1, 2, 7}) {
      Servers servers(c.servers, kCores);
      servers.options.wire = c.wire;
      servers.options.top_k = kTopK;
      servers.options.update = {.rule = c.rule, .momentum = 0.9};
      std::vector<std::vector<std::vector<float>>> held(static_cast<std::size_t>(size));
      collective::run_threads(size, true, [&](int rank, collective::ThreadSession& session) {
        const Status ran = run_rank(session, servers.options, layout, steps, held[static_cast<std::size_t>(rank)]);
        EXPECT_TRUE(ran) << ran.error().message;
      });
      for (const auto& other : held) ASSERT_EQ(other, held[0]);  // bitwise, whatever was lost

      const auto map = make_chunk_map(layout.bucket_elements, servers.options.chunk_bytes, c.servers * kCores);
      std::size_t differ = 0;
      std::size_t all = 0;
      for (const Segment& segment : map.segments) {
        Reference reference(c, size, segment);
        Values expected;
        for (std::uint64_t step = 0; step < steps; ++step) expected = reference.step(step);
        for (std::size_t e = 0; e < segment.count; ++e, ++all) {
          const double got = held[0][static_cast<std::size_t>(segment.bucket)][segment.begin + e];
          if (std::fabs(got - expected[e]) > 1e-5) ++differ;
        }
      }
      // A value that lies within float32's rounding of a tie may go the other way than it does in double precision.
      EXPECT_LE(static_cast<double>(differ), 0.002 * static_cast<double>(all))
          << size << " ranks, " << steps << " steps";
    }
  }
}

TEST(LossyReducer, IsNotUsedInSharedMemory) {
  Servers servers(1, 1);
  servers.options.servers_share_memory = true;
  servers.options.wire = WireType::kTopK;
  servers.options.update = {.rule = UpdateRule::kSgd};
  Layout layout;
  layout.bucket_elements = {300};
  collective::run_threads(2, true, [&](int, collective::ThreadSession& session) {
    std::vector<std::vector<float>> held;
    const Status ran = run_rank(session, servers.options, layout, 1, held);
    ASSERT_TRUE(ran) << ran.error().message;
    for (std::size_t e = 0; e < held[0].size(); ++e) {  // all values have moved by all of the gradient
      const double one = make_weight(0, 0) * gradient(0, 0, 0, e);
      const double other = make_weight(1, 0) * gradient(1, 0, 0, e);
      EXPECT_NEAR(held[0][e], start_weight(0, e) - kRate * (one + other) / (make_weight(0, 0) + make_weight(1, 0)),
                  1e-6);
    }
  });
}

TEST(LossyReducer, NamesWhatIsWrong) {
  Servers servers(1, 1);
  Layout layout;
  layout.bucket_elements = {300};
  collective::run_threads(1, true, [&](int, collective::ThreadSession& session) {
    for (const double top_k : {0.0, -1.0, 0.7, std::nan("")}) {
      ServerOptions options = servers.options;
      options.wire = WireType::kTopK;
      options.top_k = top_k;
      std::vector<std::vector<float>> held;
      const Status ran = run_rank(session, options, layout, 1, held);
      ASSERT_FALSE(ran);
      EXPECT_THAT(ran.error().message, HasSubstr("gradient_sync.top_k"));
    }
    for (const WireType wire : {WireType::kInt8, WireType::kTopK, WireType::kAuto}) {
      const auto created = collective::make_reducer(session, {.method = collective::Method::kTcpRing, .wire = wire});
      ASSERT_FALSE(created);
      EXPECT_THAT(created.error().message, HasSubstr("gradient_sync.comm_dtype"));
    }
  });
  collective::run_threads(2, true, [&](int rank, collective::ThreadSession& session) {
    ServerOptions options = servers.options;
    options.wire = WireType::kTopK;
    options.top_k = rank == 0 ? 0.1 : 0.2;
    std::vector<std::vector<float>> held;
    const Status ran = run_rank(session, options, layout, 1, held);
    ASSERT_FALSE(ran);
    EXPECT_THAT(ran.error().message, HasSubstr("top-k of 0.1 and top-k of 0.2"));
  });
}

TEST(ChooseWire, ChoosesAlikeOnAllRanksAndNeverInSharedMemory) {
  for (const bool shares_memory : {false, true}) {
    Servers servers(1, 2);
    servers.options.servers_share_memory = shares_memory;
    servers.options.wire = WireType::kAuto;
    servers.options.update = {.rule = UpdateRule::kMomentum, .momentum = 0.9};
    Layout layout;
    layout.bucket_elements = {3000, 5000};
    std::vector<WireType> chosen(3, WireType::kAuto);
    collective::run_threads(3, true, [&](int rank, collective::ThreadSession& session) {
      const auto group = collective::make_group(session);
      ASSERT_TRUE(group) << group.error().message;
      const auto wire = train::choose_wire(session, **group, servers.options, layout, Deadline::after(20));
      ASSERT_TRUE(wire) << wire.error().message;
      chosen[static_cast<std::size_t>(rank)] = *wire;
      ServerOptions options = servers.options;  // the job's own exchange is not in the way of the trials'
      options.wire = *wire;
      std::vector<std::vector<float>> held;
      const Status ran = run_rank(session, options, layout, 2, held);
      EXPECT_TRUE(ran) << ran.error().message;
    });
    for (const WireType wire : chosen) {
      EXPECT_EQ(wire, chosen[0]);
      EXPECT_NE(wire, WireType::kAuto);
      EXPECT_TRUE(!shares_memory || wire == WireType::kNative);
    }
  }
}

}  // namespace
}  // namespace motley::ps
