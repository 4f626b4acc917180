// Runs one variant on pinned threads that meet before and after every pass.
#include "bench/update_ablation.h"

#include <pthread.h>

#include <algorithm>
#include <barrier>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "motley/base/clock.h"
#include "motley/kernels/sum.h"
#include "motley/kernels/update.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace motley::bench {
namespace {

constexpr std::size_t kChunk = 8192;  // elements, 32 KB
constexpr int kPasses = 15;
constexpr float kRate = 1e-3F;
constexpr float kMomentum = 0.9F;
const kernels::UpdateOptions kOptions = {
    .rule = kernels::UpdateRule::kMomentum, .learning_rate = kRate, .momentum = kMomentum};

// Memory whose pages belong to whoever writes them first, on a cache line.
struct Free {
  void operator()(float* memory) const { std::free(memory); }
};
using Buffer = std::unique_ptr<float[], Free>;
Buffer make_buffer(std::size_t elements) {
  const std::size_t bytes = (elements * sizeof(float) + 63) / 64 * 64;
  return Buffer(static_cast<float*>(std::aligned_alloc(64, bytes)));
}

struct Buffers {
  std::vector<Buffer> gradients;
  std::vector<Buffer> copies;  // kMemcpy only
  Buffer weights;
  Buffer momentum;
};

void fused(const Buffers& buffers, std::size_t begin, std::size_t count) {
  std::vector<kernels::WireInput> inputs;
  for (const Buffer& gradient : buffers.gradients) {
    inputs.push_back({gradient.get() + begin, kernels::WireFormat::kFloat32});
  }
  const std::vector<float> coefficients(inputs.size(), 1);
  float* const state = buffers.momentum.get() + begin;
  kernels::fused_update(inputs, coefficients, 1.0F / static_cast<float>(inputs.size()), kOptions,
                        buffers.weights.get() + begin, &state, nullptr, kernels::WireFormat::kFloat32, count);
}

#if defined(__x86_64__)
void non_temporal(const Buffers& buffers, std::size_t begin, std::size_t count) {
  constexpr std::size_t kBlock = 512;
  alignas(64) float gradient[kBlock];
  float* const sum = gradient;
  std::vector<const float*> inputs(buffers.gradients.size());
  const std::vector<float> coefficients(inputs.size(), 1);
  for (const std::size_t end = begin + count; begin < end; begin += kBlock) {
    const std::size_t length = std::min(kBlock, end - begin);
    std::ranges::transform(buffers.gradients, inputs.begin(), [&](const Buffer& from) { return from.get() + begin; });
    kernels::weighted_sum(inputs, coefficients, 1.0F / static_cast<float>(inputs.size()), std::span(&sum, 1), length);
    float* const weights = buffers.weights.get() + begin;
    float* const momentum = buffers.momentum.get() + begin;
    // A line is read to its end before it is written: a read in between would send it to memory in pieces.
    for (std::size_t e = 0; e < length; e += 16) {
      __m128 m[4];
      __m128 w[4];
      for (std::size_t part = 0; part < 4; ++part) {
        const std::size_t at = e + 4 * part;
        m[part] = _mm_mul_ps(_mm_set1_ps(kMomentum), _mm_load_ps(momentum + at));
        m[part] = _mm_add_ps(m[part], _mm_load_ps(gradient + at));
        w[part] = _mm_sub_ps(_mm_load_ps(weights + at), _mm_mul_ps(_mm_set1_ps(kRate), m[part]));
      }
      for (std::size_t part = 0; part < 4; ++part) _mm_stream_ps(momentum + e + 4 * part, m[part]);
      for (std::size_t part = 0; part < 4; ++part) _mm_stream_ps(weights + e + 4 * part, w[part]);
    }
  }
  _mm_sfence();
}
#else
constexpr auto non_temporal = fused;
#endif

void copy_add_optimize(const Buffers& buffers, std::size_t begin, std::size_t count) {
  alignas(64) thread_local float merged[kChunk];
  float* const sum = merged;
  std::memcpy(merged, buffers.gradients[0].get() + begin, count * sizeof(float));
  const float ones[] = {1, 1};
  for (std::size_t worker = 1; worker < buffers.gradients.size(); ++worker) {
    const float* const inputs[] = {merged, buffers.gradients[worker].get() + begin};
    kernels::weighted_sum(inputs, ones, 1, std::span(&sum, 1), count);
  }
  const kernels::WireInput input{merged, kernels::WireFormat::kFloat32};
  float* const state = buffers.momentum.get() + begin;
  kernels::fused_update({&input, 1}, {ones, 1}, 1.0F / static_cast<float>(buffers.gradients.size()), kOptions,
                        buffers.weights.get() + begin, &state, nullptr, kernels::WireFormat::kFloat32, count);
}

void copy(const Buffers& buffers, std::size_t begin, std::size_t count) {
  for (std::size_t worker = 0; worker < buffers.copies.size(); ++worker) {
    std::memcpy(buffers.copies[worker].get() + begin, buffers.gradients[worker].get() + begin, count * sizeof(float));
  }
}

void run_on_core(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  pthread_setaffinity_np(pthread_self(), sizeof(cores), &cores);
}

}  // namespace

