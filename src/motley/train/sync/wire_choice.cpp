// Each type in turn gets an exchange of its own beside the job's, of a part of the model. All ranks begin a round
// together, and its time is the slowest one's, so that all choose alike.
#include "motley/train/sync/wire_choice.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "motley/base/log.h"
#include "motley/base/units.h"
#include "motley/ps/client/server_reducer.h"

namespace motley::train {
namespace {

// Enough for a link to show its rate, little enough for a slow one: four buckets of together at most 4 MB.
constexpr std::size_t kBuckets = 4;
constexpr std::size_t kLargestBucket = 256 << 10;  // elements
constexpr int kRounds = 5;                         // at most; the first only warms up
constexpr double kEnoughSeconds = 0.2;

collective::Layout trial_layout(const collective::Layout& layout) {
  std::size_t elements = 0;
  for (const std::size_t bucket : layout.bucket_elements) elements += bucket;
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
  const double seconds = monotonic_seconds() - began;
  MOTLEY_ASSIGN(const auto all, group.all_gather(std::span(&seconds, 1), deadline));
  return *std::ranges::max_element(all);
}

}  // namespace

collective::WireType best_wire(std::span<const WireTrial> trials) {
  const WireTrial* best = &trials.front();
  for (const WireTrial& trial : trials) {
    if (trial.seconds < kMaxTimeRatio * best->seconds) best = &trial;
  }
  return best->type;
}

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
    for (int round = 0; round < kRounds && (rounds.size() < 2 || spent < kEnoughSeconds); ++round) {
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

}  // namespace motley::train
