// Each network is profiled on this machine. For most plans two device types are made from that, a fast and a slow one,
// both so much slower than this machine that it can play several of each (docs/how-to/emulate-devices.md); what
// messages, exchanges and waiting take is real. The other plans run on the processors as they are, a worker pinned to
// each and behind a link of 1 Gb/s (without root: behind none), predicted from a profile that is made slower by what
// two workers take from each other, as far as both are busy.
//
// Plans are drawn at random: cuts, types, numbers of workers, micro-batches, schedules. Those of a network are
// predicted before any of them runs. A shared machine's speed changes within minutes, so a plan that is not emulated is
// profiled and run in turn, several times: each run is held against the mean of what the profiles right before and
// right after it predict, and the run whose ratio to that is the middle one counts.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <span>
#include <tuple>

#include "bench/job_run.h"
#include "bench/measured_profile.h"
#include "bench/namespaced_job.h"
#include "bench/network_namespaces.h"
#include "bench/pipeline_bench.h"
#include "bench/row_list.h"
#include "bench/temporary_folder.h"
#include "motley/base/os/file.h"
#include "motley/base/random.h"
#include "motley/base/units.h"
#include "motley/planning/cost/evaluation.h"
#include "motley/planning/simulate/simulate.h"
#include "motley/report/page/chart.h"
#include "motley/report/page/html.h"

namespace motley::bench {
namespace {

constexpr int kEmulatedPlans = 4;  // of each network
constexpr double kFast = 6;        // times as long as this machine
constexpr double kSlow = 15;
constexpr double kMinSeconds = 0.03;  // of an emulated stage in a step: messages cost some milliseconds of real time
constexpr double kApart = 0.05;       // plans predicted to differ by less have no order that could be wrong
constexpr std::int64_t kSteps = 30;
constexpr std::int64_t kRealSteps = 60;     // of plans that are not emulated, which take milliseconds
constexpr std::int64_t kSettledSteps = 20;  // that do not count
constexpr double kLinkBytesPerSecond = 125e6;
constexpr double kLinkShare = 0.94;  // that headers leave
constexpr double kProfileSeconds = 15;
constexpr int kContentionRounds = 5;
constexpr int kRealRounds = 3;
constexpr double kRoundProfileSeconds = 8;
constexpr const char* kProfileBatches = "1,4,8,16,32,64";
constexpr const char* kCores =
    "version: 2\ndevice_types: [{name: cpu, kind: cpu, count: 2}]\n"
    "workers: [{name: first, device: cpu, cores: [0]}, {name: second, device: cpu, cores: [1]}]\n";

struct Network {
  std::string name;
  std::string job;  // in examples/
  std::vector<std::string> flags;
  std::int64_t batch;
  int real_plans;
};
const std::vector<Network>& networks() {
  static const std::vector<Network> all = {
      {"mlp", "fashion-mnist", {"--model.name", "mlp", "--model.hidden-sizes", "[1024, 1024, 1024]"}, 128, 2},
      {"cnn", "fashion-mnist", {"--model.name", "cnn"}, 64, 2},
      {"resnet18", "fashion-mnist", {"--model.name", "resnet18", "--model.norm", "group"}, 8, 1},
      {"vgg11", "fashion-mnist", {"--model.name", "vgg11"}, 16, 1},
      {"transformer", "text", {"--threads", "1"}, 16, 2}};
  return all;
}

struct Case {
  const Network* network = nullptr;
  bool emulated = false;
  planning::Plan plan;
  double predicted = 0;  // seconds of a step, as `motley simulate` says
  double measured = 0;
  double error() const { return std::abs(predicted / measured - 1); }
};

class Prediction {
 public:
  Prediction(const BenchOptions& options, std::filesystem::path folder)
      : options_(options), rows_(options), folder_(std::move(folder)) {}

  Result<std::vector<BenchRow>> run() {
    if (auto links = NetworkNamespaces::create(2, kLinkBytesPerSecond)) {
      links_ = std::move(*links);
    } else {
      rows_.print("plans that are not emulated run without shaped links: " + links.error().message);
    }
    for (const Network& network : networks()) {
      if (options_.quick && &network != &networks().front()) {
        rows_.left_out(network.name, "it takes minutes");
        continue;
      }
      const std::size_t first = cases_.size();
      MOTLEY_TRY(predict(network));
      for (std::size_t at = first; at < cases_.size(); ++at) {
        MOTLEY_TRY(measure(cases_[at]));
      }
    }
    report();
    MOTLEY_TRY(write_page());
    return rows_.take();
  }

 private:
  std::filesystem::path job(const Network& network) const {
    return options_.source_folder / "examples" / network.job / "job.yaml";
  }
  std::filesystem::path emulation(const Network& network) const { return folder_ / (network.name + ".json"); }

