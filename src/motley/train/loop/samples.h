// A rank's samples: read in the background ahead of the steps that need them, and counted once a step uses them, so
// that what all ranks have used can be held against what the ledger says was to be used.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "motley/data/local/ledger.h"
#include "motley/data/local/loader.h"
#include "motley/train/loop/batch_plan.h"
#include "motley/train/loop/parts.h"

namespace motley::train {

class SampleAudit {
 public:
  explicit SampleAudit(std::uint32_t samples) : counts_(samples, 0) {}

  // From now on this rank records all ranks' samples, as each of them does: no rank that is lost takes its counts
  // along.
  void record_all() { records_all_ = true; }
  bool records_all() const { return records_all_; }
  // This rank has used these samples in a step that will be committed.
  void record(std::span<const std::uint32_t> samples) { counts_.record(samples); }

  struct Finding {
    std::uint64_t epoch = 0;
    std::uint32_t wrong = 0;  // samples lost or duplicated
  };
  // At an epoch's end and the job's: were all its samples used exactly once? Counts the next epoch's from there on.
  // Collective, as is merge().
  Result<Finding> check(const RankContext& context, const data::LedgerState& ledger);
  // All ranks' use counts together, complete on every rank.
  Result<data::UseCounts> merge(const RankContext& context) const;

  // Goes on from what rank 0 has of a checkpoint, the counts of all ranks; the other ranks' count from zero.
  Status restore(const std::string& counts, std::int64_t not_used_once, std::uint64_t epoch, bool is_first_rank);
  // Of a run that begins anew.
  void clear() {
    counts_.start(0);
    not_used_once_ = 0;
  }
  std::int64_t not_used_once() const { return not_used_once_; }  // samples, over the epochs that ended

 private:
  data::UseCounts counts_;
  std::int64_t not_used_once_ = 0;
  bool records_all_ = false;
};

class SampleReader {
 public:
  struct Options {
    std::size_t prefetch = 0;  // batches that are read ahead
    bool remote = false;       // from a data server, so that reading is waiting
    data::Loader::Options loader = {};
  };
  // All that is referred to must outlive this object.
  SampleReader(const RankContext& context, const data::Dataset& dataset, SampleAudit& audit, Options options);

  // From now on this much of each sample, and whether it counts as used here: of the ranks that read a
  // sample one counts it. Forgets what was read ahead.
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
