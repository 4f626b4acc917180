// M bytes, N ranks, S arrays of the optimizer's state. A step reads a gradient, and reads and writes the weights and
// the state: (3 + 2 S) M bytes of memory in each rank that takes it.
//
//   shared memory   each sum is read by one and written for all: 2 N M bytes of memory, and every rank's step
//   ring            2 (N - 1) / N M over each link, 2 (N - 1) messages one after the other, and every rank's step
//   server          M over each rank's link while N M / servers go over each server's, in both directions at once; the
//                   step is taken on the way
//   server, memory  the server reads N gradients once and takes one step: (N + 2 + 2 S) M bytes of memory
//
// What is measured is turned into rates of links by the same formulas, read backwards, so that the few megabytes of the
// probe say what the model's bytes will take.
#include "motley/train/sync/choose_method.h"

#include <sched.h>

#include <algorithm>
#include <numeric>

#include "motley/base/log.h"
#include "motley/base/statistics.h"
#include "motley/base/units.h"
#include "motley/collective/gradient_reducer.h"
#include "motley/ps/client/server_reducer.h"

namespace motley::train {
namespace {

constexpr std::size_t kMaxProbeElements = 1 << 20;  // 4 MB: 34 ms at 1 Gb/s
constexpr std::size_t kSmallElements = 16;
constexpr int kRounds = 3;

// Enough for a link to show its rate, little enough for a slow one: four buckets of together at most 4 MB.
constexpr std::size_t kBuckets = 4;
constexpr std::size_t kLargestBucket = 256 << 10;  // elements
constexpr int kWireRounds = 5;                     // at most; the first only warms up
constexpr double kEnoughSeconds = 0.2;

double step_bytes(const MethodQuestion& q) {
  return (3 + 2 * q.state_arrays) * q.bytes;
}

MethodEstimate shared_memory(const MethodQuestion& q) {
  // All ranks work at once, each on its share.
  const double moved = (q.ranks > 1 ? 2 * q.bytes : 0) + step_bytes(q);
  return {collective::Method::kSharedMemory, moved / q.rank_memory,
          fmt::format("{} of memory a rank at {}/s", format_bytes(moved), format_bytes(q.rank_memory))};
}

MethodEstimate ring(const MethodQuestion& q) {
  const double carried = 2.0 * (q.ranks - 1) / q.ranks * q.bytes * q.wire_share;
  const double step = step_bytes(q) / q.rank_memory;
  return {collective::Method::kTcpRing, carried / q.rank_link + 2 * (q.ranks - 1) * q.latency + step,
          fmt::format("{} over each link at {}/s, {} for the step", format_bytes(carried), format_bytes(q.rank_link),
                      format_seconds(step))};
}

MethodEstimate server_in_memory(const MethodQuestion& q) {
  const double step = q.server_steps ? 0 : step_bytes(q) / q.rank_memory;
  const double moved =
      q.server_steps ? (q.ranks + 2 + 2 * q.state_arrays) * q.bytes : static_cast<double>(q.ranks + 1) * q.bytes;
  return {collective::Method::kParameterServer, moved / q.server_memory + step,
          fmt::format("{} of memory at {}/s", format_bytes(moved), format_bytes(q.server_memory))};
}

MethodEstimate server_over_links(const MethodQuestion& q) {
  const double step = q.server_steps ? 0 : step_bytes(q) / q.rank_memory;
  const double carried = q.bytes * q.wire_share;
  const double of_ranks = carried / q.rank_to_server_link;
  const double of_servers = q.ranks * carried / (q.servers * q.server_link);
  return {
      collective::Method::kParameterServer, std::max(of_ranks, of_servers) + 2 * q.latency + step,
      of_ranks >= of_servers
          ? fmt::format("{} over each rank's link at {}/s", format_bytes(carried), format_bytes(q.rank_to_server_link))
          : fmt::format("{} over each server's link at {}/s", format_bytes(q.ranks * carried / q.servers),
                        format_bytes(q.server_link))};
}

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
Result<double> memory_rate(const kernels::UpdateOptions& update, collective::Group& group, const Deadline& deadline) {
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
  for (int round = 0; round < kRounds; ++round) {
    MOTLEY_TRY(group.barrier(deadline));
    const double began = monotonic_seconds();
    kernels::fused_update({&input, 1}, {&one, 1}, 1, update, weights.data(), arrays.data(), nullptr,
                          kernels::WireFormat::kFloat32, kElements);
    seconds.push_back(monotonic_seconds() - began);
  }
  return static_cast<double>((3 + 2 * state.size()) * kElements * sizeof(float)) / median(seconds);
}

collective::Layout trial_layout(const collective::Layout& layout) {
  const auto& buckets = layout.bucket_elements;
  const std::size_t elements = std::accumulate(buckets.begin(), buckets.end(), std::size_t{0});
  return {.type = layout.type,
          .bucket_elements = std::vector(kBuckets, std::clamp<std::size_t>(elements / kBuckets, 1, kLargestBucket))};
}

// Of a round, on the slowest rank; all ranks get the same.
Result<double> round_seconds(collective::GradientReducer& reducer, collective::Group& group, std::uint64_t round,
                             const Deadline& deadline) {
  MOTLEY_TRY(group.barrier(deadline));
  const double began = monotonic_seconds();
  for (int bucket = 0; bucket < static_cast<int>(kBuckets); ++bucket) MOTLEY_TRY(reducer.start(round, bucket, 1));
  for (int bucket = 0; bucket < static_cast<int>(kBuckets); ++bucket) MOTLEY_TRY(reducer.wait(bucket, deadline));
  return slowest(group, monotonic_seconds() - began, deadline);
}

}  // namespace

MethodChoice choose_method(const MethodQuestion& question) {
  MethodChoice choice;
  if (question.one_host) {
    choice.estimates.push_back(shared_memory(question));
  } else if (question.ring_allowed || question.servers == 0) {
    choice.estimates.push_back(ring(question));
  }
  if (question.servers > 0) {
    choice.estimates.push_back(question.server_shares_memory ? server_in_memory(question)
                                                             : server_over_links(question));
  }
  std::ranges::stable_sort(choice.estimates, {}, &MethodEstimate::seconds);
  choice.method = choice.estimates.front().method;
  return choice;
}

std::string MethodChoice::explanation() const {
  std::string text;
  for (const MethodEstimate& estimate : estimates) {
    text += fmt::format("{}{}: {} ({})", text.empty() ? "" : "; ", to_string(estimate.method),
                        format_seconds(estimate.seconds), estimate.because);
  }
  return text;
}

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