  Result<model::Profile> measure_profile_of_network(const Network& network, double seconds) const {
    std::vector<std::string> flags = {"--global-batch-size", std::to_string(network.batch)};
    flags.insert(flags.end(), network.flags.begin(), network.flags.end());
    return measure_profile(options_, job(network), flags, kProfileBatches, seconds);
  }

  Status predict(const Network& network) {
    MOTLEY_ASSIGN(const model::Profile measured, measure_profile_of_network(network, kProfileSeconds));
    model::Profile emulated = measured;
    emulated.devices.assign(2, measured.devices.front());
    emulated.links.clear();
    const char* names[] = {"fast", "slow"};
    for (std::size_t type = 0; type < 2; ++type) {
      emulated.devices[type].type = names[type];
      slow_down(emulated.devices[type].layers, type == 0 ? kFast : kSlow);
      for (std::size_t other = type; other < 2; ++other) {
        model::ProfiledLink link = measured.links.front();
        link.from = names[type];
        link.to = names[other];
        emulated.links.push_back(link);
      }
    }
    MOTLEY_TRY(write_file(emulation(network), model::to_json(emulated)));
    MOTLEY_TRY(draw(network, measured, {2}, options_.quick ? 0 : network.real_plans, false));
    return draw(network, emulated, {3, 2}, options_.quick ? 1 : kEmulatedPlans, true);
  }

  // Plans of at most so many devices of each type.
  Status draw(const Network& network, const model::Profile& profile, const std::vector<std::int64_t>& counts, int plans,
              bool emulated) {
    const cluster::Cluster cluster = make_cluster(profile, counts);
    for (int drawn = 0; drawn < plans;) {
      planning::ProblemOptions settings{.cost_model = planning::CostModel::kPipeline, .batch = network.batch};
      settings.micro_batches = std::int64_t{1} << random_.below(4);
      settings.schedule = random_.below(2) == 0 ? planning::PipelineSchedule::kOneForwardOneBackward
                                                : planning::PipelineSchedule::kGPipe;
      MOTLEY_ASSIGN(planning::Problem problem, planning::make_problem(profile, cluster, settings));
      for (planning::Type& type : problem.types) type.gradient_sync = planning::GradientSync::kRing;
      const planning::Candidate candidate = make_candidate(problem, emulated);
      const planning::Objective objective{.criterion = planning::Criterion::kMinStepTime};
      const planning::Evaluation evaluation = planning::evaluate(problem, candidate, objective);
      if (!evaluation.feasible || (emulated && shortest_stage(evaluation, settings) < kMinSeconds)) continue;
      planning::Plan plan = planning::to_plan(problem, candidate, evaluation, objective, "at random");
      Case one{&network, emulated, std::move(plan)};
      if (emulated) {
        MOTLEY_ASSIGN(const planning::Timeline timeline, make_timeline(profile, cluster, one.plan));
        one.predicted = timeline.step_seconds;
      }
      cases_.push_back(std::move(one));
      ++drawn;
    }
    return {};
  }

  static cluster::Cluster make_cluster(const model::Profile& profile, const std::vector<std::int64_t>& counts) {
    cluster::Cluster cluster;
    for (std::size_t type = 0; type < counts.size(); ++type) {
      cluster.device_types.push_back({profile.devices[type].type, cluster::DeviceKind::kCpu, counts[type]});
    }
    return cluster;
  }

  static Result<planning::Timeline> make_timeline(const model::Profile& profile, const cluster::Cluster& cluster,
                                                  const planning::Plan& plan) {
    MOTLEY_ASSIGN(const planning::Problem problem, planning::problem_of_plan(profile, cluster, plan));
    return planning::simulate(problem, plan);
  }

  // Two devices of one type: each is slower by what two busy workers take from each other, times the share of the step
  // in which the other one computes. That share depends on how slow they are, so it is found in rounds.
  Result<double> contended_seconds(model::Profile profile, const planning::Plan& plan) const {
    if (links_) profile.links.front().bytes_per_second = kLinkShare * kLinkBytesPerSecond;
    const cluster::Cluster cluster = make_cluster(profile, {2});
    const double taken = 1 - profile.devices.front().compute_fraction;
    MOTLEY_ASSIGN(planning::Timeline timeline, make_timeline(profile, cluster, plan));
    for (int round = 0; round < kContentionRounds; ++round) {
      model::Profile slower = profile;
      const std::span<model::LayerTime> layers = slower.devices.front().layers;
      std::size_t end = layers.size();  // the last one, "step", is the last stage's
      for (std::size_t stage = plan.stages.size(); stage-- > 0;) {
        const planning::Device& other = timeline.devices[plan.stages.size() == 1 ? 1 : 1 - stage];
        const auto begin = static_cast<std::size_t>(plan.stages[stage].first_layer);
        slow_down(layers.subspan(begin, end - begin), 1 + taken * (1 - other.bubble_fraction));
        end = begin;
      }
      MOTLEY_ASSIGN(timeline, make_timeline(slower, cluster, plan));
    }
    return timeline.step_seconds;
  }

