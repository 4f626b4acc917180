// What every part of a rank's training may use: who it is, the other ranks, the timeline, and how long a wait may take.
#pragma once

#include <cstdint>
#include <string>

#include "motley/base/clock.h"
#include "motley/base/result.h"
#include "motley/collective/gradient_reducer.h"
#include "motley/net/session.h"
#include "motley/train/loop/timeline.h"

namespace motley::train {

struct RankContext {
  int rank = 0;
  int size = 1;
  net::Session& session;     // of all ranks
  collective::Group& group;  // the same
  TimelineRecorder& timeline;
  double step_seconds = 60;  // that a step may take

  bool writes() const { return rank == 0; }  // the run's files
  Deadline step_deadline() const { return Deadline::after(step_seconds); }
  // Of what moves the whole state, or uses all test data.
  Deadline long_deadline() const { return Deadline::after(10 * step_seconds); }
  void set_phase(std::int64_t step, const char* phase) const {
    session.set_phase(static_cast<std::uint64_t>(step), phase);
  }
};

// Root's text on all ranks. Collective.
Result<std::string> broadcast_text(collective::Group& group, std::string text, int root, const Deadline& deadline);

}  // namespace motley::train
