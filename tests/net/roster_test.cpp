// Members agree on who is left: as a group of state machines over a simulated network that delays, reorders and cuts,
// from a seed that a failure names.
#include "motley/net/roster.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <random>
#include <set>

namespace motley::net {
namespace {

// One epoch number has one list of members wherever it is installed.
class Group {
 public:
  // The last `newcomers` ranks are no members yet.
  Group(int size, std::uint32_t seed, bool deaths_are_proved, int newcomers = 0)
      : random_(seed), deaths_are_proved_(deaths_are_proved) {
    Epoch first{1, {}};
    for (int rank = 0; rank < size - newcomers; ++rank) first.members.push_back(rank);
    for (int rank = 0; rank < size; ++rank) {
      ranks_.emplace_back(Roster(rank, first, {.gather_seconds = 0.01, .retry_seconds = 0.1, .give_up_seconds = 20}));
    }
  }

  void crash(int rank) {
    if (!is_up(rank)) return;
    crashed_.insert(rank);
    for (int other = 0; other < size(); ++other) {
      if (other != rank) at(uniform(0, 0.05), [this, other, rank] { lose(other, rank); });
    }
  }
  void lose(int rank, int lost) {
    if (!ranks_[rank].is_member(lost)) return ranks_[rank].forget(lost);
    apply(rank, ranks_[rank].lose(lost, now_));
    if (deaths_are_proved_) {
      at(uniform(0, 0.03), [this, rank, lost] { apply(rank, ranks_[rank].bury(lost, now_)); });
    }
  }
  // Two members lose each other; what is on its way arrives or does not.
  void cut(int one, int other) {
    cut_.insert(std::minmax(one, other));
    at(uniform(0, 0.05), [this, one, other] { apply(one, ranks_[one].lose(other, now_)); });
    at(uniform(0, 0.05), [this, one, other] { apply(other, ranks_[other].lose(one, now_)); });
  }

  void renew(int rank) {
    if (is_up(rank)) apply(rank, ranks_[rank].renew(now_));
  }

  // A newcomer says to all that it is ready.
  void join(int newcomer) {
    for (int rank = 0; rank < size(); ++rank) {
      if (rank == newcomer) continue;
      at(uniform(0, 0.05), [this, rank, newcomer] {
        if (is_up(rank) && is_up(newcomer) && ranks_[rank].is_member(rank)) {
          apply(rank, ranks_[rank].admit(newcomer, now_));
        }
      });
    }
  }

  void run(double until) {
    while (!events_.empty() && events_.top().at <= until) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.at;
      event.happen();
    }
    now_ = until;
  }

  void at(double delay, std::function<void()> happen) { events_.push({now_ + delay, ++count_, std::move(happen)}); }
  double uniform(double low, double high) { return std::uniform_real_distribution(low, high)(random_); }
  int pick(int below) { return std::uniform_int_distribution(0, below - 1)(random_); }
  int size() const { return static_cast<int>(ranks_.size()); }
  bool is_up(int rank) const { return !crashed_.contains(rank) && !stopped_.contains(rank); }
  const Roster& rank(int number) const { return ranks_[number]; }
  const std::string& violation() const { return violation_; }
  std::vector<int> list_up() const {
    std::vector<int> up;
    for (int rank = 0; rank < size(); ++rank) {
      if (is_up(rank)) up.push_back(rank);
    }
    return up;
  }

 private:
  struct Event {
    double at;
    std::uint64_t number;
    std::function<void()> happen;
    bool operator<(const Event& other) const { return std::tie(at, number) > std::tie(other.at, other.number); }
  };

