// The figures that a run's steps give: what a typical step looks like as it was balanced, with the equal split, and at
// the optimum that the same workers could have reached. Pure.
#pragma once

#include <optional>
#include <vector>

#include "motley/report/run.h"

namespace motley::report {

// Where a worker's time goes in a step, in seconds.
struct Phases {
  double samples = 0, load = 0, compute = 0, gradient_sync = 0, wait = 0;
  double busy() const { return load + compute; }
  double total() const { return load + compute + gradient_sync + wait; }
};

// What a worker sends in a step, and where the rows come from that it looks up. Bytes on the wire, seconds, rows.
struct Traffic {
  double sent = 0;  // gradients and activations
  double pulled = 0, pushed = 0, rows_wait = 0, rows_needed = 0, rows_cached = 0, rows_prefetched = 0;
};

// A typical step: each value is the median over the steps it stands for.
struct TypicalStep {
  std::vector<Phases> workers;
  std::vector<Traffic> traffic;  // by worker
  double seconds = 0;
  std::size_t steps = 0;  // how many it stands for
};

struct Figures {
  std::optional<TypicalStep> balanced;  // steps with the run's own split, after the first kSettling
  std::optional<TypicalStep> equal;     // baseline steps, or all steps of a run that splits equally
  std::optional<TypicalStep> optimum;   // nobody waits: see compute_optimum; not where workers compute different layers
  bool is_planned = false;              // workers compute the layers that a plan gives them

  std::optional<double> speedup() const;            // equal over balanced
  std::optional<double> possible_speedup() const;   // equal over optimum
  std::optional<double> max_wait_fraction() const;  // of the balanced step's time, over the workers
};

// The first steps are left out where there are enough others: the split is still being learned.
inline constexpr std::int64_t kSettling = 20;

Figures compute_figures(const Run& run);

// The least step time for the same samples when each worker keeps the speed it showed: worker i did n_i samples in
// t_i seconds, so all of them together do Σ n_i / t_i samples a second, and B = Σ n_i samples take B / Σ (n_i / t_i).
// The exchange is the smallest that a worker showed (that of a worker which came last and found all others ready).
// None where a time is missing.
std::optional<TypicalStep> compute_optimum(const TypicalStep& step);

}  // namespace motley::report
