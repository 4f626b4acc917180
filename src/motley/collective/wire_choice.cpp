// Each type in turn gets an exchange of its own beside the job's, of a part of the model. All ranks begin a round
// together, and its time is the slowest one's, so that all choose alike.
#include "motley/collective/wire_choice.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "motley/base/log.h"
#include "motley/base/units.h"
#include "motley/collective/server_exchange.h"

namespace motley::collective {
namespace {

// Enough for a link to show its rate, little enough for a slow one: four buckets of together at most 4 MB.
constexpr std::size_t kBuckets = 4;
constexpr std::size_t kLargestBucket = 256 << 10;  // elements
constexpr int kRounds = 5;                         // at most; the first only warms up
constexpr double kEnoughSeconds = 0.2;

Layout trial_layout(const Layout& layout) {
  std::size_t elements = 0;
  for (const std::size_t bucket : layout.bucket_elements) elements += bucket;
  return {.type = layout.type,
          .bucket_elements = std::vector(kBuckets, std::clamp<std::size_t>(elements / kBuckets, 1, kLargestBucket))};
}

// Of a round, on the slowest rank; all ranks get the same.
Result<double> round_seconds(Exchange& exchange, Group& group, std::uint64_t round, const Deadline& deadline) {
  MOTLEY_TRY(group.barrier(deadline));
  const double began = monotonic_seconds();
  for (int bucket = 0; bucket < static_cast<int>(kBuckets); ++bucket) MOTLEY_TRY(exchange.start(round, bucket, 1));
  for (int bucket = 0; bucket < static_cast<int>(kBuckets); ++bucket) MOTLEY_TRY(exchange.wait(bucket, deadline));
  const double seconds = monotonic_seconds() - began;
  MOTLEY_ASSIGN(const auto all, group.all_gather(std::span(&seconds, 1), deadline));
  return *std::ranges::max_element(all);
}

}  // namespace

WireType best_wire(std::span<const WireTrial> trials) {
  const WireTrial* best = &trials.front();
  for (const WireTrial& trial : trials) {
    if (trial.seconds < kWorthWhile * best->seconds) best = &trial;
  }
  return best->type;
}

Result<WireType> choose_wire(net::Session& session, Group& group, const ExchangeOptions& options, const Layout& layout,
                             const Deadline& deadline) {
  const Layout part = trial_layout(layout);
  std::vector<WireTrial> trials;
  std::string measured;
  for (const WireType type : {WireType::kNative, WireType::kBfloat16, WireType::kInt8}) {
    ExchangeOptions trial = options;
    trial.wire = type;
    trial.update = {};  // no weights: the servers only add up
    trial.job_suffix = fmt::format(" (trial of {})", to_string(WireForm{type}));
    ServerExchange exchange(session, trial);
    MOTLEY_TRY(exchange.prepare(part, deadline));
    const bool speaks = session.membership().rank == 0;
    if (exchange.in_memory()) {
      if (speaks) spdlog::info("exchange.wire: auto: the server and all ranks share memory, where nothing is sent");
      return WireType::kNative;
    }
    for (std::size_t bucket = 0; bucket < kBuckets; ++bucket) {
      const auto bytes = exchange.buffer(static_cast<int>(bucket));
      std::ranges::fill(std::span(reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)), 1.0F);
    }
    std::vector<double> rounds;
    double spent = 0;
    for (int round = 0; round < kRounds && (rounds.size() < 2 || spent < kEnoughSeconds); ++round) {
      MOTLEY_ASSIGN(const double seconds, round_seconds(exchange, group, static_cast<std::uint64_t>(round), deadline));
      rounds.push_back(seconds);
      spent += seconds;
    }
    trials.push_back({type, *std::ranges::min_element(std::span(rounds).subspan(1))});
    measured += fmt::format("{}{} {}", measured.empty() ? "" : ", ", to_string(WireForm{type}),
                            format_seconds(trials.back().seconds));
  }
  const WireType best = best_wire(trials);
  if (session.membership().rank == 0) {
    spdlog::info("exchange.wire: auto chose {}: a round of {} takes {}", to_string(WireForm{best}),
                 format_bytes(static_cast<double>(kBuckets * part.bucket_elements[0] * sizeof(float))), measured);
  }
  return best;
}

}  // namespace motley::collective
