// The best plan of a synchronous pipeline, with proof: a search over all stages from the last to the first.
//
// A partial plan is a rear: the stages that cover the layers from some cut to the last. What the open front needs to
// know of it are a few numbers (Rear in pipeline_bounds.h), the runs of stages that it begins with, the devices that it
// uses and the kind of its first stage, since transfers depend on both ends. Rears of one cut are compared: one that is
// no worse than another in all of these makes the other needless, as whatever completes the other completes it no
// worse. A rear whose bound is not below the best plan known is needless too.
//
// The search goes over the cuts once, from the last to the first, and keeps at every cut at most `width` rears, those
// of the least bounds. What it then finds is good, though not proved; the least bound among the rears that it left out
// is a bound of the optimum. It is repeated with greater widths until nothing is left out that could be better. The
// bounds' thresholds are laid anew each time, around the bottlenecks that better plans may still have.
#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "motley/planning/exact/exact.h"
#include "motley/planning/exact/pipeline_bounds.h"
#include "motley/planning/search/search.h"

namespace motley::planning {
namespace {

constexpr double kProved = 1 - 1e-10;  // plans that are better by less than this are not looked for
constexpr double kRounding = 1 + 1e-12;
constexpr int kFirstWidth = 32;
constexpr int kWidening = 8;
constexpr int kLastWidth = kFirstWidth * kWidening * kWidening * kWidening * kWidening;
constexpr int kFirstThresholds = 6;
constexpr int kMaxThresholds = 24;
constexpr double kFirstAdditions = 1e8;  // for the bounds' tables
constexpr double kMaxAdditions = 4e9;
constexpr int kStepsBetweenChecks = 1024;  // of the clock
constexpr double kMaxKinds = 3000;
constexpr double kMaxStages = 6e6;  // that the tables hold
constexpr int kLarge = 1000;        // layers times kinds of a stage, from where on a better answer to begin with pays

// Every stage is looked at with every number of replicas.
Status check_size(const Problem& problem) {
  double kinds = 0;
  for (int type = 0; type < problem.type_count(); ++type) kinds += static_cast<double>(problem.max_replicas(type));
  const double layers = problem.layer_count();
  if (const double most = std::min(kMaxKinds, kMaxStages / (layers * layers)); kinds > most) {
    return fail(
        ErrorCode::kInvalidInput,
        "exact: {} layers and stages of up to {:.0f} numbers of devices, over all types, are too many; accepted: up to "
        "{:.0f}, by lower counts, more micro-batches, or fewer layers (--max-layers)",
        problem.layer_count(), kinds, most);
  }
  return {};
}

PlanValue make_plan_value(const Problem& problem, const Objective& objective) {
  const auto batch = static_cast<double>(problem.batch);
  const double cost = problem.total_samples / batch / 3600;  // of a second's step at a price of 1 an hour
  PlanValue plan_value;
  if (objective.criterion == Criterion::kMinCost) {
    plan_value.per_step_and_price = cost;
  } else {
    plan_value.per_step_second = objective.criterion == Criterion::kMaxThroughput ? 1 / batch : 1;
  }
  if (objective.min_throughput > 0) {
    plan_value.max_step = batch / objective.min_throughput * (1 + 2 * kTolerance);
  }
  plan_value.max_hourly_cost = objective.max_hourly_cost * (1 + 2 * kTolerance);
  plan_value.max_product = objective.max_cost / cost * (1 + 2 * kTolerance);
  return plan_value;
}

// The pace below which the longer of two runs has more excess.
double pace_between(const Run& shorter, const Run& longer) {
  return (longer.seconds - shorter.seconds) / (longer.stages - shorter.stages);
}

class PipelineSearch {
 public:
  explicit PipelineSearch(const Request& request)
      : request_(request),
        problem_(request.problem),
        stages_(request.problem),
        plan_value_(make_plan_value(request.problem, request.objective)),
        search_(request) {}

  Answer run() {
    take_quick_answers();
    double bound = 0;
    bool proved = stages_.kind_count() == 0;
    PipelineBounds::Range range = possible_bottlenecks();
    int thresholds = kFirstThresholds;
    double additions = kFirstAdditions;
    for (int width = kFirstWidth; !proved && width <= kLastWidth && !search_.over(); width *= kWidening) {
      const PipelineBounds bounds(stages_, range, thresholds, additions);
      bound = std::max(bound, bounds.bound(stages_.layers(), 0, bounds.all(), {}, {}, plan_value_, cutoff()).value);
      if (!pass(bounds, index(width))) break;
      bound = std::max(bound, left_out_);
      proved = bound >= cutoff();
      const PipelineBounds::Range better = bounds.range(plan_value_, cutoff());
      range.low = std::max(range.low, better.low);
      range.high = std::min(range.high, better.high);
      thresholds = std::min(2 * thresholds, kMaxThresholds);
      additions = std::min(8 * additions, kMaxAdditions);
    }
    Answer answer = search_.answer();
    answer.proved = proved;
    answer.bound = proved && answer.best ? best_ : std::min(bound, best_);
    return answer;
  }

