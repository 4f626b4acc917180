// Who takes part in a job right now: the ranks, where they are reached, and the epoch that changes with every change.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace motley::net {

struct Member {
  std::string host_id;  // equal for ranks that can share memory (same machine and same /dev/shm)
  std::string address;  // host of the data listener, as peers reach it
  std::uint16_t port = 0;
  std::int64_t process = 0;  // process id on its host, for messages and liveness checks
};

struct Membership {
  std::uint64_t session = 0;  // random per job start; a frame of another session is refused
  std::uint64_t epoch = 0;    // grows by one with every change of members; a stale one is refused
  int rank = 0;               // this process
  std::vector<Member> members;

  int size() const { return static_cast<int>(members.size()); }
  bool on_one_host() const;
};

}  // namespace motley::net
