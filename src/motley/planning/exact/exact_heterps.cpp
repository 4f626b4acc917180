// The exact planner for kHeterps.
//
// Let e be the seconds a sample of a plan, 1 / throughput. At a given e every stage needs a known least number of
// devices, so that a plan is a path over (layer, type) and its cost is e times the sum of what its stages' devices
// cost. For all plans with e in an interval [low, high], a stage has at least k = k(high) devices, and costs at least
// price * k * max(low, ET(k)): the cheapest path by that measure bounds them all. So the search is over intervals of e,
// always the one with the least bound: a path is found, its best counts are taken as a plan, and the interval is
// dropped where its bound reaches the best plan, or else cut in two, where the path found is too dear on the upper side
// and too slow on the lower. Only stages on paths below the best plan are kept for the parts.
//
// Limits on devices and on the price an hour couple the stages of a path. They are charged for (Lagrangian multipliers,
// by subgradient ascent), which keeps the bound valid; the cheapest path within them is then found by labels that use
// the charged shortest paths as bounds. Labels are kept up to a width; where that leaves a gap, the interval is
// searched again with more. Cost caps bound the same measure. Where the rate itself is the objective, an interval is
// dropped when no path in it is within the limits, and its bound is its lower end.
//
// Multipliers for many types take long to become good. So what is not proved after most of the time is, in the rest of
// it, searched as if only a stage by itself had to keep to them: without multipliers a bound rises fast.
#include <algorithm>
#include <cmath>
#include <memory>
#include <tuple>
#include <unordered_set>

#include "motley/base/random.h"
#include "motley/planning/exact/exact.h"
#include "motley/planning/exact/stage_graph.h"
#include "motley/planning/search/search.h"

namespace motley::planning {
namespace {

constexpr double kEqualCost = 1e-11;  // plans that differ by less are equally good
constexpr double kFirstSpread = 0.03;
constexpr double kRateSpread = 1e-3;
constexpr int kFirstBeamWidth = 32;
constexpr int kMaxWidth = 1 << 12;
constexpr std::size_t kMaxCharges = 40;
constexpr int kPartWidth = 64;
constexpr int kTries = 20;
// Of the subgradient ascent, at first and for the parts of intervals, which begin with their parent's charges.
constexpr int kFirstSteps = 200;
constexpr int kSteps = 30;
constexpr double kFirstStride = 0.1;
constexpr double kLimitedPart = 0.8;                 // of the time, for the search within the limits on devices
constexpr std::int64_t kWithoutEnd = 1'000'000'000;  // devices of a type, for all stages together
constexpr double kStride = 0.01;

struct Node {
  Interval interval;
  double bound = 0;  // of the objective, in this search's units
  int width = kFirstBeamWidth;
  std::vector<double> charges;  // for a device of every type, and for the price
  std::shared_ptr<const std::vector<Segment>> segments;
  std::int64_t order = 0;  // breaks ties, so that the search is deterministic
};

class RateSearch {
 public:
  // limits: the problem with the devices that a stage may have.
  RateSearch(const Request& request, const Problem& limits)
      : request_(request),
        problem_(request.problem),
        objective_(request.objective),
        times_(limits, objective_.max_hourly_cost),
        search_(request),
        for_cost_(objective_.criterion == Criterion::kMinCost),
        later_{for_cost_},
        random_(request.seed) {
    // Cost is e * price * unit_, step time is e * unit_.
    const double job_hours = problem_.total_samples / 3600;
    unit_ = for_cost_                                           ? job_hours
            : objective_.criterion == Criterion::kMaxThroughput ? 1
                                                                : static_cast<double>(problem_.batch);
    const bool cost_matters = for_cost_ || std::isfinite(objective_.max_cost);
    measure_ = cost_matters ? Measure::kCost : Measure::kFraction;
    double price = 0;
    for (const Type& type : problem_.types) {
      limits_.devices.push_back(static_cast<double>(type.count));
      price += static_cast<double>(type.count) * type.price_per_hour;
    }
    limits_.price_per_hour = objective_.max_hourly_cost * (1 + kTolerance);
    is_limited_ = for_cost_ && std::ranges::any_of(problem_.types, &has_few);
    root_.low = times_.fastest();
    root_.high = times_.slowest();
    if (objective_.min_throughput > 0) {
      root_.high = std::min(root_.high, 1 / (objective_.min_throughput * (1 - kTolerance)));
    }
    // What no path within the limits reaches.
    cap_ = cost_matters ? root_.high * (price + 1) : static_cast<double>(problem_.type_count());
    cap_ = std::min(cap_ * (1 + kEqualCost), objective_.max_cost / job_hours * (1 + kTolerance));
  }

