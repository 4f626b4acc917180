// The parameter server's inner loop beside the ways of writing it that were not taken, for rows that say what each
// choice is worth: SGD with momentum in float32, over buffers too large for the caches.
#pragma once

#include <cstddef>

namespace motley::bench {

enum class UpdateVariant {
  kFused,            // kernels::fused_update: all workers' values, the step and cached stores in one pass
  kNonTemporal,      // the same with stores that bypass the caches (x86 only; elsewhere kFused)
  kCopyAddOptimize,  // as PHub did: copy the first worker's chunk, add the others' one by one, then take the step
  kMemcpy,           // no arithmetic: workers * bytes are copied
};

// The median time of one pass over `bytes` of weights and as many of each worker's gradient, in chunks of 32 KB of
// which each thread has a consecutive share; thread t runs on core t alone. Before each pass gradients are written
// anew, as a step's are, so that caches begin with lines that have to be written back. Gradient consumed per second is
// then workers * bytes / seconds. Uses (workers + 2) * bytes of memory, twice workers * bytes for kMemcpy.
double seconds_per_pass(UpdateVariant variant, int workers, std::size_t bytes, int threads);

}  // namespace motley::bench
