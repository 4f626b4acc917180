// What exchange.method auto finds out where there is a server: one choice on all ranks, and no trace of the probe.
#include "motley/exchange/measure_methods.h"

#include <gmock/gmock.h>

#include <mutex>

#include "motley/server/service.h"
#include "tests/exchange/ranks.h"

namespace motley::server {
namespace {

using exchange::Method;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kSeconds = 20;

struct Chosen {
  std::vector<exchange::MethodChoice> by_rank;
  std::vector<std::string> exchanges;
};

// Every rank measures, and then trains a step with what was chosen, at the same server under the same name.
Chosen choose(int ranks, bool one_host, exchange::WireType wire,
              exchange::DataType type = exchange::DataType::kFloat32) {
  const transport::Secret token = transport::Secret::generate();
  const auto service = Service::start({.cores = 2}, token);
  Chosen chosen;
  if (!service) {
    ADD_FAILURE() << service.error().message;
    return chosen;
  }
  exchange::ExchangeOptions options;
  options.servers = {{(*service)->endpoint(), token}};
  options.wire = wire;
  options.update = {.rule = kernels::UpdateRule::kMomentum, .momentum = 0.9};
  exchange::Layout layout{.type = type, .bucket_elements = {300'000, 17}};
  std::mutex mutex;
  exchange::run_threads(ranks, one_host, [&](int, exchange::ThreadSession& session) {
    const auto group = exchange::make_group(session);
    ASSERT_TRUE(group);
    const auto choice = exchange::measure_and_choose(session, **group, options, layout, Deadline::after(kSeconds));
    ASSERT_TRUE(choice) << choice.error().message;
    exchange::ExchangeOptions how = options;
    how.method = choice->method;
    const auto made = exchange::make_exchange(session, how);
    ASSERT_TRUE(made) << made.error().message;
    const Status prepared = (*made)->prepare(layout, Deadline::after(kSeconds));
    ASSERT_TRUE(prepared) << prepared.error().message;
    if ((*made)->updates_weights()) {
      exchange::ServerState zeros;
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
  const Chosen chosen = choose(3, false, exchange::WireType::kNative);
  ASSERT_FALSE(chosen.by_rank.empty());
  EXPECT_THAT(chosen.by_rank[0].explanation(), AllOf(HasSubstr("tcp-ring: "), HasSubstr("parameter-server: ")));
  EXPECT_EQ(chosen.exchanges[0], to_string(chosen.by_rank[0].method));
}

TEST(MeasureAndChoose, ComparesMemoryOnOneHost) {
  const Chosen chosen = choose(2, true, exchange::WireType::kNative);
  ASSERT_FALSE(chosen.by_rank.empty());
  EXPECT_THAT(chosen.by_rank[0].explanation(),
              AllOf(HasSubstr("shared-memory: "), HasSubstr("parameter-server: "), HasSubstr("of memory")));
}

TEST(MeasureAndChoose, LeavesOutWhatCannotCarryTheType) {
  const Chosen half = choose(2, false, exchange::WireType::kFloat16);
  ASSERT_FALSE(half.by_rank.empty());
  EXPECT_EQ(half.by_rank[0].method, Method::kParameterServer);
  const Chosen wide = choose(2, false, exchange::WireType::kNative, exchange::DataType::kFloat64);
  ASSERT_FALSE(wide.by_rank.empty());
  EXPECT_EQ(wide.by_rank[0].method, Method::kTcpRing);
  EXPECT_THAT(wide.by_rank[0].explanation(), Not(HasSubstr("parameter-server")));
}

}  // namespace
}  // namespace motley::server