  void apply(int rank, Roster::Actions actions) {
    if (!is_up(rank)) return;
    for (Roster::Action& action : actions) {
      if (const auto* send = std::get_if<Roster::Send>(&action)) {
        // A cut connection carries nothing; others carry all, in any order, some of it late. What a rank has sent last
        // may be lost with it.
        if (cut_.contains(std::minmax(rank, send->to))) continue;
        const bool is_lost_with_it = pick(2) == 0;
        at(pick(5) == 0 ? uniform(0, 0.6) : uniform(0, 0.03),
           [this, rank, to = send->to, message = send->message, is_lost_with_it] {
             if (is_lost_with_it && crashed_.contains(rank)) return;
             if (is_up(to)) apply(to, ranks_[to].receive(rank, message, now_));
           });
      } else if (const auto* cut = std::get_if<Roster::Cut>(&action)) {
        cut_.insert(std::minmax(rank, cut->rank));
        at(uniform(0, 0.05), [this, one = cut->rank, rank] { apply(one, ranks_[one].lose(rank, now_)); });
      } else if (const auto* install = std::get_if<Roster::Install>(&action)) {
        check(rank, install->epoch);
      } else {
        stopped_.insert(rank);
      }
    }
    const double next = ranks_[rank].next();
    if (next < 1e9) at(std::max(0.0, next - now_), [this, rank] { apply_tick(rank); });
  }

  void apply_tick(int rank) {
    if (is_up(rank) && now_ >= ranks_[rank].next()) apply(rank, ranks_[rank].tick(now_));
  }

  void check(int rank, const Epoch& epoch) {
    // A list that only the dead have installed has had no effect: a step takes all members.
    for (const auto& [members, ranks] : installed_[epoch.number]) {
      const bool matters = std::ranges::any_of(ranks, [this](int other) { return !crashed_.contains(other); });
      if (members == epoch.members || !matters) continue;
      violation_ = "epoch " + std::to_string(epoch.number) + " has two lists of members";
    }
    if (!std::ranges::binary_search(epoch.members, rank)) {
      if (last_.contains(rank)) violation_ = "a member installed an epoch without itself";
      return;
    }
    installed_[epoch.number][epoch.members].insert(rank);
    const auto [last, is_first] = last_.emplace(rank, epoch.number);
    if (!is_first && epoch.number != ++last->second) {
      violation_ = "rank " + std::to_string(rank) + " left out an epoch";
    }
    // A newcomer that one member takes in and another one has lost is lost.
    for (const int other : epoch.members) {
      if (crashed_.contains(other)) at(uniform(0, 0.05), [this, rank, other] { lose(rank, other); });
    }
  }

