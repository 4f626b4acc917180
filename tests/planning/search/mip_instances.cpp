// Writes planning problems that are too large for brute force, each with the exact planner's answer, as JSON lines for
// mip.py, which solves them again in its own way.
//
//   mip_instances CASE FIRST COUNT      CASE: heterps-throughput, heterps-cost, gpipe or 1f1b
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/planning/search/exact_instances.h"

namespace motley::planning {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const planning::Problem& problem) {
  Json types = Json::array();
  for (const planning::Type& type : problem.types) {
    types.push_back({{"price", type.price_per_hour},
                     {"count", type.count},
                     {"memory", type.memory_bytes},
                     {"ring", type.gradient_sync == planning::GradientSync::kRing},
                     {"bandwidth", type.bytes_per_second},
                     {"latency", type.latency_seconds}});
  }
  Json layers = Json::array();
  for (int layer = 0; layer < problem.layer_count(); ++layer) {
    const planning::LayerSize& size = problem.layers[static_cast<std::size_t>(layer)];
    Json on = Json::array();
    for (int type = 0; type < problem.type_count(); ++type) {
      const planning::LayerOnType& times = problem.at(layer, type);
      on.push_back({{"forward", {times.forward.fixed, times.forward.per_sample}},
                    {"backward", {times.backward.fixed, times.backward.per_sample}},
                    {"alpha", times.compute_fraction},
                    {"beta", times.communication_fraction}});
    }
    layers.push_back({{"parameters", size.parameter_bytes},
                      {"activations", size.activation_bytes},
                      {"sparse", size.sparse_bytes},
                      {"on", on}});
  }
  Json links = Json::array();
  for (const planning::Link& link : problem.links) {
    links.push_back({link.bytes_per_second, link.latency_seconds});
  }
  return {{"types", types},
          {"layers", layers},
          {"links", links},
          {"cut", problem.cut_bytes},
          {"job", problem.total_samples},
          {"profile_batch", problem.profile_batch},
          {"batch", problem.batch},
          {"micro_batches", problem.micro_batches},
          {"per_parameter", problem.memory_per_parameter_byte},
          {"recompute", problem.allow_recompute}};
}

int write(const std::string& name, std::uint64_t seed) {
  const bool heterps = name.starts_with("heterps");
  Random random(mix({seed, 0x6d6970ULL}));
  RandomProblemOptions options;
  options.cost_model = heterps ? planning::CostModel::kHeterps : planning::CostModel::kPipeline;
  options.layers = heterps ? 20 + static_cast<int>(random.below(11)) : 12 + static_cast<int>(random.below(4));
  options.types = heterps ? 2 + static_cast<int>(random.below(2)) : 2;
  options.min_count = heterps ? 4 : 1;
  options.max_count = heterps ? 12 : 2;
  options.links = true;
  options.memory = name == "gpipe" && seed % 2 == 0;
  options.allow_recompute = options.memory;
  options.schedule =
      name == "1f1b" ? planning::PipelineSchedule::kOneForwardOneBackward : planning::PipelineSchedule::kGPipe;
  planning::Problem problem = random_problem(options, seed);
  equalise(problem);
  if (!heterps) {
    problem.micro_batches = 4 + static_cast<std::int64_t>(random.below(13));
    // Exchanges go on beside the last backward, which is not linear.
    for (planning::LayerSize& layer : problem.layers) layer.parameter_bytes = 0;
  }

  RandomObjectiveOptions limits;
  limits.criterion = name == "heterps-cost" ? planning::Criterion::kMinCost : planning::Criterion::kMaxThroughput;
  limits.min_throughput = name == "heterps-cost";
  limits.max_hourly_cost = seed % 2 == 0;
  const planning::Objective objective = random_objective(problem, limits, seed);
  const auto answer = plan_exact({.problem = problem, .objective = objective, .seconds = 10});
  if (!answer) {
    std::fprintf(stderr, "mip_instances: %s\n", answer.error().message.c_str());
    return 1;
  }
  Json line{{"case", name},
            {"seed", seed},
            {"problem", to_json(problem)},
            {"min_throughput", objective.min_throughput},
            {"price_cap", std::isinf(objective.max_hourly_cost) ? 1e300 : objective.max_hourly_cost},
            {"proved", answer->proved},
            {"seconds", answer->seconds},
            {"stages", Json::array()}};
  if (answer->best) {
    for (const planning::StageChoice& stage : *answer->best) {
      line["stages"].push_back({stage.first, stage.last, stage.type, stage.replicas, stage.recompute ? 1 : 0});
    }
    line["step"] = answer->evaluation.step_seconds;
    line["throughput"] = answer->evaluation.throughput;
    line["price"] = answer->evaluation.hourly_cost;
    line["cost"] = answer->evaluation.cost;
  }
  std::puts(line.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace motley::planning

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: mip_instances CASE FIRST COUNT\n");
    return 2;
  }
  const std::uint64_t first = std::stoull(argv[2]);
  const std::uint64_t count = std::stoull(argv[3]);
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    if (const int status = motley::planning::write(argv[1], seed)) {
      return status;
    }
  }
  return 0;
}
