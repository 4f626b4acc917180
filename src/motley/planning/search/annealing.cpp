// A step changes one thing, or two that belong together: devices move from a stage to another of their type, a stage's
// type changes, a border moves by some layers, a stage is divided, or joins the next one, or makes its activations once
// more. A change that makes the plan worse by a share x of its value is kept with probability exp(-x / temperature);
// the temperature falls geometrically.
#include "motley/planning/search/annealing.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace motley::planning {
namespace {

constexpr double kHottest = 0.03;
constexpr double kColdest = 0.0003;

class Annealing {
 public:
  Annealing(const Problem& problem, Candidate begin, Random& random)
      : problem_(problem), random_(random), stages_(std::move(begin)) {}

  Candidate& stages() { return stages_; }

  // False: nothing to change there.
  bool change() {
    const std::size_t s = below(stages_.size());
    switch (random_.below(problem_.allow_recompute ? 7 : 6)) {
      case 0:
        return scale(stages_[s]);
      case 1:
        return move_devices(stages_[s], stages_[below(stages_.size())]);
      case 2:
        return change_type(stages_[s]);
      case 3:
        return s + 1 < stages_.size() && move_border(stages_[s], stages_[s + 1]);
      case 4:
        return divide(s);
      case 5:
        return join(s);
      default:
        stages_[s].recompute = !stages_[s].recompute;
        return true;
    }
  }

 private:
  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(random_.below(bound)); }
  std::int64_t most(const StageChoice& stage) const { return problem_.max_replicas(stage.type); }
  std::int64_t clamp(double devices, std::int64_t most) const {
    return static_cast<std::int64_t>(std::clamp(std::round(devices), 1.0, std::max(1.0, static_cast<double>(most))));
  }

  // By one device, or by a factor.
  bool scale(StageChoice& stage) {
    const std::int64_t before = stage.replicas;
    const auto devices = static_cast<double>(before);
    if (random_.below(2) == 0) {
      stage.replicas = clamp(devices + (random_.below(2) == 0 ? 1 : -1), most(stage));
    } else {
      stage.replicas = clamp(devices * std::exp(0.5 * random_.normal()), most(stage));
    }
    return stage.replicas != before;
  }

  bool move_devices(StageChoice& from, StageChoice& to) {
    if (&from == &to || from.type != to.type || from.replicas == 1) return false;
    const auto moved = static_cast<std::int64_t>(
        1 + random_.below(static_cast<std::uint64_t>(std::max<std::int64_t>(1, from.replicas / 2))));
    if (to.replicas + moved > most(to)) return false;
    from.replicas -= moved;
    to.replicas += moved;
    return true;
  }

  bool change_type(StageChoice& stage) {
    const int before = std::exchange(stage.type, static_cast<int>(below(problem_.types.size())));
    if (stage.type == before || most(stage) < 1) return false;
    // So many that the stage's first layer takes as long as before, more or less.
    const auto seconds = [&](int type) { return problem_.at(stage.first, type).own_seconds(1); };
    const double ratio = seconds(stage.type) / seconds(before);
    stage.replicas = clamp(static_cast<double>(stage.replicas) * (std::isfinite(ratio) ? ratio : 1), most(stage));
    scale(stage);
    return true;
  }

  bool move_border(StageChoice& stage, StageChoice& next) {
    const int layers = static_cast<int>(std::lround(std::exp(std::abs(random_.normal()) * 1.2)));
    const int by = random_.below(2) == 0 ? layers : -layers;
    if (stage.last + by < stage.first || next.first + by > next.last) return false;
    stage.last += by;
    next.first += by;
    return true;
  }

  bool divide(std::size_t s) {
    const StageChoice whole = stages_[s];
    if (whole.first == whole.last) return false;
    const int border = whole.first + 1 + static_cast<int>(below(index(whole.last - whole.first)));
    StageChoice front = whole;
    StageChoice rear = whole;
    front.last = border - 1;
    rear.first = border;
    const double share = static_cast<double>(border - whole.first) / (whole.last - whole.first + 1);
    front.replicas = clamp(static_cast<double>(whole.replicas) * share, most(front));
    rear.replicas = clamp(static_cast<double>(whole.replicas) * (1 - share), most(rear));
    if (random_.below(2) == 0 && !change_type(random_.below(2) == 0 ? front : rear)) return false;
    stages_[s] = front;
    stages_.insert(stages_.begin() + static_cast<std::ptrdiff_t>(s) + 1, rear);
    return true;
  }

  bool join(std::size_t s) {
    if (s + 1 >= stages_.size()) return false;
    const StageChoice& next = stages_[s + 1];
    StageChoice joined = random_.below(2) == 0 ? stages_[s] : next;
    const std::int64_t devices = stages_[s].replicas + next.replicas;
    joined.first = stages_[s].first;
    joined.last = next.last;
    joined.replicas = clamp(static_cast<double>(devices), most(joined));
    stages_[s] = joined;
    stages_.erase(stages_.begin() + static_cast<std::ptrdiff_t>(s) + 1);
    return true;
  }

  const Problem& problem_;
  Random& random_;
  Candidate stages_;
};

}  // namespace

Candidate anneal(const Request& request, const Candidate& begin, int steps, Random& random,
                 const std::function<bool()>& over) {
  const auto evaluate_value = [&](const Candidate& candidate) {
    return value(evaluate(request.problem, candidate, request.objective), request.objective.criterion);
  };
  Candidate now = begin;
  Candidate best = begin;
  double now_value = evaluate_value(begin);
  double best_value = now_value;
  for (int step = 0; step < steps && !over(); ++step) {
    const double temperature = kHottest * std::pow(kColdest / kHottest, static_cast<double>(step) / steps);
    Annealing changed(request.problem, now, random);
    if (!changed.change()) continue;
    if (random.below(4) == 0 && !changed.change()) continue;
    const double then = evaluate_value(changed.stages());
    if (!(then < kInfinity)) continue;
    if (then > now_value && random.uniform() >= std::exp((1 - then / now_value) / temperature)) continue;
    now = std::move(changed.stages());
    now_value = then;
    if (now_value < best_value) {
      best = now;
      best_value = now_value;
    }
  }
  return best;
}

}  // namespace motley::planning
