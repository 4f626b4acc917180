// Which type on the wire to a parameter server pays (WireType::kAuto): exchanges of each are tried, on the links and
// with the processors that the job will use.
#pragma once

#include "motley/ps/client/server_options.h"

namespace motley::train {

// Seconds of a round of the same values in each type.
struct WireTrial {
  collective::WireType type = collective::WireType::kNative;
  double seconds = 0;
};

// A type is taken instead of one that loses less only where it saves a tenth of the time.
inline constexpr double kMaxTimeRatio = 0.9;

// From the trials, of which each type loses more than those before it.
collective::WireType best_wire(std::span<const WireTrial> trials);

// Collective. Rank 0 logs what was chosen and why. kNative where nothing is sent at all. Top-k is not among the
// choices: how many more steps it costs is for the job to know.
Result<collective::WireType> choose_wire(net::Session& session, collective::Group& group,
                                         const ps::ServerOptions& options, const collective::Layout& layout,
                                         const Deadline& deadline);

}  // namespace motley::train
