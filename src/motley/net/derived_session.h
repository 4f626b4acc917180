// Sessions made of another: some of its ranks as a session of their own, or one whose connections are as slow as links
// that are not here. Whatever is not said here is as in the other session.
#pragma once

#include <memory>
#include <vector>

#include "motley/net/session.h"

namespace motley::net {

// Some ranks of a session, so that whatever works among all ranks of a job works among those of one stage. `ranks`,
// ascending, have this rank among them and are numbered from 0; all of them make the same part. Whom an error or a
// message names is named by its rank in the job. Parts that connect the same two ranks have different numbers, from 1.
// `whole` must outlive the part; leaving and failing are the whole session's.
std::unique_ptr<Session> make_partial_session(Session& whole, std::vector<int> ranks, std::uint16_t number);

// The kernel paces what each connection sends to `bytes_per_second` of its rank (SO_MAX_PACING_RATE), which takes no
// rights and no processor; 0 leaves the connections to a rank as they are. Each connection has the whole rate to
// itself. Latency stays as it is.
std::unique_ptr<Session> emulate_links(std::unique_ptr<Session> session, std::vector<double> bytes_per_second);

}  // namespace motley::net
