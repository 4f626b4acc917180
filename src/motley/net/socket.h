// Plain TCP sockets: listening, connecting, addresses as text. Everything is non-blocking; waits take deadlines.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "motley/base/clock.h"
#include "motley/base/os/descriptor.h"
#include "motley/base/result.h"
#include "motley/net/session.h"

namespace motley::net {

std::string to_string(const Endpoint& endpoint);  // "10.0.0.5:4711", "[::1]:4711"

// A listening socket. A port in use is kUnavailable, with the port in the message. `host` is a name or an address.
Result<Descriptor> listen_at(const Endpoint& endpoint);
// The next waiting connection, with TCP_NODELAY set; an invalid descriptor when there is none.
Descriptor accept_from(const Descriptor& listener);
// Connects, waiting at most until the deadline; `cancelled` is asked every 50 ms.
Result<Descriptor> connect_to(const Endpoint& endpoint, const Deadline& deadline,
                              const std::function<bool()>& cancelled = {});

Endpoint local_endpoint(const Descriptor& socket);
Endpoint remote_endpoint(const Descriptor& socket);

// True if the name or address resolves to loopback addresses only.
Result<bool> is_loopback(const std::string& host);
// Whether both ends of a connection are loopback addresses.
bool is_over_loopback(const Descriptor& socket);
// "0.0.0.0" or "::": every address of the machine.
bool is_any_address(const std::string& host);

// A peer whose machine has said nothing for so long is gone.
inline constexpr int kGoneSeconds = 45;
// Whether it is, while something is sent to it again and again. Then the system does not ask whether it is there, and
// gives up after a quarter of an hour only. False for sockets that are not TCP's.
bool is_unanswered(const Descriptor& socket, double seconds = kGoneSeconds);

// Waits until one of `events` (POLLIN, POLLOUT) holds, or the time has passed. True where something has happened.
bool wait_for(int descriptor, short events, int milliseconds);

}  // namespace motley::net
