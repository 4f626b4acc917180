// A round is: profile, predict, and only then measure a step of one worker and a step of two. Rounds follow each other,
// so that a machine that changes its speed over minutes does so between prediction and measurement in either direction.
// The batches that are profiled leave out the one that is predicted.
#include "bench/prediction_bench.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "bench/job_run.h"
#include "bench/measured_profile.h"
#include "motley/base/units.h"
#include "motley/planning/cost/evaluation.h"

namespace motley::bench {
namespace {

constexpr int kRounds = 5;
constexpr std::int64_t kMostWorkers = 2;

struct Model {
  std::string name;
  std::vector<std::string> flags;
  std::string profiled;  // batches
  std::int64_t batch;    // of one worker, to predict
  std::int64_t steps;    // measured, after those in which a run settles
  double seconds;        // for the profile
};

const std::vector<Model>& models() {
  static const std::vector<Model> all = {
      {"mlp", {"--model.name", "mlp", "--model.hidden", "[1024, 1024]"}, "32,64,192,256", 128, 180, 10},
      {"cnn", {"--model.name", "cnn"}, "16,32,96,128", 64, 180, 10},
      {"resnet18", {"--model.name", "resnet18"}, "2,4,12,16", 8, 40, 30}};
  return all;
}

Result<double> predict(model::Profile profile, const Model& model, std::int64_t workers) {
  contend(profile.devices.front(), static_cast<double>(workers));
  cluster::Cluster cluster;
  cluster.device_types = {{profile.devices.front().type, cluster::DeviceKind::kCpu, workers}};
  planning::ProblemOptions problem_options;
  problem_options.cost_model = planning::CostModel::kPipeline;
  problem_options.batch = workers * model.batch;
  MOTLEY_ASSIGN(const planning::Problem problem, planning::make_problem(profile, cluster, problem_options));
  return planning::evaluate_data_parallel(problem, {workers}, planning::Shares::kEqual).step_seconds;
}

// Real steps, with a barrier between computation and exchange, as the cost model has it.
Result<double> measure(const BenchOptions& options, const std::filesystem::path& job, const Model& model,
                       std::int64_t workers) {
  std::vector<std::string> flags = {"--workers",
                                    fmt::format("{}", workers),
                                    "--batch",
                                    fmt::format("{}", workers * model.batch),
                                    "--steps",
                                    fmt::format("{}", model.steps),
                                    "--shares.mode",
                                    "equal",
                                    "--exchange.method",
                                    "tcp-ring",
                                    "--exchange.overlap",
                                    "false",
                                    "--evaluate.every_epochs=-1"};
  flags.insert(flags.end(), model.flags.begin(), model.flags.end());
  MOTLEY_ASSIGN(const JobRun run, run_job(options, job, "", flags));
  return median(run.balanced_seconds);
}

}  // namespace

Result<std::vector<BenchRow>> prediction_bench(const BenchOptions& options) {
  const std::filesystem::path job = options.source_folder / "examples/fashion-mnist/job.yaml";
  double worst = 0;
  std::string note = "not emulated; ";
  for (const Model& model : models()) {
    if (options.quick && &model == &models().back()) {
      note += "without " + model.name + "; ";
      continue;
    }
    std::vector<double> errors[2];
    for (int round = 0; round < (options.quick ? 1 : kRounds); ++round) {
      std::vector<std::string> flags = {"--batch", fmt::format("{}", kMostWorkers * model.batch)};
      flags.insert(flags.end(), model.flags.begin(), model.flags.end());
      MOTLEY_ASSIGN(const model::Profile profiled, measure_profile(options, job, flags, model.profiled, model.seconds));
      double predicted[2];
      for (const int workers : {1, 2}) {
        MOTLEY_ASSIGN(predicted[workers - 1], predict(profiled, model, workers));
      }
      for (const int workers : {1, 2}) {
        MOTLEY_ASSIGN(const double measured, measure(options, job, model, workers));
        errors[workers - 1].push_back(predicted[workers - 1] / measured - 1);
        if (options.progress) {
          options.progress(fmt::format("prediction {} of {} samples on {}: predicted {}, measured {}", model.name,
                                       model.batch, workers == 1 ? "one worker" : "each of two workers",
                                       format_seconds(predicted[workers - 1]), format_seconds(measured)));
        }
      }
    }
    note += fmt::format("{} {:+.3f} alone, {:+.3f} of two; ", model.name, median(errors[0]), median(errors[1]));
    worst = std::max({worst, std::abs(median(errors[0])), std::abs(median(errors[1]))});
  }
  note += "profiled at other batches than predicted, predicted before measured";
  return std::vector<BenchRow>{
      {"prediction-three-models", "worst_error", worst, "share", false, 0.10, std::nullopt, std::nullopt, note}};
}

}  // namespace motley::bench
