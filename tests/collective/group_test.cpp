// The small collectives over shared memory and over TCP.
#include <gmock/gmock.h>

#include <numeric>

#include "motley/base/random.h"
#include "motley/collective/gradient_reducer.h"
#include "motley/collective/present_group.h"
#include "motley/net/derived_session.h"
#include "tests/collective/ranks.h"

namespace motley::collective {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// On one host the group uses shared memory, else TCP.
class EveryGroup : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Group, EveryGroup, ::testing::Values(true, false),
                         [](const auto& info) { return info.param ? "shared_memory" : "tcp"; });

void run_groups(int size, bool one_host, const std::function<void(int, Group&)>& body) {
  run_threads(size, one_host, [&](int rank, ThreadSession& session) {
    auto group = make_group(session);
    ASSERT_TRUE(group) << group.error().message;
    body(rank, **group);
  });
}

TEST_P(EveryGroup, GathersSumsAndBroadcastsAnySize) {
  for (int size = 1; size <= 4; ++size) {
    run_groups(size, GetParam(), [&](int rank, Group& group) {
      for (std::size_t count : {0, 1, 3, 100, 100'000}) {
        std::vector<double> mine(count);
        std::iota(mine.begin(), mine.end(), 0.1 * rank);
        const auto all = group.all_gather(mine, Deadline::after(30));
        ASSERT_TRUE(all) << all.error().message;
        ASSERT_EQ(all->size(), count * static_cast<std::size_t>(size));
        std::vector<double> sum = mine;
        ASSERT_TRUE(group.all_reduce_sum(sum, Deadline::after(30)));
        for (std::size_t e = 0; e < count; ++e) {
          double expected = 0;
          for (int other = 0; other < size; ++other) {
            const double value = 0.1 * other + static_cast<double>(e);
            ASSERT_NEAR((*all)[static_cast<std::size_t>(other) * count + e], value, 1e-9);
            expected += (*all)[static_cast<std::size_t>(other) * count + e];
          }
          ASSERT_EQ(sum[e], expected);
        }
      }
      for (std::size_t bytes : {0, 1, 1000, 1'500'000}) {
        for (int root = 0; root < size; ++root) {
          std::vector<std::byte> data(bytes);
          for (std::size_t b = 0; b < bytes; ++b) {
            data[b] = rank == root ? static_cast<std::byte>(b * 31 + static_cast<std::size_t>(root)) : std::byte{0xee};
          }
          ASSERT_TRUE(group.broadcast(data, root, Deadline::after(30)));
          for (std::size_t b = 0; b < bytes; ++b) {
            ASSERT_EQ(data[b], static_cast<std::byte>(b * 31 + static_cast<std::size_t>(root))) << b;
          }
        }
      }
      ASSERT_TRUE(group.barrier(Deadline::after(30)));
    });
  }
}

TEST_P(EveryGroup, BarrierHoldsEverybodyBack) {
  std::atomic<int> arrived = 0;
  run_groups(4, GetParam(), [&](int rank, Group& group) {
    for (int round = 1; round <= 50; ++round) {
      if ((rank + round) % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
      ++arrived;
      ASSERT_TRUE(group.barrier(Deadline::after(30)));
      ASSERT_GE(arrived, 4 * round);
      ASSERT_TRUE(group.barrier(Deadline::after(30)));
    }
  });
}

TEST_P(EveryGroup, CountersHandOutEveryTicketOnce) {
  constexpr int kTickets = 400;
  std::mutex mutex;
  std::vector<int> taken(kTickets);
  run_groups(3, GetParam(), [&](int, Group& group) {
    for (int time = 0; time < 2; ++time) {
      ASSERT_TRUE(group.barrier(Deadline::after(30)));
      for (;;) {
        const auto ticket = group.fetch_add(5 + time, 2, Deadline::after(30));
        ASSERT_TRUE(ticket) << ticket.error().message;
        if (*ticket >= kTickets) break;
        std::lock_guard lock(mutex);
        ++taken[static_cast<std::size_t>(*ticket)];
        ++taken[static_cast<std::size_t>(*ticket) + 1];
      }
    }
    ASSERT_EQ(group.fetch_add(3, 1, Deadline::after(30)).value() / 3, 0);  // another counter
    ASSERT_TRUE(group.barrier(Deadline::after(30)));
  });
  EXPECT_THAT(taken, ::testing::Each(2));
}

TEST_P(EveryGroup, NamesTheRankThatDoesNotCome) {
  std::atomic<int> waiting = 1;
  run_groups(3, GetParam(), [&](int rank, Group& group) {
    ASSERT_TRUE(group.barrier(Deadline::after(30)));
    if (rank != 0) {
      while (waiting > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return;
    }
    const std::vector<double> values = {1};
    const auto all = group.all_gather(values, Deadline::after(0.1));
    --waiting;
    ASSERT_FALSE(all);
    EXPECT_EQ(all.error().code, ErrorCode::kTimeout);
    EXPECT_EQ(all.error().rank, 1);
    EXPECT_THAT(all.error().message, AllOf(HasSubstr("all_gather"), HasSubstr("operation"), HasSubstr("rank 1")));
  });
}

TEST_P(EveryGroup, NoticesDifferentOperations) {
  std::atomic<int> failures = 0;
  std::atomic<int> done = 0;
  run_groups(2, GetParam(), [&](int rank, Group& group) {
    std::vector<double> values(rank == 0 ? 2 : 3);
    failures += !group.all_gather(values, Deadline::after(0.5));
    ++done;
    while (done < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  EXPECT_EQ(failures, 2);
}

// Who has a full socket before it learns of a loss as who waits for an answer does.
TEST(TcpGroup, ALossEndsASendThatNobodyTakes) {
  std::atomic<bool> is_over = false;
  run_threads(2, false, [&](int rank, ThreadSession& session) {
    auto group = make_group(session);
    ASSERT_TRUE(group) << group.error().message;
    if (rank == 1) {  // takes nothing
      session.abort({ErrorCode::kPeerLost, "rank 1 is lost", 1});
      is_over.wait(false);
      return;
    }
    std::vector<std::byte> large(64 << 20);  // more than any socket holds
    const Status sent = (*group)->broadcast(large, 0, Deadline::after(60));
    is_over = true;
    is_over.notify_all();
    ASSERT_FALSE(sent);
    EXPECT_EQ(sent.error().code, ErrorCode::kPeerLost);
    EXPECT_THAT(sent.error().message, AllOf(HasSubstr("rank 1 is lost"), HasSubstr("broadcast")));
  });
}

TEST(PresentGroup, WhoIsNotThereGivesZeros) {
  run_threads(3, true, [](int rank, ThreadSession& session) {
    if (rank == 1) return;
    const auto part = net::make_partial_session(session, {0, 2}, 7);
    PresentGroup group(3);
    group.use(*make_shared_group(*part, "group", Deadline::after(20)), {0, 2});
    const double own[] = {10.0 + rank, 20.0 + rank};
    const auto all = group.all_gather(own, Deadline::after(20));
    ASSERT_TRUE(all) << all.error().message;
    EXPECT_EQ(*all, (std::vector<double>{10, 20, 0, 0, 12, 22}));
    int word = rank;
    ASSERT_TRUE(group.broadcast(std::as_writable_bytes(std::span(&word, 1)), 2, Deadline::after(20)));
    EXPECT_EQ(word, 2);
    double sum[] = {1.0 + rank};
    ASSERT_TRUE(group.all_reduce_sum(sum, Deadline::after(20)));
    EXPECT_EQ(sum[0], 4);
    ASSERT_TRUE(group.barrier(Deadline::after(20)));
  });
}

TEST(Group, AKilledProcessIsNamed) {
  const auto ends = run_processes(3, [&](int rank, net::Session& session) {
    auto group = make_group(session);
    if (!group || !(*group)->barrier(Deadline::after(30))) return 2;
    if (rank == 1) ::kill(::getpid(), SIGKILL);
    const Status status = (*group)->barrier(Deadline::after(60));
    if (status || status.error().rank != 1) return 3;
    session.abort(status.error());
    return 0;
  });
  EXPECT_TRUE(WIFEXITED(ends[0]) && WEXITSTATUS(ends[0]) == 0) << ends[0];
  EXPECT_TRUE(WIFEXITED(ends[2]) && WEXITSTATUS(ends[2]) == 0) << ends[2];
}

}  // namespace
}  // namespace motley::collective