 private:
  struct Found {
    Rear rear;
    PipelineBounds::Bound bound;
    int kind = 0;
    bool recompute = false;
    double both = 0;      // seconds of the first stage, forward and backward
    double transfer = 0;  // from it to the next one
    int behind_cut = 0;   // where the next stage begins, and which rear it belongs to
    int behind = 0;
  };
  struct Kept : Found {
    PipelineBounds::Cell cell{};
    std::vector<Run> runs;           // 1F1B: the longest at one pace or another that is not above the bottleneck
    std::vector<std::int64_t> used;  // devices of each type
  };

  double cutoff() const { return best_ * kProved; }
  bool over() { return ++steps_ % kStepsBetweenChecks == 0 && search_.over(); }
  std::size_t kind_pair(int one, int other) const { return index(one) * index(stages_.kind_count()) + index(other); }
  const Kept& behind(const Found& found) const { return cuts_[index(found.behind_cut)][index(found.behind)]; }

  // Answers of quick methods, to begin with: rears are dropped against them, and a search that time ends is never worse
  // than they are.
  void take_quick_answers() {
    std::vector<Result<Answer> (*)(const Request&)> quick = {plan_cpu_only, plan_gpu_only, plan_greedy};
    Request request = request_;
    request.progress = {};
    if (stages_.layers() * stages_.kind_count() > kLarge) {
      quick.push_back(plan_genetic);
      request.seconds = request_.seconds / 5;
    }
    for (const auto& plan : quick) {
      const Result<Answer> answer = plan(request);
      if (answer && answer->best) best_ = std::min(best_, search_.consider(*answer->best));
    }
  }

  // Bottlenecks: no less than of the layer that is slowest at best, no more than that of the best plan of one stage.
  PipelineBounds::Range possible_bottlenecks() const {
    double low = 0;
    double all = kInfinity;
    for (int layer = 0; layer < stages_.layers(); ++layer) {
      double least = kInfinity;
      for (int kind = 0; kind < stages_.kind_count(); ++kind) {
        const StageTimes& alone = stages_.at(layer, layer + 1, kind);
        least = std::min(least, alone.forward + alone.backward);
        const StageTimes& together = stages_.at(0, stages_.layers(), kind);
        all = std::min(all, together.forward + together.backward);
      }
      low = std::max(low, least);
    }
    return {low, std::max(all, 2 * low)};
  }

  // Like extend and select, returns false where the time was over before its end.
  bool pass(const PipelineBounds& bounds, std::size_t width) {
    left_out_ = kInfinity;
    cuts_.assign(index(stages_.layers()) + 1, {});
    Kept end;
    end.cell = bounds.all();
    end.used.resize(problem_.types.size());
    cuts_.back().push_back(end);
    for (int cut = stages_.layers() - 1; cut >= 0; --cut) {
      if (!extend(bounds, cut, width) || !select(bounds, cut, width)) return false;
    }
    return true;
  }

  // Puts a stage that begins at the cut before every rear behind it.
  bool extend(const PipelineBounds& bounds, int cut, std::size_t width) {
    const std::size_t most = std::max<std::size_t>(16 * width, 1 << 20);
    found_.clear();
    for (int end = cut + 1; end <= stages_.layers(); ++end) {
      const std::vector<Kept>& rears = cuts_[index(end)];
      for (int kind = 0; kind < stages_.kind_count(); ++kind) {
        const Kind& devices = stages_.kind(kind);
        const Type& type = problem_.type(devices.type);
        const double price = static_cast<double>(devices.replicas) * type.price_per_hour;
        const StageTimes& stage = stages_.at(cut, end, kind);
        for (std::size_t behind = 0; behind < rears.size(); ++behind) {
          if (over()) return false;
          const Kept& rear = rears[behind];
          const std::int64_t in_flight = stages_.in_flight(rear.rear.stages + 1);
          const bool kept = stage.fitting >= in_flight;
          if (rear.used[index(devices.type)] > type.count - devices.replicas ||
              (!kept && stage.fitting_recomputing < in_flight)) {
            continue;
          }
          Found found;
          const double backward = kept ? stage.backward : stage.recomputing_backward;
          found.kind = kind;
          found.recompute = !kept;
          found.both = stage.forward + backward;
          found.transfer = end == stages_.layers() ? 0 : stages_.transfer(end, kind, rear.kind);
          found.behind_cut = end;
          found.behind = static_cast<int>(behind);
          found.rear = extended(stage, backward, found.transfer, price, rear);
          const double step = found.rear.exposed + static_cast<double>(problem_.micro_batches - 1) *
                                                       (found.rear.bottleneck + found.rear.bottleneck_back);
          found.bound.value = plan_value_(step, found.rear.price);
          if (!(found.bound.value < cutoff())) continue;
          if (cut == 0) {
            complete(found);
            continue;
          }
          set_runs(found);
          found.bound =
              bounds.bound(cut, kind, bounds.without(rear.cell, devices), found.rear, runs_, plan_value_, cutoff());
          if (!(found.bound.value < cutoff())) continue;
          found_.push_back(found);
          if (found_.size() == most) drop_beyond(most / 2);
        }
      }
    }
    return true;
  }

