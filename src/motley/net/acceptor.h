// A listening socket to which unauthenticated peers may connect: runs many handshakes at once without blocking, each
// with a deadline of its own, so that a silent or hostile connection costs nobody else anything.
#pragma once

#include <list>
#include <utility>
#include <vector>

#include "motley/base/os/descriptor.h"
#include "motley/net/handshake.h"
#include "motley/net/wait_set.h"

namespace motley::net {

class Acceptor {
 public:
  // A peer whose handshake has ended, well or not.
  struct PendingConnection {
    Descriptor socket;
    std::string address;  // "10.0.0.5:4711"
    Claim claim;          // to be believed only if `proved`
    bool proved = false;
    Status accepted;  // why it was turned away
  };

  // `check` judges those who proved that they know the secret.
  Acceptor(Descriptor listener, Handshake::FindSecret find_secret, Claim own, Handshake::Check check);
  Acceptor(Descriptor listener, const Secret& secret, Claim own, Handshake::Check check)
      : Acceptor(std::move(listener), [secret](const Claim&) { return secret; }, std::move(own), std::move(check)) {}

  const Descriptor& listener() const { return listener_; }
  // Adds what to wait for, and that the wait ends soon enough to keep the deadlines.
  void add_to(WaitSet& waits) const;
  // Does what can be done without blocking; returns those decided since the last call.
  std::vector<PendingConnection> step();

 private:
  struct Pending {
    Descriptor socket;
    std::string address;
    Handshake handshake;
    double give_up_at;  // monotonic seconds
    std::vector<std::byte> input = {};
  };
  // True when the handshake is decided; `status` then says how.
  bool advance(Pending& pending, Status& status);

  Descriptor listener_;
  Handshake::FindSecret find_secret_;
  Claim own_;
  Handshake::Check check_;
  std::list<Pending> pending_;  // oldest first
  double listens_from_ = 0;     // monotonic seconds: later than now while this process can open nothing more
};

// The other side: connects, proves, and checks who answers, all until the deadline. An error with kRefused is final;
// after others another attempt may succeed.
struct Host {
  Descriptor socket;
  Claim claim;
};
Result<Host> connect_and_authenticate(const Endpoint& endpoint, const Secret& secret, const Claim& own,
                                      const Handshake::Check& check, const Deadline& deadline,
                                      const std::function<bool()>& cancelled = {});

}  // namespace motley::net
