// Which rank of a planned job does what, and how that follows the measured speeds. The places of the plan are its
// stages one after the other, each with its replicas in their order; each has a rank, and takes rows of every
// micro-batch. Pure: every rank holds both, feeds them with the same measurements and comes to the same shares.
//
// Shares are fractions, rows are whole. A boundary between two replicas at the fraction f of a micro-batch of n rows is
// the row floor(f n + phase), with phases (i + 1/2) / m for the micro-batches i of m: the same phase for all boundaries
// keeps them in order, and over m micro-batches of n rows their rows add up to f n m, rounded once (Hermite's
// identity).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "motley/data/local/batch_split.h"
#include "motley/data/local/ledger.h"
#include "motley/planning/plan/plan.h"

namespace motley::train {

class StageLayout {
 public:
  // Ranks fill the plan's places in their order, or as `places` has it: a rank for each place. `size`: of the job,
  // where some of its ranks may have none.
  explicit StageLayout(planning::Plan plan, std::vector<int> places = {}, int size = 0);

  const planning::Plan& plan() const { return plan_; }
  const std::vector<int>& places() const { return places_; }
  int ranks() const { return static_cast<int>(ranks_.size()); }
  int stages() const { return static_cast<int>(plan_.stages.size()); }
  // -1: it has none.
  int find_stage(int rank) const { return ranks_[static_cast<std::size_t>(rank)].stage; }
  const planning::Stage& stage(int rank) const { return plan_.stages[static_cast<std::size_t>(find_stage(rank))]; }
  const std::string& device_type(int rank) const { return ranks_[static_cast<std::size_t>(rank)].type; }
  bool is_first(int rank) const { return find_stage(rank) == 0; }
  bool is_last(int rank) const { return find_stage(rank) == stages() - 1; }
  std::vector<int> list_ranks(int stage) const;  // none where there is no such stage
  // Those that compute any of these layers, ascending.
  std::vector<int> stages_with(std::span<const int> layers) const;
  // Who sends to a rank what all ranks of a stage have: one of them, each to as many as the others, or one more.
  int sender_to(int rank, int stage) const;

  // Only these ranks, ascending, are there: of each stage they compute what its others did.
  void keep_to(std::span<const int> present);
  // Whether each of these ranks has a place, and each stage one of them.
  bool suits(std::span<const int> present) const;

  // Shares of a stage's ranks, in their order, from now on: as these weights (not negative, not all 0) are to each
  // other. At first they are the plan's.
  void set_split(int stage, std::span<const double> weights);

  // A rank's share of its stage's samples.
  double share(int rank) const;

  // Of a step that was broken off: positions of its window whose gradient of its layers each rank has, by rank. Empty:
  // the step begins.
  using Kept = std::vector<std::vector<data::Range>>;

  struct MicroBatch {
    data::Range positions;  // of the epoch's permutation, as the window
    double phase = 0.5;
    std::vector<bool> kept = {};  // by stage: its ranks have the gradient of these rows already; empty: none has
    std::uint32_t size() const { return positions.size(); }
    bool lacks(int stage) const { return kept.empty() || !kept[static_cast<std::size_t>(stage)]; }
    // Whether backward goes through this stage: it or one before it lacks the gradient.
    bool goes_back_to(int stage) const {
      for (int before = 0; before <= stage; ++before) {
        if (lacks(before)) return true;
      }
      return false;
    }
  };

  // The window's micro-batches, as equal as can be and none of them empty: fewer than the plan's where the window has
  // fewer samples. Where some of the gradients are kept, only rows that any stage lacks, in pieces of rows that
  // the same stages lack.
  std::vector<MicroBatch> micro_batches(data::Range window, const Kept& kept = {}) const;

  // The rows [begin, end) of a micro-batch that a rank takes. The rows of a stage's ranks follow each other and cover
  // the micro-batch.
  data::Range rows(int rank, const MicroBatch& micro_batch) const;
  // The same as positions of the window.
  data::Range positions(int rank, const MicroBatch& micro_batch) const;

  // Positions of the window that are a rank's rows, in their order, by micro-batch.
  std::vector<data::Range> own_rows(int rank, data::Range window, const Kept& kept = {}) const;

  // Those whose gradient a rank has at the step's end: what it has kept, and those of its rows that its stage lacks.
  std::vector<data::Range> gradient_rows(int rank, data::Range window, const Kept& kept = {}) const;

  // How many these are: where nothing is kept, the samples of the window that go through the rank.
  std::uint32_t samples(int rank, data::Range window, const Kept& kept = {}) const;

  // Of a rank's rows those that each rank of a neighbouring stage has, too; nothing where there are none.
  struct Piece {
    int rank = 0;
    data::Range rows;  // of the micro-batch
  };
  std::vector<Piece> pieces(int rank, int stage, const MicroBatch& micro_batch) const;

 private:
  struct Rank {
    int stage = -1;
    std::string type;
    double begin = 0;  // of its part of a micro-batch, as a share
    double end = 0;
  };
  void cut(data::Range positions, const Kept& kept, std::vector<MicroBatch>& pieces) const;

  planning::Plan plan_;
  std::vector<int> places_;
  std::vector<Rank> ranks_;
};

// Which part of every micro-batch each worker takes: in each stage of several workers a dynamic partition
// (data/local/batch_split.h) that starts from the plan's shares and follows the measured speeds of these workers.
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