  Answer run() {
    if (root_.low <= root_.high) {
      add({.interval = root_,
           .bound = for_cost_ ? 0 : root_.low,
           .charges = std::vector<double>(problem_.types.size() + 1),
           .segments = std::make_shared<const std::vector<Segment>>(times_.segments(root_.high))});
    }
    while (!nodes_.empty() && !over()) {
      std::ranges::pop_heap(nodes_, later_);
      Node node = std::move(nodes_.back());
      nodes_.pop_back();
      if (for_cost_) search_.prove(std::min(stuck_, node.bound) * unit_);  // the least of all that are left
      if (node.bound < limit()) process(std::move(node));
    }
    double bound = std::min(best_, open_bound());
    const bool is_cut_short = bound < limit() && over();
    if (is_cut_short && !search_.over()) bound = std::min(best_, std::max(bound, bound_without_limits()));
    Answer answer = search_.answer();
    answer.stopped = answer.stopped || is_cut_short;
    answer.proved = !(bound < limit());
    answer.bound = std::isfinite(bound) ? bound * unit_ : 0;
    return answer;
  }

 private:
  static bool has_few(const Type& type) { return type.count < kWithoutEnd; }

  bool over() { return search_.over() || (is_limited_ && search_.seconds() > kLimitedPart * request_.seconds); }

  // In what is left of the time.
  double bound_without_limits() {
    Problem problem = problem_;
    for (Type& type : problem.types) type.count = std::max(type.count, kWithoutEnd);
    const Request request{.problem = problem,
                          .objective = objective_,
                          .seed = request_.seed,
                          .seconds = request_.seconds - search_.seconds(),
                          .clock = request_.clock,
                          .stop = request_.stop};
    return RateSearch(request, problem_).run().bound / unit_;
  }

  // Values from here on are not looked for.
  double limit() const { return best_ * (1 - kEqualCost); }
  // Paths that cost as much are of no use.
  double cost_limit() const { return for_cost_ ? std::min(cap_, limit()) : cap_; }

  void add(Node node) {
    node.order = ++nodes_created_;
    nodes_.push_back(std::move(node));
    std::ranges::push_heap(nodes_, later_);
  }

  double open_bound() const {
    double bound = stuck_;
    for (const Node& node : nodes_) bound = std::min(bound, node.bound);
    return bound;
  }

  void process(Node node) {
    if (!for_cost_) node.interval.high = std::min(node.interval.high, limit());
    StageGraph graph(times_, *node.segments, node.interval, measure_);
    const bool first = node.order == 1;
    const Ascent ascent = ascend(graph, node, first ? kFirstSteps : kSteps, first ? kFirstStride : kStride);
    if (for_cost_) node.bound = std::max(node.bound, ascent.value);
    if (!(ascent.value < cost_limit())) return;
    node.segments =
        std::make_shared<const std::vector<Segment>>(graph.below(cost_limit() + compute_charges(node.charges).refund));
    if (ascent.exact || too_wide(node)) {
      divide(std::move(node), ascent.path);
      return;
    }
    const LabelResult found =
        search_labels(graph, limits_, bundle(node.charges), cost_limit(), node.width, [&] { return over(); });
    if (for_cost_) node.bound = std::max(node.bound, found.bound);
    if (found.path) propose(*found.path);
    if (!(found.bound < cost_limit())) return;
    const bool cheapest = found.path && compute_cost(*found.path) <= found.bound;
    if (cheapest || (found.path && !for_cost_) || node.width >= kMaxWidth) {
      divide(std::move(node), found.path.value_or(StagePath()));
    } else {
      lowest_tried_ = std::min(lowest_tried_, node.interval.low);
      improve(node);
      node.width *= 4;
      add(std::move(node));
    }
  }

