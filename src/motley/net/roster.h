// Who takes part in a job, as its members agree on it: where some are lost, those who are left install the next epoch,
// and no two of them ever install another one under the same number.
//
// An epoch is one decision among the members of the epoch before, by Paxos ("Paxos Made Simple", Lamport 2001): the
// lowest member that is not lost proposes those that it can reach, in rounds of growing ballots; who has promised a
// ballot takes no smaller one; what a majority has accepted is decided, and every later proposal repeats it. A member
// that is proved dead, as its process has ended, can neither accept nor have promised anything that still counts, and
// is no part of the number of which there must be a majority. So on one host any number of losses at once is survived,
// and between hosts it takes a majority, of which there is one at most.
//
// Newcomers are proposed likewise, by the lowest member, once they are ready. Until they are members they decide
// nothing. They take over the epochs that they are told, one that they are members of once all others have, or seem to.
// A member may also ask for another epoch of the same members, where something else than a rank was lost.
//
// Pure: what happens and the time go in, what is to be done comes out. Who is lost or dead, and how words travel, is
// the caller's: words may come late, twice or not at all.
#pragma once

#include <compare>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

namespace motley::net {

struct Ballot {
  std::uint32_t round = 0;
  int rank = -1;
  auto operator<=>(const Ballot&) const = default;
};

struct RosterMessage {
  enum class Kind : std::uint8_t { kSuspect, kPrepare, kPromise, kPropose, kAccept, kRefuse, kInstall };
  Kind kind = Kind::kPrepare;
  std::uint64_t epoch = 0;   // that is decided about
  Ballot ballot;             // of the proposer; with kRefuse the one that was promised
  Ballot accepted;           // with kPromise: of what was accepted before, if anything
  std::vector<int> members;  // ascending: lost (none: another epoch is asked for), accepted before, proposed, installed
};

struct Epoch {
  std::uint64_t number = 0;
  std::vector<int> members;  // ranks, ascending
  auto operator<=>(const Epoch&) const = default;
};

class Roster {
 public:
  struct Options {
    double gather_seconds = 0.01;  // between the first loss and a proposal, so that losses at once are one change
    double retry_seconds = 0.5;    // that a round may take
    double give_up_seconds = 60;   // that the members may be without a majority
  };
  struct Send {
    int to = 0;
    RosterMessage message;
  };
  struct Install {
    Epoch epoch;
  };
  // Another member has lost this one, which is to be treated alike.
  struct Cut {
    int rank = 0;
  };
  // This rank goes on with nobody: it was put out, or there has been no majority for too long.
  struct Stop {
    std::string reason;
  };
  using Action = std::variant<Send, Cut, Install, Stop>;
  using Actions = std::vector<Action>;

  Roster(int self, Epoch epoch, Options options) : self_(self), epoch_(std::move(epoch)), options_(options) {}

  // A member does not answer any more. Final: if it is not dead it is put out.
  Actions lose(int rank, double now);
  // This member asks for another epoch.
  Actions renew(double now);
  // Its process has ended. Also lost, then.
  Actions bury(int rank, double now);
  // A newcomer is ready, and this member is connected to it: it is to be a member of the next epoch.
  Actions admit(int rank, double now);
  // It has gone again, or is none. Also after it was installed: then it is to be lost, too.
  void forget(int rank) { candidates_.erase(rank); }
  // A newcomer is connected to a member again that it had lost.
  void reach(int rank) {
    if (!is_member(self_)) lost_.erase(rank);
  }
  Actions receive(int from, const RosterMessage& message, double now);
  // To be called at next() at the latest; seconds on the clock of `now`, infinite where nothing is under way.
  Actions tick(double now);
  double next() const { return has_stopped() ? kNever : std::min(next_, give_up_at_); }

  const Epoch& epoch() const { return epoch_; }
  bool is_lost(int rank) const { return lost_.contains(rank); }
  bool has_lost() const { return !lost_.empty(); }  // members of this epoch
  bool is_member(int rank) const;

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();
  enum class Phase { kIdle, kPreparing, kProposing, kStopped };
  bool has_stopped() const { return phase_ == Phase::kStopped; }

  std::vector<int> reachable() const;
  bool has_majority(const std::set<int>& ranks) const;
  void expect_round(double at) { next_ = std::min(next_, at); }
  bool leads() const { return reachable().front() == self_; }
  // Until a round is tried again: longer for higher ranks, so that of two who disturb each other one wins.
  double patience() const { return options_.retry_seconds * (1 + 0.5 * self_); }
  Send suspicion(int to) const;
  std::vector<int> choose_cut(int from, const std::vector<int>& lost_by_it, double now);
  bool is_due() const { return !lost_.empty() || renews_; }
  void act_on_loss(double now, double delay, Actions& actions);
  void follow_members(double now, Actions& actions);
  void start_round(double now, Actions& actions);
  void advance(double now, Actions& actions);
  void send_to_members(RosterMessage message, Actions& actions) const;
  void install(Epoch next, double now, Actions& actions);
  void announce(const Epoch& next, Actions& actions) const;
  void answer_late(int to, std::uint64_t epoch, Actions& actions) const;

  const int self_;
  Epoch epoch_;
  const Options options_;
  std::vector<Epoch> history_;  // that were installed, in order
  // Told to a newcomer, or to a member before those that lie between: by who has installed them, and when.
  std::map<Epoch, std::map<int, double>> announced_;
  std::set<int> lost_, dead_;                 // members
  std::set<int> candidates_;                  // newcomers that are ready
  bool renews_ = false;                       // somebody asks for another epoch
  std::map<int, double> contradicted_since_;  // by rank: it said then that one is lost which this one reached
  double next_ = kNever;
  double give_up_at_ = kNever;

  // About the next epoch: as one of those who accept,
  Ballot promised_;
  Ballot accepted_;
  std::vector<int> accepted_members_;
  // and as the one who proposes.
  Phase phase_ = Phase::kIdle;
  Ballot ballot_;
  std::uint32_t highest_round_ = 0;  // seen
  std::set<int> agreed_;             // who promised, then who accepted
  Ballot best_;                      // the highest ballot that was accepted among those who promised
  std::vector<int> proposal_;
};

}  // namespace motley::net
