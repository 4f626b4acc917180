#include "motley/data/local/batch_split.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "motley/base/statistics.h"
#include "motley/base/units.h"

namespace motley::data {
namespace {

using nlohmann::json;

constexpr std::uint64_t kWarmUpSteps = 1;      // the first step pays for allocations and caches; it is not measured
constexpr std::size_t kTimesToDecide = 2;      // times of every worker at its present share before a decision
constexpr double kMinGain = 0.015;             // a move must shorten the step by this part at least
constexpr double kGainErrors = 4;              // and by so many standard errors of the workers' times
constexpr std::uint32_t kTrialSteps = 6;       // measured steps after which a move is judged
constexpr double kTrialLoss = 1.01;            // undone when the step takes this much of the best one before
constexpr double kReturnLoss = 1.05;           // having gone back, the step may take this much of what it took then
constexpr std::uint64_t kFirstHold = 32;       // steps without moves after an undone move, doubled each time
constexpr std::uint64_t kIdleSteps = 200;      // a worker without samples is tried again after so many steps
constexpr std::size_t kHistorySteps = 48;      // steps kept for what needs steps as a whole
constexpr std::size_t kPullingSteps = 16;      // steps needed before pulling is considered, and before it is judged
constexpr std::uint32_t kPullingInterval = 8;  // steps from one such consideration to the next
constexpr double kPullingGain = 0.12;          // predicted gain for which pulling is tried
constexpr std::uint64_t kFirstPause = 256;     // steps without pulling after it ended, doubled each time
constexpr std::uint32_t kShardsPerWorker = 8;
constexpr double kNewcomerPart = 0.25;  // of an equal share, that a worker of unknown speed gets at first

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The time of a step in which workers pull equal shards. Worker i can begin at start[i] and needs each[i] for a shard;
// whoever is free first takes the next one. Random delays that nobody can avoid still hold the step.
double pulled_seconds(std::vector<double> start, std::span<const double> each, std::uint32_t shards) {
  for (std::uint32_t shard = 0; shard < shards; ++shard) {
    const auto first = std::ranges::min_element(start);
    *first += each[static_cast<std::size_t>(first - start.begin())];
  }
  return std::ranges::max(start);
}

std::string format_text(const BatchSplit& shares) {
  return fmt::format("{}", fmt::join(shares, "/"));
}

std::uint64_t count_samples(const BatchSplit& shares) {
  return std::accumulate(shares.begin(), shares.end(), std::uint64_t{0});
}

constexpr std::pair<SplitPolicy, const char*> kPolicyNames[] = {{SplitPolicy::kDynamic, "dynamic"},
                                                                {SplitPolicy::kFixed, "fixed"},
                                                                {SplitPolicy::kEqual, "equal"},
                                                                {SplitPolicy::kReplay, "replay"},
                                                                {SplitPolicy::kPull, "work-queue"}};

}  // namespace

Result<SplitPolicy> parse_split_policy(std::string_view name) {
  for (const auto& [policy, own] : kPolicyNames) {
    if (name == own) return policy;
  }
  return fail(ErrorCode::kInvalidInput, "shares '{}': one of dynamic, fixed, equal, replay, work-queue is accepted",
              name);
}

const char* to_string(SplitPolicy policy) {
  return kPolicyNames[static_cast<std::size_t>(policy)].second;
}

// What a shard's size is to be within, whichever worker pulls it; one that may take nothing is not there.
static WorkerLimits find_shard_limits(std::span<const WorkerLimits> workers) {
  WorkerLimits shard;
  for (const WorkerLimits& worker : workers) {
    shard.minimum = std::max(shard.minimum, worker.minimum);
    if (worker.maximum > 0) shard.maximum = std::min(shard.maximum, worker.maximum);
  }
  return shard;
}

Result<BatchSplitter> BatchSplitter::create(BatchSplitOptions options) {
  const std::size_t workers = options.limits.size();
  if (workers == 0 || options.batch == 0) {
    return fail(ErrorCode::kInvalidInput, "a partition of {} samples among {} workers: both must be at least 1",
                options.batch, workers);
  }
  // Limits that no split meets are refused here, with the solver's words.
  MOTLEY_TRY(solve_min_max(std::vector<WorkerCost>(workers, {0, 1}), options.limits, options.batch));
  const bool is_given = options.policy == SplitPolicy::kFixed || !options.proportions.empty();
  if (is_given) {
    double total = 0;
    for (const double proportion : options.proportions) {
      if (!(proportion >= 0) || !std::isfinite(proportion)) {
        return fail(ErrorCode::kInvalidInput, "shares: {} is no proportion; numbers of at least 0 are accepted",
                    proportion);
      }
      total += proportion;
    }
    if (options.proportions.size() != workers || !(total > 0)) {
      return fail(ErrorCode::kInvalidInput,
                  "batch_split: {} proportions that add up to {} for {} workers; accepted: one a worker, not all zero",
                  options.proportions.size(), total, workers);
    }
  }
  for (const auto& [step, shares] : options.recorded) {
    if (shares.size() != workers) {
      return fail(ErrorCode::kInvalidInput, "replay: step {} was recorded with {} workers, this job has {}", step,
                  shares.size(), workers);
    }
  }
  const std::vector<double> weights = is_given ? options.proportions : std::vector<double>(workers, 1.0);
  std::uint32_t chosen = options.shards > 0 ? options.shards : kShardsPerWorker * static_cast<std::uint32_t>(workers);
  if (options.policy == SplitPolicy::kPull) {
    const auto [least, most] = find_shard_limits(options.limits);
    const std::uint64_t fewest = (options.batch + (most - 1ULL)) / most;
    if (fewest > options.batch / least) {
      return fail(ErrorCode::kInvalidInput,
                  "batch_split: work-queue: no equal shards of {} samples have at least {} and at most {} samples, as "
                  "every worker must be able to take any; accepted: other limits, or another mode",
                  options.batch, least, most);
    }
    chosen = std::clamp(chosen, static_cast<std::uint32_t>(fewest), options.batch / least);
  }
  BatchSplitter split(std::move(options));
  split.fits_.resize(workers);
  split.last_seen_.resize(workers, 0);
  split.hold_steps_ = kFirstHold;
  split.pulling_pause_ = kFirstPause;
  split.shares_ = split.proportional(weights, split.options_.batch);
  split.shards_ = split.options_.policy == SplitPolicy::kPull ? chosen : 0;
  return split;
}

// Shares in proportion to the weights: the min-max split for workers whose speeds are the weights. Where the window is
// too small for everyone's minimum, the workers of smallest weight (the last of equals) get nothing, and where even
// that does not do, the worker of largest weight gets all.
BatchSplit BatchSplitter::proportional(std::span<const double> weights, std::uint32_t window) const {
  // The solver's floor under seconds a sample is an absolute one: the largest weight is made 1 to 2, by a power of two,
  // which changes no digit of a share.
  const int exponent = std::ilogb(std::ranges::max(weights));
  const auto scaled = [exponent](double weight) { return std::scalbn(weight, -exponent); };
  const double least_weight = 1e-9 * scaled(std::ranges::max(weights));
  std::vector<WorkerCost> costs;
  for (const double weight : weights) costs.push_back({0, 1 / std::max(scaled(weight), least_weight)});
  std::vector<std::size_t> by_weight(weights.size());
  std::iota(by_weight.begin(), by_weight.end(), std::size_t{0});
  std::ranges::stable_sort(by_weight, [&](std::size_t a, std::size_t b) { return weights[a] > weights[b]; });
  std::vector<WorkerLimits> limits = options_.limits;
  std::uint64_t least = 0;
  for (const WorkerLimits& limit : limits) least += limit.minimum;
  for (std::size_t last = by_weight.size(); least > window && last > 1; --last) {
    WorkerLimits& limit = limits[by_weight[last - 1]];
    least -= limit.minimum;
    limit = {0, 0};
  }
  limits[by_weight.front()].minimum = std::min(limits[by_weight.front()].minimum, window);
  auto split = solve_min_max(costs, limits, window);
  if (!split) {  // leaving workers out took too much room away: minimums are given up instead
    limits = options_.limits;
    for (WorkerLimits& limit : limits) limit.minimum = 0;
    split = solve_min_max(costs, limits, window);
  }
  MOTLEY_INVARIANT(split.has_value(), "no proportional split of {} samples: {}", window, split.error().message);
  return split->shares;
}

Result<StepPlan> BatchSplitter::plan(std::uint64_t step, std::uint32_t window) const {
  MOTLEY_INVARIANT(window > 0 && window <= options_.batch, "a window of {} samples with a batch of {}", window,
                   options_.batch);
  if (options_.policy == SplitPolicy::kReplay) {
    const auto recorded = options_.recorded.find(step);
    if (recorded == options_.recorded.end()) {
      return fail(ErrorCode::kInvalidInput, "replay: no shares were recorded for step {} ({} steps were)", step,
                  options_.recorded.size());
    }
    const std::uint64_t total = count_samples(recorded->second);
    if (total != window) {
      return fail(ErrorCode::kInvalidInput,
                  "replay: the shares recorded for step {} add up to {} samples, this step has {}", step, total,
                  window);
    }
    return StepPlan{recorded->second, 0};
  }
  if (shards_ > 0) {
    const auto [least, most] = find_shard_limits(options_.limits);
    const auto fewest = static_cast<std::uint32_t>((window + (most - 1ULL)) / most);  // memory is short for good
    return StepPlan{{}, std::max(fewest, std::min(shards_, std::max(1U, window / least)))};
  }
  if (window == options_.batch) return StepPlan{shares_, 0};
  if (options_.policy == SplitPolicy::kFixed) return StepPlan{proportional(options_.proportions, window), 0};
  return StepPlan{proportional(std::vector<double>(shares_.begin(), shares_.end()), window), 0};
}

Status BatchSplitter::observe(std::uint64_t step, std::span<const Observation> observations) {
  MOTLEY_INVARIANT(observations.size() == workers(), "{} observations of {} workers", observations.size(), workers());
  for (std::size_t i = 0; i < workers(); ++i) {
    const Observation& seen = observations[i];
    if (!std::isfinite(seen.seconds) || seen.seconds < 0 || !std::isfinite(seen.wait)) {
      return fail(ErrorCode::kInternal, "step {}: worker {} measured {} s and {} s of waiting", step, i, seen.seconds,
                  seen.wait);
    }
  }
  if (observed_++ < kWarmUpSteps) return {};
  // What no split changes: the wait of the worker that waited least, which is about the last one to come.
  double wait = kInfinity;
  Sample sample;
  for (const Observation& seen : observations) {
    wait = std::min(wait, std::max(0.0, seen.wait));
    sample.samples.push_back(seen.samples);
    sample.seconds.push_back(seen.seconds);
    sample.last = std::max(sample.last, seen.seconds);
  }
  common_.push_back(wait);
  if (common_.size() > CostFit::kGroupTimes) common_.pop_front();
  // In steps with pulling, who was slow got few samples: those times say nothing of a + c b.
  bool changed = false;
  for (std::size_t i = 0; shards_ == 0 && i < workers(); ++i) {
    if (sample.samples[i] == 0) continue;
    last_seen_[i] = step;
    if (!fits_[i].observe(sample.samples[i], sample.seconds[i])) continue;
    changed = true;
    reason_ = fmt::format("worker {} changed its speed", i);
  }
  if (changed) {
    history_.clear();
    best_.reset();
    steps_here_ = 0;
    is_judged_ = false;
    hold_until_ = 0;
    hold_steps_ = kFirstHold;
  }
  if (count_samples(sample.samples) != options_.batch) return {};
  ++steps_here_;
  history_.push_back(std::move(sample));
  if (history_.size() > kHistorySteps) history_.pop_front();
  if (options_.policy == SplitPolicy::kDynamic && workers() > 1) {
    shards_ > 0 ? decide_while_pulling(step) : decide(step);
  }
  return {};
}

Status BatchSplitter::limit(std::uint64_t step, std::vector<WorkerLimits> limits) {
  MOTLEY_INVARIANT(limits.size() == workers(), "{} limits of {} workers", limits.size(), workers());
  if (options_.policy == SplitPolicy::kReplay) {
    return fail(ErrorCode::kInvalidInput, "replay: the shares are those that were recorded and cannot be limited");
  }
  MOTLEY_TRY(solve_min_max(std::vector<WorkerCost>(workers(), {0, 1}), limits, options_.batch));
  const std::vector<WorkerLimits> before = std::exchange(options_.limits, std::move(limits));
  std::vector<std::size_t> newcomers;
  for (std::size_t i = 0; i < workers(); ++i) {
    if (before[i].maximum == 0 && options_.limits[i].maximum > 0) newcomers.push_back(i);
  }
  if (!newcomers.empty()) {
    welcome(step, newcomers);
    return {};
  }
  const auto is_kept = [&](std::size_t i) {
    return shares_[i] >= options_.limits[i].minimum && shares_[i] <= options_.limits[i].maximum;
  };
  bool are_kept = true;
  for (std::size_t i = 0; i < workers(); ++i) are_kept = are_kept && is_kept(i);
  if (are_kept) return {};
  // The best shares measured so far may break the limits, too.
  best_.reset();
  history_.clear();
  BatchSplit shares = proportional(std::vector<double>(shares_.begin(), shares_.end()), options_.batch);
  std::string reason = fmt::format("{} keep to new limits", format_text(shares));
  move_to(step, std::move(shares), shards_, std::move(reason));
  return {};
}

// Shares for workers that had none and of whose speed nothing is known: what the policy gives them, or, where that
// depends on their speed, little at first.
void BatchSplitter::welcome(std::uint64_t step, std::span<const std::size_t> newcomers) {
  std::vector<double> weights(workers(), 1.0);
  if (!options_.proportions.empty()) weights = options_.proportions;
  if (options_.policy == SplitPolicy::kDynamic) {
    weights.assign(shares_.begin(), shares_.end());
    const auto workers_now =
        std::ranges::count_if(options_.limits, [](const WorkerLimits& limit) { return limit.maximum > 0; });
    for (const std::size_t i : newcomers) {
      weights[i] = kNewcomerPart * static_cast<double>(options_.batch) / static_cast<double>(workers_now);
    }
  }
  for (const std::size_t i : newcomers) fits_[i] = {};
  best_.reset();
  history_.clear();
  BatchSplit shares = proportional(weights, options_.batch);
  std::string reason = fmt::format("{} with worker{} {} new", format_text(shares), newcomers.size() == 1 ? "" : "s",
                                   fmt::join(newcomers, ", "));
  move_to(step, std::move(shares), shards_, std::move(reason));
}

std::vector<WorkerCost> BatchSplitter::costs() const {
  std::vector<WorkerCost> costs;
  for (const CostFit& fit : fits_) costs.push_back(fit.cost());
  return costs;
}

double BatchSplitter::median_common() const {
  return median({common_.begin(), common_.end()});
}

double BatchSplitter::median_step(std::size_t last_steps) const {
  std::vector<double> seconds;
  for (std::size_t i = history_.size() - std::min(last_steps, history_.size()); i < history_.size(); ++i) {
    seconds.push_back(history_[i].last);
  }
  return median(std::move(seconds));
}

void BatchSplitter::decide(std::uint64_t step) {
  for (std::size_t i = 0; i < workers(); ++i) {
    if (options_.limits[i].maximum == 0) continue;
    if (fits_[i].empty() || fits_[i].in_doubt() || (shares_[i] > 0 && fits_[i].times_at(shares_[i]) < kTimesToDecide)) {
      return;
    }
  }
  if (settle(step) || consider_pulling(step) || step < hold_until_) return;
  consider_move(step);
  wake_idle_workers(step);
}

// After a trial, judges the present shares against the best ones measured; returns whether it went back to those.
bool BatchSplitter::settle(std::uint64_t step) {
  if (is_judged_ || steps_here_ < kTrialSteps) return false;
  is_judged_ = true;
  const double measured = median_step(steps_here_);
  if (best_ && best_->shares != shares_ && measured > best_->seconds * kTrialLoss) {
    const Measured best = *best_;
    move_to(step, best.shares, 0,
            fmt::format("went back to {}: {} took {} a step, those {}", format_text(best.shares), format_text(shares_),
                        format_seconds(measured), format_seconds(best.seconds)));
    hold_until_ = step + hold_steps_;
    hold_steps_ *= 2;
    return true;
  }
  if (best_ && best_->shares == shares_ && measured > best_->seconds * kReturnLoss) {
    // What these shares once took is over, and nobody's change was seen: moves need not wait.
    hold_until_ = step;
    hold_steps_ = kFirstHold;
  }
  best_ = Measured{shares_, measured};
  return false;
}

void BatchSplitter::consider_move(std::uint64_t step) {
  const std::vector<WorkerCost> fitted = costs();
  const auto split = solve_min_max(fitted, options_.limits, options_.batch);
  MOTLEY_INVARIANT(split.has_value(), "the limits were met before: {}", split.error().message);
  if (split->shares == shares_) {
    reason_ = "the shares are optimal";
    return;
  }
  const double present = step_seconds(fitted, shares_);
  const double common = median_common();
  const double gain = (present - split->seconds) / (present + common);
  double error = 0;
  for (std::size_t i = 0; i < workers(); ++i) {
    error = std::max(error, fits_[i].standard_error(shares_[i]));
  }
  const double needed = std::max(kMinGain, kGainErrors * error / (present + common));
  if (gain <= needed) {
    reason_ =
        fmt::format("stays at {}: {} would gain {}, less than the {} that the measurements vary by",
                    format_text(shares_), format_text(split->shares), format_percent(gain), format_percent(needed));
    return;
  }
  if (!best_ && !history_.empty()) best_ = Measured{shares_, median_step(steps_here_)};
  move_to(step, split->shares, 0,
          fmt::format("{} should take {} instead of {}", format_text(split->shares), format_seconds(split->seconds),
                      format_seconds(present)));
}

// A worker without samples may have become fast again: after a while it is given one and measured anew.
void BatchSplitter::wake_idle_workers(std::uint64_t step) {
  for (std::size_t i = 0; i < workers(); ++i) {
    if (shares_[i] > 0 || options_.limits[i].maximum == 0 || step - last_seen_[i] < kIdleSteps) continue;
    BatchSplit shares = shares_;
    const auto giver = std::ranges::max_element(shares);
    const std::uint32_t least = options_.limits[static_cast<std::size_t>(giver - shares.begin())].minimum;
    const std::uint32_t samples = std::max(1U, options_.batch / (4 * static_cast<std::uint32_t>(workers())));
    if (*giver <= samples + least) return;
    const std::uint32_t given = std::min(samples, options_.limits[i].maximum);
    *giver -= given;
    shares[i] += given;
    fits_[i].forget();
    last_seen_[i] = step;
    move_to(step, std::move(shares), 0, fmt::format("tries worker {} again", i));
    return;
  }
}

// Pulling is predicted from the steps that were measured: each step's deviations from the fitted lines are played once
// with the present shares and once with shards. The part of a deviation above the least one seen counts as a delay at
// the start of the step; everything below counts as the worker's cost, and its fixed part as paid for every shard,
// which is what a shard costs at most.
bool BatchSplitter::consider_pulling(std::uint64_t step) {
  if (!options_.may_pull || step < no_pulling_until_ || history_.size() < kPullingSteps ||
      steps_here_ % kPullingInterval != 0) {
    return false;
  }
  std::vector<WorkerCost> costs(workers());
  std::vector<std::vector<double>> delays(history_.size(), std::vector<double>(workers(), 0));
  for (std::size_t i = 0; i < workers(); ++i) {
    const WorkerCost& fitted = fits_[i].cost();
    double least = kInfinity, min_rate = kInfinity;
    for (const Sample& sample : history_) {
      if (sample.samples[i] == 0) continue;
      least = std::min(least, sample.seconds[i] - fitted.per_sample * sample.samples[i]);
      min_rate = std::min(min_rate, sample.seconds[i] / sample.samples[i]);
    }
    costs[i] = least >= 0 ? WorkerCost{std::min(least, 1e9), fitted.per_sample} : WorkerCost{0, min_rate};
    for (std::size_t s = 0; s < history_.size(); ++s) {
      const Sample& sample = history_[s];
      if (sample.samples[i] == 0) continue;
      delays[s][i] = std::max(0.0, sample.seconds[i] - costs[i].seconds(sample.samples[i]));
    }
  }
  double with_shares = 0;
  for (const std::vector<double>& delay : delays) {
    double last = 0;
    for (std::size_t i = 0; i < workers(); ++i) {
      last = std::max(last, shares_[i] == 0 ? 0 : delay[i] + costs[i].seconds(shares_[i]));
    }
    with_shares += last / static_cast<double>(delays.size());
  }
  const auto fits = [&](std::uint32_t smaller, std::uint32_t larger) {  // shards of these sizes, all workers
    return std::ranges::all_of(options_.limits, [&](const WorkerLimits& limits) {
      return std::max(1U, limits.minimum) <= smaller && larger <= limits.maximum;
    });
  };
  double best = kInfinity;
  std::uint32_t best_shards = 0;
  for (std::uint32_t per_worker = 2; per_worker <= 16; per_worker *= 2) {
    const std::uint32_t shards = per_worker * static_cast<std::uint32_t>(workers());
    const std::uint32_t size = (options_.batch + shards - 1) / shards;
    if (!fits(options_.batch / shards, size)) continue;
    std::vector<double> each;
    for (const WorkerCost& cost : costs) each.push_back(cost.seconds(size));
    double mean = 0;
    for (const std::vector<double>& delay : delays) {
      mean += pulled_seconds(delay, each, shards) / static_cast<double>(delays.size());
    }
    if (mean < best) {
      best = mean;
      best_shards = shards;
    }
  }
  if (best_shards == 0 || with_shares - best <= kPullingGain * (with_shares + median_common())) return false;
  double sum = 0, squares = 0;
  for (const Sample& sample : history_) {
    sum += sample.last;
    squares += sample.last * sample.last;
  }
  const double count = static_cast<double>(history_.size());
  mean_before_pulling_ = sum / count;
  error_before_pulling_ =
      std::sqrt(std::max(0.0, squares / count - mean_before_pulling_ * mean_before_pulling_) / count);
  move_to(step, shares_, best_shards,
          fmt::format("times vary at random: a work queue of {} shards should take {} instead of {}", best_shards,
                      format_seconds(best), format_seconds(with_shares)));
  return true;
}

// Ends pulling when it proved slower than the shares before, or when the workers pull the same number of shards in
// every step, so that shares can do the same without the shards' cost.
void BatchSplitter::decide_while_pulling(std::uint64_t step) {
  if (history_.size() < kPullingSteps) return;
  const double count = static_cast<double>(history_.size());
  const double shard = static_cast<double>(options_.batch) / shards_;
  double mean = 0;
  for (const Sample& sample : history_) mean += sample.last / count;
  bool random = false;
  std::vector<double> weights;
  for (std::size_t i = 0; i < workers(); ++i) {
    double sum = 0, squares = 0;
    for (const Sample& sample : history_) {
      sum += sample.samples[i];
      squares += static_cast<double>(sample.samples[i]) * sample.samples[i];
    }
    random = random || squares / count - (sum / count) * (sum / count) > shard * shard;
    weights.push_back(sum / count);
  }
  const bool slower = mean > mean_before_pulling_ + error_before_pulling_;
  if (random && !slower) return;
  BatchSplit shares = slower ? shares_ : proportional(weights, options_.batch);
  for (CostFit& fit : fits_) fit.forget();
  best_.reset();
  no_pulling_until_ = step + pulling_pause_;
  pulling_pause_ *= 2;
  move_to(step, std::move(shares), 0,
          slower ? fmt::format("the work queue took {} a step, shares {}", format_seconds(mean),
                               format_seconds(mean_before_pulling_))
                 : "times do not vary any more, shares do as well as the work queue");
}

void BatchSplitter::move_to(std::uint64_t step, BatchSplit shares, std::uint32_t shards, std::string reason) {
  if (shards != shards_) history_.clear();
  for (std::size_t i = 0; i < workers(); ++i) {
    last_seen_[i] = shares[i] > 0 || shards > 0 ? step : last_seen_[i];
  }
  shares_ = std::move(shares);
  shards_ = shards;
  steps_here_ = 0;
  is_judged_ = false;
  ++moves_;
  reason_ = std::move(reason);
}

BatchSplitDiagnostics BatchSplitter::diagnostics() const {
  BatchSplitDiagnostics result;
  result.moves = moves_;
  result.reason = reason_;
  result.common = common_.empty() ? 0 : median_common();
  if (std::ranges::any_of(fits_, &CostFit::empty)) return result;
  result.costs = costs();
  result.predicted = step_seconds(result.costs, shares_);
  const auto split = solve_min_max(result.costs, options_.limits, options_.batch);
  result.bound = split ? split->bound : 0;
  return result;
}

// What is saved beside what it is compared with, the shares and the fits.
template <class Self, class Visit>
void BatchSplitter::visit_saved(Self& self, Visit visit) {
  visit("batch_split", self.shares_);
  visit("shards", self.shards_);
  visit("last_seen", self.last_seen_);
  visit("hold_until", self.hold_until_);
  visit("hold_steps", self.hold_steps_);
  visit("no_pulling_until", self.no_pulling_until_);
  visit("pulling_pause", self.pulling_pause_);
  visit("mean_before_pulling", self.mean_before_pulling_);
  visit("error_before_pulling", self.error_before_pulling_);
  visit("moves", self.moves_);
}

std::string BatchSplitter::save() const {
  json saved = {{"version", 1},
                {"policy", to_string(options_.policy)},
                {"global_batch_size", options_.batch},
                {"fits", json::array()}};
  for (const CostFit& fit : fits_) saved["fits"].push_back(fit.save());
  visit_saved(*this, [&](const char* key, const auto& value) { saved[key] = value; });
  return saved.dump();
}

Result<bool> BatchSplitter::restore(std::string_view text) {
  try {
    const json saved = json::parse(text);
    if (saved.at("version") != 1) {
      return fail(ErrorCode::kInvalidInput, "saved partition: version {} is unknown, 1 is accepted",
                  saved.at("version").dump());
    }
    if (saved.at("global_batch_size") != options_.batch || saved.at("policy") != to_string(options_.policy) ||
        saved.at("batch_split").size() != workers() ||
        (options_.policy == SplitPolicy::kDynamic && !options_.may_pull && saved.at("shards") > 0)) {
      return false;
    }
    BatchSplitter restored(options_);  // what is not saved starts afresh
    restored.fits_.resize(workers());
    visit_saved(restored, [&](const char* key, auto& value) { saved.at(key).get_to(value); });
    if (options_.policy == SplitPolicy::kPull) restored.shards_ = shards_;  // as the limits are now
    for (std::size_t i = 0; i < workers(); ++i) {
      restored.fits_[i] = CostFit::restore(saved.at("fits").at(i));
      if (restored.shares_[i] < options_.limits[i].minimum || restored.shares_[i] > options_.limits[i].maximum) {
        return false;  // the limits were changed
      }
    }
    if (count_samples(restored.shares_) != options_.batch || restored.last_seen_.size() != workers()) {
      return fail(ErrorCode::kCorrupt, "saved partition: shares {} and {} last steps for a batch of {}",
                  format_text(restored.shares_), restored.last_seen_.size(), options_.batch);
    }
    restored.reason_ = "restored";
    *this = std::move(restored);
    return true;
  } catch (const json::exception& problem) {
    return fail(ErrorCode::kCorrupt, "saved partition: {}", problem.what());
  }
}

Result<std::map<std::uint64_t, BatchSplit>> read_splits(std::string_view text, const std::string& name) {
  std::map<std::uint64_t, BatchSplit> recorded;
  std::size_t line_number = 0;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    ++line_number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    try {
      const json object = json::parse(line);
      if (object.is_object() && object.contains("step") && object.contains("batch_split")) {
        recorded[object.at("step").get<std::uint64_t>()] = object.at("batch_split").get<BatchSplit>();
      }
    } catch (const json::exception& problem) {
      return fail(ErrorCode::kInvalidInput, "{}:{}: not a line of recorded shares: {}", name, line_number,
                  problem.what());
    }
  }
  if (recorded.empty()) {
    return fail(ErrorCode::kInvalidInput,
                "{}: no line has \"step\" and \"batch_split\"; a run's metrics.jsonl is wanted", name);
  }
  return recorded;
}

}  // namespace motley::data
