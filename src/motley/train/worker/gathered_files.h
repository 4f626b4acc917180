// What ranks on other hosts wrote in run folders of their own, brought to that of the rank which writes the run's
// files: their logs and their parts of the timeline.
#pragma once

#include <cstddef>
#include <map>
#include <span>

#include "motley/base/clock.h"
#include "motley/base/result.h"
#include "motley/net/session.h"
#include "motley/train/job/run_directory.h"

namespace motley::train {

// By rank: how many seconds its clock is ahead of the writer's.
using ClockOffsets = std::map<int, double>;

inline constexpr std::size_t kMostGatheredBytes = 1 << 28;  // of a file

// Called by each of the ranks `present` at the end of a run. The writer gets the others' files under the names that
// they have there, and how far their clocks are ahead, to half the time that a message takes to and fro; the others get
// nothing. Of a log of more than `most_bytes` it gets the end, after a line that says how much is missing; no part of a
// timeline that is so long. Errors name the rank that was waited for.
Result<ClockOffsets> gather_files(net::Session& session, const RunDirectory& run, std::span<const int> present,
                                  int writer, const Deadline& deadline, std::size_t most_bytes = kMostGatheredBytes);

}  // namespace motley::train