  // Whether more is lost by not knowing the rate than by the limits that couple stages. Where the rate is the
  // objective, the least that cannot be excluded is to be known well.
  bool too_wide(const Node& node) const {
    const double spread = node.interval.high / node.interval.low - 1;
    if (!for_cost_) return node.interval.low < lowest_tried_ && spread > kRateSpread;
    return spread > (std::isfinite(best_) ? (best_ - node.bound) / node.bound / 2 : kFirstSpread);
  }

  // Searches for better plans in the node near the best one: random parts of the model are planned anew, while the
  // other layers stay as they are. Ends when some parts in a row have brought nothing.
  void improve(const Node& node) {
    for (int failures = 0; failures < kTries && std::isfinite(best_) && !over();) {
      const double before = best_;
      Node part = node;
      part.interval.high = for_cost_ ? part.interval.high : limit();
      part.segments = std::make_shared<const std::vector<Segment>>(segments_around_best(*node.segments));
      StageGraph graph(times_, *part.segments, part.interval, measure_);
      if (ascend(graph, part, kSteps, kStride).value < cost_limit()) {
        const LabelResult found =
            search_labels(graph, limits_, bundle(part.charges), cost_limit(), kPartWidth, [&] { return over(); });
        if (found.path) propose(*found.path);
      }
      failures = best_ < before ? 0 : failures + 1;
    }
  }

  std::vector<Segment> segments_around_best(const std::vector<Segment>& segments) {
    const int layers = problem_.layer_count();
    std::vector<bool> open(index(layers));
    for (std::uint64_t windows = 1 + random_.below(3); windows > 0; --windows) {
      const int length =
          1 + layers / 16 +
          static_cast<int>(random_.below(static_cast<std::uint64_t>(1) + static_cast<std::uint64_t>(layers / 8)));
      const int first = static_cast<int>(random_.below(static_cast<std::uint64_t>(layers)));
      std::fill(open.begin() + first, open.begin() + std::min(layers, first + length), true);
    }
    std::vector<Segment> around;
    // A stage of the best plan that reaches out of a window stays open as a whole.
    std::vector<int> closed_before(open.size() + 1);
    for (const Segment& stage : best_stages_) {
      const bool kept =
          std::none_of(open.begin() + stage.first, open.begin() + stage.last + 1, [](bool o) { return o; });
      std::fill(open.begin() + stage.first, open.begin() + stage.last + 1, !kept);
    }
    for (std::size_t layer = 0; layer < open.size(); ++layer) {
      closed_before[layer + 1] = closed_before[layer] + (open[layer] ? 0 : 1);
    }
    std::size_t next = 0;
    for (const Segment& segment : segments) {
      while (next < best_stages_.size() && best_stages_[next].first <= segment.first) {
        around.push_back(best_stages_[next++]);
      }
      if (closed_before[index(segment.last + 1)] == closed_before[index(segment.first)]) {
        around.push_back(segment);
      }
    }
    around.insert(around.end(), best_stages_.begin() + static_cast<std::ptrdiff_t>(next), best_stages_.end());
    return around;
  }

  struct Ascent {
    double value = 0;    // no path within the limits costs less
    bool exact = false;  // path is the cheapest within the limits
    StagePath path;
  };

