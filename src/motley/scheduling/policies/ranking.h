// What preemptive policies share: jobs are offered in an order of rank, and each gets its workers from what those
// before it leave, or none.
#pragma once

#include <optional>
#include <vector>

#include "motley/scheduling/simulator/policy.h"

namespace motley::scheduling {

class Ranking {
 public:
  explicit Ranking(Packing packing) : packing_(packing) {}

  // All devices are free to be given out. The state must outlive the calls up to end().
  void begin(const State& state);
  // Gives a job the workers that it asks for: where it runs now, if nobody before it took that, else where they fit.
  // False: it gets none. To be called until it got them, once for a type of devices at most.
  bool offer(int number) { return offer(number, kAnyType); }
  bool offer(int number, int type);  // of devices of this type; kAnyType: of whichever it may have
  // Nothing is left: all who are not offered any more get none.
  bool is_full() const { return room_->free() == 0; }
  bool got(int job) const { return got_[static_cast<std::size_t>(job)] != 0; }
  // Adds what changes: jobs that run and got nothing stop.
  void end(Decision& decision);

 private:
  const Packing packing_;
  const State* state_ = nullptr;
  std::optional<Room> room_;
  std::vector<Change> changes_;
  std::vector<int> given_;  // jobs with workers
  std::vector<char> got_;   // by job
  std::vector<char> fits_;  // by workers: false once such a job was skipped, since devices only become fewer; not where
                            // uplinks or types of devices matter
};

}  // namespace motley::scheduling
