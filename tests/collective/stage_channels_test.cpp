// Rows that flow between neighbours in both directions at once, sessions of some ranks of a job, and what is said when
// a neighbour does not come.
#include "motley/collective/stage_channels.h"

#include <gmock/gmock.h>

#include <cstring>
#include <latch>
#include <memory>

#include "motley/base/random.h"
#include "motley/collective/gradient_reducer.h"
#include "motley/net/derived_session.h"
#include "tests/collective/ranks.h"

namespace motley::collective {
namespace {

using ::testing::HasSubstr;

std::vector<std::byte> make_rows(int from, int to, std::uint64_t tag, std::size_t bytes) {
  Random random(mix({static_cast<std::uint64_t>(from), static_cast<std::uint64_t>(to), tag}));
  std::vector<std::byte> rows(bytes);
  for (std::byte& value : rows) value = static_cast<std::byte>(random.next());
  return rows;
}

TEST(StageChannels, CarryRowsBothWaysAndLetOwnersGo) {
  constexpr int kSize = 3;
  constexpr std::uint64_t kFrames = 20;
  const auto payload_size = [](std::uint64_t tag) { return tag % 3 == 0 ? 0 : 1 + tag * 77'777 % 900'000; };
  run_threads(kSize, true, [&](int rank, ThreadSession& session) {
    std::vector<int> peers;
    for (int peer = 0; peer < kSize; ++peer) {
      if (peer != rank) peers.push_back(peer);
    }
    auto channels = StageChannels::connect(session, peers, Deadline::after(20));
    ASSERT_TRUE(channels) << channels.error().message;
    std::vector<std::weak_ptr<void>> owners;
    std::vector<std::vector<std::byte>> landed;
    landed.reserve(peers.size() * kFrames);
    for (std::uint64_t tag = 0; tag < kFrames; ++tag) {
      std::vector<std::pair<int, std::uint64_t>> numbers;
      for (const int peer : peers) {
        const auto rows = std::make_shared<std::vector<std::byte>>(make_rows(rank, peer, tag, payload_size(tag)));
        owners.push_back(std::weak_ptr<void>(rows));
        ASSERT_TRUE((*channels)->send(peer, tag, *rows, rows));
        landed.emplace_back(payload_size(tag));
        const auto number = (*channels)->receive(peer, tag, landed.back());
        ASSERT_TRUE(number) << number.error().message;
        numbers.emplace_back(peer, *number);
      }
      if (tag % 2 == 0) continue;  // two are on their way at a time
      for (const auto& [peer, number] : numbers) {
        const Status came = (*channels)->wait(peer, number, Deadline::after(20), [] { return std::string("rows"); });
        ASSERT_TRUE(came) << came.error().message;
        EXPECT_TRUE((*channels)->has_come(peer, number));
        EXPECT_EQ(landed[landed.size() - numbers.size() + static_cast<std::size_t>(peer > rank ? peer - 1 : peer)],
                  make_rows(peer, rank, tag, payload_size(tag)));
      }
    }
    ASSERT_TRUE((*channels)->flush(Deadline::after(20)));
    for (const auto& owner : owners) EXPECT_TRUE(owner.expired());
  });
}

TEST(StageChannels, NameANeighbourThatDoesNotCome) {
  std::latch has_waited(1);
  run_threads(2, true, [&](int rank, ThreadSession& session) {
    const std::shared_ptr<void> end(nullptr, [&](void*) {
      if (rank == 0) has_waited.count_down();
    });
    auto channels = StageChannels::connect(session, {1 - rank}, Deadline::after(20));
    ASSERT_TRUE(channels) << channels.error().message;
    if (rank == 1) {
      has_waited.wait();  // or rank 0 would see a closed connection
      return;
    }
    std::vector<std::byte> rows(8);
    const auto number = (*channels)->receive(1, 7, rows);
    ASSERT_TRUE(number);
    EXPECT_FALSE((*channels)->has_come(1, *number));
    const Status came =
        (*channels)->wait(1, *number, Deadline::after(0.2), [] { return std::string("micro-batch 7"); });
    ASSERT_FALSE(came);
    EXPECT_THAT(came.error().message, HasSubstr("micro-batch 7"));
    EXPECT_THAT(came.error().message, HasSubstr("rank 1"));
    EXPECT_FALSE((*channels)->send(1, 8, rows, nullptr)) << "an error is final";
  });
}

// Ranks 0 and 2, and 1 and 3, each among themselves: groups and exchanges of both parts at once.
TEST(PartialSession, WorksAsASessionOfItsOwn) {
  for (const bool one_host : {true, false}) {
    run_threads(4, one_host, [&](int rank, ThreadSession& whole) {
      const std::vector<int> ranks = rank % 2 == 0 ? std::vector{0, 2} : std::vector{1, 3};
      const auto part = net::make_partial_session(whole, ranks, static_cast<std::uint16_t>(1 + rank % 2));
      EXPECT_EQ(part->membership().rank, rank / 2);
      EXPECT_EQ(part->job_rank(1), ranks[1]);
      auto group = make_group(*part);
      ASSERT_TRUE(group) << group.error().message;
      const double mine[] = {static_cast<double>(rank)};
      const auto all = (*group)->all_gather(mine, Deadline::after(20));
      ASSERT_TRUE(all) << all.error().message;
      EXPECT_EQ(*all, (std::vector<double>{static_cast<double>(ranks[0]), static_cast<double>(ranks[1])}));

      auto reducer = make_reducer(*part, {});
      ASSERT_TRUE(reducer) << reducer.error().message;
      Layout layout;
      layout.bucket_elements = {1000};
      ASSERT_TRUE((*reducer)->prepare(layout, Deadline::after(20)));
      const auto buffer = (*reducer)->buffer(0);
      const std::span values(reinterpret_cast<float*>(buffer.data()), 1000);
      std::ranges::fill(values, static_cast<float>(rank));
      ASSERT_TRUE((*reducer)->start(1, 0, 1 + rank / 2));  // weights 1 and 2
      const auto outcome = (*reducer)->wait(0, Deadline::after(20));
      ASSERT_TRUE(outcome) << outcome.error().message;
      for (const float value : values) {
        EXPECT_FLOAT_EQ(value, static_cast<float>(ranks[0] + 2 * ranks[1]) / 3);
      }
      ASSERT_TRUE((*group)->barrier(Deadline::after(20)));
    });
  }
}

TEST(PartialSession, NamesRanksAsTheJobDoes) {
  run_threads(3, true, [&](int rank, ThreadSession& whole) {
    if (rank == 0) return;
    const auto part = net::make_partial_session(whole, {1, 2}, 1);
    auto group = make_group(*part);
    ASSERT_TRUE(group) << group.error().message;
    if (rank == 2) return;
    const Status alone = (*group)->barrier(Deadline::after(0.2));
    ASSERT_FALSE(alone);
    EXPECT_THAT(alone.error().message, HasSubstr("rank 2 (last seen: phase of 2)"));
    EXPECT_EQ(alone.error().rank, 2);
  });
}

}  // namespace
}  // namespace motley::collective