double seconds_per_pass(UpdateVariant variant, int workers, std::size_t bytes, int threads) {
  // The ends of chunks and shares lie on cache lines, which streaming stores need.
  const std::size_t chunks = std::max<std::size_t>(bytes / sizeof(float) / kChunk, 1);
  const std::size_t elements = chunks * kChunk;
  Buffers buffers{.gradients = {}, .copies = {}, .weights = make_buffer(elements), .momentum = make_buffer(elements)};
  for (int worker = 0; worker < workers; ++worker) {
    buffers.gradients.push_back(make_buffer(elements));
    if (variant == UpdateVariant::kMemcpy) buffers.copies.push_back(make_buffer(elements));
  }
  const auto pass_over = [&](std::size_t begin) {
    switch (variant) {
      case UpdateVariant::kFused:
        return fused(buffers, begin, kChunk);
      case UpdateVariant::kNonTemporal:
        return non_temporal(buffers, begin, kChunk);
      case UpdateVariant::kCopyAddOptimize:
        return copy_add_optimize(buffers, begin, kChunk);
      case UpdateVariant::kMemcpy:
        return copy(buffers, begin, kChunk);
    }
  };
  std::vector<double> seconds;
  std::barrier barrier(threads);
  const auto work = [&](int thread) {
    run_on_core(thread);
    const std::size_t first = chunks * static_cast<std::size_t>(thread) / static_cast<std::size_t>(threads);
    const std::size_t last = chunks * static_cast<std::size_t>(thread + 1) / static_cast<std::size_t>(threads);
    const auto fill = [&](const Buffer& buffer, float value) {
      std::fill(buffer.get() + first * kChunk, buffer.get() + last * kChunk, value);
    };
    for (const Buffer& target : buffers.copies) fill(target, 0);
    fill(buffers.weights, 1);
    fill(buffers.momentum, 0);
    for (int pass = 0; pass <= kPasses; ++pass) {
      for (const Buffer& gradient : buffers.gradients) fill(gradient, 1e-3F);
      barrier.arrive_and_wait();
      const double began = monotonic_seconds();
      for (std::size_t chunk = first; chunk < last; ++chunk) pass_over(chunk * kChunk);
      barrier.arrive_and_wait();
      if (thread == 0 && pass > 0) seconds.push_back(monotonic_seconds() - began);  // the first pass warms up
    }
  };
  std::vector<std::jthread> running;
  for (int thread = 0; thread < threads; ++thread) running.emplace_back(work, thread);
  running.clear();
  std::ranges::nth_element(seconds, seconds.begin() + kPasses / 2);
  return seconds[kPasses / 2];
}

}  // namespace motley::bench
