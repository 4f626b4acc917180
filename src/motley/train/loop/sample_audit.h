// The audit of samples: what every rank has used, added up, against what the ledger says was to be used.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "motley/data/local/ledger.h"
#include "motley/train/loop/rank_context.h"

namespace motley::train {

class SampleAudit {
 public:
  explicit SampleAudit(std::uint32_t samples) : counts_(samples, 0) {}

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
  std::int64_t not_used_once() const { return not_used_once_; }  // samples, over the epochs that ended

 private:
  data::UseCounts counts_;
  std::int64_t not_used_once_ = 0;
};

}  // namespace motley::train
