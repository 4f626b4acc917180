#include "motley/train/loop/sample_reader.h"

#include <algorithm>

namespace motley::train {

SampleReader::SampleReader(const RankContext& context, const data::Dataset& dataset, SampleAudit& audit,
                           Options options)
    : context_(context), dataset_(dataset), audit_(audit), options_(options), loader_(dataset, 1 + options.prefetch) {}

void SampleReader::start(data::Parts parts, bool counts) {
  loader_.discard();
  ahead_.clear();
  parts_ = parts;
  counts_ = counts;
}

Result<data::Batch> SampleReader::read(const Step& step, std::span<const std::uint32_t> samples, Report& report) {
  const double begin = monotonic_seconds();
  context_.set_phase(step.number, "loading");
  if (!ahead_.empty() && std::ranges::equal(samples, ahead_.front())) {
    ahead_.pop_front();
  } else {
    loader_.discard();
    ahead_.clear();
    loader_.request(samples, parts_);
  }
  MOTLEY_ASSIGN(data::Batch batch, loader_.take(context_.step_deadline()));
  if (counts_) {
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
    if (samples.empty() || !loader_.request(samples, parts_)) {
      return;
    }
    ahead_.push_back(std::move(samples));
  }
}

}  // namespace motley::train
