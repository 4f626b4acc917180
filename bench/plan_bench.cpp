#include "bench/plan_bench.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "bench/parallel.h"
#include "bench/planning_cases.h"
#include "bench/prediction_bench.h"
#include "motley/base/clock.h"
#include "motley/base/random.h"
#include "motley/model/profile.h"
#include "motley/planning/learned/learned.h"
#include "motley/planning/methods.h"
#include "motley/planning/search/pipedream.h"
#include "motley/planning/search/planner.h"
#include "motley/planning/search/random_problem.h"
#include "motley/planning/simulate/simulate.h"

namespace motley::bench {
namespace {

using planning::Answer;
using planning::Request;

constexpr planning::Criterion kCriteria[] = {planning::Criterion::kMinCost, planning::Criterion::kMaxThroughput,
                                             planning::Criterion::kMinStepTime};
constexpr double kSameValue = 1e-9;  // relative
constexpr double kPeerSeconds = 1;   // of a method, for one number of micro-batches

class PlanBench {
 public:
  explicit PlanBench(const BenchOptions& options) : options_(options) {}

  Result<std::vector<BenchRow>> exact() {
    MOTLEY_TRY(random_instances());
    MOTLEY_TRY(large_instances());
    closed_forms();
    MOTLEY_TRY(pipedream_profiles());
    return rows_;
  }

  Result<std::vector<BenchRow>> peers() {
    MOTLEY_TRY(peers_under_simulate());
    return rows_;
  }

