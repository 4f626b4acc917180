// A rank's samples, read in the background ahead of the steps that need them, and counted for the audit once a step
// uses them.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "motley/data/local/loader.h"
#include "motley/train/loop/batch_plan.h"
#include "motley/train/loop/rank_context.h"
#include "motley/train/loop/sample_audit.h"
#include "motley/train/loop/step.h"

namespace motley::train {

class SampleReader {
 public:
  struct Options {
    std::size_t prefetch = 0;  // batches that are read ahead
    bool remote = false;       // from a data server, so that reading is waiting
  };
  // All that is referred to must outlive this object.
  SampleReader(const RankContext& context, const data::Dataset& dataset, SampleAudit& audit, Options options);

  // From now on this much of each sample, and whether it counts as used here: of the ranks that read a sample one
  // counts it. Forgets what was read ahead.
  void start(data::Parts parts, bool counts);

  // The batch of these samples; adds the time to the report.
  Result<data::Batch> read(const Step& step, std::span<const std::uint32_t> samples, Report& report);
  // Reads what the rank will need after this step if the split stays as it is; read() checks.
  void read_ahead(const BatchPlan& plan, const Step& step);
  // Gives a batch's memory back.
  void recycle(data::Batch batch) { loader_.recycle(std::move(batch)); }
  // The ids of the next batch; empty where they are not known by the deadline.
  std::vector<std::uint64_t> next_ids(const Deadline& deadline) { return loader_.next_ids(deadline); }

  const data::Dataset& dataset() const { return dataset_; }
  data::Parts parts() const { return parts_; }

 private:
  const RankContext& context_;
  const data::Dataset& dataset_;
  SampleAudit& audit_;
  const Options options_;
  data::Parts parts_;
  bool counts_ = true;
  data::Loader loader_;
  std::deque<std::vector<std::uint32_t>> ahead_;  // samples that were requested and not taken, by request
};

}  // namespace motley::train
