#include "motley/train/loop/batch_plan.h"

#include <algorithm>
#include <utility>

namespace motley::train {

data::BatchSplit equal_split(std::uint32_t window, std::span<const data::WorkerLimits> limits) {
  const auto size = static_cast<std::uint32_t>(limits.size());
  data::BatchSplit shares(size);
  std::vector<std::uint32_t> present;  // ranks that may have samples
  std::uint32_t minimum = window;
  for (std::uint32_t i = 0; i < size; ++i) {
    if (limits[i].maximum == 0) continue;
    present.push_back(i);
    minimum = std::min(minimum, limits[i].minimum);
  }
  minimum = std::max(1U, minimum);
  // A small window is divided among the first ones, who have enough then.
  present.resize(std::clamp<std::size_t>(window / minimum, std::min<std::size_t>(1, present.size()), present.size()));
  const auto ranks = static_cast<std::uint32_t>(present.size());
  for (std::uint32_t i = 0; i < ranks; ++i) {
    shares[present[i]] = window / ranks + (i < window % ranks ? 1 : 0);
  }
  // What a worker cannot hold goes to the first that can.
  for (std::uint32_t i = 0; i < size; ++i) {
    for (std::uint32_t j = 0; j < size && shares[i] > limits[i].maximum; ++j) {
      if (shares[j] < limits[j].maximum) {
        const std::uint32_t moved = std::min(shares[i] - limits[i].maximum, limits[j].maximum - shares[j]);
        shares[i] -= moved;
        shares[j] += moved;
      }
    }
  }
  return shares;
}

WindowParts cut_window(const Step& step) {
  WindowParts parts;
  for (int rank = 0; rank < std::ssize(step.plan.shares); ++rank) {
    const data::Range range = data::rank_range(step.window, step.plan.shares, rank);
    parts.push_back(range.size() > 0 ? std::vector{range} : std::vector<data::Range>());
  }
  return parts;
}

void hand_over(WindowParts& parts, std::span<const int> left, std::span<const std::uint32_t> shares) {
  std::vector<data::Range> lost;
  for (int rank = 0; rank < std::ssize(parts); ++rank) {
    auto& own = parts[static_cast<std::size_t>(rank)];
    if (!std::ranges::binary_search(left, rank)) std::ranges::move(std::exchange(own, {}), std::back_inserter(lost));
  }
  std::uint64_t positions = 0;
  for (const data::Range& range : lost) positions += range.size();
  std::uint64_t weights = 0;
  const auto weight = [&](int rank) { return shares[static_cast<std::size_t>(rank)]; };
  for (const int rank : left) weights += weight(rank);
  // Rank by rank up to where the sum of the weights so far would have it.
  auto range = lost.begin();
  std::uint64_t given = 0, weights_so_far = 0;
  for (std::size_t i = 0; i < left.size(); ++i) {
    weights_so_far += weights > 0 ? weight(left[i]) : 1;
    const std::uint64_t up_to = positions * weights_so_far / (weights > 0 ? weights : left.size());
    while (given < up_to) {
      const auto size = static_cast<std::uint32_t>(std::min<std::uint64_t>(up_to - given, range->size()));
      parts[static_cast<std::size_t>(left[i])].push_back({range->begin, range->begin + size});
      range->begin += size;
      given += size;
      if (range->size() == 0) ++range;
    }
  }
}

Result<BatchPlan> BatchPlan::create(BatchPlanOptions options, const data::BatchSplitOptions& split,
                                    const data::LedgerState& fresh, StageLayout* layout) {
  const auto as_split = [](auto made) { return Split(std::move(made)); };
  auto made = layout != nullptr ? StageSplit::create(*layout, split).map(as_split)
                                : data::BatchSplitter::create(split).map(as_split);
  if (!made) return fail(made.error());
  MOTLEY_ASSIGN(data::Ledger ledger, data::Ledger::open(fresh));
  return BatchPlan(std::move(options), std::move(*made), std::move(ledger), layout, split);
}

bool BatchPlan::is_baseline(std::int64_t number) const {
  const std::int64_t every = options_.baseline_every;
  return every > 0 && number > every && (number - 1) % every < options_.baseline_steps;
}

Result<Step> BatchPlan::next(std::int64_t number, WindowParts kept) const {
  Step step{.number = number, .ledger = ledger_.state(), .window = ledger_.next(batch_), .plan = {}};
  step.baseline = is_baseline(number);
  if (layout_ != nullptr) {
    step.kept = std::move(kept);
    for (int rank = 0; rank < layout_->ranks(); ++rank) {
      step.plan.shares.push_back(layout_->samples(rank, step.window, step.kept));
    }
  } else if (step.baseline) {
    step.plan.shares = equal_split(step.window.size(), splitter()->options().limits);
  } else {
    MOTLEY_ASSIGN(step.plan, splitter()->plan(static_cast<std::uint64_t>(number), step.window.size()));
  }
  return step;
}

std::vector<std::uint32_t> BatchPlan::samples(const Step& step, int rank) const {
  std::vector<std::uint32_t> own;
  const auto append = [&](data::Range positions) {
    const auto samples = ledger_.samples(positions);
    own.insert(own.end(), samples.begin(), samples.end());
  };
  if (layout_ != nullptr) {
    for (const data::Range& rows : layout_->own_rows(rank, step.window, step.kept)) append(rows);
  } else if (!step.plan.pulls()) {
    append(data::rank_range(step.window, step.plan.shares, rank));
  }
  return own;
}

std::vector<std::uint32_t> BatchPlan::samples_ahead(const Step& step, int rank, std::uint32_t windows) const {
  const std::uint32_t size = step.window.size();
  const std::uint64_t begin = step.window.end + static_cast<std::uint64_t>(windows - 1) * size;
  if (begin + size > ledger().size) return {};
  Step ahead = step;
  ahead.window = {static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(begin + size)};
  ahead.kept.clear();
  return samples(ahead, rank);
}

WindowParts BatchPlan::cut(const Step& step) const {
  if (layout_ == nullptr) return cut_window(step);
  WindowParts parts(step.plan.shares.size());
  for (const int rank : layout_->list_ranks(0)) {
    parts[static_cast<std::size_t>(rank)] = layout_->gradient_rows(rank, step.window, step.kept);
  }
  return parts;
}

Status BatchPlan::observe(std::int64_t step, std::span<const data::Observation> observations) {
  return std::visit([&](auto& split) { return split.observe(static_cast<std::uint64_t>(step), observations); }, split_);
}

Status BatchPlan::keep_to(std::int64_t step, std::span<const int> ranks) {
  std::vector<data::WorkerLimits> limits = limits_;
  for (int rank = 0; rank < std::ssize(limits); ++rank) {
    if (!std::ranges::binary_search(ranks, rank)) limits[static_cast<std::size_t>(rank)] = {.minimum = 0, .maximum = 0};
  }
  return std::get<data::BatchSplitter>(split_).limit(static_cast<std::uint64_t>(step), std::move(limits));
}

Result<bool> BatchPlan::commit(const Step& step) {
  const std::uint64_t epoch = ledger().epoch;
  MOTLEY_TRY(ledger_.commit(step.window));
  return ledger().epoch != epoch;
}

double BatchPlan::epochs_at(std::uint32_t cursor) const {
  return static_cast<double>(ledger().epoch) + static_cast<double>(cursor) / static_cast<double>(ledger().size);
}

std::uint64_t BatchPlan::moves() const {
  return splitter() != nullptr ? splitter()->diagnostics().moves : std::get<StageSplit>(split_).moves();
}

BatchPlan::Figures BatchPlan::figures() const {
  Figures figures;
  if (splitter() == nullptr) {
    figures.reason = std::get<StageSplit>(split_).reason();
    if (const double predicted = layout_->plan().predicted.step_seconds; predicted > 0) figures.predicted = predicted;
    return figures;
  }
  const data::BatchSplitDiagnostics found = splitter()->diagnostics();
  figures.reason = found.reason;
  if (found.predicted > 0) {
    figures.predicted = found.predicted + found.common;
    figures.bound = found.bound;
    figures.equal = data::step_seconds(found.costs, equal_split(batch_, splitter()->options().limits));
  }
  return figures;
}

std::string BatchPlan::mode(const Step& step) const {
  return layout_ != nullptr ? "plan" : step.baseline ? "equal" : step.plan.pulls() ? "work-queue" : options_.mode;
}

void BatchPlan::save(SavedState& state) const {
  state.ledger = ledger();
  (splitter() != nullptr ? state.partition : state.stage_split) =
      std::visit([](const auto& split) { return split.save(); }, split_);
}

Result<bool> BatchPlan::restore(const SavedState& saved) {
  if (saved.ledger.size != ledger().size) {
    return fail(ErrorCode::kInvalidInput, "the checkpoint was written for {} training samples, the data has {} now",
                saved.ledger.size, ledger().size);
  }
  MOTLEY_ASSIGN(ledger_, data::Ledger::open(saved.ledger));
  const std::string& text = splitter() != nullptr ? saved.partition : saved.stage_split;
  return text.empty() ? Result<bool>(false) : std::visit([&](auto& split) { return split.restore(text); }, split_);
}

}  // namespace motley::train
