// How ranks find each other: rank 0 gathers, the others attend. Both end with the same membership and with the control
// connections over which the session goes on.
#pragma once

#include <memory>
#include <vector>

#include "motley/base/os/descriptor.h"
#include "motley/net/handshake.h"
#include "motley/net/session.h"
#include "motley/net/tcp_connection.h"

namespace motley::net {

inline constexpr std::uint32_t kControlPurpose = 0xffffffffU;

struct Gathering {
  Membership membership;
  Descriptor data_listener;
  // By rank. Rank 0 has one to each other rank, the others have one to rank 0; the rest are null.
  std::vector<std::unique_ptr<TcpConnection>> controls;
};

Result<Gathering> gather(const SessionOptions& options, const Secret& secret);  // rank 0
Result<Gathering> attend(const SessionOptions& options, const Secret& secret);  // other ranks

}  // namespace motley::net
