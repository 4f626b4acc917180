// What is measured is turned into rates of links by the formulas of choose_method, read backwards, so that the few
// megabytes of the probe say what the model's bytes will take.
#include "motley/train/sync/measure_methods.h"

#include <sched.h>

#include <algorithm>
#include <numeric>

#include "motley/base/statistics.h"
#include "motley/collective/gradient_reducer.h"
#include "motley/ps/client/server_reducer.h"

namespace motley::train {
namespace {

constexpr std::size_t kMaxProbeElements = 1 << 20;  // 4 MB: 34 ms at 1 Gb/s
constexpr std::size_t kSmallElements = 16;
constexpr int kRounds = 3;

// The slowest rank's value.
Result<double> slowest(collective::Group& group, double mine, const Deadline& deadline) {
  MOTLEY_ASSIGN(const auto all, group.all_gather(std::span(&mine, 1), deadline));
  return *std::ranges::max_element(all);
}

// Seconds of a round of bucket 0 and of the small bucket 1; all ranks begin at once.
struct Rounds {
  double probe = 0;
  double small = 0;
};
Result<Rounds> time_rounds(collective::GradientReducer& reducer, collective::Group& group, const Deadline& deadline) {
  std::vector<double> seconds[2];
  std::uint64_t step = 0;
  for (int round = 0; round <= kRounds; ++round) {  // the first warms up
    ++step;
    for (int bucket = 0; bucket < 2; ++bucket) {
      MOTLEY_TRY(group.barrier(deadline));
      const double began = monotonic_seconds();
      MOTLEY_TRY(reducer.start(step, bucket, 1));
      MOTLEY_TRY(reducer.wait(bucket, deadline));
      MOTLEY_ASSIGN(const double all, slowest(group, monotonic_seconds() - began, deadline));
      if (round > 0) seconds[bucket].push_back(all);
    }
  }
  return Rounds{median(seconds[0]), median(seconds[1])};
}

// What this rank reads and writes per second while all take the optimizer's step, in memory beyond the caches.
double memory_rate(const kernels::UpdateOptions& update, collective::Group& group, const Deadline& deadline,
                   Status& status) {
  constexpr std::size_t kElements = 4 * kMaxProbeElements;
  std::vector<float> gradient(kElements);
  std::vector<float> weights(kElements);
  std::vector<std::vector<float>> state(static_cast<std::size_t>(kernels::state_arrays(update.rule)),
                                        std::vector<float>(kElements));
  std::vector<float*> arrays;
  for (auto& array : state) arrays.push_back(array.data());
  const kernels::WireInput input{gradient.data(), kernels::WireFormat::kFloat32};
  const float one = 1;
  std::vector<double> seconds;
  for (int round = 0; round < kRounds && status; ++round) {
    status = group.barrier(deadline);
    const double began = monotonic_seconds();
    kernels::fused_update({&input, 1}, {&one, 1}, 1, update, weights.data(), arrays.data(), nullptr,
                          kernels::WireFormat::kFloat32, kElements);
    seconds.push_back(monotonic_seconds() - began);
  }
  if (!status) return 0;
  return static_cast<double>((3 + 2 * state.size()) * kElements * sizeof(float)) / median(seconds);
}

}  // namespace

Result<MethodChoice> measure_and_choose(net::Session& session, collective::Group& group,
                                        const ps::ServerOptions& options, const collective::Layout& layout,
                                        const Deadline& deadline) {
  const net::Membership& members = session.membership();
  const int ranks = members.size();
  MethodQuestion question{.ranks = ranks, .one_host = members.on_one_host()};
  const std::size_t elements =
      std::accumulate(layout.bucket_elements.begin(), layout.bucket_elements.end(), std::size_t{0});
  question.bytes = static_cast<double>(elements * collective::byte_size(layout.type));
  question.wire_share = options.wire == collective::WireType::kNative ? 1 : 0.5;
  question.ring_allowed = options.wire <= collective::WireType::kBfloat16;
  question.state_arrays = kernels::state_arrays(options.update.rule);
  question.server_steps = options.update.rule != kernels::UpdateRule::kSum;
  const collective::Layout probe{
      .bucket_elements = {std::clamp(elements, kSmallElements, kMaxProbeElements), kSmallElements}};
  const double probe_bytes = static_cast<double>(probe.bucket_elements[0] * sizeof(float)) * question.wire_share;

  Status status;
  const double own_rate = memory_rate(options.update, group, deadline, status);
  MOTLEY_TRY(status);
  MOTLEY_ASSIGN(const auto rates, group.all_gather(std::span(&own_rate, 1), deadline));
  question.rank_memory = *std::ranges::min_element(rates);
  if (!question.one_host && question.ring_allowed) {
    const auto ring = collective::make_tcp_ring_reducer(session, options);
    MOTLEY_TRY(ring->prepare(probe, deadline));
    MOTLEY_ASSIGN(const Rounds seconds, time_rounds(*ring, group, deadline));
    question.latency = seconds.small;  // a few bytes go to all ranks at once
    const double carrying = std::max(seconds.probe - 2 * (ranks - 1) * seconds.small, seconds.probe / 2);
    question.rank_link = 2.0 * (ranks - 1) / ranks * probe_bytes / carrying;
  }
  // Servers hold weights in float32 only.
  if (!options.servers.empty() && layout.type == collective::DataType::kFloat32) {
    ps::ServerOptions there = options;
    there.job_suffix = "-probe";
    MOTLEY_ASSIGN(const auto server, ps::ServerReducer::create(session, there));
    MOTLEY_TRY(server->prepare(probe, deadline));
    ps::ServerState zeros;
    for (const std::size_t size : probe.bucket_elements) zeros.weights.emplace_back(size);
    MOTLEY_TRY(server->load(zeros, deadline));
    MOTLEY_ASSIGN(const Rounds seconds, time_rounds(*server, group, deadline));
    question.servers = static_cast<int>(options.servers.size());
    question.server_shares_memory = server->in_memory();
    if (question.latency == 0) question.latency = seconds.small / 2;
    question.rank_to_server_link = probe_bytes / std::max(seconds.probe - seconds.small, seconds.probe / 2);
    question.server_link = ranks * question.rank_to_server_link / question.servers;
    // The ranks share the host's cores with the server, and with each other while they were measured.
    cpu_set_t own;
    CPU_ZERO(&own);
    ::sched_getaffinity(0, sizeof own, &own);
    const int cores = CPU_COUNT(&own);
    question.server_memory =
        std::accumulate(rates.begin(), rates.end(), 0.0) / std::min(ranks, cores) * std::min(server->cores(), cores);
    MOTLEY_TRY(group.barrier(deadline));
  }
  MethodChoice choice = choose_method(question);
  // Ranks may see different cores; rank 0's choice counts.
  MOTLEY_TRY(group.broadcast(std::as_writable_bytes(std::span(&choice.method, 1)), 0, deadline));
  return choice;
}

}  // namespace motley::train
