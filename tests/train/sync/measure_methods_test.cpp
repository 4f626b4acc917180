// What gradient_sync.method auto finds out where there is a server: one choice on all ranks, and no trace of the probe.
#include "motley/train/sync/choose_method.h"

#include <gmock/gmock.h>

#include <mutex>

#include "motley/ps/service/service.h"
#include "tests/collective/ranks.h"

namespace motley::train {
namespace {

using collective::Method;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kSeconds = 20;

struct Chosen {
  std::vector<MethodChoice> by_rank;
  std::vector<std::string> gradient_syncs;
};

// Every rank measures, and then trains a step with what was chosen, at the same server under the same name.
Chosen choose(int ranks, bool one_host, collective::WireType wire,
              collective::DataType type = collective::DataType::kFloat32) {
  const net::Secret token = net::Secret::generate();
  const auto service = ps::Service::start({.cores = 2}, token);
  Chosen chosen;
  if (!service) {
    ADD_FAILURE() << service.error().message;
    return chosen;
  }
  ps::ServerOptions options;
  options.servers = {{(*service)->endpoint(), token}};
  options.wire = wire;
  options.update = {.rule = kernels::UpdateRule::kMomentum, .momentum = 0.9};
  collective::Layout layout{.type = type, .bucket_elements = {300'000, 17}};
  std::mutex mutex;
  collective::run_threads(ranks, one_host, [&](int, collective::ThreadSession& session) {
    const auto group = collective::make_group(session);
    ASSERT_TRUE(group);
    const auto choice = measure_and_choose(session, **group, options, layout, Deadline::after(kSeconds));
    ASSERT_TRUE(choice) << choice.error().message;
    ps::ServerOptions how = options;
    how.method = choice->method;
    const auto created = train::make_reducer(session, how);
    ASSERT_TRUE(created) << created.error().message;
    collective::GradientReducer& reducer = *created->reducer;
    const Status prepared = reducer.prepare(layout, Deadline::after(kSeconds));
    ASSERT_TRUE(prepared) << prepared.error().message;
    if (created->server_optimizer != nullptr) {
      ps::ServerState zeros;
      for (const std::size_t elements : layout.bucket_elements) zeros.weights.emplace_back(elements);
      ASSERT_TRUE(created->server_optimizer->load(zeros, Deadline::after(kSeconds)));
    }
    for (int bucket = 0; bucket < 2; ++bucket) {
      std::ranges::fill(reducer.buffer(bucket), std::byte{0});
      ASSERT_TRUE(reducer.start(1, bucket, 1));
    }
    for (int bucket = 0; bucket < 2; ++bucket) ASSERT_TRUE(reducer.wait(bucket, Deadline::after(kSeconds)));
    const std::lock_guard lock(mutex);
    chosen.by_rank.push_back(*choice);
    chosen.gradient_syncs.push_back(reducer.name());
  });
  EXPECT_EQ(chosen.by_rank.size(), static_cast<std::size_t>(ranks));
  for (const auto& choice : chosen.by_rank) EXPECT_EQ(choice.method, chosen.by_rank.front().method);
  for (const auto& name : chosen.gradient_syncs) EXPECT_EQ(name, chosen.gradient_syncs.front());
  return chosen;
}

TEST(MeasureAndChoose, ComparesTheRingWithTheServerBetweenHosts) {
  const Chosen chosen = choose(3, false, collective::WireType::kNative);
  ASSERT_FALSE(chosen.by_rank.empty());
  EXPECT_THAT(chosen.by_rank[0].explanation(), AllOf(HasSubstr("tcp-ring: "), HasSubstr("parameter-server: ")));
  EXPECT_EQ(chosen.gradient_syncs[0], to_string(chosen.by_rank[0].method));
}

TEST(MeasureAndChoose, ComparesMemoryOnOneHost) {
  const Chosen chosen = choose(2, true, collective::WireType::kNative);
  ASSERT_FALSE(chosen.by_rank.empty());
  EXPECT_THAT(chosen.by_rank[0].explanation(),
              AllOf(HasSubstr("shared-memory: "), HasSubstr("parameter-server: "), HasSubstr("of memory")));
}

TEST(MeasureAndChoose, LeavesOutWhatCannotCarryTheType) {
  const Chosen half = choose(2, false, collective::WireType::kFloat16);
  ASSERT_FALSE(half.by_rank.empty());
  EXPECT_EQ(half.by_rank[0].method, Method::kParameterServer);
  const Chosen wide = choose(2, false, collective::WireType::kNative, collective::DataType::kFloat64);
  ASSERT_FALSE(wide.by_rank.empty());
  EXPECT_EQ(wide.by_rank[0].method, Method::kTcpRing);
  EXPECT_THAT(wide.by_rank[0].explanation(), Not(HasSubstr("parameter-server")));
}

}  // namespace
}  // namespace motley::train