  Rear extended(const StageTimes& stage, double backward, double transfer, double price, const Kept& behind) const {
    const Rear& rear = behind.rear;
    const double both = stage.forward + backward;
    Rear longer;
    longer.round_trip = rear.round_trip + both + 2 * transfer;
    longer.exposed = std::max(longer.round_trip + stage.closing, stage.forward + transfer + rear.exposed);
    longer.stages = std::min(rear.stages + 1, problem_.micro_batches);
    longer.price = rear.price + price;
    longer.work = rear.work + both * price;
    if (stages_.one_forward_one_backward()) {
      longer.bottleneck = std::max({rear.bottleneck, both, transfer});
      for (const Run& run : behind.runs) {
        longer.bottleneck = std::max(longer.bottleneck, (both + 2 * transfer + run.seconds) / (1 + run.stages));
      }
    } else {
      longer.bottleneck = std::max({rear.bottleneck, stage.forward, transfer});
      longer.bottleneck_back = std::max({rear.bottleneck_back, backward, transfer});
    }
    return longer;
  }

  // The found rear's runs that have the greatest excess at any pace from its bottleneck on, the shortest first: the
  // upper envelope of straight lines.
  void set_runs(const Found& found) {
    runs_.clear();
    if (!stages_.one_forward_one_backward()) return;
    runs_.push_back({found.both, 1});
    for (const Run& run : behind(found).runs) {
      const Run longer{found.both + 2 * found.transfer + run.seconds, 1 + run.stages};
      while (runs_.size() > 1 &&
             pace_between(runs_[runs_.size() - 2], runs_.back()) <= pace_between(runs_.back(), longer)) {
        runs_.pop_back();
      }
      if (pace_between(runs_.back(), longer) > found.rear.bottleneck) runs_.push_back(longer);
    }
  }

  // Of the found rears, keeps so many of the least bounds.
  void drop_beyond(std::size_t from) {
    const auto begin = found_.begin() + static_cast<std::ptrdiff_t>(from);
    std::nth_element(found_.begin(), begin, found_.end(),
                     [](const Found& a, const Found& b) { return a.bound.value < b.bound.value; });
    left_out_ = std::min(left_out_, begin->bound.value);
    found_.erase(begin, found_.end());
  }

  // Keeps the found rears of the least bounds that no other makes needless.
  bool select(const PipelineBounds& bounds, int cut, std::size_t width) {
    compare_kinds(cut);
    std::ranges::stable_sort(found_, {}, [](const Found& found) { return found.bound.value; });
    std::vector<Kept>& here = cuts_[index(cut)];
    for (const Found& found : found_) {
      if (over()) return false;
      const Kind& kind = stages_.kind(found.kind);
      std::vector<std::int64_t> used = behind(found).used;
      used[index(kind.type)] += kind.replicas;
      set_runs(found);
      if (std::ranges::any_of(here, [&](const Kept& one) { return no_worse(one, found, used); })) continue;
      if (here.size() == width) {
        left_out_ = std::min(left_out_, found.bound.value);
        return true;
      }
      here.push_back({found, bounds.without(behind(found).cell, kind), runs_, std::move(used)});
    }
    return true;
  }

