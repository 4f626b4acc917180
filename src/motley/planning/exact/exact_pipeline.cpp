// The best plan of a synchronous pipeline, with proof: a search over all stages from the last to the first.
//
// A partial plan is a rear: the stages that cover the layers from some cut to the last. What the open front needs to
// know of it are a few numbers (Rear in pipeline_bounds.h), the devices that it uses and the kind of its first stage,
// since transfers depend on both ends. Rears of one cut are compared: one that is no worse than another in all of these
// makes the other needless, as whatever completes the other completes it no worse. A rear whose bound is not below the
// best plan known is needless too.
//
// Under 1F1B the search is made in three ways, one after the other. First rears are compared, and given up, by
// estimates: that finds good plans soon, and proves nothing. Then by what a step takes at least (RearTime), which
// mostly is what it takes. Where it is not, and plans that were given up could therefore be better than the best, rears
// are at last compared stage by stage: one makes another needless if it has as many stages, each of which takes no
// longer.
//
// The search goes over the cuts once, from the last to the first, and keeps at every cut at most `width` rears, those
// of the least bounds. What it then finds is good, though not proved; the least bound among the rears that it left out
// is a bound of the optimum. It is repeated with greater widths until nothing is left out that could be better. The
// bounds' thresholds are laid anew each time, around the bottlenecks that better plans may still have.
//
// Of large problems a relaxation (pipeline_relaxation.h) finds better plans and bounds, sooner, and simulated annealing
// better plans still. They go first, and, once the search has had its part of the time, the relaxation goes on.
#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <vector>

#include "motley/planning/exact/exact.h"
#include "motley/planning/exact/pipeline_bounds.h"
#include "motley/planning/exact/pipeline_relaxation.h"
#include "motley/planning/search/annealing.h"
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
constexpr double kAdditionsASecond = 1e8;  // of the time limit, which is not looked at while tables are filled
constexpr int kLastEstimatedWidth = kFirstWidth * kWidening * kWidening;
constexpr double kEstimatedPart = 0.3;     // of the time, for the search by estimates
constexpr int kStepsBetweenChecks = 1024;  // of the clock
constexpr double kMaxKinds = 3000;
constexpr double kMaxStages = 8e6;     // that the tables hold: half of the layers' pairs, of every kind
constexpr int kLarge = 1000;           // layers times kinds of a stage, from where on the relaxation pays
constexpr double kFirstPart = 0.05;    // of the time, for the relaxation before the search
constexpr double kAnnealedPart = 0.1;  // for plans near the best that it knows
constexpr int kAnnealingSteps = 30'000;
constexpr double kSearchedPart = 0.2;  // and for the search before the relaxation goes on

// Every stage is looked at with every number of replicas.
double count_kinds(const Problem& problem) {
  double kinds = 0;
  for (int type = 0; type < problem.type_count(); ++type) kinds += static_cast<double>(problem.max_replicas(type));
  return kinds;
}

