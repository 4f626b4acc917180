// A session whose connections are as slow as links that are not here: the kernel paces what each sends
// (SO_MAX_PACING_RATE), which takes no rights and no processor. Latency stays as it is.
#pragma once

#include <memory>
#include <vector>

#include "motley/net/session.h"

namespace motley::net {

// `bytes_per_second` to each rank; 0 leaves the connections to it as they are. Each connection has the whole rate to
// itself.
std::unique_ptr<Session> emulate_links(std::unique_ptr<Session> session, std::vector<double> bytes_per_second);

}  // namespace motley::net
