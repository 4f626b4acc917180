// What a launcher decides, by what it sees of processes that are none.
#include "motley/train/launch/launch_state.h"

#include <gmock/gmock.h>
#include <signal.h>

#include <utility>

namespace motley::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr int kExited = 0, kFailed = 1 << 8, kStopped = 130 << 8, kLeft = 143 << 8;  // as waitpid has them

class FakeProcesses final : public LaunchedProcesses {
 public:
  Result<int> start_worker(int rank, bool is_newcomer) override {
    if (cannot_start) return fail(ErrorCode::kIo, "no room");
    started.emplace_back(rank, is_newcomer);
    return 1000 + static_cast<int>(started.size());
  }
  void signal_worker(int worker, int signal) override { signals.emplace_back(worker, signal); }
  Status start_server() override {
    ++servers;
    return {};
  }
  void say(const std::string& text) override { said.push_back(text); }

  std::vector<std::pair<int, bool>> started;  // ranks, and whether they are newcomers
  std::vector<std::pair<int, int>> signals;   // to workers by their numbers
  std::vector<std::string> said;
  int servers = 0;
  bool cannot_start = false;
};

class LaunchStateTest : public ::testing::Test {
 protected:
  LaunchState& launch(const LaunchRules& rules) {
    state_.emplace(rules, processes_);
    EXPECT_TRUE(state_->start());
    return *state_;
  }
  LaunchState& launch_elastic(int replacements = 0) {
    return launch({.workers = 3, .min_workers = 2, .max_workers = 4, .replacements = replacements});
  }
  Status verdict() const { return state_->verdict(RunDirectory("nowhere")); }
  static Error error(ErrorCode code, int rank = -1) { return {code, "the end", rank}; }

  FakeProcesses processes_;
  std::optional<LaunchState> state_;
};

TEST_F(LaunchStateTest, ARigidJobEndsWithItsFirstLoss) {
  LaunchState& state = launch({.workers = 2, .grace_seconds = 3});
  state.follow_end(1, SIGSEGV, std::nullopt, 10);
  state.advance(12.9, 0);
  EXPECT_THAT(processes_.signals, IsEmpty());
  state.advance(13, 0);
  EXPECT_THAT(processes_.signals, ElementsAre(Pair(0, SIGKILL)));
  state.follow_end(0, SIGKILL, std::nullopt, 13.1);
  EXPECT_TRUE(state.is_over());
  EXPECT_EQ(verdict().error().rank, 1);
  EXPECT_THAT(verdict().error().message, HasSubstr("rank 1 (process 1002) was killed by signal 11"));
}

TEST_F(LaunchStateTest, AnElasticJobGoesOnWithWhoIsLeftAndTheirReplacements) {
  LaunchState& state = launch_elastic(1);
  state.follow_end(0, SIGKILL, std::nullopt, 1);
  EXPECT_EQ(processes_.started.back(), std::pair(0, true));
  EXPECT_THAT(processes_.said.back(), HasSubstr("rank 0 (process 1001) was killed by signal 9 (Killed); another one"));
  state.follow_end(3, SIGKILL, std::nullopt, 2);  // the replacement; there is no other one
  EXPECT_EQ(processes_.started.size(), 4U);
  EXPECT_THAT(processes_.said.back(), HasSubstr("; 2 workers are left"));
  state.advance(1000, 0);
  EXPECT_THAT(processes_.signals, IsEmpty());
  state.follow_end(1, kExited, std::nullopt, 1001);
  state.follow_end(2, kExited, std::nullopt, 1001);
  EXPECT_TRUE(state.is_over());
  EXPECT_TRUE(verdict());
}

// It ends as those do who have done all there was to do, and has not.
TEST_F(LaunchStateTest, ANewcomerThatComesTooLateEndsNobody) {
  LaunchState& state = launch_elastic(1);
  state.follow_end(0, SIGKILL, std::nullopt, 1);
  state.follow_end(3, kExited, error(ErrorCode::kUnavailable, 0), 2);
  state.advance(1000, 0);
  EXPECT_THAT(processes_.signals, IsEmpty());
  state.follow_end(1, kExited, std::nullopt, 1001);
  state.advance(1100, 0);
  EXPECT_THAT(processes_.signals, ElementsAre(Pair(2, SIGKILL))) << "one that hangs where all was done";
}

TEST_F(LaunchStateTest, TooFewWriteACheckpointAndEnd) {
  LaunchState& state = launch_elastic();
  state.follow_end(0, SIGKILL, std::nullopt, 1);
  state.follow_end(1, SIGKILL, std::nullopt, 2);
  state.advance(61.9, 0);
  EXPECT_THAT(processes_.signals, IsEmpty());
  state.follow_end(2, kFailed, error(ErrorCode::kPeerLost), 62);
  EXPECT_THAT(verdict().error().message, HasSubstr("rank 2: the end; there is no checkpoint yet"));
}

