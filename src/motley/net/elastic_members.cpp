#include "motley/net/elastic_members.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

#include "motley/base/guard.h"

namespace motley::net {

ElasticMembers::ElasticMembers(Membership membership, std::vector<int> present, double give_up_seconds)
    : membership_(std::move(membership)),
      roster_(membership_.rank, {membership_.epoch, present}, Roster::Options{.give_up_seconds = give_up_seconds}),
      present_(std::move(present)),
      entered_(membership_.epoch),
      processes_(membership_.members.size()),
      ended_in_(membership_.members.size(), kNever) {
  for (const int rank : present_) arrive(rank, membership_.members[static_cast<std::size_t>(rank)]);
}

std::vector<int> ElasticMembers::enter(const Epoch& epoch) {
  entered_ = epoch.number;
  return std::exchange(present_, epoch.members);
}

Membership ElasticMembers::membership() const {
  Membership now = membership_;
  now.epoch = roster_.epoch().number;
  return now;
}

void ElasticMembers::arrive(int rank, Member member) {
  const std::string& here = membership_.members[static_cast<std::size_t>(membership_.rank)].host_id;
  processes_[static_cast<std::size_t>(rank)].close();
  ended_in_[static_cast<std::size_t>(rank)] = kNever;
  if (member.process > 0 && member.process != ::getpid() && member.host_id == here) {
    // Refers to the process that has the number now, whoever has it later; invalid where the system has no such thing.
    processes_[static_cast<std::size_t>(rank)] =
        Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(member.process), 0)));
  }
  membership_.members[static_cast<std::size_t>(rank)] = std::move(member);
}

void ElasticMembers::kill(int rank) const {
  const Descriptor& process = processes_[static_cast<std::size_t>(rank)];
  if (!MOTLEY_GUARD("kill-lost-process", !process.valid()))
    ::syscall(SYS_pidfd_send_signal, process.get(), SIGKILL, nullptr, 0);
}

void ElasticMembers::add_to(WaitSet& waits) const {
  waits.end_at(roster_.next());
  for (const Descriptor& process : processes_) {
    if (process.valid()) waits.add(process.get(), POLLIN);
  }
}

std::vector<int> ElasticMembers::take_ended(const WaitSet& waits) {
  std::vector<int> ended;
  for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
    if (!processes_[rank].valid() || (waits.events(processes_[rank].get()) & POLLIN) == 0) continue;
    processes_[rank].close();
    ended_in_[rank] = entered_;
    ended.push_back(static_cast<int>(rank));
  }
  return ended;
}

}  // namespace motley::net