  static double shortest_stage(const planning::Evaluation& evaluation, const planning::ProblemOptions& settings) {
    const planning::StageCost& shortest =
        *std::ranges::min_element(evaluation.stages, {}, &planning::StageCost::compute_seconds);
    return shortest.compute_seconds * static_cast<double>(settings.micro_batches);
  }

  // Two devices of one type work both; of two types, up to four stages of up to two devices do.
  planning::Candidate make_candidate(const planning::Problem& problem, bool emulated) {
    const auto layers = static_cast<std::uint64_t>(problem.layer_count());
    const std::uint64_t stages = emulated ? 1 + random_.below(4) : 1 + random_.below(2);
    std::vector<int> ends = {problem.layer_count() - 1};
    while (ends.size() < stages) {
      const int end = static_cast<int>(random_.below(layers - 1));
      if (std::ranges::find(ends, end) == ends.end()) ends.push_back(end);
    }
    std::ranges::sort(ends);
    planning::Candidate candidate;
    int first = 0;
    for (const int last : ends) {
      const int type = static_cast<int>(random_.below(static_cast<std::uint64_t>(problem.type_count())));
      const auto replicas = static_cast<std::int64_t>(emulated ? 1 + random_.below(2) : 2 / stages);
      candidate.push_back({first, last, type, replicas, false});
      first = last + 1;
    }
    return candidate;
  }

  Status measure(Case& one) {
    if (one.emulated) {
      MOTLEY_ASSIGN(one.measured, run(one));
    } else {
      std::vector<std::pair<double, double>> rounds;  // predicted, measured
      MOTLEY_ASSIGN(double before, predict_now(one));
      for (int round = 0; round < kRealRounds; ++round) {
        MOTLEY_ASSIGN(const double measured, run(one));
        MOTLEY_ASSIGN(const double after, predict_now(one));
        rounds.emplace_back((before + after) / 2, measured);
        before = after;
      }
      std::ranges::sort(rounds, {}, [](const auto& round) { return round.first / round.second; });
      std::tie(one.predicted, one.measured) = rounds[kRealRounds / 2];
    }
    rows_.print(fmt::format("{}: predicted {}, measured {}", describe(one), format_seconds(one.predicted),
                            format_seconds(one.measured)));
    return {};
  }

  // Of a plan that is not emulated, from a profile of this moment.
  Result<double> predict_now(const Case& one) const {
    MOTLEY_ASSIGN(const model::Profile profile, measure_profile_of_network(*one.network, kRoundProfileSeconds));
    return contended_seconds(profile, one.plan);
  }

  // Seconds of a step.
  Result<double> run(const Case& one) const {
    const std::filesystem::path file = folder_ / "plan.json";
    MOTLEY_TRY(write_file(file, planning::to_json(one.plan)));
    std::vector<std::string> flags = {"--global-batch-size",
                                      std::to_string(one.network->batch),
                                      "--steps",
                                      std::to_string(one.emulated ? kSteps : kRealSteps),
                                      "--plan",
                                      file.string(),
                                      "--batch-split.mode",
                                      "fixed",
                                      "--quiet",
                                      "--evaluate.every-epochs=-1"};
    flags.insert(flags.end(), one.network->flags.begin(), one.network->flags.end());
    if (one.emulated) flags.insert(flags.end(), {"--emulation", emulation(*one.network).string()});
    if (one.emulated || !links_) {
      MOTLEY_ASSIGN(const JobRun run, run_job(options_, job(*one.network), one.emulated ? "" : kCores, flags));
      return median(run.balanced_seconds);
    }
    MOTLEY_TRY(write_file(folder_ / "cluster.yaml", kCores));
    flags.insert(flags.end(), {"--cluster", (folder_ / "cluster.yaml").string()});
    MOTLEY_ASSIGN(std::vector<double> seconds,
                  train_in_namespaces(options_, *links_, folder_, 2, job(*one.network), flags));
    seconds.erase(seconds.begin(), seconds.begin() + std::min(kSettledSteps, std::ssize(seconds) - 1));
    return median(seconds);
  }

  static std::string describe(const Case& one) {
    std::string text = one.network->name + (one.emulated ? "" : ", not emulated") + ", stages";
    for (const planning::Stage& stage : one.plan.stages) {
      text += fmt::format(" {}x{}[{}-{}]", stage.replicas[0].count, stage.replicas[0].type, stage.first_layer,
                          stage.last_layer);
    }
    return text + fmt::format(", {} micro-batches, {}", one.plan.micro_batches, planning::to_string(one.plan.schedule));
  }

