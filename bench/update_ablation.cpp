// Each is one pass over a chunk, measured as the server's own is.
#include "bench/update_ablation.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "motley/kernels/sum.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace motley::bench {

#if defined(__x86_64__)
void non_temporal_pass(const ps::UpdateBuffers& buffers, std::size_t begin, std::size_t count) {
  constexpr std::size_t kBlock = 512;
  constexpr auto rate = static_cast<float>(ps::kMeasuredUpdate.learning_rate);
  constexpr auto momentum_factor = static_cast<float>(ps::kMeasuredUpdate.momentum);
  alignas(64) float gradient[kBlock];
  float* const sum = gradient;
  std::vector<const float*> inputs(buffers.gradients.size());
  const std::vector<float> coefficients(inputs.size(), 1);
  for (const std::size_t end = begin + count; begin < end; begin += kBlock) {
    const std::size_t length = std::min(kBlock, end - begin);
    std::ranges::transform(buffers.gradients, inputs.begin(),
                           [&](const ps::UpdateBuffer& from) { return from.get() + begin; });
    kernels::weighted_sum(inputs, coefficients, 1.0F / static_cast<float>(inputs.size()), std::span(&sum, 1), length);
    float* const weights = buffers.weights.get() + begin;
    float* const momentum = buffers.momentum.get() + begin;
    // A line is read to its end before it is written: a read in between would send it to memory in pieces.
    for (std::size_t e = 0; e < length; e += 16) {
      __m128 m[4];
      __m128 w[4];
      for (std::size_t part = 0; part < 4; ++part) {
        const std::size_t at = e + 4 * part;
        m[part] = _mm_mul_ps(_mm_set1_ps(momentum_factor), _mm_load_ps(momentum + at));
        m[part] = _mm_add_ps(m[part], _mm_load_ps(gradient + at));
        w[part] = _mm_sub_ps(_mm_load_ps(weights + at), _mm_mul_ps(_mm_set1_ps(rate), m[part]));
      }
      for (std::size_t part = 0; part < 4; ++part) _mm_stream_ps(momentum + e + 4 * part, m[part]);
      for (std::size_t part = 0; part < 4; ++part) _mm_stream_ps(weights + e + 4 * part, w[part]);
    }
  }
  _mm_sfence();
}
#else
void non_temporal_pass(const ps::UpdateBuffers& buffers, std::size_t begin, std::size_t count) {
  ps::fused_pass(buffers, begin, count);
}
#endif

void copy_add_optimize_pass(const ps::UpdateBuffers& buffers, std::size_t begin, std::size_t count) {
  alignas(64) thread_local float merged[ps::kUpdateChunk];
  float* const sum = merged;
  std::memcpy(merged, buffers.gradients[0].get() + begin, count * sizeof(float));
  const float ones[] = {1, 1};
  for (std::size_t worker = 1; worker < buffers.gradients.size(); ++worker) {
    const float* const inputs[] = {merged, buffers.gradients[worker].get() + begin};
    kernels::weighted_sum(inputs, ones, 1, std::span(&sum, 1), count);
  }
  const kernels::WireInput input{merged, kernels::WireFormat::kFloat32};
  float* const state = buffers.momentum.get() + begin;
  kernels::fused_update({&input, 1}, {ones, 1}, 1.0F / static_cast<float>(buffers.gradients.size()),
                        ps::kMeasuredUpdate, buffers.weights.get() + begin, &state, nullptr,
                        kernels::WireFormat::kFloat32, count);
}

}  // namespace motley::bench
