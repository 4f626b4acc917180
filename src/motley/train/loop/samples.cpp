#include "motley/train/loop/samples.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "motley/base/guard.h"

namespace motley::train {
namespace {

// Counts are summed several in one double, whose 53 bits hold three sums of at most 1024 ranks' counts of up to 63.
constexpr std::size_t kPacked = 3;
constexpr double kPackedBase = 65536;
constexpr std::uint8_t kMaxCount = 63;
constexpr std::size_t kChunk = kPacked << 16;  // counts summed at a time

}  // namespace

Result<data::UseCounts> SampleAudit::merge(const RankContext& context) const {
  if (records_all_) return counts_;
  std::vector<std::uint8_t> merged(counts_.counts().size());
  std::vector<double> packed;
  for (std::size_t begin = 0; begin < merged.size(); begin += kChunk) {
    const auto counts = counts_.counts().subspan(begin, std::min(kChunk, merged.size() - begin));
    packed.assign((counts.size() + kPacked - 1) / kPacked, 0);
    for (std::size_t i = counts.size(); i-- > 0;) {
      packed[i / kPacked] = packed[i / kPacked] * kPackedBase + std::min(counts[i], kMaxCount);
    }
    MOTLEY_TRY(context.group.all_reduce_sum(packed, context.step_deadline()));
    for (std::size_t i = 0; i < counts.size(); ++i) {
      double& left = packed[i / kPacked];
      const double others = std::floor(left / kPackedBase);
      merged[begin + i] = static_cast<std::uint8_t>(std::min(255.0, left - others * kPackedBase));
      left = others;
    }
  }
  return data::UseCounts(counts_.epoch(), std::move(merged));
}

Result<SampleAudit::Finding> SampleAudit::check(const RankContext& context, const data::LedgerState& ledger) {
  MOTLEY_ASSIGN(const data::UseCounts merged, merge(context));
  MOTLEY_ASSIGN(const std::uint32_t wrong, merged.not_used_exactly_once(ledger));
  not_used_once_ += wrong;
  if (ledger.epoch != counts_.epoch() && MOTLEY_KEEPS("audit-counts-anew")) counts_.start(ledger.epoch);
  return Finding{merged.epoch(), wrong};
}

Status SampleAudit::restore(const std::string& counts, std::int64_t not_used_once, std::uint64_t epoch,
                            bool is_first_rank) {
  not_used_once_ = not_used_once;
  if ((is_first_rank || records_all_) && MOTLEY_KEEPS("audit-goes-on")) {
    MOTLEY_ASSIGN(counts_, data::UseCounts::parse(counts));
  } else {
    counts_.start(epoch);
  }
  return {};
}

SampleReader::SampleReader(const RankContext& context, const data::Dataset& dataset, SampleAudit& audit,
                           Options options)
    : context_(context),
      dataset_(dataset),
      audit_(audit),
      options_(options),
      loader_(dataset, 1 + options.prefetch, options.loader) {}

void SampleReader::start(data::Parts parts, bool counts) {
  loader_.discard();
  ahead_.clear();
  parts_ = parts;
  counts_ = counts;
}

Result<data::Batch> SampleReader::read(const Step& step, std::span<const std::uint32_t> samples, Report& report) {
  const double begin = monotonic_seconds();
  context_.set_phase(step.number, "loading");
  const auto request = [&] {
    loader_.discard();
    ahead_.clear();
    loader_.request(samples, parts_, step.ledger.epoch);
  };
  const bool was_ahead = !ahead_.empty() && std::ranges::equal(samples, ahead_.front());
  if (was_ahead) {
    ahead_.pop_front();
  } else {
    request();
  }
  Result<data::Batch> taken = loader_.take(context_.step_deadline());
  // Where a rank is lost, remote reads are given up, those ahead, too: what comes of that is no error of their own.
  if (!taken) MOTLEY_TRY(context_.session.health());
  if (!taken && was_ahead && taken.error().code == ErrorCode::kPeerLost) {
    request();
    taken = loader_.take(context_.step_deadline());
  }
  MOTLEY_ASSIGN(data::Batch batch, std::move(taken));
  if (counts_ && audit_.records_all()) {  // later, what all ranks say that they have used
    report.samples_hash = hash_samples(report.samples_hash, batch.samples);
  } else if (counts_) {
    audit_.record(batch.samples);
  }
  const double end = monotonic_seconds();
  if (options_.remote) {
    report.waited += end - begin;
    report.fetched += end - begin;
  } else {
    report.load += end - begin;
  }
  context_.timeline.record(Phase::kLoad, step.number, begin, end);
  return batch;
}

void SampleReader::read_ahead(const BatchPlan& plan, const Step& step) {
  while (ahead_.size() < options_.prefetch) {
    std::vector<std::uint32_t> samples =
        plan.samples_ahead(step, context_.rank, static_cast<std::uint32_t>(ahead_.size()) + 1);
    if (samples.empty() || !loader_.request(samples, parts_, step.ledger.epoch)) {
      return;
    }
    ahead_.push_back(std::move(samples));
  }
}

}  // namespace motley::train