  // Raises the bound by changing the charges; leaves the best ones in the node, and the graph's shortest path for them.
  // `stride`: how much is asked of the first step, as a share of the bound.
  Ascent ascend(StageGraph& graph, Node& node, int steps, double stride) {
    const std::size_t types = problem_.types.size();
    std::vector<double> charges = node.charges;
    Ascent best{.value = -kInfinity};
    std::vector<double> excess(types + 1);
    for (int i = 0; i < steps && !over(); ++i) {
      const Charges charged = compute_charges(charges);
      const double value = graph.shortest(charged.device) - charged.refund;
      if (value == kInfinity) return {.value = kInfinity};
      const StagePath path = graph.path();
      for (std::size_t r = 0; r < types; ++r) excess[r] = -limits_.devices[r];
      double price = 0;
      for (const Step& step : path) {
        excess[index(step.segment.type)] += step.use.count;
        price += step.use.count * times_.price(step.segment.type);
      }
      excess[types] = std::isfinite(limits_.price_per_hour) ? price - limits_.price_per_hour : 0;
      const bool within = std::ranges::all_of(excess, [](double e) { return e <= 0; });
      if (within) propose(path);
      const double gained = value - best.value;
      if (gained > 0) {
        best.value = value;
        node.charges = charges;
        double unused = 0;  // what is charged for without being used
        for (std::size_t r = 0; r <= types; ++r) unused -= charges[r] * excess[r];
        if (within && unused <= kEqualCost * std::abs(value)) {
          best.exact = true;
          best.path = path;
          return best;
        }
      }
      if (!(best.value < cost_limit())) return best;
      const double asked = stride * std::abs(best.value);
      if (i > 0) stride *= gained > asked / 2 ? 2 : gained > 0 ? 1 : 0.7;
      if (stride < 1e-6) break;
      double norm = 0;
      for (std::size_t r = 0; r <= types; ++r) {
        if (excess[r] > 0 || charges[r] > 0) norm += std::pow(scale(graph, r) * excess[r], 2);
      }
      const double target = std::min(cost_limit(), best.value + stride * std::abs(best.value));
      const double length = (target - value) / norm;
      for (std::size_t r = 0; r <= types; ++r) {
        charges[r] = std::max(0.0, charges[r] + length * std::pow(scale(graph, r), 2) * excess[r]);
      }
    }
    graph.shortest(compute_charges(node.charges).device);
    return best;
  }

  // A typical cost of a unit of a resource, so that all are charged in proportion.
  double scale(const StageGraph& graph, std::size_t resource) const {
    const std::size_t types = problem_.types.size();
    if (measure_ == Measure::kFraction) {
      return 1 / std::max(1.0, resource < types ? limits_.devices[resource] : limits_.price_per_hour);
    }
    const double seconds = graph.interval().high;
    return resource < types ? seconds * problem_.types[resource].price_per_hour : seconds;
  }

  Charges compute_charges(const std::vector<double>& multipliers) const {
    Charges charges{.device = {multipliers.begin(), multipliers.end() - 1},
                    .refund = multipliers.back() > 0 ? multipliers.back() * limits_.price_per_hour : 0};
    for (std::size_t type = 0; type < charges.device.size(); ++type) {
      charges.refund += multipliers[type] * limits_.devices[type];
      charges.device[type] += multipliers.back() * problem_.types[type].price_per_hour;
    }
    return charges;
  }

  // Those charges, and others with more or less for a single resource: they bound labels that have used more or less of
  // it than is usual up to their layer.
  std::vector<Charges> bundle(const std::vector<double>& multipliers) const {
    std::vector<Charges> charges{compute_charges(multipliers)};
    for (double factor : {2.0, 0.5}) {
      for (std::size_t r = 0; r < multipliers.size(); ++r) {
        if (multipliers[r] > 0 && charges.size() < kMaxCharges) {
          std::vector<double> changed = multipliers;
          changed[r] *= factor;
          charges.push_back(compute_charges(changed));
        }
      }
    }
    return charges;
  }

  static double compute_cost(const StagePath& path) {
    double cost = 0;
    for (const Step& step : path) cost += step.use.cost;
    return cost;
  }

