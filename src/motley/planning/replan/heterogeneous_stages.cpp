#include "motley/planning/replan/heterogeneous_stages.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "motley/planning/replan/repartition.h"
#include "motley/planning/simulate/simulate.h"

namespace motley::planning {
namespace {

constexpr std::int64_t kMaxMicroBatches = 64;  // to start from
constexpr double kUsualError = 0.02;           // of a step's predicted time, beside measured ones

// Seconds of a sample through the whole network.
double predict_seconds(const Problem& problem, int type) {
  double seconds = 0;
  for (int layer = 0; layer < problem.layer_count(); ++layer) {
    seconds += problem.at(layer, type).forward.per_sample + problem.at(layer, type).backward.per_sample;
  }
  return seconds;
}

// All devices, the fastest first, as types.
std::vector<int> fastest_first(const Problem& problem) {
  std::vector<int> devices;
  for (int type = 0; type < problem.type_count(); ++type) {
    const std::int64_t count = std::min<std::int64_t>(problem.type(type).count, kMaxHeterogeneousDevices);
    devices.insert(devices.end(), index(count), type);
  }
  std::ranges::stable_sort(devices, {}, [&](int type) { return predict_seconds(problem, type); });
  devices.resize(std::min<std::size_t>(devices.size(), kMaxHeterogeneousDevices));
  return devices;
}

// Those of a plan, in its order.
std::vector<int> list_devices(const Problem& problem, const Plan& plan) {
  std::vector<int> devices;
  for (const Stage& stage : plan.stages) {
    for (const Replicas& replicas : stage.replicas) {
      const auto type = std::ranges::find(problem.types, replicas.type, &Type::name);
      devices.insert(devices.end(), index(replicas.count), static_cast<int>(type - problem.types.begin()));
    }
  }
  return devices;
}

// Neighbours of one type with equal shares as one entry.
void join_alike(std::vector<Replicas>& replicas) {
  std::vector<Replicas> joined;
  for (const Replicas& one : replicas) {
    if (!joined.empty() && joined.back().type == one.type && std::abs(joined.back().share - one.share) < kTolerance) {
      joined.back().count += one.count;
    } else {
      joined.push_back(one);
    }
  }
  if (joined.size() == 1) joined[0].share = 1 / static_cast<double>(joined[0].count);
  replicas = std::move(joined);
}

class Mixing {
 public:
  Mixing(const Problem& types, std::stop_token stop) : types_(types), stop_(std::move(stop)) {}

  // Keeps the plan with what it is replayed to take and costs, unless it is there already.
  Status consider(Plan plan) {
    Problem problem = types_;
    problem.micro_batches = plan.micro_batches;
    MOTLEY_ASSIGN(const Timeline timeline, simulate(problem, plan, {.keep_events = false}));
    const auto is_same = [&](const Plan& other) {
      return other.stages == plan.stages && other.micro_batches == plan.micro_batches;
    };
    if (std::ranges::any_of(plans_, is_same)) return {};
    plan.predicted = {.step_seconds = timeline.step_seconds,
                      .throughput = static_cast<double>(plan.batch) / timeline.step_seconds};
    for (const Stage& stage : plan.stages) {
      for (const Replicas& replicas : stage.replicas) {
        const auto type = std::ranges::find(types_.types, replicas.type, &Type::name);
        plan.predicted.hourly_cost += static_cast<double>(replicas.count) * type->price_per_hour;
      }
    }
    plan.predicted.cost = types_.total_samples / plan.predicted.throughput / 3600 * plan.predicted.hourly_cost;
    plans_.push_back(std::move(plan));
    return {};
  }

  // Lays a plan over these devices, in its order, out anew until that is of no use. Of a plan that may not fit their
  // memory only what it leads to is considered.
  Status improve(const Plan& plan, const std::vector<int>& devices, bool fits) {
    std::vector<WorkerSpeed> speeds;
    for (const int type : devices) speeds.push_back({type, 1});
    const Problem workers = problem_of_workers(types_, speeds);
    std::vector<int> places(devices.size());
    std::iota(places.begin(), places.end(), 0);
    MOTLEY_ASSIGN(PlacedPlan placement, make_placement(workers, plan, places));
    if (!fits) placement.step_seconds = kInfinity;
    for (double before = -1; placement.step_seconds != before && !stop_.stop_requested();) {
      before = placement.step_seconds;
      MOTLEY_ASSIGN(placement, repartition(workers, placement, stop_));
    }
    if (std::isinf(placement.step_seconds)) return {};
    std::size_t place = 0;
    for (Stage& stage : placement.plan.stages) {
      for (Replicas& replicas : stage.replicas) {
        const int type = devices[index(placement.workers[place++])];
        replicas.type = types_.type(type).name;
      }
      join_alike(stage.replicas);
    }
    placement.plan.method = plan.method + ", then mixed stages";
    return consider(std::move(placement.plan));
  }

  std::vector<Plan> take_plans() {
    const auto seconds = [](const Plan& plan) { return plan.predicted.step_seconds; };
    std::ranges::stable_sort(plans_, {}, seconds);
    const double near = (1 + kUsualError) * seconds(plans_.front());
    const auto simplest = std::ranges::min_element(
        plans_.begin(), std::ranges::upper_bound(plans_, near, {}, seconds), {},
        [&](const Plan& plan) { return std::pair(plan.stages.size(), list_devices(types_, plan).size()); });
    std::rotate(plans_.begin(), simplest, simplest + 1);
    return std::move(plans_);
  }

 private:
  const Problem& types_;
  const std::stop_token stop_;
  std::vector<Plan> plans_;
};

}  // namespace

Result<std::vector<Plan>> find_heterogeneous_stages(const Problem& types, const Plan& plan,
                                                    const std::stop_token& stop) {
  const std::vector<int> own = list_devices(types, plan);
  Mixing mixing(types, stop);
  MOTLEY_TRY(mixing.consider(plan));
  if (own.size() > kMaxHeterogeneousDevices) return mixing.take_plans();
  MOTLEY_TRY(mixing.improve(plan, own, true));
  const std::vector<int> all = fastest_first(types);
  for (std::size_t count = 1; count <= all.size(); ++count) {
    const std::vector<int> devices(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count));
    Plan whole = plan;
    whole.stages = {{.first_layer = 0, .last_layer = types.layer_count() - 1, .gradient_sync = GradientSync::kRing}};
    for (const int type : devices) {
      whole.stages[0].replicas.push_back({types.types[index(type)].name, 1, 1 / static_cast<double>(count)});
    }
    const auto most = types.batch / static_cast<std::int64_t>(count);
    for (whole.micro_batches = 1; whole.micro_batches <= std::min(most, kMaxMicroBatches); whole.micro_batches *= 4) {
      MOTLEY_TRY(mixing.improve(whole, devices, false));
    }
  }
  return mixing.take_plans();
}

}  // namespace motley::planning
