// The policies, each in a file of its own.
#pragma once

#include <memory>

#include "motley/schedule/policy.h"

namespace motley::schedule {

// First in, first out: jobs start in the order of their arrivals with the workers they ask for, none before one that
// came earlier, and keep them to their end.
std::unique_ptr<Policy> make_fifo(const PolicyOptions& options);

// Least attained service, discretised in two dimensions (devices and time), as in Tiresias (Gu et al., NSDI 2019).
std::unique_ptr<Policy> make_las(const PolicyOptions& options);

// Shortest remaining time first; knows durations.
std::unique_ptr<Policy> make_srtf(const PolicyOptions& options);

}  // namespace motley::schedule
