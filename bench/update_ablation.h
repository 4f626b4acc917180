// Ways of writing the parameter server's inner loop that were not taken, for rows that say what each choice is worth.
#pragma once

#include "motley/ps/dense/update_speed.h"

namespace motley::bench {

// The step with stores that bypass the caches (x86 only; elsewhere as the server does it).
void non_temporal_pass(const ps::UpdateBuffers& buffers, std::size_t begin, std::size_t count);

// As PHub did: copies the first worker's chunk, adds the others' one by one, then takes the step.
void copy_add_optimize_pass(const ps::UpdateBuffers& buffers, std::size_t begin, std::size_t count);

}  // namespace motley::bench