TEST_F(LaunchStateTest, TooFewMayWaitForOthersAsLongAsTheJobSays) {
  LaunchState& state = launch({.workers = 3, .min_workers = 2, .stop_seconds = 70, .join_seconds = 300});
  state.follow_end(0, SIGKILL, std::nullopt, 1);
  state.follow_end(1, SIGKILL, std::nullopt, 2);
  state.advance(2 + 300 + 70 - 0.1, 0);
  EXPECT_THAT(processes_.signals, IsEmpty());
  state.advance(2 + 300 + 70, 0);
  EXPECT_THAT(processes_.signals, ElementsAre(Pair(2, SIGKILL)));
}

TEST_F(LaunchStateTest, AfterAWorkersOwnErrorNobodyWaitsForOthers) {
  LaunchState& state = launch({.workers = 3, .min_workers = 2, .stop_seconds = 70, .join_seconds = 300});
  state.follow_end(1, kFailed, error(ErrorCode::kDiverged, 1), 2);
  state.advance(2 + 70, 0);
  EXPECT_THAT(processes_.signals, ElementsAre(Pair(0, SIGKILL), Pair(2, SIGKILL)));
}

TEST_F(LaunchStateTest, AStopLeavesTimeForACheckpointAndAnotherNone) {
  LaunchState& state = launch_elastic();
  state.stop(5);
  EXPECT_THAT(processes_.signals, ElementsAre(Pair(0, SIGINT), Pair(1, SIGINT), Pair(2, SIGINT)));
  state.advance(64, 0);
  EXPECT_EQ(processes_.signals.size(), 3U);
  state.follow_end(0, kStopped, error(ErrorCode::kInterrupted), 64);
  state.stop(64.5);
  state.advance(64.5, 0);
  EXPECT_EQ(processes_.signals.back(), std::pair(2, SIGKILL));
  state.follow_end(1, SIGKILL, std::nullopt, 65);
  state.follow_end(2, SIGKILL, std::nullopt, 65);
  EXPECT_EQ(verdict().error().code, ErrorCode::kInterrupted);
  EXPECT_THAT(verdict().error().message, ::testing::Not(HasSubstr("checkpoint was written")));
}

TEST_F(LaunchStateTest, AStopLeavesTimeForTheStepsUntilAllStop) {
  for (const int steps : {1, 20}) {
    LaunchState& state = launch({.workers = 1, .stop_seconds = 60, .steps_to_stop = steps});
    processes_.signals.clear();
    state.stop(5, [] { return 100.0; });
    state.advance(5 + 60 + 100 * steps - 0.1, 0);
    EXPECT_THAT(processes_.signals, ElementsAre(Pair(0, SIGINT)));
    state.advance(5 + 60 + 100 * steps, 0);
    EXPECT_EQ(processes_.signals.back(), std::pair(0, SIGKILL));
  }
}

TEST_F(LaunchStateTest, WhoStopsAtOnceIsNotToldOfEarlierLosses) {
  LaunchState& state = launch_elastic(1);
  state.follow_end(0, SIGKILL, std::nullopt, 1);
  state.stop(2);
  state.stop(2);
  state.advance(2, 0);
  for (const int worker : {1, 2, 3}) state.follow_end(worker, SIGKILL, std::nullopt, 2.1);
  EXPECT_EQ(verdict().error().code, ErrorCode::kInterrupted);
}

TEST_F(LaunchStateTest, AStopIsNoSuccessWhereOnlyNewcomersAreLeft) {
  LaunchState& state = launch_elastic(3);
  for (const int worker : {0, 1, 2}) state.follow_end(worker, SIGKILL, std::nullopt, 1);
  state.stop(2);
  for (const int worker : {3, 4, 5}) state.follow_end(worker, kExited, error(ErrorCode::kUnavailable), 3);
  EXPECT_EQ(verdict().error().code, ErrorCode::kPeerLost);
}

TEST_F(LaunchStateTest, AStopThatNewcomersAloneFollowIsAStop) {
  LaunchState& state = launch_elastic(3);
  for (const int worker : {0, 1, 2}) state.follow_end(worker, SIGKILL, std::nullopt, 1);
  state.stop(2);
  for (const int worker : {3, 4, 5}) state.follow_end(worker, kStopped, error(ErrorCode::kInterrupted), 3);
  EXPECT_EQ(verdict().error().code, ErrorCode::kInterrupted);
  EXPECT_THAT(verdict().error().message, HasSubstr("a checkpoint was written"));
}

TEST_F(LaunchStateTest, NewcomersThatHaveDoneAllAreEnough) {
  LaunchState& state = launch_elastic(3);
  for (const int worker : {0, 1, 2}) state.follow_end(worker, SIGKILL, std::nullopt, 1);
  for (const int worker : {3, 4, 5}) state.follow_end(worker, kExited, std::nullopt, 3);
  EXPECT_TRUE(verdict());
}