  void report() {
    std::vector<double> all;
    std::vector<double> real;
    std::string worst;
    double most = -1;
    for (const Case& one : cases_) {
      all.push_back(one.error());
      if (!one.emulated) real.push_back(one.error());
      if (one.error() > most) {
        most = one.error();
        worst = fmt::format("worst: {}: predicted {}, measured {}", describe(one), format_seconds(one.predicted),
                            format_seconds(one.measured));
      }
    }
    const std::string note = fmt::format(
        "{} plans of {} networks, {} of them not emulated ({}; each the middle of {} "
        "rounds, predicted from profiles made before and after each)",
        cases_.size(), options_.quick ? 1 : networks().size(), real.size(),
        links_ ? "links of 1 Gb/s" : "links not shaped", kRealRounds);
    rows_.add("prediction-all", "median_error", median(all), "share", false, 0.05, {}, {}, note);
    rows_.add("prediction-all", "worst_error", most, "share", false, 0.15, {}, {}, worst);
    if (!real.empty()) {
      rows_.add("prediction-not-emulated", "median_error", median(real), "share", false, 0.10, {}, {}, note);
    }
    const auto [pairs, tau] = kendall_tau();
    if (pairs > 0) {
      rows_.add("prediction-all", "kendall_tau", tau, "", true, 0.85, 1.0, {},
                fmt::format("{} pairs of plans of one network that are predicted to differ by more than {} %", pairs,
                            100 * kApart));
    }
  }

  // The share of pairs in the predicted order, less that of the others.
  std::pair<int, double> kendall_tau() const {
    int pairs = 0;
    int agreeing = 0;
    for (std::size_t a = 0; a < cases_.size(); ++a) {
      for (std::size_t b = 0; b < a; ++b) {
        const Case& one = cases_[a];
        const Case& other = cases_[b];
        const double ratio = one.predicted / other.predicted;
        if (one.network != other.network || one.emulated != other.emulated ||
            std::max(ratio, 1 / ratio) <= 1 + kApart) {
          continue;
        }
        ++pairs;
        agreeing += (ratio > 1) == (one.measured > other.measured) ? 1 : 0;
      }
    }
    return {pairs, pairs == 0 ? 0 : 2.0 * agreeing / pairs - 1};
  }

  Status write_page() const {
    std::filesystem::create_directories(options_.pages);
    report::LineChart chart{.title = "Step time",
                            .summary = "Measured step against predicted step of each plan.",
                            .x_label = "predicted, log10 of milliseconds",
                            .y_label = "measured, log10 of milliseconds",
                            .series = {}};
    double least = 1e9;
    double most = -1e9;
    for (int kind = 0; kind < 2; ++kind) {
      std::vector<std::pair<double, double>> points;
      for (const Case& one : cases_) {
        if (one.emulated == (kind == 0)) {
          points.emplace_back(std::log10(1e3 * one.predicted), std::log10(1e3 * one.measured));
        }
      }
      std::ranges::sort(points);
      report::Series series{.name = kind == 0 ? "emulated" : "not emulated",
                            .color = kind,
                            .style = report::LineStyle::kMarks,
                            .x = {},
                            .y = {}};
      for (const auto& [x, y] : points) {
        series.x.push_back(x);
        series.y.push_back(y);
        least = std::min({least, x, y});
        most = std::max({most, x, y});
      }
      if (!points.empty()) chart.series.push_back(std::move(series));
    }
    chart.series.push_back({.name = "as predicted",
                            .color = 7,
                            .style = report::LineStyle::kDashed,
                            .x = {least, most},
                            .y = {least, most}});
    std::vector<std::vector<std::string>> cells;
    for (const Case& one : cases_) {
      cells.push_back({report::escape(describe(one)), format_seconds(one.predicted), format_seconds(one.measured),
                       fmt::format("{:+.1f} %", 100 * (one.predicted / one.measured - 1))});
    }
    const std::string body =
        "<header><h1>Planned runs</h1></header>\n<main>\n<div class=\"cards\">\n" +
        report::card("Step time", "Of plans drawn at random.", report::line_chart(chart), true) +
        report::card("Plans", "", report::table({"plan", "predicted", "measured", "error"}, cells, {1, 2, 3}), true) +
        "</div></main>";
    return write_file(options_.pages / "pipeline.html", report::document("Planned runs", body));
  }

  const BenchOptions& options_;
  RowList rows_;
  Random random_{11};
  const std::filesystem::path folder_;
  std::unique_ptr<NetworkNamespaces> links_;
  std::vector<Case> cases_;
};

}  // namespace

Result<std::vector<BenchRow>> pipeline_prediction(const BenchOptions& options) {
  MOTLEY_ASSIGN(const TemporaryFolder folder, TemporaryFolder::create());
  return Prediction(options, folder.path()).run();
}

}  // namespace motley::bench
