// Channels over which nothing is to come: a core sees all the same that one has ended, and need not look at it again
// and again.
#include <gmock/gmock.h>
#include <poll.h>

#include <optional>

#include "motley/net/socket.h"
#include "motley/ps/dense/replica.h"
#include "tests/collective/ranks.h"

namespace motley::ps {
namespace {

using ::testing::HasSubstr;

// At a server of four cores, whose job has one segment: the first core's.
class IdleChannels : public ::testing::Test {
 protected:
  static constexpr int kCores = 4;

  static std::shared_ptr<DenseJob> make_job() {
    ServerJoin join;
    join.bins = 2 * kCores;
    join.chunk_bytes = 4096;
    join.bucket_elements = {16};
    join.update.rule = kernels::UpdateRule::kMomentum;
    join.elastic.kept_seconds = 30;
    join.elastic.kept = {kCores, kCores};
    return DenseJob::create(join, kCores, std::vector<std::unique_ptr<net::Region>>(join.size), false).value();
  }

  // The server's end of a new channel.
  std::unique_ptr<net::Connection> open() {
    const Deadline deadline = Deadline::after(20);
    const std::uint32_t purpose = opened_++;
    auto own = server_.connect(1, purpose, deadline).value();
    other_end_ = peer_.connect(0, purpose, deadline).value();
    return own;
  }

  std::unique_ptr<AggregationTask> make_shard(int core, std::unique_ptr<net::Connection> replica = nullptr) {
    Channels channels;
    channels.push_back(open());
    return make_shard_task(make_job(), core, std::move(channels), std::move(replica), tell_lost());
  }
  TellLost tell_lost() {
    return [this](Error error) { lost_ = std::move(error); };
  }

  // What the task says of a channel over which something has come.
  void expect_lost(AggregationTask& task, std::size_t channel, ErrorCode code) {
    EXPECT_FALSE(task.ended(channel));
    ASSERT_TRUE(net::wait_for(task.channels()[channel]->descriptor(), POLLIN, 20'000));
    lost_.reset();
    task.progress(channel);
    EXPECT_TRUE(task.ended(channel));
    ASSERT_TRUE(lost_);
    EXPECT_EQ(lost_->code, code) << lost_->message;
  }

  collective::Hub hub_{collective::unique_session()};
  collective::ThreadSession server_{hub_, 0, 2};
  collective::ThreadSession peer_{hub_, 1, 2};
  std::uint32_t opened_ = 0;
  std::unique_ptr<net::Connection> other_end_;  // of the channel that was opened last
  std::optional<Error> lost_;
};

TEST_F(IdleChannels, OfRanksAreSeenToEndOnCoresWithoutSegments) {
  for (int core = 0; core < kCores; ++core) {
    SCOPED_TRACE(core);
    const auto task = make_shard(core);
    task->progress(0);
    other_end_->close();
    expect_lost(*task, 0, ErrorCode::kPeerLost);
  }
}

TEST_F(IdleChannels, ToAKeeperAreSeenToEndBetweenUpdates) {
  auto replica = open();
  const auto keeper = std::move(other_end_);
  const auto task = make_shard(0, std::move(replica));
  task->progress(1);
  keeper->close();
  expect_lost(*task, 1, ErrorCode::kPeerLost);
  EXPECT_FALSE(task->ended(0));
}

TEST_F(IdleChannels, OfReplicasWithoutSegmentsAreSeenToEnd) {
  for (int core = 0; core < kCores; ++core) {
    SCOPED_TRACE(core);
    const auto task = make_replica_task(make_job(), core, open(), tell_lost());
    task->progress(0);
    other_end_->close();
    expect_lost(*task, 0, ErrorCode::kPeerLost);
  }
}

// A round has two frames; those of the next round are not read before this one's are summed.
TEST_F(IdleChannels, ThatBringMoreThanFitsAreNotReadAndAreSeenToEnd) {
  const auto task = make_shard(0);
  const std::vector<std::byte> gradient(64);
  const std::vector<Announcement> word(1);
  for (std::uint32_t round = 1; round <= 2; ++round) {
    ASSERT_TRUE(other_end_->send(kServerAnnounce, channel_tag(round, 0), std::as_bytes(std::span(word)),
                                 Deadline::after(20), "a word"));
    ASSERT_TRUE(other_end_->send(kServerPush, channel_tag(round, 0), gradient, Deadline::after(20), "a gradient"));
  }
  while (task->reads(0) && net::wait_for(task->channels()[0]->descriptor(), POLLIN, 20'000)) task->progress(0);
  EXPECT_FALSE(task->reads(0));
  task->progress(0);
  EXPECT_FALSE(task->ended(0));
  other_end_->close();
  ASSERT_TRUE(net::wait_for(task->channels()[0]->descriptor(), POLLRDHUP, 20'000));
  task->progress(0);
  EXPECT_TRUE(task->ended(0));
  ASSERT_TRUE(lost_);
  EXPECT_EQ(lost_->code, ErrorCode::kPeerLost) << lost_->message;
}

TEST_F(IdleChannels, ThatBringAFrameAllTheSameAreLost) {
  const auto task = make_shard(1);
  const std::vector<std::byte> gradient(64);
  ASSERT_TRUE(other_end_->send(kServerPush, channel_tag(1, 0), gradient, Deadline::after(20), "a gradient"));
  expect_lost(*task, 0, ErrorCode::kCorrupt);
  EXPECT_THAT(lost_->message, HasSubstr("that nobody expects"));
}

}  // namespace
}  // namespace motley::ps
