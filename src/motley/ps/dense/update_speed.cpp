// Pinned threads that wait for one another before and after every pass.
#include "motley/ps/dense/update_speed.h"

#include <pthread.h>

#include <algorithm>
#include <barrier>
#include <thread>

#include "motley/base/clock.h"
#include "motley/base/statistics.h"
#include "motley/net/link_speed.h"

namespace motley::ps {
namespace {

constexpr int kPasses = 15;
constexpr int kMeasuredWorkers = 4;
constexpr std::size_t kMeasuredBytes = 64 << 20;  // of weights: with gradients and state more than caches hold

UpdateBuffer make_buffer(std::size_t elements) {
  const std::size_t bytes = (elements * sizeof(float) + 63) / 64 * 64;
  return UpdateBuffer(static_cast<float*>(std::aligned_alloc(64, bytes)));
}

}  // namespace

void fused_pass(const UpdateBuffers& buffers, std::size_t begin, std::size_t count) {
  std::vector<kernels::WireInput> inputs;
  for (const UpdateBuffer& gradient : buffers.gradients) inputs.push_back({gradient.get() + begin});
  const std::vector<float> coefficients(inputs.size(), 1);
  float* const state = buffers.momentum.get() + begin;
  kernels::fused_update(inputs, coefficients, 1.0F / static_cast<float>(inputs.size()), kMeasuredUpdate,
                        buffers.weights.get() + begin, &state, nullptr, kernels::WireFormat::kFloat32, count);
}

double seconds_per_pass(int workers, std::size_t bytes, int threads, const UpdatePass& pass) {
  // The ends of chunks and shares lie on cache lines, which streaming stores need.
  const std::size_t chunks = std::max<std::size_t>(bytes / sizeof(float) / kUpdateChunk, 1);
  const std::size_t elements = chunks * kUpdateChunk;
  UpdateBuffers buffers{.gradients = {}, .weights = make_buffer(elements), .momentum = make_buffer(elements)};
  for (int worker = 0; worker < workers; ++worker) buffers.gradients.push_back(make_buffer(elements));
  std::vector<double> seconds;
  std::barrier barrier(threads);
  const auto work = [&](int thread) {
    cpu_set_t core;
    CPU_ZERO(&core);
    CPU_SET(thread, &core);
    pthread_setaffinity_np(pthread_self(), sizeof(core), &core);
    const std::size_t first = chunks * static_cast<std::size_t>(thread) / static_cast<std::size_t>(threads);
    const std::size_t last = chunks * static_cast<std::size_t>(thread + 1) / static_cast<std::size_t>(threads);
    const auto fill = [&](const UpdateBuffer& buffer, float value) {
      std::fill(buffer.get() + first * kUpdateChunk, buffer.get() + last * kUpdateChunk, value);
    };
    fill(buffers.weights, 1);
    fill(buffers.momentum, 0);
    for (int round = 0; round <= kPasses; ++round) {
      for (const UpdateBuffer& gradient : buffers.gradients) fill(gradient, 1e-3F);
      barrier.arrive_and_wait();
      const double began = monotonic_seconds();
      for (std::size_t chunk = first; chunk < last; ++chunk) pass(buffers, chunk * kUpdateChunk, kUpdateChunk);
      barrier.arrive_and_wait();
      if (thread == 0 && round > 0) seconds.push_back(monotonic_seconds() - began);  // the first one warms up
    }
  };
  std::vector<std::jthread> running;
  for (int thread = 0; thread < threads; ++thread) running.emplace_back(work, thread);
  running.clear();
  return median(std::move(seconds));
}

Result<MachineSpeed> measure_machine(int cores, double memory_bytes) {
  const auto bytes = std::min(kMeasuredBytes, static_cast<std::size_t>(memory_bytes / 16));
  // SGD with momentum: gradients are read, weights and momentum read and written.
  const auto touched = static_cast<double>(bytes) * (kMeasuredWorkers + 4);
  const auto rate = [&](int threads) { return touched / seconds_per_pass(kMeasuredWorkers, bytes, threads); };
  MachineSpeed speed;
  speed.core_bytes_per_second = rate(1);
  speed.memory_bytes_per_second = cores > 1 ? rate(cores) : speed.core_bytes_per_second;
  MOTLEY_ASSIGN(const net::LinkSpeed loopback, net::measure_loopback());
  speed.loopback_bytes_per_second = loopback.bytes_per_second;
  return speed;
}

}  // namespace motley::ps