TEST_F(LaunchStateTest, AStopWhileAllWaitForALostOneIsAStop) {
  LaunchState& state = launch_elastic(1);
  state.follow_end(2, SIGKILL, std::nullopt, 1);
  state.stop(2);
  for (const int worker : {0, 1, 3}) state.follow_end(worker, SIGINT, std::nullopt, 2.1);
  EXPECT_EQ(verdict().error().code, ErrorCode::kInterrupted);
}

// Its own trouble is not the run's: what is told is the loss before.
TEST_F(LaunchStateTest, WhatKeepsANewcomerOutIsNotTheCause) {
  LaunchState& state = launch_elastic(1);
  state.follow_end(2, SIGKILL, std::nullopt, 1);
  state.follow_end(3, kFailed, error(ErrorCode::kRefused), 2);
  for (const int worker : {0, 1}) state.follow_end(worker, kFailed, error(ErrorCode::kTimeout, 2), 3);
  EXPECT_THAT(verdict().error().message, HasSubstr("rank 2 (process 1003) was killed by signal 9"));
}

// One that loads when a stop comes takes no signals yet. The first workers of a job would wait for each other in vain.
TEST_F(LaunchStateTest, AStopThatEndsANewcomerLeavesTheOthersTheirTime) {
  LaunchState& state = launch_elastic(1);
  state.follow_end(0, SIGKILL, std::nullopt, 1);
  state.stop(2);
  state.follow_end(3, SIGINT, std::nullopt, 2.1);
  state.advance(3, 0);
  EXPECT_THAT(processes_.signals, ElementsAre(Pair(1, SIGINT), Pair(2, SIGINT), Pair(3, SIGINT)));
  state.follow_end(1, kStopped, error(ErrorCode::kInterrupted), 4);
  state.follow_end(2, kStopped, error(ErrorCode::kInterrupted), 4);
  EXPECT_THAT(verdict().error().message, HasSubstr("stopped as asked; a checkpoint was written"));

  LaunchState& first = launch_elastic();
  processes_.signals.clear();
  first.stop(2);
  first.follow_end(2, SIGINT, std::nullopt, 2.1);
  first.advance(2.1, 0);
  EXPECT_THAT(processes_.signals,
              ElementsAre(Pair(0, SIGINT), Pair(1, SIGINT), Pair(2, SIGINT), Pair(0, SIGKILL), Pair(1, SIGKILL)));
}

TEST_F(LaunchStateTest, OnlyNewcomersThatHangAreKilled) {
  LaunchState& state = launch_elastic(1);
  state.follow_end(0, SIGKILL, std::nullopt, 1);
  state.follow_hang(1);
  state.follow_hang(3);
  EXPECT_THAT(processes_.signals, ElementsAre(Pair(3, SIGKILL)));
}

TEST_F(LaunchStateTest, OneRequestAfterTheOther) {
  LaunchState& state = launch_elastic();
  EXPECT_FALSE(state.takes_request());  // no step has been done
  state.follow_step(3);
  state.advance(1, 1000);
  EXPECT_EQ(state.count().since, 1000);
  ASSERT_TRUE(state.takes_request());
  state.follow_request("2 a");
  EXPECT_THAT(processes_.signals, ElementsAre(Pair(2, SIGTERM)));
  EXPECT_FALSE(state.takes_request());
  state.follow_end(2, kLeft, error(ErrorCode::kLeft), 2);
  state.advance(2, 1001);
  EXPECT_EQ(state.count().asked, "");  // no step has been done with two
  state.follow_step(2);
  state.advance(3, 1002);
  EXPECT_EQ(state.count().asked, "2 a");
  EXPECT_EQ(state.count().refused, "");
  ASSERT_TRUE(state.takes_request());
  state.follow_request("4 b");
  EXPECT_THAT(processes_.started,
              ElementsAre(Pair(0, false), Pair(1, false), Pair(2, false), Pair(2, true), Pair(3, true)));
  state.follow_end(4, SIGKILL, std::nullopt, 4);
  state.follow_step(3);
  state.advance(5, 1003);
  EXPECT_EQ(state.count().refused, "3 of 4 workers are there, as others have ended");
  state.follow_request("5 c");
  EXPECT_EQ(state.count().asked, "5 c");
  EXPECT_THAT(state.count().refused, HasSubstr("4"));
  processes_.cannot_start = true;
  state.follow_request("4 d");
  EXPECT_EQ(state.count().refused, "no room");
}

TEST_F(LaunchStateTest, ALostServerIsReplacedAFewTimes) {
  LaunchState& state = launch_elastic();
  for (int loss = 0; loss < 2 * kMaxServerRestarts; ++loss) EXPECT_TRUE(state.follow_server_loss(7));
  EXPECT_EQ(processes_.servers, kMaxServerRestarts);
  LaunchState& rigid = launch({.workers = 2});
  EXPECT_TRUE(rigid.follow_server_loss(7));
  EXPECT_EQ(processes_.servers, kMaxServerRestarts);
}

}  // namespace
}  // namespace motley::train