  MOTLEY_ASSIGN(const double own_rate, memory_rate(options.update, group, deadline));
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

collective::WireType best_wire(std::span<const WireTrial> trials) {
  const WireTrial* best = &trials.front();
  for (const WireTrial& trial : trials) {
    if (trial.seconds < kMaxTimeRatio * best->seconds) best = &trial;
  }
  return best->type;
}

// Each type in turn gets an exchange of its own beside the job's, of a part of the model. All ranks begin a round
// together, and its time is the slowest one's, so that all choose alike.
Result<collective::WireType> choose_wire(net::Session& session, collective::Group& group,
                                         const ps::ServerOptions& options, const collective::Layout& layout,
                                         const Deadline& deadline) {
  const collective::Layout part = trial_layout(layout);
  std::vector<WireTrial> trials;
  std::string measured;
  for (const collective::WireType type :
       {collective::WireType::kNative, collective::WireType::kBfloat16, collective::WireType::kInt8}) {
    ps::ServerOptions trial = options;
    trial.wire = type;
    trial.update = {};  // no weights: the servers only add up
    trial.job_suffix = fmt::format(" (trial of {})", to_string(collective::WireForm{type}));
    MOTLEY_ASSIGN(const auto reducer, ps::ServerReducer::create(session, trial));
    MOTLEY_TRY(reducer->prepare(part, deadline));
    const bool speaks = session.membership().rank == 0;
    if (reducer->in_memory()) {
      if (speaks)
        spdlog::info("gradient_sync.comm_dtype: auto: the server and all ranks share memory, where nothing is sent");
      return collective::WireType::kNative;
    }
    for (std::size_t bucket = 0; bucket < kBuckets; ++bucket) {
      const auto bytes = reducer->buffer(static_cast<int>(bucket));
      std::ranges::fill(std::span(reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)), 1.0F);
    }
    std::vector<double> rounds;
    double spent = 0;
    for (int round = 0; round < kWireRounds && (rounds.size() < 2 || spent < kEnoughSeconds); ++round) {
      MOTLEY_ASSIGN(const double seconds, round_seconds(*reducer, group, static_cast<std::uint64_t>(round), deadline));
      rounds.push_back(seconds);
      spent += seconds;
    }
    trials.push_back({type, *std::ranges::min_element(std::span(rounds).subspan(1))});
    measured += fmt::format("{}{} {}", measured.empty() ? "" : ", ", to_string(collective::WireForm{type}),
                            format_seconds(trials.back().seconds));
  }
  const collective::WireType best = best_wire(trials);
  if (session.membership().rank == 0) {
    spdlog::info("gradient_sync.comm_dtype: auto chose {}: a round of {} takes {}",
                 to_string(collective::WireForm{best}),
                 format_bytes(static_cast<double>(kBuckets * part.bucket_elements[0] * sizeof(float))), measured);
  }
  return best;
}

Result<SyncMethod> make_reducer(net::Session& session, const ps::ServerOptions& options) {
  SyncMethod method;
  if (options.method == collective::Method::kParameterServer) {
    MOTLEY_ASSIGN(auto reducer, ps::ServerReducer::create(session, options));
    if (reducer->updates_weights()) method.server_optimizer = reducer.get();
    method.reducer = std::move(reducer);
  } else {
    MOTLEY_ASSIGN(method.reducer, collective::make_reducer(session, options));
  }
  return method;
}

}  // namespace motley::train