  // Cuts the node's interval in two. `path` is the cheapest in it, or empty.
  void divide(Node node, const StagePath& path) {
    const Interval whole =
        for_cost_ ? node.interval : Interval{node.interval.low, std::min(node.interval.high, limit())};
    if (whole.low > whole.high) return;
    double cut = whole.low > 0 ? std::sqrt(whole.low * whole.high) : whole.high / 2;
    if (for_cost_ && !path.empty()) {
      // The path is dropped above the cut if it is too dear from there on, and below if it is too slow.
      double slowest = 0;
      for (const Step& step : path) slowest = std::max(slowest, step.seconds);
      const auto cost_from = [&](double low) {
        double cost = 0;
        for (const Step& step : path) {
          cost += times_.price(step.segment.type) * step.use.count * std::max(low, step.seconds);
        }
        return cost;
      };
      double low = whole.low;
      double high = slowest;
      for (double middle = low + (high - low) / 2; middle > low && middle < high; middle = low + (high - low) / 2) {
        (cost_from(middle) < cost_limit() ? low : high) = middle;
      }
      const double wanted = std::min(std::max(cut, high), slowest * (1 - 1e-15));
      cut = wanted > whole.low && wanted < whole.high ? wanted : cut;
    }
    if (for_cost_ && !std::isfinite(best_)) cut = std::max(cut, whole.high / (1 + kFirstSpread));
    if (!(cut > whole.low && cut < whole.high)) {  // neighbouring numbers
      stuck_ = std::min(stuck_, node.bound);
      return;
    }
    Node upper = node;
    upper.interval = {cut, whole.high};
    node.interval = {whole.low, cut};
    if (!for_cost_) upper.bound = cut;
    add(std::move(node));
    if (std::isfinite(best_)) {
      add(std::move(upper));
    } else {
      process(std::move(upper));  // where most is possible
    }
  }

  // Takes the best counts for a path's stages as a plan, once.
  void propose(const StagePath& path) {
    std::uint64_t stages = 0;
    std::vector<Span> spans;
    for (const Step& step : path) {
      spans.push_back({step.segment.first, step.segment.last, step.segment.type});
      stages =
          mix({stages, static_cast<std::uint64_t>(step.segment.first), static_cast<std::uint64_t>(step.segment.type)});
    }
    if (!proposed_.insert(stages).second) return;
    if (const auto candidate = provision(problem_, spans, objective_)) {
      const double value = search_.consider(*candidate) / unit_;
      if (value < best_) {
        best_ = value;
        best_stages_.clear();
        for (const Step& step : path) best_stages_.push_back(step.segment);
      }
    }
  }

  // The node that comes later: for cost, of two the one with the greater bound; for the rate, all intervals are tried
  // before one is tried again with more labels.
  struct Later {
    bool for_cost;
    bool operator()(const Node& a, const Node& b) const {
      const auto rank = [&](const Node& node) { return std::tuple(for_cost ? 0 : node.width, node.bound, node.order); };
      return rank(a) > rank(b);
    }
  };

  const Request& request_;
  const Problem& problem_;
  const Objective& objective_;
  SegmentTimes times_;
  Search search_;
  bool for_cost_;
  bool is_limited_ = false;  // by counts of devices
  Later later_;
  double unit_ = 1;
  Measure measure_ = Measure::kCost;
  Limits limits_;
  double cap_ = kInfinity;
  Interval root_;
  double best_ = kInfinity;          // e, or e * price
  std::vector<Node> nodes_;          // a heap; the first is the next
  double stuck_ = kInfinity;         // the bound of intervals that are given up
  double lowest_tried_ = kInfinity;  // of intervals in which labels have found nothing
  std::vector<Segment> best_stages_;
  Random random_;
  std::int64_t nodes_created_ = 0;
  std::unordered_set<std::uint64_t> proposed_;
};

}  // namespace

Result<Answer> exact_heterps(const Request& request) {
  return RateSearch(request, request.problem).run();
}

}  // namespace motley::planning