  Result<std::vector<BenchRow>> large() {
    if (options_.quick) return rows_;
    MOTLEY_TRY(large_problems({"large-100x8x1000", planning::CostModel::kPipeline, 100, 8, 1000, 30, 0.25}));
    MOTLEY_TRY(large_problems({"large-1000x64x10000", planning::CostModel::kHeterps, 1000, 64, 10'000, 60, 0.10}));
    return rows_;
  }

  Result<std::vector<BenchRow>> models() {
    MOTLEY_TRY(recommendation_models());
    if (!options_.quick) MOTLEY_TRY(all_models());
    return rows_;
  }

 private:
  void say(const std::string& line) const {
    if (options_.progress) options_.progress(line);
  }

  void add(std::string name, std::string metric, double value, std::string unit, std::optional<double> target,
           std::string note) {
    rows_.push_back({.name = std::move(name),
                     .metric = std::move(metric),
                     .value = value,
                     .unit = std::move(unit),
                     .more_is_better = false,
                     .target = target,
                     .limit = {},
                     .peer = {},
                     .note = std::move(note)});
  }

  // Small problems of every kind, with exact and by enumeration.
  Status random_instances() {
    const int instances = options_.quick ? 120 : 1200;
    say(fmt::format("random-vs-brute-force: {} instances", instances));
    int mismatches = 0;
    for (int i = 0; i < instances; ++i) {
      Random random(mix({7, static_cast<std::uint64_t>(i)}));
      const bool pipeline = i % 2 == 1;
      planning::RandomProblemOptions shape;
      shape.cost_model = pipeline ? planning::CostModel::kPipeline : planning::CostModel::kHeterps;
      shape.types = 1 + static_cast<int>(random.below(4));
      // As many layers as enumeration bears: 10 on one or two types, fewer on more.
      constexpr std::array<std::array<int, 4>, 2> kMaxLayers = {{{10, 10, 7, 6}, {10, 6, 5, 4}}};
      const int most = kMaxLayers[pipeline ? 1 : 0][static_cast<std::size_t>(shape.types - 1)];
      shape.layers = 2 + static_cast<int>(random.below(static_cast<std::uint64_t>(most - 1)));
      shape.max_count = 1 + static_cast<std::int64_t>(random.below(shape.types <= 2 && shape.layers <= 7 ? 4 : 2));
      shape.links = random.below(2) == 0;
      shape.memory = pipeline && random.below(2) == 0;
      shape.allow_recompute = pipeline && shape.layers <= 4 && random.below(3) == 0;
      shape.schedule = random.below(2) == 0 ? planning::PipelineSchedule::kOneForwardOneBackward
                                            : planning::PipelineSchedule::kGPipe;
      const planning::Problem problem = planning::random_problem(shape, random.next());
      const planning::Objective objective = planning::random_objective(
          problem, {kCriteria[i / 2 % 3], random.below(2) == 0, random.below(3) == 0, random.below(3) == 0},
          random.next());
      const Request request{.problem = problem, .objective = objective};
      MOTLEY_ASSIGN(const Answer ours, planning::plan_exact(request));
      MOTLEY_ASSIGN(const Answer reference, planning::plan_brute_force(request));
      const double ours_value = ours.best ? planning::value(ours.evaluation, objective.criterion) : 0;
      const double reference_value = reference.best ? planning::value(reference.evaluation, objective.criterion) : 0;
      if (!ours.proved || std::abs(ours_value - reference_value) > kSameValue * reference_value) ++mismatches;
    }
    add("random-vs-brute-force", "mismatches", mismatches, "instances", 0,
        fmt::format("{} instances of both cost models and three goals; up to 10 layers and 4 types", instances));
    return {};
  }

  // Lowest cost with a minimum throughput of an eighth (with two types, half) of what 64 devices of each type can do.
  // Loose: 100,000 devices of each type. Binding: of each type that the unlimited plan uses 0.7 of that, at least one.
  // Tight (reported): 4 of each type, and a minimum throughput of 0.7 of what these can do.
  Status large_instances() {
    struct Size {
      int layers, types;
      double seconds;
    };
    for (const Size& size : {Size{20, 2, 0.02}, Size{20, 64, 1}, Size{128, 16, 2}}) {
      std::vector<double> seconds;
      std::vector<double> binding_gaps;
      std::vector<double> tight_gaps;
      bool all_proved = true;
      // Problems that are proved to have no plan, or for which none is found.
      int binding_without = 0;
      int tight_without = 0;
      for (std::uint64_t seed = 1; seed <= (options_.quick ? 1u : 5u); ++seed) {
        say(fmt::format("{}x{}, seed {}", size.layers, size.types, seed));
        planning::Problem problem =
            planning::random_problem({.layers = size.layers, .types = size.types, .links = true}, seed);
        const auto most = [&](std::int64_t count) -> Result<double> {
          MOTLEY_ASSIGN(const Answer answer,
                        planning::plan_exact({.problem = with_counts(problem, count),
                                              .objective = {.criterion = planning::Criterion::kMaxThroughput},
                                              .seconds = size.seconds}));
          return answer.best ? answer.evaluation.throughput : 0;
        };
        const auto gap_within_limit = [&](const planning::Objective& objective, int& without) -> Result<double> {
          MOTLEY_ASSIGN(const Answer answer,
                        planning::plan_exact({.problem = problem, .objective = objective, .seconds = size.seconds}));
          without += answer.best ? 0 : 1;
          return answer.gap(planning::Criterion::kMinCost);
        };
        MOTLEY_ASSIGN(const double best_of_64, most(64));
        const planning::Objective objective{.criterion = planning::Criterion::kMinCost,
                                            .min_throughput = best_of_64 / (size.types == 2 ? 2 : 8)};
        problem = with_counts(std::move(problem), 100'000);
        MOTLEY_ASSIGN(const Answer loose, planning::plan_exact({.problem = problem, .objective = objective}));
        all_proved = all_proved && loose.proved && loose.best;
        seconds.push_back(loose.seconds);
        if (loose.best) {
          bind(problem, loose.evaluation);
          MOTLEY_ASSIGN(const double gap, gap_within_limit(objective, binding_without));
          binding_gaps.push_back(gap);
        }
        MOTLEY_ASSIGN(const double best_of_4, most(4));
        problem = with_counts(std::move(problem), 4);
        MOTLEY_ASSIGN(const double gap,
                      gap_within_limit({.criterion = planning::Criterion::kMinCost, .min_throughput = 0.7 * best_of_4},
                                       tight_without));
        tight_gaps.push_back(gap);
      }
      const std::string name = fmt::format("{}x{}", size.layers, size.types);
      add("loose-" + name, "exact_seconds", all_proved ? median(seconds) : std::numeric_limits<double>::infinity(), "s",
          size.seconds, fmt::format("median of {} seeds, all proved optimal", seconds.size()));
      add("binding-" + name, "exact_gap_at_limit", *std::ranges::max_element(binding_gaps), "share", 0.01,
          fmt::format("worst of {} seeds after {} s, no plan in {}; 0.7 of the devices that the unlimited plan uses of "
                      "its types",
                      binding_gaps.size(), size.seconds, binding_without));
      add("tight-" + name, "exact_gap_at_limit", *std::ranges::max_element(tight_gaps), "share", {},
          fmt::format("worst of {} seeds after {} s, no plan in {}; 4 devices of each type", tight_gaps.size(),
                      size.seconds, tight_without));
    }
    return {};
  }

  static planning::Problem with_counts(planning::Problem problem, std::int64_t count) {
    for (planning::Type& type : problem.types) type.count = count;
    return problem;
  }

  // Leaves 0.7 of what a plan uses of each type; types that it does not use stay as they are, as most problems would
  // have no plan otherwise.
  static void bind(planning::Problem& problem, const planning::Evaluation& evaluation) {
    for (std::size_t type = 0; type < problem.types.size(); ++type) {
      const std::int64_t used = evaluation.used[type];
      if (used > 0) problem.types[type].count = std::max<std::int64_t>(1, used * 7 / 10);
    }
  }

  // Eqs. (1)-(7) by hand for two stages of one layer each, with k1 and k2 devices.
  void closed_forms() {
    double worst = 0;
    for (std::uint64_t seed = 0; seed < 100; ++seed) {
      Random random(mix({11, seed}));
      const double batch = 32;
      planning::Problem problem;
      problem.model = "two layers";
      problem.profile_batch = batch;
      problem.total_samples = 1e6;
      std::array<double, 2> oct{}, odt{}, alpha{}, beta{}, price{}, k{}, bandwidth{}, parameters{}, sparse{};
      const double cut = 1000 * random.uniform();
      const double link = 1e9 * (0.1 + random.uniform());
      for (std::size_t i = 0; i < 2; ++i) {
        alpha[i] = random.uniform();
        beta[i] = random.uniform();
        price[i] = random.uniform();
        k[i] = static_cast<double>(1 + random.below(9));
        bandwidth[i] = 1e9 * (0.1 + random.uniform());
        parameters[i] = 1e6 * random.uniform();
        sparse[i] = 1e4 * random.uniform();
        problem.types.push_back({.name = fmt::format("type{}", i),
                                 .price_per_hour = price[i],
                                 .count = 10,
                                 .bytes_per_second = bandwidth[i]});
        problem.layers.push_back(
            {.name = fmt::format("layer{}", i), .parameter_bytes = parameters[i], .sparse_bytes = sparse[i]});
      }
      problem.cut_bytes = {0, cut, 0};
      problem.links.assign(4, {.bytes_per_second = link});
      problem.table.resize(4);
      for (std::size_t i = 0; i < 2; ++i) {
        const double forward = 1e-3 * random.uniform();
        const double backward = 1e-3 * random.uniform();
        problem.table[i * 2 + i] = {{.per_sample = forward}, {.per_sample = backward}, alpha[i], beta[i]};
        oct[i] = batch * (forward + backward);
        odt[i] = 2 * (batch * sparse[i] + parameters[i]) / bandwidth[i] + (i == 1 ? 2 * batch * cut / link : 0);
      }
      std::array<double, 2> et{};
      for (std::size_t i = 0; i < 2; ++i) {
        et[i] = std::max(oct[i] / batch * (1 - alpha[i] + alpha[i] / k[i]),
                         odt[i] / batch * (1 - beta[i] + beta[i] / k[i]));
      }
      const double throughput = 1 / std::max(et[0], et[1]);
      const double cost = 1e6 / throughput / 3600 * (price[0] * k[0] + price[1] * k[1]);
      const planning::Candidate candidate = {{0, 0, 0, static_cast<std::int64_t>(k[0]), false},
                                             {1, 1, 1, static_cast<std::int64_t>(k[1]), false}};
      const planning::Evaluation evaluation = planning::evaluate(problem, candidate, {});
      worst = std::max({worst, std::abs(evaluation.throughput / throughput - 1), std::abs(evaluation.cost / cost - 1)});
    }
    add("heterps-cost-vs-closed-form", "worst_difference", worst, "share", 1e-9,
        "throughput and cost of 100 two-stage cases, written out by hand");
  }

  // The speed-ups over one machine at 10 Gb/s that running PipeDream's own optimizer gives.
  Status pipedream_profiles() {
    const std::filesystem::path data = shared_data(options_);
    if (data.empty()) {
      say("pipedream-profiles left out: no published profiles beside the checkout");
      return {};
    }
    struct Published {
      const char* model;
      int machines;
      double speedup, data_parallel;
    };
    constexpr Published kPublished[] = {{"vgg16", 4, 3.81, 1.34},    {"vgg16", 16, 12.27, 4.61},
                                        {"resnet50", 4, 2.92, 2.58}, {"resnet50", 16, 10.11, 9.46},
                                        {"alexnet", 4, 2.63, 0.51},  {"alexnet", 16, 5.65, 1.67}};
    double worst = 0;
    double worst_exact = 0;
    for (const Published& published : kPublished) {
      MOTLEY_ASSIGN(
          const model::Profile profile,
          model::read_pipedream(data / "profiles/pipedream" / (std::string(published.model) + ".txt"), 0, "gpu"));
      MOTLEY_ASSIGN(const planning::PipedreamGraph graph, planning::pipedream_graph(profile, 1.25e9));
      const planning::PipedreamPlan plan = planning::pipedream_plans(graph.states, published.machines).back();
      const planning::PipedreamPlan exact = planning::exact_pipedream_plan(graph.states, published.machines);
      worst = std::max({worst, std::abs(planning::pipedream_speedup(graph.states, plan) / published.speedup - 1)});
      worst_exact = std::max(worst_exact, exact.seconds / plan.seconds - 1);
    }
    add("pipedream-profiles", "worst_difference_to_published", worst, "share", 0.01,
        "vgg16, resnet50, alexnet on 4 and 16 machines at 10 Gb/s");
    add("pipedream-profiles", "exact_worse_than_pipedream", std::max(0.0, worst_exact), "share", 1e-9,
        "on the same objective");
    return {};
  }

  // A network on so many equal machines, in so many micro-batches.
  static Result<planning::Problem> equal_machines(model::Profile profile, int machines, double bits_per_second,
                                                  std::int64_t micro_batches) {
    constexpr double kLatency = 10e-6;
    profile.links = {{"gpu", "gpu", bits_per_second / 8, kLatency}};
    cluster::Cluster cluster;
    cluster.device_types = {{.name = "gpu", .kind = cluster::DeviceKind::kCuda, .count = machines}};
    return planning::make_problem(
        profile, cluster, {.cost_model = planning::CostModel::kPipeline, .batch = 256, .micro_batches = micro_batches});
  }

  // What each method makes of a network on equal machines, in the best of the numbers of micro-batches by the cost
  // model, as motley plan does: by the cost model, and replayed.
  struct Steps {
    double predicted = std::numeric_limits<double>::infinity();
    double simulated = std::numeric_limits<double>::infinity();
  };
  Result<std::map<std::string, Steps>> steps_of_methods(const model::Profile& profile, int machines,
                                                        double bits_per_second) const {
    constexpr std::int64_t kMostMicroBatches = 64;
    const planning::Objective objective{.criterion = planning::Criterion::kMaxThroughput};
    std::map<std::string, Steps> steps;
    for (std::int64_t micro_batches = 1; micro_batches <= kMostMicroBatches; micro_batches *= 2) {
      MOTLEY_ASSIGN(const planning::Problem problem, equal_machines(profile, machines, bits_per_second, micro_batches));
      for (const planning::Planner& method : planning::planners()) {
        const Result<Answer> answer =
            method.plan({.problem = problem, .objective = objective, .seed = 1, .seconds = kPeerSeconds});
        if (!answer || !answer->best) continue;  // a type that is not there, or too many candidates
        Steps& its = steps[method.name];
        if (answer->evaluation.step_seconds >= its.predicted) continue;
        const planning::Plan plan =
            planning::to_plan(problem, *answer->best, answer->evaluation, objective, method.name);
        MOTLEY_ASSIGN(const planning::Timeline timeline, planning::simulate(problem, plan, {.keep_events = false}));
        its = {answer->evaluation.step_seconds, timeline.step_seconds};
      }
    }
    return steps;
  }

  // Published profiles on 2 to 16 machines: how far exact is behind the best method once plans are replayed, and the
  // cost model from the replay.
  Status peers_under_simulate() {
    const std::filesystem::path data = shared_data(options_);
    if (data.empty()) {
      say("peers-under-simulate left out: no published profiles beside the checkout");
      return {};
    }
    constexpr double kGnmtMinibatch = 32;
    struct Case {
      std::string at;
      model::Profile profile;
      int machines;
      double bits_per_second;
      Result<std::map<std::string, Steps>> steps = {};
    };
    std::vector<Case> cases;
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(data / "profiles/pipedream")) {
      if (entry.path().extension() == ".txt") files.push_back(entry.path());
    }
    std::ranges::sort(files);
    for (const std::filesystem::path& file : files) {
      const std::string name = file.stem().string();
      if (options_.quick && name != "alexnet") continue;
      MOTLEY_ASSIGN(const model::Profile profile,
                    model::read_pipedream(file, name.starts_with("gnmt") ? kGnmtMinibatch : 0, "gpu"));
      for (const int machines : {2, 4, 8, 16}) {
        if (options_.quick && machines > 2) continue;
        for (const double bits_per_second : {1e9, 1e10}) {
          cases.push_back({fmt::format("{} on {} at {:g} Gb/s", name, machines, bits_per_second / 1e9), profile,
                           machines, bits_per_second});
        }
      }
    }
    in_parallel(static_cast<int>(cases.size()), [&](int i) {
      Case& one = cases[static_cast<std::size_t>(i)];
      say("peers-under-simulate: " + one.at);
      one.steps = steps_of_methods(one.profile, one.machines, one.bits_per_second);
    });
    double worst_loss = 0;
    double worst_difference = 0;
    std::string loses_at = "none";
    for (Case& one : cases) {
      MOTLEY_ASSIGN(const auto steps, std::move(one.steps));
      double best = std::numeric_limits<double>::infinity();
      for (const auto& [method, its] : steps) {
        best = std::min(best, its.simulated);
        worst_difference = std::max(worst_difference, std::abs(its.predicted / its.simulated - 1));
      }
      const double loss = steps.at("exact").simulated / best - 1;
      if (loss > worst_loss) {
        worst_loss = loss;
        loses_at = one.at;
      }
    }
    const std::string note = fmt::format(
        "simulated; {} cases: published PipeDream profiles, 2 to 16 machines, 1 and 10 Gb/s, batch 256, all "
        "methods without a policy network, {:g} s each for a number of micro-batches",
        cases.size(), kPeerSeconds);
    add("peers-under-simulate", "worst_loss_to_best_peer", worst_loss, "share", 0.01,
        fmt::format("{}; worst: {}", note, loses_at));
    add("simulate-against-cost-model", "worst_difference", worst_difference, "share", 0.02, note);
    return {};
  }

  // Random problems with a thousand devices and more: lowest cost with a minimum throughput of an eighth of what all
  // devices, equal numbers of each type, can do. Of the types that the plan with all of them uses, 0.7 of what it uses.
  struct LargeProblems {
    const char* name;
    planning::CostModel cost_model;
    int layers, types;
    std::int64_t devices;
    double seconds;
    double target;
  };
  static Result<Answer> plan_large(const LargeProblems& large, std::uint64_t seed) {
    planning::Problem problem = with_counts(
        planning::random_problem(
            {.layers = large.layers, .types = large.types, .cost_model = large.cost_model, .links = true}, seed),
        large.devices / large.types);
    MOTLEY_ASSIGN(const Answer most,
                  planning::plan_exact({.problem = problem,
                                        .objective = {.criterion = planning::Criterion::kMaxThroughput},
                                        .seconds = large.seconds}));
    if (!most.best) return fail(ErrorCode::kInternal, "{}: no plan for seed {}", large.name, seed);
    const planning::Objective objective{.criterion = planning::Criterion::kMinCost,
                                        .min_throughput = most.evaluation.throughput / 8};
    MOTLEY_ASSIGN(const Answer unlimited,
                  planning::plan_exact({.problem = problem, .objective = objective, .seconds = large.seconds}));
    if (unlimited.best) bind(problem, unlimited.evaluation);
    return planning::plan_exact({.problem = problem, .objective = objective, .seconds = large.seconds});
  }

  Status large_problems(const LargeProblems& large) {
    std::vector<Result<Answer>> answers(5);
    in_parallel(static_cast<int>(answers.size()), [&](int i) {
      const auto seed = static_cast<std::uint64_t>(i) + 1;
      answers[static_cast<std::size_t>(i)] = plan_large(large, seed);
      say(fmt::format("{}: seed {} of {}", large.name, seed, answers.size()));
    });
    double worst = 0;
    double longest = 0;
    std::string gaps;
    for (const Result<Answer>& answer : answers) {
      MOTLEY_TRY(answer);
      const double gap =
          answer->best ? answer->gap(planning::Criterion::kMinCost) : std::numeric_limits<double>::infinity();
      worst = std::max(worst, gap);
      longest = std::max(longest, answer->seconds);
      gaps += fmt::format("{}{:.3f}", gaps.empty() ? "" : ", ", gap);
    }
    add(large.name, fmt::format("gap_at_{:g}_seconds", large.seconds), worst, "share", large.target,
        fmt::format(
            "worst of 5 seeds ({}), {} cost model, {} devices in all, 0.7 of the devices that the unlimited plan "
            "uses of its types; longest {:.1f} s",
            gaps, planning::to_string(large.cost_model), large.devices, longest));
    return {};
  }

  Status recommendation_models() {
    const int seeds = options_.quick ? 2 : 5;
    for (const char* table : {"matchnet", "ctrdnn-16", "2emb", "nce"}) {
      say(fmt::format("{}: rl-lstm, {} seeds", table, seeds));
      MOTLEY_ASSIGN(const PlanningCase planning, planning_case(options_, table, planning::CostModel::kHeterps));
      MOTLEY_ASSIGN(const Answer best,
                    planning::plan_exact({.problem = planning.problem, .objective = planning.objective}));
      double sum = 0;
      double longest = 0;
      for (int seed = 1; seed <= seeds; ++seed) {
        MOTLEY_ASSIGN(const Answer learned, planning::plan_rl_lstm({.problem = planning.problem,
                                                                    .objective = planning.objective,
                                                                    .seed = static_cast<std::uint64_t>(seed)}));
        sum += gap(learned, best, planning.objective.criterion);
        longest = std::max(longest, learned.seconds);
      }
      add(table, "rl-lstm_gap", sum / seeds, "share", 0.02,
          fmt::format("mean of {} seeds to the {} optimum; longest run {:.1f} s", seeds,
                      best.proved ? "proved" : "best known", longest));
    }
    return {};
  }

  static double gap(const Answer& answer, const Answer& best, planning::Criterion criterion) {
    if (!answer.best || !best.best) return std::numeric_limits<double>::infinity();
    return planning::value(answer.evaluation, criterion) / planning::value(best.evaluation, criterion) - 1;
  }

  // Every method without a policy network on every model, both cost models: the best and the worst of them.
  Status all_models() {
    std::map<std::string, std::vector<double>> gaps;
    int cases = 0;
    for (const planning::CostModel cost_model : {planning::CostModel::kHeterps, planning::CostModel::kPipeline}) {
      MOTLEY_ASSIGN(const std::vector<PlanningCase> all, planning_cases(options_, cost_model));
      for (const PlanningCase& planning : all) {
        say(fmt::format("all-models: {} ({})", planning.name, planning::to_string(cost_model)));
        const Request request{.problem = planning.problem, .objective = planning.objective, .seed = 1, .seconds = 5};
        MOTLEY_ASSIGN(const Answer best, planning::plan_exact(request));
        ++cases;
        for (const auto& method : planning::planners()) {
          if (method.name == "exact" || method.name == "brute-force") continue;
          const Result<Answer> answer = method.plan(request);
          gaps[method.name].push_back(answer ? gap(*answer, best, planning.objective.criterion)
                                             : std::numeric_limits<double>::infinity());
        }
      }
    }
    double best_mean = std::numeric_limits<double>::infinity();
    double worst_mean = 0;
    std::string best_name, worst_name;
    for (const auto& [method, its] : gaps) {
      double sum = 0;
      int found = 0;
      for (const double value : its) {
        if (std::isfinite(value)) {
          sum += value;
          ++found;
        }
      }
      const double mean = found > 0 ? sum / found : std::numeric_limits<double>::infinity();
      add("all-models", method + "_gap", mean, "share", {},
          fmt::format("mean over the {} of {} cases in which it found a plan", found, cases));
      if (mean < best_mean) {
        best_mean = mean;
        best_name = method;
      }
      if (std::isfinite(mean) && mean > worst_mean) {
        worst_mean = mean;
        worst_name = method;
      }
    }
    add("all-models", "best_baseline_gap", best_mean, "share", {}, best_name);
    add("all-models", "worst_baseline_gap", worst_mean, "share", {}, worst_name);
    return {};
  }

  const BenchOptions& options_;
  std::vector<BenchRow> rows_;
};

}  // namespace

Result<std::vector<BenchRow>> plan_exact_rows(const BenchOptions& options) {
  return PlanBench(options).exact();
}

Result<std::vector<BenchRow>> plan_peer_rows(const BenchOptions& options) {
  return PlanBench(options).peers();
}

Result<std::vector<BenchRow>> plan_large_rows(const BenchOptions& options) {
  return PlanBench(options).large();
}

Result<std::vector<BenchRow>> plan_model_rows(const BenchOptions& options) {
  return PlanBench(options).models();
}

Result<std::vector<BenchRow>> plan_prediction_rows(const BenchOptions& options) {
  if (options.quick) return std::vector<BenchRow>();
  return prediction_bench(options);
}

}  // namespace motley::bench
