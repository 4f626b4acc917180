#include "motley/net/peer_status.h"

#include <gmock/gmock.h>

namespace motley::net {
namespace {

AbortMessage report(int reporter, int about, ErrorCode code, const char* message) {
  return {reporter, {code, message, about}};
}

TEST(Suspicion, ARanksWordAboutItselfSettlesAtOnce) {
  Suspicion suspicion(0);
  EXPECT_FALSE(suspicion.consider(report(0, 2, ErrorCode::kPeerLost, "rank 2 ended"), true, 10));
  const auto verdict = suspicion.consider(report(2, 2, ErrorCode::kInternal, "no memory"), false, 10.01);
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->error.message, "rank 2 failed: no memory");
  EXPECT_EQ(verdict->error.rank, 2);
}

TEST(Suspicion, WhatMayBeAConsequenceWaitsForABetterCause) {
  for (const int rank : {0, 3}) {
    Suspicion suspicion(rank);
    EXPECT_FALSE(suspicion.consider(report(1, 1, ErrorCode::kTimeout, "waited for rank 2"), false, 10));
    EXPECT_FALSE(suspicion.find_verdict(10.1));
    const double at = suspicion.settle_at();
    EXPECT_FALSE(suspicion.find_verdict(at - 0.001));
    // Seen by this rank itself: better than what another says, in the same time; what comes after that is not.
    EXPECT_FALSE(suspicion.consider(report(rank, 2, ErrorCode::kPeerLost, "rank 2 ended"), true, 10.1));
    EXPECT_FALSE(suspicion.consider(report(rank, 1, ErrorCode::kPeerLost, "rank 1 ended"), true, 10.1));
    EXPECT_FALSE(suspicion.consider(report(4, 1, ErrorCode::kPeerLost, "rank 1 ended"), false, 10.1));
    EXPECT_EQ(suspicion.settle_at(), at);
    const auto verdict = suspicion.find_verdict(at);
    ASSERT_TRUE(verdict);
    EXPECT_EQ(verdict->error.message, "rank 2 ended");
    EXPECT_EQ(verdict->reporter, rank);
    suspicion.clear();
    EXPECT_FALSE(suspicion.find_verdict(at));
  }
}

TEST(Suspicion, RankZeroDecidesBeforeTheOthers) {
  Suspicion first(0);
  Suspicion second(1);
  for (Suspicion* one : {&first, &second}) {
    EXPECT_FALSE(one->consider(report(2, 3, ErrorCode::kPeerLost, "rank 3 ended"), false, 5));
  }
  EXPECT_LT(first.settle_at(), second.settle_at());
  EXPECT_EQ(first.find_verdict(first.settle_at())->error.message, "rank 3 ended (seen by rank 2)");
}

TEST(Suspicion, WithoutWaitingNothingIsHeldBack) {
  Suspicion suspicion(1, false);
  const auto verdict = suspicion.consider(report(1, 2, ErrorCode::kPeerLost, "rank 2 ended"), true, 10);
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->error.message, "rank 2 ended");
}

// Rank 0 tells what it hears of a rank, over its own connection: whether that rank can be heard here is another matter.
TEST(PeerStatus, OneThatOnlyRankZeroSeesIsSilent) {
  PeerStatus peers(1, 3);
  while (peers.unheard_seconds(2) < 1e-3) {
  }
  const double unheard = peers.unheard_seconds(2);
  const Heartbeat heartbeats[] = {{2, RankState::kPresent, 7, 0, "backward"}};
  peers.receive_from(0, heartbeats);
  EXPECT_GE(peers.unheard_seconds(2), unheard);
  EXPECT_TRUE(peers.last_seen(2).starts_with("step 7, backward"));
}

TEST(PeerStatus, WhatPassesWhileThisRankIsStoppedIsNobodysSilence) {
  PeerStatus peers(1, 3);
  while (peers.silent_seconds(2) < 1e-3) {
  }
  const double silent = peers.silent_seconds(2);
  peers.forgive(silent / 2);
  EXPECT_GE(peers.silent_seconds(2), silent / 2);
  peers.forgive(1e6);  // no rank was heard after now
  EXPECT_GE(peers.silent_seconds(2), 0);
  EXPECT_LT(peers.silent_seconds(2), 1e6);
  EXPECT_GE(peers.unheard_seconds(0), 0);
}

}  // namespace
}  // namespace motley::net
