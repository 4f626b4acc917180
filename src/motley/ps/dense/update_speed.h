// How fast this machine does what a parameter server's threads do all the time: sum the workers' gradients and take the
// optimizer's step, here SGD with momentum in float32, over buffers too large for the caches.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

#include "motley/base/result.h"
#include "motley/kernels/update.h"

namespace motley::ps {

inline constexpr std::size_t kUpdateChunk = 8192;  // elements that a thread takes at a time, 32 KB
inline constexpr kernels::UpdateOptions kMeasuredUpdate = {
    .rule = kernels::UpdateRule::kMomentum, .learning_rate = 1e-3F, .momentum = 0.9F};

// Memory on a cache line, whose pages belong to whoever writes them first.
struct FreeMemory {
  void operator()(float* memory) const { std::free(memory); }
};
using UpdateBuffer = std::unique_ptr<float[], FreeMemory>;

struct UpdateBuffers {
  std::vector<UpdateBuffer> gradients;  // one for each worker
  UpdateBuffer weights;
  UpdateBuffer momentum;
};

// The step over `count` elements from `begin` on, a chunk.
using UpdatePass = std::function<void(const UpdateBuffers&, std::size_t begin, std::size_t count)>;

// As the server does it: all workers' values, the step and cached stores in one pass (kernels::fused_update).
void fused_pass(const UpdateBuffers& buffers, std::size_t begin, std::size_t count);

// The median time of one pass over `bytes` of weights, rounded down to chunks, and as many of each worker's gradient,
// in chunks of which each thread has a consecutive share; thread t runs on core t alone. Before each pass gradients are
// written anew, as a step's are, so that caches begin with lines that have to be written back. Gradient consumed per
// second is then workers * bytes / seconds. Uses (workers + 2) * bytes of memory.
double seconds_per_pass(int workers, std::size_t bytes, int threads, const UpdatePass& pass = fused_pass);

// This machine as a server of a few workers: the bytes that its cores touch in summing and updating, and those that
// pass over its loopback in each direction.
struct MachineSpeed {
  double core_bytes_per_second = 0;
  double memory_bytes_per_second = 0;  // of all cores together
  double loopback_bytes_per_second = 0;
};
Result<MachineSpeed> measure_machine(int cores, double memory_bytes);

}  // namespace motley::ps
