// Which part of every micro-batch each worker of a planned job takes: in each stage of several workers a dynamic
// partition (data/local/batch_split.h) that starts from the plan's shares and follows the measured speeds of these
// workers.
//
// Pure, as the partition is: every rank feeds its own with the same measurements and comes to the same shares.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "motley/base/result.h"
#include "motley/data/local/batch_split.h"
#include "motley/train/loop/stage_layout.h"

namespace motley::train {

class StageSplit {
 public:
  // `options` are those of a partition of the batch among all ranks, with the policy dynamic, or fixed for the plan's
  // shares to stay; each stage takes its ranks' limits. Sets the layout's shares, and keeps to it: it must outlive this
  // object. Errors (kInvalidInput): limits that no shares of a stage meet, with the stage.
  static Result<StageSplit> create(StageLayout& layout, const data::BatchSplitOptions& options);

  // What every rank had to do in a step and how long it was at it, without waiting for others; in the order of ranks.
  // Where a stage's partition moves, the layout has its new shares afterwards.
  Status observe(std::uint64_t step, std::span<const data::Observation> ranks);

  std::uint64_t moves() const;                           // of all stages so far
  const std::string& reason() const { return reason_; }  // of the last one, with its stage

  // What was learnt, as JSON text, and back. What was saved under another plan says nothing: restore then starts afresh
  // and returns false. Refuses text that save did not write.
  std::string save() const;
  Result<bool> restore(std::string_view text);

 private:
  explicit StageSplit(StageLayout& layout) : layout_(&layout) {}
  std::string plan_name() const;
  void follow(std::size_t part);

  struct Part {
    int stage = 0;
    std::vector<int> ranks;
    data::BatchSplitter partition;
  };
  StageLayout* layout_;
  std::vector<Part> parts_;  // of stages with several ranks
  std::string reason_;
};

}  // namespace motley::train
