// A step of training: what all ranks know of it before it begins, and what each tells the others at its end.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "motley/base/clock.h"
#include "motley/base/result.h"
#include "motley/collective/gradient_reducer.h"
#include "motley/data/local/batch_split.h"
#include "motley/data/local/ledger.h"

namespace motley::train {

// Positions of a window, by rank.
using WindowParts = std::vector<std::vector<data::Range>>;

// The same on every rank, but for the time.
struct Step {
  std::int64_t number = 0;   // counts from 1
  data::LedgerState ledger;  // before the step
  data::Range window;        // of the epoch's permutation
  data::StepPlan plan;       // of a planned run the samples of each rank
  WindowParts kept = {};     // of a planned run: whose gradient ranks have, as the step was broken off; empty: none
  bool baseline = false;     // with the equal split, to compare with
  double learning_rate = 0;
  bool synchronises = true;  // all ranks hold the same weights after it, and meet
  double begin = 0;          // monotonic seconds
};

// Of the rows of a served table, as in ServedTable::Counts.
struct RowsReport {
  double waited = 0;  // seconds
  double pulled_bytes = 0;
  double pushed_bytes = 0;
  double needed = 0;
  double cached = 0;
  double prefetched = 0;
};

// What a rank measured in a step; the all-gather carries these as doubles, in this order.
struct Report {
  double samples = 0;
  double load = 0;     // seconds of reading samples that are here
  double compute = 0;  // seconds of loading, forward and backward, emulated sleep included
  double waited = 0;   // seconds of these in which it waited for rows or samples, or a planned stage for its neighbours
  double total = 0;    // seconds from the step's begin to the reduced gradient
  double cpu = 0;      // seconds of CPU time
  double memory = 0;   // bytes that the process had resident at most so far
  double target = -1;  // seconds that the emulated device takes; < 0: not emulated
  double stop = 0;     // it was asked to
  double leave = 0;    // it goes after this step, and the others go on
  double joins = 0;    // it has not got the others' weights yet, and computes nothing
  double checkpoint = 0;  // rank 0's: one is due
  double loss_sum = 0;
  double loss_count = 0;
  double metric_sum = 0;
  double metric_count = 0;
  double staleness = 0;   // steps that the oldest part in the new weights is behind this rank's
  double moves = 0;       // rank 0's: all go on by another plan after this step
  double sent_bytes = 0;  // of gradients and, to neighbouring stages, of activations
  RowsReport rows;        // whose `waited` is part of this one's
  double fetched = 0;     // seconds of `waited` that were for a data server
  // The first parameter whose gradient is not finite, counted from 1, and the first of which that is so, or of its
  // weights where servers take the optimizer's step, once all ranks' are reduced; 0: none.
  double own_not_finite = 0;
  double reduced_not_finite = 0;
  double samples_hash = 0;  // of the samples that were loaded (hash_samples), where all ranks record all
};

// Adds samples to a hash of samples, in which their order does not matter.
double hash_samples(double hash, std::span<const std::uint32_t> samples);

// A step that this rank has done, and all have not met since.
struct FinishedStep {
  Step step;
  Report report;  // this rank's
};

// Seconds until the last rank had computed.
double last_compute(std::span<const Report> reports);

// What each rank had to do and how long it took, for whoever splits the batch.
std::vector<data::Observation> observe(std::span<const Report> reports);

using AllReports = std::vector<std::vector<Report>>;  // [step][rank]

// All ranks' reports of the same steps. Collective.
Result<AllReports> gather_reports(collective::Group& group, std::span<const FinishedStep> steps,
                                  const Deadline& deadline);

// Root's text on all ranks. Collective.
Result<std::string> broadcast_text(collective::Group& group, std::string text, int root, const Deadline& deadline);

}  // namespace motley::train
