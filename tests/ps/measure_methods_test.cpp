// What exchange.method auto finds out where there is a server: one choice on all ranks, and no trace of the probe.
#include "motley/collective/measure_methods.h"

#include <gmock/gmock.h>

#include <mutex>

#include "motley/ps/service.h"
#include "tests/collective/ranks.h"

namespace motley::ps {
namespace {

using collective::Method;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kSeconds = 20;

struct Chosen {
  std::vector<collective::MethodChoice> by_rank;
  std::vector<std::string> exchanges;
};

// Every rank measures, and then trains a step with what was chosen, at the same server under the same name.
Chosen choose(int ranks, bool one_host, collective::WireType wire,
              collective::DataType type = collective::DataType::kFloat32) {
  const net::Secret token = net::Secret::generate();
  const auto service = Service::start({.cores = 2}, token);
  Chosen chosen;
  if (!service) {
    ADD_FAILURE() << service.error().message;
    return chosen;
  }
  collective::ExchangeOptions options;
  options.servers = {{(*service)->endpoint(), token}};
  options.wire = wire;
  options.update = {.rule = kernels::UpdateRule::kMomentum, .momentum = 0.9};
  collective::Layout layout{.type = type, .bucket_elements = {300'000, 17}};
  std::mutex mutex;
  collective::run_threads(ranks, one_host, [&](int, collective::ThreadSession& session) {
    const auto group = collective::make_group(session);
    ASSERT_TRUE(group);
    const auto choice = collective::measure_and_choose(session, **group, options, layout, Deadline::after(kSeconds));
    ASSERT_TRUE(choice) << choice.error().message;
    collective::ExchangeOptions how = options;
    how.method = choice->method;
    const auto made = collective::make_exchange(session, how);
    ASSERT_TRUE(made) << made.error().message;
    const Status prepared = (*made)->prepare(layout, Deadline::after(kSeconds));
    ASSERT_TRUE(prepared) << prepared.error().message;
    if ((*made)->updates_weights()) {
      collective::ServerState zeros;
      for (const std::size_t elements : layout.bucket_elements) zeros.weights.emplace_back(elements);
      ASSERT_TRUE((*made)->load(zeros, Deadline::after(kSeconds)));
    }
    for (int bucket = 0; bucket < 2; ++bucket) {
      std::ranges::fill((*made)->buffer(bucket), std::byte{0});
      ASSERT_TRUE((*made)->start(1, bucket, 1));
    }
    for (int bucket = 0; bucket < 2; ++bucket) ASSERT_TRUE((*made)->wait(bucket, Deadline::after(kSeconds)));
    const std::lock_guard lock(mutex);
    chosen.by_rank.push_back(*choice);
    chosen.exchanges.push_back((*made)->name());
  });
  EXPECT_EQ(chosen.by_rank.size(), static_cast<std::size_t>(ranks));
  for (const auto& choice : chosen.by_rank) EXPECT_EQ(choice.method, chosen.by_rank.front().method);
  for (const auto& name : chosen.exchanges) EXPECT_EQ(name, chosen.exchanges.front());
  return chosen;
}

TEST(MeasureAndChoose, ComparesTheRingWithTheServerBetweenHosts) {
  const Chosen chosen = choose(3, false, collective::WireType::kNative);
  ASSERT_FALSE(chosen.by_rank.empty());
  EXPECT_THAT(chosen.by_rank[0].explanation(), AllOf(HasSubstr("tcp-ring: "), HasSubstr("parameter-server: ")));
  EXPECT_EQ(chosen.exchanges[0], to_string(chosen.by_rank[0].method));
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
}  // namespace motley::ps
