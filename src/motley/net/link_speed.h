// How fast bytes move over TCP between two workers of this host, for plans that send some.
#pragma once

#include "motley/base/result.h"

namespace motley::net {

struct LinkSpeed {
  double bytes_per_second = 0;  // in each of two directions that are both in use, as in an exchange of gradients
  double latency_seconds = 0;   // half of a round trip of a few bytes
};

// Medians over repetitions between two threads that talk through connections over loopback; takes about a second.
Result<LinkSpeed> measure_loopback();

}  // namespace motley::net