Status check_size(const Problem& problem) {
  const double kinds = count_kinds(problem);
  const double layers = problem.layer_count();
  if (const double most = std::min(kMaxKinds, 2 * kMaxStages / (layers * (layers + 1))); kinds > most) {
    return fail(
        ErrorCode::kInvalidInput,
        "exact: {} layers and stages of up to {:.0f} numbers of devices, over all types, are too many; accepted: up to "
        "{:.0f}, by lower counts, more micro-batches, or fewer layers (--max-layers)",
        problem.layer_count(), kinds, most);
  }
  return {};
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
    std::optional<PipelineRelaxation> relaxation;
    if (stages_.layers() * stages_.kind_count() > kLarge) {
      relaxation.emplace(request_, stages_, plan_value_, search_, best_);
      bound = relax(*relaxation, kFirstPart);
      anneal_best();
      begin_ = search_.seconds();
      end_ = begin_ + kSearchedPart * request_.seconds;
    }
    bool proved = stages_.kind_count() == 0 || bound >= cutoff();
    PipelineBounds::Range range = possible_bottlenecks();
    int thresholds = kFirstThresholds;
    double additions = kFirstAdditions;
    if (!stages_.one_forward_one_backward()) compared_by_ = Comparison::kLeastTime;
    for (int width = kFirstWidth; !proved && width <= kLastWidth && !is_over(); width *= kWidening) {
      const PipelineBounds bounds(stages_, range, thresholds, std::min(additions, kAdditionsASecond * request_.seconds),
                                  [&] { return is_over(); });
      if (!bounds.is_whole()) break;
      bound = std::max(bound, bounds.bound(stages_.layers(), 0, bounds.all(), {}, stages_.layers(), plan_value_).value);
      const bool is_whole = pass(bounds, index(width));
      if (compared_by_ == Comparison::kEstimate) {
        if (!is_whole || left_out_ >= cutoff() || width >= kLastEstimatedWidth) {
          compared_by_ = Comparison::kLeastTime;
          width = kFirstWidth / kWidening;
        }
      } else {
        if (!is_whole) break;
        const bool by_time = compared_by_ == Comparison::kLeastTime && stages_.one_forward_one_backward();
        bound = std::max(bound, by_time ? std::min(left_out_, completed_) : left_out_);
        if (by_time && bound < cutoff() && left_out_ >= cutoff()) {
          compared_by_ = Comparison::kStages;
          width = kFirstWidth / kWidening;
        }
      }
      search_.prove(bound);
      proved = bound >= cutoff();
      const PipelineBounds::Range better = bounds.range(plan_value_, cutoff());
      range.low = std::max(range.low, better.low);
      range.high = std::min(range.high, better.high);
      thresholds = std::min(2 * thresholds, kMaxThresholds);
      additions = std::min(8 * additions, kMaxAdditions);
    }
    if (relaxation && !proved) {
      relaxation->know(best_);
      bound = std::max(bound, relax(*relaxation, 1));
      proved = bound >= cutoff();
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
    StageCost first = {};  // what its first stage takes
    int behind_cut = 0;    // where the next stage begins, and which rear it belongs to
    int behind = 0;
  };
  struct Kept : Found {
    PipelineBounds::Cell cell{};
    std::vector<std::int64_t> used;  // devices of each type
    std::int64_t devices_left = 0;   // of all types
  };

  enum class Comparison { kEstimate, kLeastTime, kStages };

  double cutoff() const { return best_ * kProved; }
  // What a rear is given up by.
  double promise(const Found& found) const {
    return compared_by_ == Comparison::kEstimate ? found.bound.estimate : found.bound.value;
  }
  bool is_over() { return search_.over() || search_.seconds() > end_; }
  bool over() {
    if (++steps_ % kStepsBetweenChecks != 0) return false;
    const double seconds = std::min(end_, request_.seconds) - begin_;
    const bool is_late = search_.seconds() > begin_ + kEstimatedPart * seconds;
    return is_over() || (compared_by_ == Comparison::kEstimate && is_late);
  }
  // Until so much of the time is over. A bound of all plans, but the best.
  double relax(PipelineRelaxation& relaxation, double part) {
    const double bound = relaxation.run([&] { return search_.over() || search_.seconds() > part * request_.seconds; });
    best_ = std::min(best_, relaxation.best());
    return bound;
  }
  // Better plans near the best.
  void anneal_best() {
    Random random(request_.seed);
    const double end = search_.seconds() + kAnnealedPart * request_.seconds;
    const auto is_over = [&] { return search_.over() || search_.seconds() > end; };
    while (const std::optional<Candidate> best = is_over() ? std::nullopt : search_.answer().best) {
      best_ = std::min(best_, search_.consider(anneal(request_, *best, kAnnealingSteps, random, is_over)));
    }
  }
  std::size_t kind_pair(int one, int other) const { return index(one) * index(stages_.kind_count()) + index(other); }
  const Kept& behind(const Found& found) const { return cuts_[index(found.behind_cut)][index(found.behind)]; }

  // Answers of quick methods, to begin with: rears are dropped against them, and a search that time ends is never worse
  // than they are.
  void take_quick_answers() {
    Request request = request_;
    request.progress = {};
    request.seconds = request_.seconds / 10;
    for (const auto& plan : {plan_cpu_only, plan_gpu_only, plan_greedy, plan_pipedream}) {
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
    left_out_ = completed_ = kInfinity;
    cuts_.assign(index(stages_.layers()) + 1, {});
    Kept end;
    end.cell = bounds.all();
    end.used.resize(problem_.types.size());
    for (const Type& type : problem_.types) end.devices_left += type.count;
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
          const std::int64_t in_flight = stages_.in_flight(rear.rear.time.stages + 1);
          const bool kept = stage.fitting >= in_flight;
          if (rear.used[index(devices.type)] > type.count - devices.replicas ||
              (!kept && stage.fitting_recomputing < in_flight)) {
            continue;
          }
          Found found;
          const double backward = kept ? stage.backward : stage.recomputing_backward;
          found.kind = kind;
          found.recompute = !kept;
          found.first.forward_seconds = stage.forward;
          found.first.backward_seconds = backward;
          found.first.transfer_seconds = end == stages_.layers() ? 0 : stages_.transfer(end, kind, rear.kind);
          found.first.exposed_sync_seconds = stage.closing;
          found.behind_cut = end;
          found.behind = static_cast<int>(behind);
          found.rear = extended(found.first, price, rear);
          found.bound.value = plan_value_(least_step(found.rear), found.rear.price);
          if (!(found.bound.value < cutoff())) continue;
          if (cut == 0) {
            complete(found);
            continue;
          }
          const std::int64_t most_stages = std::min<std::int64_t>(cut, rear.devices_left - devices.replicas);
          found.bound =
              bounds.bound(cut, kind, bounds.without(rear.cell, devices), found.rear, most_stages, plan_value_);
          if (!(promise(found) < cutoff())) continue;
          found_.push_back(found);
          if (found_.size() == most) drop_beyond(most / 2);
        }
      }
    }
    return true;
  }

  // What the rear takes, with nothing before it.
  double least_step(const Rear& rear) const {
    if (stages_.one_forward_one_backward()) return rear.time.exposed_makespan;
    return rear.time.exposed + static_cast<double>(problem_.micro_batches - 1) * (rear.longest + rear.longest_back);
  }

  Rear extended(const StageCost& stage, double price, const Kept& behind) const {
    const Rear& rear = behind.rear;
    const double both = stage.forward_seconds + stage.backward_seconds;
    Rear longer;
    longer.time = rear.time.behind(stage, problem_.micro_batches);
    longer.price = rear.price + price;
    longer.work = rear.work + both * price;
    if (stages_.one_forward_one_backward()) {
      longer.longest = std::max(rear.longest, both);
    } else {
      longer.longest = std::max({rear.longest, stage.forward_seconds, stage.transfer_seconds});
      longer.longest_back = std::max({rear.longest_back, stage.backward_seconds, stage.transfer_seconds});
    }
    return longer;
  }

  // Of the found rears, keeps so many of the least estimates.
  void drop_beyond(std::size_t from) {
    const auto begin = found_.begin() + static_cast<std::ptrdiff_t>(from);
    std::nth_element(found_.begin(), begin, found_.end(),
                     [](const Found& a, const Found& b) { return a.bound.estimate < b.bound.estimate; });
    for (auto dropped = begin; dropped != found_.end(); ++dropped) {
      left_out_ = std::min(left_out_, promise(*dropped));
    }
    found_.erase(begin, found_.end());
  }

  // Keeps the found rears of the least estimates that no other makes needless.
  bool select(const PipelineBounds& bounds, int cut, std::size_t width) {
    if (!compare_kinds(cut)) return false;
    std::ranges::stable_sort(found_, {}, [](const Found& found) { return found.bound.estimate; });
    std::vector<Kept>& here = cuts_[index(cut)];
    for (const Found& found : found_) {
      if (over()) return false;
      if (here.size() == width) {
        left_out_ = std::min(left_out_, promise(found));
        continue;
      }
      const Kind& kind = stages_.kind(found.kind);
      std::vector<std::int64_t> used = behind(found).used;
      used[index(kind.type)] += kind.replicas;
      if (std::ranges::any_of(here, [&](const Kept& one) { return no_worse(one, found, used); })) continue;
      here.push_back({found, bounds.without(behind(found).cell, kind), std::move(used),
                      behind(found).devices_left - kind.replicas});
    }
    return true;
  }

  // False where the time is over before all are compared.
  bool compare_kinds(int cut) {
    const int kinds = stages_.kind_count();
    slack_.assign(kind_pair(kinds, 0), 0);
    longest_transfer_.assign(index(kinds), 0);
    counts_matter_ = false;
    for (int before = 0; before < kinds; ++before) {
      for (int one = 0; one < kinds; ++one) {
        if (over()) return false;
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
    return true;
  }

  // Whether whatever front completes the other, to a plan better than the best known, completes the one no worse.
  bool no_worse(const Kept& one, const Found& other, const std::vector<std::int64_t>& other_used) const {
    if (!std::ranges::equal(one.used, other_used, std::less_equal())) return false;
    const double slack = slack_[kind_pair(one.kind, other.kind)];
    const RearTime& its = one.rear.time;
    const RearTime& others = other.rear.time;
    if (!stages_.one_forward_one_backward()) {
      const double hidden = std::min(other.rear.longest, other.rear.longest_back);
      return its.exposed + slack <= others.exposed * kRounding &&
             its.round_trip + 2 * slack <= others.round_trip * kRounding &&
             one.rear.longest <= other.rear.longest * kRounding &&
             one.rear.longest_back <= other.rear.longest_back * kRounding &&
             (slack == 0 || longest_transfer_[index(one.kind)] <= hidden * kRounding);
    }
    if (compared_by_ == Comparison::kEstimate) {
      return its.exposed + slack <= others.exposed * kRounding &&
             its.round_trip + 2 * slack <= others.round_trip * kRounding &&
             one.rear.longest <= other.rear.longest * kRounding &&
             (slack == 0 || longest_transfer_[index(one.kind)] <= other.rear.longest * kRounding) &&
             !(counts_matter_ && its.stages != others.stages);
    }
    // How much a stage holds, and so the order of its work, depends on the number of stages behind it.
    if (counts_matter_ && its.stages != others.stages) return false;
    if (std::min(its.stages, problem_.micro_batches) != std::min(others.stages, problem_.micro_batches)) return false;
    if (compared_by_ == Comparison::kStages)
      return slack == 0 && its.stages == others.stages && is_shorter_by_stages(one, other);
    const double round_trip = its.round_trip + 2 * slack;
    if (its.exposed + slack > others.exposed * kRounding || round_trip > others.round_trip * kRounding ||
        its.exposed_makespan + slack > others.exposed_makespan * kRounding ||
        its.makespan + 2 * slack > others.makespan * kRounding) {
      return false;
    }
    // All transfers to it, one after the other.
    const auto further = static_cast<double>(problem_.micro_batches - 1);
    return round_trip + further * slack <= others.round_trip * kRounding ||
           round_trip + further * longest_transfer_[index(one.kind)] <= others.makespan * kRounding;
  }

  bool is_shorter_by_stages(const Kept& one, const Found& other) const {
    const Found* its = &one;
    const Found* others = &other;
    for (std::int64_t stage = 0; stage < one.rear.time.stages; ++stage) {
      if (its->first.forward_seconds > others->first.forward_seconds ||
          its->first.backward_seconds > others->first.backward_seconds ||
          its->first.transfer_seconds > others->first.transfer_seconds ||
          its->first.exposed_sync_seconds > others->first.exposed_sync_seconds) {
        return false;
      }
      if (its->behind_cut == stages_.layers()) break;
      its = &behind(*its);
      others = &behind(*others);
    }
    return true;
  }

  // A whole plan that looks better than the best known is judged by the cost model.
  void complete(const Found& found) {
    completed_ = std::min(completed_, found.bound.value);
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
  double left_out_ = kInfinity;   // the least bound of the rears that this pass left out
  double completed_ = kInfinity;  // 1F1B: and of the plans that it judged
  Comparison compared_by_ = Comparison::kEstimate;
  int steps_ = 0;
  double begin_ = 0, end_ = kInfinity;  // of the search after the relaxation, in seconds

  std::vector<std::vector<Kept>> cuts_;  // the rears of each
  std::vector<Found> found_;             // at the cut in hand, as are all below
  // [one][other]: by how much a transfer to a stage of the one kind may take longer than to one of the other.
  std::vector<double> slack_;
  std::vector<double> longest_transfer_;  // [kind]
  bool counts_matter_ = false;            // some stage before this cut fits into memory only with few stages behind it
};

}  // namespace

int max_pipeline_layers(const Problem& problem) {
  const double kinds = count_kinds(problem);
  return kinds > kMaxKinds ? 0 : static_cast<int>(std::sqrt(kMaxStages / std::max(1.0, kinds)));
}

Result<Answer> exact_pipeline(const Request& request) {
  MOTLEY_TRY(check_size(request.problem));
  return PipelineSearch(request).run();
}

}  // namespace motley::planning
