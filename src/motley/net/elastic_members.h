// Who takes part in an elastic session, as its watcher sees it: the roster, where each rank is reached, and the
// processes of this host, whose end is news of a loss, or the proof that a lost rank does nothing any more. The
// watcher's thread only.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "motley/base/os/descriptor.h"
#include "motley/net/roster.h"
#include "motley/net/session.h"
#include "motley/net/wait_set.h"

namespace motley::net {

class ElasticMembers {
 public:
  // `present`, ascending: the ranks of the membership's epoch, this one among them or not.
  ElasticMembers(Membership membership, std::vector<int> present, double give_up_seconds);

  Roster& roster() { return roster_; }
  const Roster& roster() const { return roster_; }
  bool is_member(int rank) const { return roster_.is_member(rank); }
  // The ranks of an epoch that was installed; returns those before it.
  std::vector<int> enter(const Epoch& epoch);
  // With the addresses of all that were ever seen, and the epoch of now.
  Membership membership() const;
  const Member& member(int rank) const { return membership_.members[static_cast<std::size_t>(rank)]; }

  // A process that has this rank now.
  void arrive(int rank, Member member);
  void kill(int rank) const;  // where it runs on this host
  // A newcomer that has gone before it was a member. The end of its process is still news, as it may become one.
  void forget(int rank) { roster_.forget(rank); }

  // Adds what to wait for.
  void add_to(WaitSet& waits) const;
  // Ranks whose processes the last wait saw end.
  std::vector<int> take_ended(const WaitSet& waits);
  // Whether a member of the epoch that was entered last was seen to end in the epoch before, as a newcomer. One that
  // came after it would have been seen to arrive, as nobody is made a member whom the members of the epoch before do
  // not reach.
  bool has_ended(int rank) const { return ended_in_[static_cast<std::size_t>(rank)] + 1 == entered_; }

 private:
  static constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max() - 1;

  Membership membership_;
  Roster roster_;
  std::vector<int> present_;             // of the last epoch that was entered
  std::uint64_t entered_;                // its number
  std::vector<Descriptor> processes_;    // by rank, of this host's (pidfd)
  std::vector<std::uint64_t> ended_in_;  // by rank: the epoch in which its process was seen to end; kNever: it was not
};

}  // namespace motley::net
