// Some ranks of a session as a session of their own, so that whatever works among all ranks of a job works among those
// of one stage. The ranks keep their order and are numbered from 0; whom an error or a message names is named by its
// rank in the job.
#pragma once

#include <memory>
#include <vector>

#include "motley/net/session.h"

namespace motley::net {

// `ranks`, ascending, have this rank among them; all of them make the same part. Parts that connect the same two ranks
// have different numbers, from 1. `whole` must outlive the part; leaving and failing are the whole session's.
std::unique_ptr<Session> make_partial_session(Session& whole, std::vector<int> ranks, std::uint16_t number);

}  // namespace motley::net
