// A host that is not a rank: how to tell that two processes are on the same one, and how to connect to a service there.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "motley/net/handshake.h"
#include "motley/net/tcp_connection.h"

namespace motley::net {

// Equal for processes that can open each other's shared memory: same boot of the same machine, same /dev/shm
// (containers may have their own), same user.
std::string host_id();

// An authenticated connection to whoever listens at the endpoint and holds the secret, whoever it claims to be. Tries
// again until the deadline, unless it is refused; `cancelled` is asked every 50 ms. The error names the endpoint.
Result<std::unique_ptr<TcpConnection>> connect_to_host(const Endpoint& endpoint, const Secret& secret, const Claim& own,
                                                       const Deadline& deadline, bool payload_checksum,
                                                       const std::function<bool()>& cancelled);

}  // namespace motley::net