  std::mt19937 random_;
  const bool deaths_are_proved_;
  std::vector<Roster> ranks_;
  std::priority_queue<Event> events_;
  std::uint64_t count_ = 0;
  double now_ = 0;
  std::set<int> crashed_, stopped_;
  std::set<std::pair<int, int>> cut_;
  std::map<std::uint64_t, std::map<std::vector<int>, std::set<int>>> installed_;  // by epoch: who has which list
  std::map<int, std::uint64_t> last_;
  std::string violation_;
};

void expect_one_epoch(const Group& group, std::uint32_t seed) {
  const std::vector<int> up = group.list_up();
  for (const int rank : up) {
    EXPECT_EQ(group.rank(rank).epoch().members, up) << "rank " << rank << ", seed " << seed;
    EXPECT_EQ(group.rank(rank).epoch().number, group.rank(up.front()).epoch().number) << "seed " << seed;
  }
}

TEST(Roster, ALossIsOneEpoch) {
  for (int lost = 0; lost < 4; ++lost) {
    Group group(4, 1, false);
    group.crash(lost);
    group.run(5);
    EXPECT_EQ(group.violation(), "");
    expect_one_epoch(group, 1);
    EXPECT_EQ(group.rank(lost == 0 ? 1 : 0).epoch().number, 2U);
  }
}

// On one host, where a death is proved, any number may go at once.
TEST(Roster, ProvedDeathsNeedNoMajority) {
  for (std::uint32_t seed = 1; seed <= 2000; ++seed) {
    Group group(2 + static_cast<int>(seed % 6), seed, true);
    const int survivors = 1 + group.pick(group.size() - 1);
    std::vector<int> ranks(static_cast<std::size_t>(group.size()));
    for (int rank = 0; rank < group.size(); ++rank) ranks[rank] = rank;
    std::shuffle(ranks.begin(), ranks.end(), std::mt19937(seed));
    ranks.resize(ranks.size() - survivors);
    for (const int rank : ranks) group.at(group.uniform(0, 0.2), [&group, rank] { group.crash(rank); });
    group.run(30);
    ASSERT_EQ(group.violation(), "") << "seed " << seed;
    ASSERT_EQ(static_cast<int>(group.list_up().size()), survivors) << "seed " << seed;
    expect_one_epoch(group, seed);
  }
}

// Between hosts a minority of losses leaves the others in one epoch.
TEST(Roster, AMajorityGoesOn) {
  for (std::uint32_t seed = 1; seed <= 2000; ++seed) {
    Group group(3 + static_cast<int>(seed % 5), seed, false);
    const int losses = group.pick((group.size() - 1) / 2 + 1);
    for (int i = 0; i < losses; ++i)
      group.at(group.uniform(0, 0.02), [&group] { group.crash(group.pick(group.size())); });
    group.run(30);
    ASSERT_EQ(group.violation(), "") << "seed " << seed;
    expect_one_epoch(group, seed);
  }
}

TEST(Roster, AMinorityStopsAndSaysWhy) {
  Group group(4, 7, false);
  for (const int rank : {0, 1, 2}) group.crash(rank);
  group.run(10);
  EXPECT_TRUE(group.is_up(3));
  group.run(30);
  EXPECT_FALSE(group.is_up(3));
}

// Two that lose each other while all others reach both: one of them is put out, and stops.
TEST(Roster, OfTwoWhoLoseEachOtherOneGoes) {
  for (std::uint32_t seed = 1; seed <= 500; ++seed) {
    Group group(4, seed, false);
    const int one = group.pick(4);
    const int other = (one + 1 + group.pick(3)) % 4;
    group.cut(one, other);
    group.run(30);
    ASSERT_EQ(group.violation(), "") << "seed " << seed;
    EXPECT_EQ(group.list_up().size(), 3U) << "seed " << seed;
    expect_one_epoch(group, seed);
  }
}

// Whatever is cut and crashes whenever, no epoch is two.
TEST(Roster, NoEpochHasTwoListsOfMembers) {
  for (std::uint32_t seed = 1; seed <= 5000; ++seed) {
    Group group(2 + static_cast<int>(seed % 6), seed, seed % 2 == 0);
    const int faults = 1 + group.pick(6);
    for (int i = 0; i < faults; ++i) {
      group.at(group.uniform(0, 1), [&group, seed] {
        const int one = group.pick(group.size());
        const int other = group.pick(group.size());
        // A death is proved on one host only, where no connection is cut between processes that live.
        one == other || seed % 2 == 0 ? group.crash(one) : group.cut(one, other);
      });
    }
    group.run(40);
    ASSERT_EQ(group.violation(), "") << "seed " << seed;
  }
}

// Where some members ask for another epoch, all have one, whoever is lost meanwhile.
TEST(Roster, MembersHaveAnotherEpochOnceOneAsks) {
  for (std::uint32_t seed = 1; seed <= 1000; ++seed) {
    Group group(1 + static_cast<int>(seed % 5), seed, true);
    const int asking = 1 + group.pick(3);
    for (int i = 0; i < asking; ++i) {
      group.at(group.uniform(0, 0.2), [&group] { group.renew(group.pick(group.size())); });
    }
    if (group.size() > 1 && group.pick(2) == 0) {
      group.at(group.uniform(0, 0.2), [&group] { group.crash(group.pick(group.size())); });
    }
    group.run(30);
    ASSERT_EQ(group.violation(), "") << "seed " << seed;
    expect_one_epoch(group, seed);
    const std::uint64_t epoch = group.rank(group.list_up().front()).epoch().number;
    EXPECT_GT(epoch, 1U) << "seed " << seed;
    EXPECT_LE(epoch, 3U + static_cast<std::uint64_t>(asking)) << "seed " << seed;
  }
}

// Newcomers get in, whoever of the members is lost meanwhile, and are lost like all others.
TEST(Roster, NewcomersGetIn) {
  for (std::uint32_t seed = 1; seed <= 3000; ++seed) {
    Group group(3 + static_cast<int>(seed % 5), seed, true, 1 + static_cast<int>(seed % 2));
    const int members = group.size() - 1 - static_cast<int>(seed % 2);
    for (int rank = members; rank < group.size(); ++rank) {
      group.at(group.uniform(0, 0.3), [&group, rank] { group.join(rank); });
    }
    const int lost = group.pick(members);  // one member is left at least
    for (int i = 0; i < lost; ++i) {
      group.at(group.uniform(0, 0.5), [&group, members] { group.crash(group.pick(members)); });
    }
    if (seed % 3 == 0) group.at(group.uniform(0, 0.6), [&group] { group.crash(group.size() - 1); });
    group.run(30);
    ASSERT_EQ(group.violation(), "") << "seed " << seed;
    expect_one_epoch(group, seed);
  }
}

// Who has taken a newcomer in, and dies before any other knows, has taken in nobody.
TEST(Roster, ANewcomerFollowsAllMembersNotTheDead) {
  using Kind = RosterMessage::Kind;
  Roster newcomer(3, {1, {0, 1, 2}}, {});
  const auto install = [](std::vector<int> members) {
    return RosterMessage{.kind = Kind::kInstall, .epoch = 2, .members = std::move(members)};
  };
  EXPECT_TRUE(newcomer.receive(0, install({0, 1, 2, 3}), 0).empty());
  EXPECT_TRUE(newcomer.receive(1, install({0, 1, 2, 3}), 0).empty());
  EXPECT_TRUE(newcomer.lose(0, 0.1).empty());
  EXPECT_TRUE(newcomer.lose(1, 0.1).empty());
  EXPECT_TRUE(newcomer.tick(9).empty());
  EXPECT_FALSE(newcomer.receive(2, install({2, 3}), 9).empty());
  EXPECT_EQ(newcomer.epoch(), (Epoch{2, {2, 3}}));
}

TEST(Roster, ANewcomerIsInOnceThoseWhoAreLeftHaveSaidSo) {
  Roster newcomer(3, {1, {0, 1, 2}}, {});
  const RosterMessage all{.kind = RosterMessage::Kind::kInstall, .epoch = 2, .members = {0, 1, 2, 3}};
  EXPECT_TRUE(newcomer.receive(0, all, 0).empty());
  EXPECT_TRUE(newcomer.receive(1, all, 0).empty());
  newcomer.lose(2, 1);
  EXPECT_EQ(newcomer.epoch(), (Epoch{2, {0, 1, 2, 3}}));
  EXPECT_TRUE(newcomer.is_lost(2));

  // One that does not answer does not keep it out for ever, as long as one that has said so is there.
  for (const bool is_there : {true, false}) {
    Roster third(3, {1, {0, 1, 2}}, {.retry_seconds = 0.5});
    third.receive(0, all, 0);
    if (!is_there) third.lose(0, 0.1);
    EXPECT_EQ(third.next(), 0.5);
    third.tick(0.5);
    EXPECT_EQ(third.epoch().number, is_there ? 2U : 1U);
  }

  Roster second(3, {1, {0, 1}}, {});
  second.lose(0, 0);
  second.reach(0);
  second.receive(1, {.kind = RosterMessage::Kind::kInstall, .epoch = 2, .members = {0, 1, 3}}, 1);
  EXPECT_EQ(second.epoch().number, 1U);  // rank 0 has not said so
  second.receive(0, {.kind = RosterMessage::Kind::kInstall, .epoch = 2, .members = {0, 1, 3}}, 1);
  EXPECT_EQ(second.epoch().number, 2U);
  EXPECT_FALSE(second.has_lost());
}

// Without proofs of death: whatever is cut, no epoch is two.
TEST(Roster, NoEpochHasTwoListsOfMembersWithNewcomers) {
  for (std::uint32_t seed = 1; seed <= 3000; ++seed) {
    Group group(4 + static_cast<int>(seed % 4), seed, false, 2);
    for (int rank = group.size() - 2; rank < group.size(); ++rank) {
      group.at(group.uniform(0, 0.5), [&group, rank] { group.join(rank); });
    }
    for (int i = group.pick(5); i > 0; --i) {
      group.at(group.uniform(0, 1), [&group] {
        const int one = group.pick(group.size()), other = group.pick(group.size());
        one == other ? group.crash(one) : group.cut(one, other);
      });
    }
    group.run(40);
    ASSERT_EQ(group.violation(), "") << "seed " << seed;
  }
}

// What was accepted in a round that is over decides nothing.
TEST(Roster, AnAnswerToAnEarlierRoundDoesNotCount) {
  using Kind = RosterMessage::Kind;
  Roster roster(0, {1, {0, 1, 2}}, {.gather_seconds = 0, .retry_seconds = 1, .give_up_seconds = 60});
  roster.lose(2, 0);
  Ballot first;
  for (int round = 1; round <= 2; ++round) {
    const Roster::Actions actions = roster.tick(10 * round);
    ASSERT_FALSE(actions.empty());
    const Ballot ballot = std::get<Roster::Send>(actions.front()).message.ballot;
    if (round == 1) first = ballot;
    EXPECT_FALSE(roster.receive(1, {.kind = Kind::kPromise, .epoch = 2, .ballot = ballot}, 10 * round).empty());
  }
  EXPECT_TRUE(roster.receive(1, {.kind = Kind::kAccept, .epoch = 2, .ballot = first}, 21).empty());
  EXPECT_EQ(roster.epoch().number, 1U);
}

// Nor does a round that has promised another one its turn: its own acceptance would come after that promise.
TEST(Roster, WhoHasPromisedAnotherProposesNothing) {
  using Kind = RosterMessage::Kind;
  Roster roster(0, {1, {0, 1, 2, 3, 4}}, {.gather_seconds = 0, .retry_seconds = 1, .give_up_seconds = 60});
  roster.lose(4, 0);
  const Roster::Actions actions = roster.tick(1);
  ASSERT_FALSE(actions.empty());
  const Ballot own = std::get<Roster::Send>(actions.front()).message.ballot;
  EXPECT_FALSE(roster.receive(1, {.kind = Kind::kPrepare, .epoch = 2, .ballot = {own.round, 1}}, 1).empty());
  for (const int rank : {2, 3}) {
    EXPECT_TRUE(roster.receive(rank, {.kind = Kind::kPromise, .epoch = 2, .ballot = own}, 1).empty());
  }
  EXPECT_FALSE(roster.tick(10).empty());  // its turn comes again
}

TEST(Roster, StrangeWordsChangeNothing) {
  Roster roster(1, {3, {0, 1, 2}}, {});
  using Kind = RosterMessage::Kind;
  EXPECT_TRUE(roster.receive(7, {.kind = Kind::kPropose, .epoch = 4, .ballot = {9, 7}, .members = {7}}, 0).empty());
  EXPECT_TRUE(roster.receive(0, {.kind = Kind::kAccept, .epoch = 4, .ballot = {1, 1}}, 0).empty());
  EXPECT_TRUE(roster.receive(0, {.kind = Kind::kInstall, .epoch = 9, .members = {0, 1}}, 0).empty());
  EXPECT_TRUE(roster.lose(1, 0).empty());
  EXPECT_EQ(roster.epoch(), (Epoch{3, {0, 1, 2}}));
}

}  // namespace
}  // namespace motley::net