  void compare_kinds(int cut) {
    const int kinds = stages_.kind_count();
    slack_.assign(kind_pair(kinds, 0), 0);
    longest_transfer_.assign(index(kinds), 0);
    counts_matter_ = false;
    for (int before = 0; before < kinds; ++before) {
      for (int one = 0; one < kinds; ++one) {
        const double transfer = stages_.transfer(cut, before, one);
        longest_transfer_[index(one)] = std::max(longest_transfer_[index(one)], transfer);
        for (int other = 0; other < kinds; ++other) {
          double& slack = slack_[kind_pair(one, other)];
          slack = std::max(slack, transfer - stages_.transfer(cut, before, other));
        }
      }
      const std::int64_t least = stages_.in_flight(2);
      const std::int64_t most = stages_.in_flight(stages_.layers());
      for (int first = 0; first < cut && !counts_matter_; ++first) {
        for (int end = first + 1; end <= cut && !counts_matter_; ++end) {
          const StageTimes& stage = stages_.at(first, end, before);
          counts_matter_ = stage.fitting < most && std::max(stage.fitting, stage.fitting_recomputing) >= least;
        }
      }
    }
  }

  // Whether whatever front completes the other, to a plan better than the best known, completes the one no worse.
  bool no_worse(const Kept& one, const Found& other, const std::vector<std::int64_t>& other_used) const {
    const double slack = slack_[kind_pair(one.kind, other.kind)];
    if (one.rear.exposed + slack > other.rear.exposed * kRounding ||
        one.rear.round_trip + 2 * slack > other.rear.round_trip * kRounding) {
      return false;
    }
    // A plan that the other belongs to has at least the bottleneck of its bound.
    double allowed = other.rear.bottleneck;
    if (stages_.one_forward_one_backward()) {
      allowed = std::max(allowed, other.bound.bottleneck);
      if (counts_matter_ && one.rear.stages != other.rear.stages) return false;
    } else if (one.rear.bottleneck_back > other.rear.bottleneck_back * kRounding) {
      return false;
    }
    if (one.rear.bottleneck > allowed * kRounding) return false;
    if (slack > 0) {
      const double longest = longest_transfer_[index(one.kind)];
      const double hidden =
          stages_.one_forward_one_backward() ? allowed : std::min(allowed, other.rear.bottleneck_back);
      if (longest > hidden * kRounding) return false;
    }
    return std::ranges::equal(one.used, other_used, std::less_equal()) &&
           (!stages_.one_forward_one_backward() || runs_no_longer(one, allowed, slack));
  }

  // Whether at every pace from that one on, the one's runs add no more to the runs of any front than those of the
  // other, which are runs_: they have no more excess, or so little that a front's runs do not go on. Both are convex in
  // the pace and the other's has corners, between which it is straight: only the ends and the corners need to be
  // compared.
  bool runs_no_longer(const Kept& one, double pace, double slack) const {
    const double transfers = 2 * longest_transfer_[index(one.kind)];
    double none = 0;  // from this pace on, no front's run goes on
    for (const Run& run : one.runs) none = std::max(none, (run.seconds + transfers) / run.stages);
    if (none <= pace * kRounding) return true;
    const auto no_more = [&](double at) {
      return excess(one.runs, at) + 2 * slack <= excess(runs_, at) + (kRounding - 1) * one.rear.round_trip;
    };
    for (std::size_t i = 0; i + 1 < runs_.size(); ++i) {
      const double corner = pace_between(runs_[i], runs_[i + 1]);
      if (corner > pace && corner < none && !no_more(corner)) return false;
    }
    return no_more(pace) && no_more(none);
  }

  // A whole plan that looks better than the best known is judged by the cost model.
  void complete(const Found& found) {
    Candidate candidate;
    int first = 0;
    for (const Found* stage = &found;;) {
      const Kind& kind = stages_.kind(stage->kind);
      candidate.push_back({first, stage->behind_cut - 1, kind.type, kind.replicas, stage->recompute});
      first = stage->behind_cut;
      if (first == stages_.layers()) break;
      stage = &behind(*stage);
    }
    best_ = std::min(best_, search_.consider(candidate));
  }

  const Request& request_;
  const Problem& problem_;
  const PipelineStages stages_;
  const PlanValue plan_value_;
  Search search_;
  double best_ = kInfinity;
  double left_out_ = kInfinity;  // the least bound of the rears that this pass left out
  int steps_ = 0;

  std::vector<std::vector<Kept>> cuts_;  // the rears of each
  std::vector<Found> found_;             // at the cut in hand, as are all below
  std::vector<Run> runs_;                // of the one in hand
  // [one][other]: by how much a transfer to a stage of the one kind may take longer than to one of the other.
  std::vector<double> slack_;
  std::vector<double> longest_transfer_;  // [kind]
  bool counts_matter_ = false;            // some stage before this cut fits into memory only with few stages behind it
};

}  // namespace

Result<Answer> exact_pipeline(const Request& request) {
  MOTLEY_TRY(check_size(request.problem));
  return PipelineSearch(request).run();
}

}  // namespace motley::planning
