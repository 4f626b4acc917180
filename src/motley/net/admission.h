// Connections whose two ends have proved themselves by the handshake. The accepting side is a listening socket to which
// unauthenticated peers may connect: it runs many handshakes at once without blocking, each with a deadline of its own,
// so that a silent or hostile connection costs nobody else anything. It logs who is turned away, and only counts them
// where they are many.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "motley/base/os/descriptor.h"
#include "motley/net/channel_handshake.h"
#include "motley/net/wait_set.h"

namespace motley::net {

class Acceptor {
 public:
  // A peer whose handshake has ended, well or not.
  struct PendingConnection {
    Channel channel;
    std::string address;  // "10.0.0.5:4711"
    Claim claim;          // to be believed only if `accepted`
    Status accepted;      // why it was turned away
  };

  // `check` judges those who proved that they know the secret.
  Acceptor(Descriptor listener, Handshake::FindSecret find_secret, Claim own, Handshake::Check check,
           const Encryption& encryption);
  Acceptor(Descriptor listener, const Secret& secret, Claim own, Handshake::Check check, const Encryption& encryption)
      : Acceptor(
            std::move(listener), [secret](const Claim&) { return secret; }, std::move(own), std::move(check),
            encryption) {}
  ~Acceptor();

  // Adds what to wait for, and that the wait ends soon enough to keep the deadlines.
  void add_to(WaitSet& waits) const;
  // Does what can be done without blocking, and hands over each connection as soon as it is decided: `check` judges the
  // next one after that.
  void step(const std::function<void(PendingConnection)>& decided);

 private:
  struct Pending {
    Descriptor socket;
    std::string address;
    ChannelHandshake handshake;
    double give_up_at;  // monotonic seconds
    std::vector<std::byte> input = {};
  };
  // Those turned away for one kind of reason, within a period.
  struct TurnedAway {
    double ends_at = 0;        // monotonic seconds
    int logged = 0;            // each in a line of its own
    std::size_t unlogged = 0;  // the others
    std::string last;          // of the others
  };
  using Decided = std::function<void(PendingConnection)>;
  // How the handshake was decided, once it is.
  static std::optional<Status> advance(Pending& pending);
  void accept_all(const Decided& decided);
  // Hands it over if the handshake is decided, or else, if it is given a reason, for that. Returns the next one.
  std::list<Pending>::iterator decide(std::list<Pending>::iterator pending, const Decided& decided,
                                      const std::optional<Error>& otherwise = {});
  void log(const PendingConnection& turned_away);
  void log_counted(double now);

  Descriptor listener_;
  Handshake::FindSecret find_secret_;
  Claim own_;
  Handshake::Check check_;
  const Encryption encryption_;
  std::list<Pending> pending_;  // oldest first
  std::map<ErrorCode, TurnedAway> turned_away_;
  // Monotonic seconds: later than now while this process can open nothing more, and once it has said so.
  double listens_from_ = 0, tells_from_ = 0;
};

// The other side: connects, proves, and checks who answers, again and again until the deadline or until an error
// `is_final`; returns the last one. `cancelled` ends an attempt, and is asked every 50 ms.
struct Host {
  Channel channel;
  Claim claim;
};
Result<Host> connect_and_authenticate(const Endpoint& endpoint, const Secret& secret, const Claim& own,
                                      const Handshake::Check& check, const Encryption& encryption,
                                      const Deadline& deadline, const std::function<bool()>& cancelled,
                                      const std::function<bool(const Error&)>& is_final);

// An authenticated connection to the service that listens at the endpoint and holds the secret, whoever it claims to
// be. Tries again until the deadline, unless it is refused; `cancelled` is asked every 50 ms. The error names the
// endpoint.
Result<std::unique_ptr<Connection>> connect_to_host(const Endpoint& endpoint, const Secret& secret, const Claim& own,
                                                    const Deadline& deadline, bool payload_checksum,
                                                    const Encryption& encryption,
                                                    const std::function<bool()>& cancelled);

}  // namespace motley::net
