// A plan's value is the product of its step and of a rate, which is 1, or grows with the price. Plans are put into
// classes, by their longest stage or transfer and their number of stages. In a class, weight * step + rate is no less
// than what a path through the stages costs at least that is charged weight for every second of a step, and the rate
// for its devices (PipelinePaths): a line below all plans of the class in the plane of steps and rates. The product is
// least in a corner of what several such lines leave, as it has no other minimum there. The next line is that which
// cuts this corner off: its weight is the product's slope there.
//
// Limits on devices and on the price an hour are charged for instead: any multipliers that are not negative give a
// bound, and good ones are found by subgradients.
//
// The class with the least bound is divided next, until no class can have a plan better than the best known. Paths are
// plans, if they keep within the limits; the best of them are improved by small changes.
#include "motley/planning/exact/pipeline_relaxation.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>
#include <utility>

namespace motley::planning {
namespace {

constexpr double kNoBetter = 1 - 1e-10;    // plans that are better by less than this are not looked for
constexpr double kBelowFirst = 1 + 1e-12;  // the first class begins below what it may not miss
constexpr double kFirstRatio = 1.3;        // of a class's longest and shortest w
constexpr double kStagesFrom = 1.1;        // from which ratio on classes are divided by their stages
constexpr double kLeastRatio = 1.0005;     // classes are divided up to
constexpr int kManyStages = 9;             // and more are not told apart
constexpr int kMaxLines = 8;               // that are looked for at a time
constexpr std::size_t kMostKept = 16;      // of a class and of those that it is part of
constexpr double kLeastGain = 1.002;       // what a line is to raise the bound by, else it is the last
// PathCharges::returns and longest_ends, tried in turn; the first half where the former does not hold.
constexpr std::array<std::pair<bool, bool>, 4> kCharging{{{false, true}, {false, false}, {true, true}, {true, false}}};
constexpr int kSubgradients = 15;
constexpr double kFirstAsked = 0.5;  // what is asked of the first subgradient, as a share of the bound
constexpr double kShorter = 0.6;
constexpr double kPromising = 1.2;  // times the best: worth being improved

}  // namespace

PipelineRelaxation::PipelineRelaxation(const Request& request, const PipelineStages& stages,
                                       const PlanValue& plan_value, Search& search, double best)
    : request_(request),
      problem_(request.problem),
      stages_(stages),
      plan_value_(plan_value),
      search_(search),
      paths_(stages),
      best_(best) {
  for (const Type& type : problem_.types) limits_.push_back(static_cast<double>(type.count));
  limits_.push_back(plan_value.max_hourly_cost);
}

double PipelineRelaxation::run(const std::function<bool()>& over) {
  over_ = over;
  if (!std::exchange(has_begun_, true)) {
    for (Class& plans : first_classes()) add(std::move(plans));
  }
  const auto least = [this] { return std::min(given_up_, classes_.empty() ? kInfinity : classes_.front().bound); };
  while (!over_() && least() < std::min(given_up_, best_ * kNoBetter)) {
    search_.prove(least());
    std::ranges::pop_heap(classes_, ComesLater());
    Class plans = std::move(classes_.back());
    classes_.pop_back();
    if (!std::exchange(plans.is_looked_at, true)) {
      add(std::move(plans));
      continue;
    }
    std::vector<Class> parts = divide(plans);
    if (parts.empty()) given_up_ = std::min(given_up_, plans.bound);
    for (Class& part : parts) add(std::move(part));
  }
  return least();
}

void PipelineRelaxation::add(Class plans) {
  const double now = bound(plans);
  if (!over_()) plans.bound = std::max(plans.bound, now);
  classes_.push_back(std::move(plans));
  std::ranges::push_heap(classes_, ComesLater());
}

// From what the slowest layer takes at best to what no plan within the limits exceeds, and those beyond.
std::vector<PipelineRelaxation::Class> PipelineRelaxation::first_classes() const {
  double low = 0;
  double high = 0;
  for (int layer = 0; layer < stages_.layers(); ++layer) {
    double least = kInfinity;
    for (int kind = 0; kind < stages_.kind_count(); ++kind) {
      const StageTimes& alone = stages_.at(layer, layer + 1, kind);
      const StageTimes& together = stages_.at(0, stages_.layers(), kind);
      least = std::min(least, alone.forward + alone.backward);
      high = std::max(high, together.forward + together.recomputing_backward);
    }
    low = std::max(low, least);
  }
  high = std::min(high, plan_value_.max_step / static_cast<double>(problem_.micro_batches));
  const std::vector<double> none(limits_.size());
  std::vector<Class> classes;
  for (double begin = low / kBelowFirst; begin > 0; begin *= kFirstRatio) {
    const double end = begin < high ? begin * kFirstRatio : kInfinity;
    classes.push_back({.low = begin, .high = end, .multipliers = none});
    if (end == kInfinity) break;
  }
  if (classes.empty()) classes.push_back({.low = 0, .high = kInfinity, .multipliers = none});  // nothing takes time
  return classes;
}

std::vector<PipelineRelaxation::Class> PipelineRelaxation::divide(const Class& plans) const {
  std::vector<Class> parts;
  const auto add = [&](double low, double high, int min_stages, int max_stages) {
    parts.push_back({.low = low,
                     .high = high,
                     .min_stages = min_stages,
                     .max_stages = max_stages,
                     .bound = plans.bound,
                     .charging = plans.charging,
                     .region = plans.region,
                     .multipliers = plans.multipliers});
  };
  const double ratio = plans.high / plans.low;
  const int min = plans.min_stages;
  const int max = plans.max_stages;
  // With one micro-batch all is said of a step by its fill and drain.
  const bool has_rest = stages_.one_forward_one_backward() && problem_.micro_batches > 1;
  const bool is_one = !has_rest || (max == 0 && min >= kManyStages) || min == max;
  if (ratio > kStagesFrom || (is_one && ratio > kLeastRatio)) {
    const double middle = ratio < kInfinity ? std::sqrt(plans.low * plans.high) : 2 * plans.low;
    if (!(middle > plans.low && middle < plans.high)) return {};
    add(plans.low, middle, min, max);
    add(middle, plans.high, min, max);
  } else if (!is_one) {
    // At first those with fewer stages than micro-batches from those with more.
    const std::int64_t fewer = min == 1 ? problem_.micro_batches - 1 : 2 * min - 1;
    const int middle = max == 0 ? static_cast<int>(std::min<std::int64_t>(fewer, kManyStages - 1)) : (min + max) / 2;
    add(plans.low, plans.high, min, middle);
    add(plans.low, plans.high, middle + 1, max);
  }
  return parts;
}

void PipelineRelaxation::Region::find_least() {
  std::vector<double> corners{min_step, max_step};
  for (std::size_t i = 0; i < lines.size(); ++i) {
    corners.push_back((lines[i].least - min_rate) / lines[i].weight);
    for (std::size_t j = 0; j < i; ++j) {
      corners.push_back((lines[i].least - lines[j].least) / (lines[i].weight - lines[j].weight));
    }
  }
  value = kInfinity;
  for (const double corner : corners) {
    if (!(corner >= min_step && corner <= max_step) || corner == kInfinity) continue;
    double above = min_rate;
    for (const Line& line : lines) above = std::max(above, line.least - line.weight * corner);
    if (corner * above < value) {
      value = corner * above;
      step = corner;
      rate = above;
    }
  }
}

// Infinity where there is none within the limits.
double PipelineRelaxation::bound(Class& plans) {
  const bool for_price = plan_value_.per_step_and_price > 0;
  PathCharges charges{.second = 1,
                      .device = std::vector<double>(problem_.types.size()),
                      .low = plans.low,
                      .high = plans.high,
                      .min_stages = plans.min_stages,
                      .max_stages = plans.max_stages,
                      .roughly = plans.min_stages == 1 && plans.max_stages == 0};
  Region& region = plans.region;
  const double fastest = static_cast<double>(problem_.micro_batches) * plans.low;
  region.min_step = std::max(region.min_step, fastest);
  region.max_step = plan_value_.max_step;
  if (!for_price || !region.is_begun) {
    region.is_begun = true;
    const double seconds = for_price ? paths_.shortest(charges) : ascend(charges, plans, kInfinity);
    region.min_step = std::max(region.min_step, seconds);
    if (seconds == kInfinity) return kInfinity;
    if (for_price) propose(paths_.path());
    charges.second = 0;
    charges.price = plan_value_.per_step_and_price;
    region.min_rate = plan_value_.per_step_second + (for_price ? paths_.shortest(charges) : 0);
  }
  if (!(region.min_step <= region.max_step)) return kInfinity;
  if (!for_price) return plan_value_.per_step_second * region.min_step;
  charges.price = plan_value_.per_step_and_price;
  region.find_least();
  const bool returns =
      stages_.one_forward_one_backward() && plans.max_stages > 1 && plans.max_stages < problem_.micro_batches;
  const auto are_left = [&] { return region.value < best_ * kNoBetter && region.rate > 0 && !over_(); };
  bool is_exact = false;
  const std::size_t ways = charges.roughly ? 1 : returns ? kCharging.size() : kCharging.size() / 2;
  std::size_t tried = 0;
  for (int lines = plans.is_looked_at ? kMaxLines : 1; lines > 0 && tried < ways && are_left(); --lines) {
    plans.charging %= ways;
    std::tie(charges.returns, charges.longest_ends) = kCharging[plans.charging];
    charges.second = region.rate / region.step;
    const double enough = 2 * std::sqrt(charges.second * best_);  // for the corner to be no better
    const double rest = plan_value_.per_step_second;
    const double least = ascend(charges, plans, enough - rest, &is_exact);
    if (least == kInfinity) return kInfinity;
    const double before = region.value;
    if (region.lines.size() == kMostKept) region.lines.erase(region.lines.begin());
    region.lines.push_back({charges.second, least + rest});
    region.find_least();
    const bool has_gained = region.value >= before * kLeastGain;
    tried = has_gained ? 0 : tried + 1;
    if (!has_gained) ++plans.charging;
  }
  if (tried == ways && is_exact) plans.is_looked_at = true;
  return region.value;
}

// The most that the cheapest path is charged, less what the limits give back; leaves the multipliers for it. Exact
// where the limits do not matter.
double PipelineRelaxation::ascend(PathCharges charges, Class& plans, double enough, bool* is_exact) {
  std::vector<double>& multipliers = plans.multipliers;
  const std::size_t types = problem_.types.size();
  const double price = charges.price;
  std::vector<double> tried = multipliers;
  std::vector<double> excess(limits_.size());
  double most = -kInfinity;
  double stride = kFirstAsked;
  for (int i = 0; i < (plans.is_looked_at ? kSubgradients : 1) && (i == 0 || !over_()); ++i) {
    charges.device.assign(tried.begin(), tried.end() - 1);
    charges.price = price + tried.back();
    double value = paths_.shortest(charges);
    if (value == kInfinity) return kInfinity;
    const Candidate path = paths_.path();
    std::ranges::transform(limits_, excess.begin(), std::negate());
    for (const StageChoice& stage : path) {
      const auto replicas = static_cast<double>(stage.replicas);
      excess[index(stage.type)] += replicas;
      excess[types] += replicas * problem_.type(stage.type).price_per_hour;
    }
    // A typical charge of a unit of a limit, so that all are charged in proportion.
    const auto scale = [&](std::size_t limit) {
      const double of_unit = limit < types ? problem_.types[limit].price_per_hour : 1;
      return price > 0 && of_unit > 0 ? of_unit : 1 / std::max(1.0, limits_[limit]);
    };
    double norm = 0;
    for (std::size_t limit = 0; limit <= types; ++limit) {
      if (tried[limit] > 0) value -= tried[limit] * limits_[limit];
      if (excess[limit] > 0 || tried[limit] > 0) norm += std::pow(scale(limit) * excess[limit], 2);
    }
    propose(path);
    if (value > most) {
      most = value;
      multipliers = tried;
    } else {
      stride *= kShorter;
    }
    if (is_exact != nullptr) *is_exact = norm == 0;
    if (norm == 0 || most >= enough) break;
    const double length = (std::min(enough, most + stride * std::abs(most)) - value) / norm;
    for (std::size_t limit = 0; limit <= types; ++limit) {
      if (limits_[limit] == kInfinity) continue;
      tried[limit] = std::max(0.0, tried[limit] + length * std::pow(scale(limit), 2) * excess[limit]);
    }
  }
  return most;
}

double PipelineRelaxation::evaluate_value(const Candidate& candidate) const {
  return value(evaluate(problem_, candidate, request_.objective), request_.objective.criterion);
}

// With fewer devices, where it has more than there are.
void PipelineRelaxation::propose(Candidate candidate) {
  std::vector<std::int64_t> words;
  std::vector<std::int64_t> used(problem_.types.size());
  for (const StageChoice& stage : candidate) {
    words.insert(words.end(), {stage.first, stage.type, stage.replicas});
    used[index(stage.type)] += stage.replicas;
  }
  if (!proposed_.insert(std::move(words)).second) return;
  for (StageChoice& stage : candidate) {
    const std::int64_t count = problem_.type(stage.type).count;
    if (used[index(stage.type)] <= count) continue;
    stage.replicas = std::max<std::int64_t>(1, stage.replicas * count / used[index(stage.type)]);
  }
  const double value = evaluate_value(candidate);
  if (value < best_ * kPromising) improve(std::move(candidate), value);
}

// By more or fewer devices of a stage, and by moving a layer to the next one, as long as that brings something.
void PipelineRelaxation::improve(Candidate candidate, double value) {
  const auto try_out = [&](const Candidate& changed) {
    const double then = evaluate_value(changed);
    if (!(then < value)) return false;
    value = then;
    candidate = changed;
    return true;
  };
  for (bool has_improved = true; has_improved && !over_();) {
    has_improved = false;
    for (std::size_t s = 0; s < candidate.size(); ++s) {
      const std::int64_t quarter = std::max<std::int64_t>(2, candidate[s].replicas / 4);
      for (const std::int64_t more : {std::int64_t{-1}, std::int64_t{1}, -quarter, quarter}) {
        Candidate changed = candidate;
        changed[s].replicas += more;
        if (changed[s].replicas < 1 || changed[s].replicas > problem_.max_replicas(changed[s].type)) continue;
        has_improved = try_out(changed) || has_improved;
      }
      for (const int layers : {-1, 1}) {
        if (s + 1 == candidate.size()) continue;
        Candidate changed = candidate;
        changed[s].last += layers;
        changed[s + 1].first += layers;
        if (changed[s].last < changed[s].first || changed[s + 1].last < changed[s + 1].first) continue;
        has_improved = try_out(changed) || has_improved;
      }
    }
  }
  if (value < best_) best_ = std::min(best_, search_.consider(candidate));
}

}  // namespace motley::planning
