// The page of made-up runs: its figures against closed forms, its HTML as parsers see it, and what damaged, empty and
// hostile run directories get.
#include "motley/report/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <optional>

#include "motley/model/profile.h"
#include "motley/planning/plan/plan.h"
#include "motley/report/run.h"
#include "motley/train/records/run_file.h"
#include "motley/train/records/typical_steps.h"
#include "tests/report/fake_run.h"

namespace motley::report {
namespace {

namespace fs = std::filesystem;
using motley::report::testing::FakeRun;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

struct Folder {
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "motley-report-XXXXXX").string();
    path = ::mkdtemp(pattern.data());
  }
  ~Folder() { fs::remove_all(path); }
  fs::path path;
};

// The page without its scripts and styles, whose text is not markup.
std::string markup(const std::string& html) {
  std::string left;
  for (std::size_t at = 0; at < html.size();) {
    std::size_t begin = std::min(html.find("<script", at), html.find("<style", at));
    left += html.substr(at, begin - at);
    if (begin == std::string::npos) {
      break;
    }
    const std::string close = html.compare(begin, 7, "<script") == 0 ? "</script>" : "</style>";
    at = html.find(close, begin) + close.size();
  }
  return left;
}

// Every element is closed in order, void and self-closing ones aside, and "<" stands only where a tag begins.
::testing::AssertionResult well_formed(const std::string& html) {
  const std::string text = markup(html);
  std::vector<std::string> open;
  for (std::size_t at = text.find('<'); at != std::string::npos; at = text.find('<', at)) {
    const bool closes = text.compare(at, 2, "</") == 0;
    std::size_t end = at + (closes ? 2 : 1);
    std::string name;
    for (; std::isalnum(static_cast<unsigned char>(text[end])) != 0 || text[end] == '!'; ++end) {
      name += text[end];
    }
    for (bool quoted = false; end < text.size() && (quoted || text[end] != '>'); ++end) {
      quoted ^= text[end] == '"';
      if (text[end] == '<') {
        return ::testing::AssertionFailure() << "'<' inside a tag: " << text.substr(at, 80);
      }
    }
    if (name.empty() || end >= text.size()) {
      return ::testing::AssertionFailure() << "not a tag: " << text.substr(at, 80);
    }
    at = end;
    if (name == "meta" || name == "!DOCTYPE" || text[end - 1] == '/') {
      continue;
    }
    if (!closes) {
      open.push_back(name);
    } else if (open.empty() || open.back() != name) {
      return ::testing::AssertionFailure() << "</" << name << "> closes " << (open.empty() ? "nothing" : open.back());
    } else {
      open.pop_back();
    }
  }
  return open.empty() ? ::testing::AssertionSuccess() : ::testing::AssertionFailure() << "open: " << open.back();
}

std::string render_page(const fs::path& folder) {
  auto html = render_run(folder);
  EXPECT_TRUE(html) << html.error().message;
  EXPECT_TRUE(well_formed(html.value_or("")));
  return html.value_or("");
}

TEST(Figures, OptimumIsTheClosedFormForUnequalSpeeds) {
  Folder folder;
  FakeRun{}.write(folder.path);
  const auto run = read_run(folder.path);
  ASSERT_TRUE(run) << run.error().message;
  EXPECT_EQ(run->metrics.steps.size(), 700u);
  const Figures figures = compute_figures(*run);
  ASSERT_TRUE(figures.balanced && figures.equal && figures.optimum);
  EXPECT_EQ(figures.equal->steps, 27u);
  // 256 samples at 1.5 ms and speeds 1 + 1 + 1/2 + 1/4, some load and the exchange.
  EXPECT_NEAR(figures.optimum->seconds, 256 * 1.5e-3 / 2.75 + 1.4e-3 + 4.1e-3, 3e-3);
  EXPECT_GT(*figures.speedup(), 2.5);
  EXPECT_LE(*figures.speedup(), *figures.possible_speedup());
  EXPECT_LT(*figures.max_wait_fraction(), 0.1);
}

TEST(Figures, WorkersOfATypicalStepAddUpToTheBatchAndTheStep) {
  Folder folder;
  FakeRun fake;
  fake.speeds = {1, 0.83, 0.37};
  fake.names = {"a", "b", "c"};
  fake.write(folder.path);
  const auto run = read_run(folder.path);
  ASSERT_TRUE(run) << run.error().message;
  const Figures figures = compute_figures(*run);
  for (const auto* step : {&figures.balanced, &figures.equal}) {
    const std::vector<std::int64_t> whole = (*step)->whole_samples();
    EXPECT_EQ(std::accumulate(whole.begin(), whole.end(), std::int64_t{0}), 256) << "85.33 each, with an equal split";
    for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_LT(std::abs(whole[i] - (*step)->workers[i].samples), 1);
    // The run's own step ends 4.4 ms after the last worker's gradients; of these its synchronisation counts 4.0 to 4.4.
    for (const Phases& worker : (*step)->workers) EXPECT_NEAR(worker.total(), (*step)->seconds, 0.4e-3);
  }
  // The middle half, independently: the quarter of the slowest steps has the stall of step 350.
  std::vector<double> seconds;
  for (const StepMetrics& step : run->metrics.steps) {
    if (!step.baseline && step.step >= train::kSettlingSteps) seconds.push_back(step.step_seconds);
  }
  std::sort(seconds.begin(), seconds.end());
  const std::size_t quarter = seconds.size() / 4;
  const double sum = std::accumulate(seconds.begin() + static_cast<std::ptrdiff_t>(quarter),
                                     seconds.end() - static_cast<std::ptrdiff_t>(quarter), 0.0);
  EXPECT_NEAR(figures.balanced->seconds, sum / static_cast<double>(seconds.size() - 2 * quarter), 1e-12);
  EXPECT_NEAR(*figures.samples_per_second(), 256 / figures.balanced->seconds, 1e-9);
}

TEST(Figures, OptimumBalancesAnyWorkersAndKeepsTheirSamples) {
  Random random(9);
  for (int round = 0; round < 200; ++round) {
    TypicalStep step;
    double samples = 0, slowest = 0;
    for (std::uint64_t i = 1 + random.below(6); i > 0; --i) {
      Phases phases{1.0 + static_cast<double>(random.below(100)), 0.01 * random.uniform(), 0.01 + random.uniform(),
                    0.1};
      samples += phases.samples;
      slowest = std::max(slowest, phases.busy());
      step.workers.push_back(phases);
    }
    step.seconds = slowest + 0.1;
    const auto best = compute_optimum(step);
    ASSERT_TRUE(best);
    double kept = 0;
    for (std::size_t i = 0; i < best->workers.size(); ++i) {
      const Phases &now = best->workers[i], &before = step.workers[i];
      kept += now.samples;
      EXPECT_NEAR(now.total(), best->seconds, 1e-9) << "all finish together";
      EXPECT_NEAR(now.samples / now.busy(), before.samples / before.busy(), 1e-6) << "at the speed shown";
    }
    EXPECT_NEAR(kept, samples, 1e-6);
    EXPECT_LE(best->seconds, step.seconds + 1e-9);
  }
}

// As of an elastic run, of whose ranks one was away: nobody could have been as fast in synchronising as it was.
TEST(Figures, OptimumIsThatOfTheWorkersThatHadSamples) {
  TypicalStep step;
  step.workers = {{30, 0.1, 0.9, 0.2, 0.1}, {0, 0, 0, 0, 0}, {10, 0.2, 0.8, 0.3, 0}};
  step.seconds = 1.3;
  const auto best = compute_optimum(step);
  ASSERT_TRUE(best);
  EXPECT_NEAR(best->seconds, 40 / (30 / 1.0 + 10 / 1.0) + 0.2, 1e-12);
  EXPECT_EQ(best->workers[1].total(), 0);
  EXPECT_NEAR(best->workers[2].total(), best->seconds, 1e-12);
}

// A script that goes on at its step 500 and says its loss in every tenth step.
report::Run make_script_run() {
  report::Run run;
  for (int i = 0; i < 100; ++i) {
    StepMetrics step;
    step.step = 500 + i;
    step.loss = i % 10 == 9 ? 2 - 0.01 * i : std::nan("");
    run.metrics.steps.push_back(step);
  }
  return run;
}

TEST(Figures, AScriptsLossIsThatOfTheStepsThatSayIt) {
  report::Run run = make_script_run();
  const auto loss = measure_loss(run);
  ASSERT_TRUE(loss);
  EXPECT_DOUBLE_EQ(loss->first, 2 - 0.09);
  EXPECT_DOUBLE_EQ(loss->last, 2 - 0.99);
  EXPECT_EQ(loss->kind(), LossChange::Kind::kUsual);
  for (std::size_t i = 40; i < run.metrics.steps.size(); ++i) run.metrics.steps[i].loss = std::nan("");
  EXPECT_EQ(measure_loss(run)->kind(), LossChange::Kind::kNotFinite);  // it has said none for longer than before
  run = make_script_run();
  run.job = "model: cnn";  // which says each
  EXPECT_EQ(measure_loss(run)->kind(), LossChange::Kind::kNotFinite);
  run.job.clear();
  for (StepMetrics& step : run.metrics.steps) step.loss = std::nan("");
  EXPECT_FALSE(measure_loss(run));
}

TEST(Figures, AScriptsStepsAreCountedFromItsFirst) {
  const report::Run run = make_script_run();
  EXPECT_EQ(count_steps(run), 100);
  EXPECT_EQ(describe_length(run, Figures()), "100 steps recorded");
}

// The second one ended before its first checkpoint, and that of the first, which it had gone on from, was damaged.
TEST(Figures, OfAnAttemptCountTheStepsThatNoLaterOneDidAgain) {
  report::Run run;
  run.file.attempts.resize(3);
  run.file.attempts[0].first_step = 1;
  run.file.attempts[1].first_step = 13;
  run.file.attempts[2].first_step = 11;
  run.metrics.steps.resize(1);
  run.metrics.steps[0].step = 20;
  const std::vector<Attempt> attempts = list_attempts(run);
  ASSERT_EQ(attempts.size(), 3u);
  EXPECT_EQ(attempts[0].last_step, 10);
  EXPECT_LT(attempts[1].last_step, attempts[1].first_step) << "none";
  EXPECT_EQ(attempts[2].last_step, 20);
}

TEST(Report, SaysOfEachWorkerHowItIsEmulatedAndOnWhatItComputed) {
  Folder folder;
  FakeRun{.names = {"a", "b", "c", "d"}}.write(folder.path);
  train::RunFile run = *train::read_run_file(folder.path / "run.json");
  for (train::RunWorker& worker : run.workers) {
    const bool is_first = worker.rank < 2;
    worker.device = is_first ? "core" : "fast";
    worker.kind = is_first ? "cpu" : "emulated";
    worker.emulated = is_first ? "5 ms a sample" : "an emulated accelerator: flops=1e9";
  }
  run.workers[3].device = "emulated:1";
  ASSERT_TRUE(train::write_run_file(folder.path / "run.json", run));
  ASSERT_TRUE(write_report(folder.path));
  const std::string html = *read_file(folder.path / "report.html");
  EXPECT_TRUE(well_formed(html));
  EXPECT_THAT(html, HasSubstr("These workers are emulated: <b>a</b>, <b>b</b> (5 ms a sample); <b>c</b>, <b>d</b> (an "
                              "emulated accelerator: flops=1e9). Times below"));
  for (const char* device : {">core (cpu)<", ">fast (emulated)<", ">emulated:1<"}) EXPECT_THAT(html, HasSubstr(device));
}

TEST(Report, ShowsTheWholeRunAndLoadsNothing) {
  Folder folder;
  FakeRun{}.write(folder.path);
  ASSERT_TRUE(write_report(folder.path));
  const std::string html = *read_file(folder.path / "report.html");
  EXPECT_TRUE(well_formed(html));
  for (const char* text :
       {"started 2026-03-14 09:26 UTC", "88.6 %", "2.58×", "4.2 %", "of all steps; ", "Emulated", "6.0 ms a sample",
        "Equal split", "One step as it happened", "Why shares moved", "checkpoint/ at step 350", "global_batch: 256"}) {
    EXPECT_THAT(html, HasSubstr(text));
  }
  const Figures figures = compute_figures(*read_run(folder.path));
  EXPECT_THAT(html, HasSubstr(fmt::format("optimum {:.2f}×", figures.equal->seconds / figures.optimum->seconds)));
  const std::string tags = markup(html);
  for (const char* loader : {"http:", "https:", "src=", "href=", "url(", "@import", "<link", "<img", "<iframe"}) {
    EXPECT_THAT(tags, Not(HasSubstr(loader)));
  }
  EXPECT_LT(html.size(), 2'000'000u);
}

// The JSON of the chart with this title.
nlohmann::json chart_data(const std::string& html, const std::string& title) {
  const std::string open = "<script type=\"application/json\">";
  const std::size_t at = html.find("aria-label=\"" + title + ": ");
  EXPECT_NE(at, std::string::npos) << title;
  if (at == std::string::npos) return {};
  const std::size_t begin = html.find(open, at) + open.size();
  return nlohmann::json::parse(html.substr(begin, html.find("</script>", begin) - begin));
}

TEST(Report, DrawsLearningRateAndSamplesPerSecond) {
  Folder folder;
  FakeRun fake;
  fake.decays_rate = true;
  fake.write(folder.path);
  const std::string html = render_page(folder.path);
  const auto run = read_run(folder.path);
  const auto rate = chart_data(html, "Learning rate")["series"][0]["points"];
  const auto speed = chart_data(html, "Samples per second")["series"];
  ASSERT_EQ(rate.size(), 700u);
  ASSERT_EQ(speed.size(), 3u);
  std::size_t own = 0, baseline = 0;
  for (std::size_t i = 0; i < 700; ++i) {
    const StepMetrics& step = run->metrics.steps[i];
    EXPECT_EQ(rate[i][0], i);
    EXPECT_NEAR(rate[i][1], step.learning_rate, 6e-5 * step.learning_rate);
    const auto& point = step.baseline ? speed[2]["points"][baseline++] : speed[0]["points"][own++];
    EXPECT_EQ(point[0], i);
    EXPECT_NEAR(point[1], 256 / step.step_seconds, 1e-4 * 256 / step.step_seconds);
  }
  EXPECT_EQ(baseline, 27u);
  fake.decays_rate = false;
  fake.rate = 0;  // as a script writes no learning rate
  fake.write(folder.path);
  EXPECT_THAT(markup(render_page(folder.path)), Not(HasSubstr("Learning rate")));
}

TEST(Report, PredictedAndMeasuredStepTimesDifferInColourAndDash) {
  Folder folder;
  FakeRun{}.write(folder.path);
  const auto series = chart_data(render_page(folder.path), "Step time")["series"];
  ASSERT_EQ(series.size(), 3u);
  EXPECT_EQ(series[0]["name"], "measured");
  EXPECT_EQ(series[0]["style"], "line");
  EXPECT_EQ(series[1]["name"], "predicted");
  EXPECT_EQ(series[1]["style"], "dashed");
  EXPECT_EQ(series[2]["style"], "marks");
  EXPECT_NE(series[0]["color"], series[1]["color"]);
  EXPECT_NE(series[2]["color"], series[1]["color"]);
}

TEST(Report, TellsTheHistoryOfAResumedRun) {
  Folder folder;
  FakeRun fake;
  fake.write(folder.path);
  EXPECT_THAT(render_page(folder.path), Not(HasSubstr("Attempts")));
  fake.attempts = {
      {{"started", 1773480413.5}, {"first_step", 0}, {"after_seconds", 0}, {"workers", 4}},
      {{"started", 1773484013.5},
       {"first_step", 100},
       {"after_seconds", 12.5},
       {"workers", 3},
       {"exit", "interrupted"}},
      {{"started", 1773487613.5}, {"first_step", 700}, {"after_seconds", 30}, {"workers", 4}, {"exit", "done"}}};
  fake.write(folder.path);
  const auto run = read_run(folder.path);
  ASSERT_TRUE(run) << run.error().message;
  const std::vector<Attempt> attempts = list_attempts(*run);
  ASSERT_EQ(attempts.size(), 3u);
  EXPECT_EQ(attempts[0].seconds, 12.5);
  EXPECT_EQ(attempts[1].seconds, 17.5);
  EXPECT_DOUBLE_EQ(attempts[2].seconds, run->metrics.steps.back().time - 30);
  EXPECT_EQ(attempts[0].last_step, 99);
  EXPECT_EQ(attempts[1].last_step, 699);
  EXPECT_EQ(attempts[2].last_step, 699);
  const std::string html = render_page(folder.path);
  EXPECT_THAT(html, HasSubstr("started 2026-03-14 09:26 UTC"));
  EXPECT_THAT(html, HasSubstr(" in 3 attempts"));
  for (const char* text : {"0 to 99</td><td>12.5 s</td><td>killed<", "100 to 699</td><td>17.5 s</td><td>interrupted<",
                           "2026-03-14 11:26 UTC", "<td>none</td>"}) {
    EXPECT_THAT(html, HasSubstr(text));
  }
}

// A move of the split is one row, with the split before and from then on; baseline steps and decisions to stay are
// none.
TEST(Report, SaysWhyTheSplitMoved) {
  Folder folder;
  FakeRun fake;
  fake.write(folder.path);
  const auto run = read_run(folder.path);
  ASSERT_TRUE(run) << run.error().message;
  std::string lines;
  std::vector<std::string> rows;
  const StepMetrics* before = nullptr;
  for (StepMetrics step : run->metrics.steps) {
    if (step.step % 7 == 3)
      step.decision =
          fmt::format("stays at what it is: {} gain too little", fmt::join(run->metrics.steps.back().batch_split, "/"));
    lines += train::to_json(step) + "\n";
  }
  ASSERT_TRUE(write_file(folder.path / "metrics.jsonl", lines));
  for (const StepMetrics& step : run->metrics.steps) {
    if (step.baseline) continue;
    if (before != nullptr && before->batch_split != step.batch_split) {
      rows.push_back(fmt::format("<td class=\"number\">{}</td><td>{}</td><td>{}</td><td>{}</td>", step.step,
                                 fmt::join(before->batch_split, "/"), fmt::join(step.batch_split, "/"), fake.decision));
    }
    before = &step;
  }
  const std::string html = markup(render_page(folder.path));
  EXPECT_EQ(rows.size(), 3u) << "at steps 4, 8 and 12";
  for (const std::string& row : rows) EXPECT_THAT(html, HasSubstr(row));
  EXPECT_THAT(html, Not(HasSubstr("stays at")));
}

// What means nothing with one worker is left out, and legends name what the bars show.
TEST(Report, OfOneWorkerHasNoSplitAndNoWaits) {
  Folder folder;
  FakeRun{.speeds = {1}, .names = {"only"}, .steps = 60}.write(folder.path);
  const std::string html = markup(render_page(folder.path));
  EXPECT_THAT(html, HasSubstr("A typical step"));
  for (const char* text :
       {"As Motley split it", "Optimum", "Largest wait", "from the steps so far", "wait for others</li>"}) {
    EXPECT_THAT(html, Not(HasSubstr(text))) << text;
  }
}

TEST(Report, AStopIsNoErrorAndADivergenceIsTold) {
  Folder folder;
  FakeRun{.last_loss = 1e22}.write(folder.path);
  const std::string file = *read_file(folder.path / "run.json");
  auto json = nlohmann::ordered_json::parse(file);
  json["exit"] = "interrupted";
  json["error"] = "stopped after step 464; a checkpoint was written";
  ASSERT_TRUE(write_file(folder.path / "run.json", json.dump()));
  const std::string html = markup(render_page(folder.path));
  EXPECT_THAT(html, HasSubstr("<strong>Stopped</strong> Stopped after step 464; a checkpoint was written."));
  EXPECT_THAT(html, HasSubstr("<span class=\"badge\">stopped</span>"));
  EXPECT_THAT(html, Not(HasSubstr("<strong>Error</strong>")));
  EXPECT_THAT(html, HasSubstr("<strong>Diverged</strong> The training loss is 1e+22, far above"));
}

// Shares of workers that compute different layers do not compare.
TEST(Report, APlannedRunHasNoSharesAndNoOptimum) {
  Folder folder;
  FakeRun run;
  run.baseline_every = 1000;
  run.mode = "plan";
  run.write(folder.path);
  const std::string html = render_page(folder.path);
  EXPECT_TRUE(well_formed(html));
  EXPECT_THAT(html, HasSubstr("As planned"));
  for (const char* text : {"Optimum", "Each worker's share", "As Motley split it"}) {
    EXPECT_THAT(markup(html), Not(HasSubstr(text)));
  }
}

// Two stages on two devices each, whose layers take 1 ms a sample forward and 2 ms back.
void write_plan(const fs::path& folder) {
  planning::Plan plan;
  model::Profile profile;
  plan.model = profile.graph.name = "toy";
  model::DeviceProfile device{.type = "unit"};
  for (int layer = 0; layer < 2; ++layer) {
    plan.layers.push_back(fmt::format("layer-{}", layer));
    plan.stages.push_back({layer, layer, {{"unit", 2, 0.5}}, planning::GradientSync::kRing});
    profile.graph.layers.push_back({.name = plan.layers.back()});
    if (layer > 0) profile.graph.layers.back().inputs = {layer - 1};
    device.layers.push_back({{0, 1e-3}, {0, 2e-3}, {}});
  }
  plan.batch = 256;
  plan.micro_batches = 4;
  plan.cost_model = "pipeline";
  plan.predicted.step_seconds = 0.1;
  profile.devices = {device};
  ASSERT_TRUE(write_file(folder / "plan.json", planning::to_json(plan)));
  ASSERT_TRUE(write_file(folder / "profile.json", model::to_json(profile)));
}

TEST(Report, HoldsAPlannedRunAgainstItsPrediction) {
  Folder folder;
  FakeRun run;
  run.baseline_every = 1000;
  run.mode = "plan";
  run.price = 1.8;
  run.planned = {{"plan", "plan.json"}, {"profile", "profile.json"}, {"cluster", nullptr}};
  run.write(folder.path);
  write_plan(folder.path);
  const std::string html = markup(render_page(folder.path));
  for (const char* text :
       {"planned: 2 stages, 4 micro-batches, 1f1b", "predicted 145 ms; it takes ", "One step as predicted",
        "layer-1 on 2 × unit", "idle, predicted", "Cost of an epoch", "1.8 an hour"}) {
    EXPECT_THAT(html, HasSubstr(text));
  }
  // Each of a stage's devices computes 4 micro-batches of 32 samples of 3 ms, of a step of 5 such times.
  EXPECT_THAT(html, HasSubstr("20.0 %"));
  const auto read = read_run(folder.path);
  ASSERT_TRUE(read && read->prediction && read->prediction->timeline);
  EXPECT_NEAR(read->prediction->timeline->step_seconds, 5 * 32 * 3e-3, 1e-9);

  run.planned["profile"] = nullptr;
  run.write(folder.path);
  EXPECT_THAT(render_page(folder.path), HasSubstr("Not drawn: the profile"));
  ASSERT_TRUE(write_file(folder.path / "plan.json", "{}"));
  const auto damaged = read_run(folder.path);
  ASSERT_FALSE(damaged);
  EXPECT_THAT(damaged.error().message, HasSubstr("plan.json"));
}

TEST(Report, SaysWhereBytesAndWaitsGo) {
  Folder folder;
  FakeRun plain;
  plain.write(folder.path);
  EXPECT_THAT(render_page(folder.path), Not(HasSubstr("Where bytes and waits go"))) << "in shared memory nothing goes";

  FakeRun looks_up;
  looks_up.row_bytes = 3.2e6;
  looks_up.write(folder.path);
  const auto run = read_run(folder.path);
  ASSERT_TRUE(run) << run.error().message;
  const Figures figures = compute_figures(*run);
  ASSERT_TRUE(figures.balanced);
  ASSERT_EQ(figures.balanced->traffic.size(), 4u);
  const Traffic& first = figures.balanced->traffic[0];
  EXPECT_DOUBLE_EQ(first.sent, 2e6);
  EXPECT_DOUBLE_EQ(first.pulled, 3.2e6);
  EXPECT_DOUBLE_EQ(first.pushed, 1.6e6);
  EXPECT_DOUBLE_EQ(first.rows_wait, 0.25e-3);
  EXPECT_EQ(figures.balanced->traffic[3].pulled, 0);
  const std::string html = render_page(folder.path);
  for (const char* text : {"Where bytes and waits go", "3.2 MB", "1.6 MB", "40.0 %", "75.0 %"}) {
    EXPECT_THAT(html, HasSubstr(text));
  }
}

TEST(Report, ShowsWhoCameAndWent) {
  Folder folder;
  FakeRun run;
  run.write(folder.path);
  EXPECT_THAT(render_page(folder.path), Not(HasSubstr("Who came and went")));
  run.loses_one = true;
  run.write(folder.path);
  const std::string html = render_page(folder.path);
  for (const char* text : {"Who came and went", "rank 3 was lost; 3 of 4", "rank 3 has joined", "steps 0 to 199"}) {
    EXPECT_THAT(html, HasSubstr(text));
  }
  EXPECT_THAT(html, ContainsRegex("12\\.[4-9] s</td>"));  // the pause
}

TEST(Report, ShowsWhichServersWereLostAndWhoLeft) {
  for (const auto& [kind, text] :
       {std::pair("server-lost", "the server at 10.0.0.5:4711 was lost"), std::pair("left", "rank 3 has left")}) {
    Folder folder;
    FakeRun run;
    run.loses_one = true;
    run.loss = kind;
    run.loss_text = text;
    run.write(folder.path);
    const std::string html = render_page(folder.path);
    const std::size_t begin = html.find("Who came and went");
    ASSERT_NE(begin, std::string::npos);
    EXPECT_THAT(html.substr(begin), ContainsRegex(fmt::format("{}</td>[^/]*12\\.[4-9] s</td>", text)));
  }
}

TEST(Report, HostileTextStaysText) {
  Folder folder;
  FakeRun run;
  const std::string hostile = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\xff";
  run.names = {hostile, "b", "c", "d"};
  run.decision = hostile;
  run.job = hostile;
  run.write(folder.path);
  const std::string html = render_page(folder.path);
  EXPECT_THAT(html, Not(HasSubstr("<script>alert")));
  EXPECT_THAT(html, Not(HasSubstr("<img")));
  EXPECT_THAT(markup(html), HasSubstr("&lt;script&gt;alert(1)"));
}

TEST(Report, OneWorkerAndAnEmptyRun) {
  Folder folder;
  FakeRun one;
  one.speeds = {1};
  one.names = {"alone"};
  one.steps = 30;
  one.write(folder.path / "one");
  EXPECT_THAT(render_page(folder.path / "one"), HasSubstr("1 worker<"));

  FakeRun empty;
  empty.finished = false;
  empty.steps = 0;
  empty.write(folder.path / "empty");
  const std::string html = render_page(folder.path / "empty");
  EXPECT_THAT(html, HasSubstr("No steps yet"));
  EXPECT_THAT(html, HasSubstr("did not finish"));

  ASSERT_TRUE(make_folders(folder.path / "bare"));
  ASSERT_TRUE(write_file(folder.path / "bare" / "run.json", R"({"workers":[],"error":"no <worker> came"})"));
  EXPECT_THAT(render_page(folder.path / "bare"), HasSubstr("no &lt;worker&gt; came"));
}

TEST(Report, AKilledRunLosesOnlyItsTornLine) {
  Folder folder;
  FakeRun run;
  run.finished = false;
  run.steps = 60;
  run.write(folder.path);
  const std::string whole = *read_file(folder.path / "metrics.jsonl");
  const std::size_t last_line = whole.rfind('\n', whole.size() - 2) + 1;
  for (const std::size_t cut : {last_line + 1, last_line + 40, whole.size() - 2}) {
    ASSERT_TRUE(write_file(folder.path / "metrics.jsonl", whole.substr(0, cut)));
    const auto read = read_run(folder.path);
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_TRUE(read->metrics.is_torn);
    EXPECT_EQ(read->metrics.steps.size(), 59u);
    EXPECT_THAT(render_page(folder.path), HasSubstr("Cut short"));
  }
  ASSERT_TRUE(write_file(folder.path / "metrics.jsonl", whole.substr(0, whole.size() - 1)));
  EXPECT_EQ(read_run(folder.path)->metrics.steps.size(), 60u) << "only the end of the line is missing";
}

TEST(Report, StepsDoneAgainAfterARollbackCountOnce) {
  Folder folder;
  FakeRun run;
  run.steps = 50;
  run.write(folder.path);
  const std::string whole = *read_file(folder.path / "metrics.jsonl");
  std::size_t at = 0;
  for (int line = 0; line < 30; ++line) {
    at = whole.find('\n', at) + 1;
  }
  ASSERT_TRUE(write_file(folder.path / "metrics.jsonl", whole + whole.substr(at)));
  const auto read = read_run(folder.path);
  ASSERT_TRUE(read);
  ASSERT_EQ(read->metrics.steps.size(), 50u);
  for (std::size_t i = 0; i < 50; ++i) {
    EXPECT_EQ(read->metrics.steps[i].step, static_cast<std::int64_t>(i));
  }
}

TEST(Report, DamageIsNamedByFileLineAndField) {
  Folder folder;
  FakeRun run;
  run.steps = 10;
  run.write(folder.path);
  const std::string good = *read_file(folder.path / "metrics.jsonl");
  const auto message = [&](const std::string& line) {
    EXPECT_TRUE(write_file(folder.path / "metrics.jsonl", good + line + "\n" + good));
    const auto read = read_run(folder.path);
    return read ? "no error" : read.error().message;
  };
  EXPECT_THAT(message("{\"step\":"), HasSubstr("metrics.jsonl' line 11"));
  EXPECT_THAT(message("[1]"), HasSubstr("line 11: the whole is [1]; accepted is an object"));
  EXPECT_THAT(message("{}"), HasSubstr("'step'"));
  EXPECT_THAT(message(R"({"step":-1})"), HasSubstr("field 'step' is -1; accepted is an integer"));
  EXPECT_THAT(message(R"({"step":1,"time":1,"loss":"low","step_seconds":1,"mode":"equal"})"), HasSubstr("'loss'"));
  EXPECT_THAT(message(R"({"step":1,"time":1,"loss":1,"step_seconds":1,"mode":"equal","wait_seconds":[null]})"),
              HasSubstr("'wait_seconds[0]' is null; accepted is a finite number"));
  EXPECT_EQ(message(R"({"step":11,"time":1,"loss":null,"step_seconds":1,"mode":"equal"})"), "no error");
  ASSERT_TRUE(write_file(folder.path / "metrics.jsonl", good));
  for (const char* file : {"run.json", "summary.json", "timeline.json"}) {
    const std::string before = *read_file(folder.path / file);
    ASSERT_TRUE(write_file(folder.path / file, "{\"workers\": 3"));
    const auto read = read_run(folder.path);
    ASSERT_FALSE(read) << file;
    EXPECT_THAT(read.error().message, HasSubstr(file));
    ASSERT_TRUE(write_file(folder.path / file, before));
  }
  const auto missing = read_run(folder.path / "nowhere");
  ASSERT_FALSE(missing);
  EXPECT_THAT(missing.error().message, HasSubstr("run.json"));
}

TEST(Report, LongRunsStaySmall) {
  Folder folder;
  FakeRun run;
  run.steps = 20000;
  run.write(folder.path);
  EXPECT_LT(render_page(folder.path).size(), 2'000'000u);
}

// What a browser makes of a page, all scripts run, and what it logs meanwhile; nothing where there is no browser.
struct Browsed {
  std::string dom, log;
};
std::optional<Browsed> browse(const fs::path& folder, const std::string& html) {
  if (std::system("command -v chromium >/dev/null 2>&1") != 0) return std::nullopt;
  EXPECT_TRUE(write_file(folder / "page.html", html));
  const std::string command = fmt::format(
      "timeout 60 chromium --headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
      "--disable-background-networking --disable-component-update --disable-sync --user-data-dir='{0}/profile' "
      "--enable-logging=stderr --dump-dom 'file://{0}/page.html' >'{0}/dom.html' 2>'{0}/log'",
      folder.string());
  EXPECT_EQ(std::system(command.c_str()), 0);
  return Browsed{*read_file(folder / "dom.html"), *read_file(folder / "log")};
}

// A browser runs the page's scripts: every chart is drawn, and nothing complains.
TEST(Report, ChromiumDrawsEveryChart) {
  Folder folder;
  FakeRun run;
  run.names[0] = "</script><script>document.title='owned'</script>";
  run.write(folder.path / "run");
  const auto browsed = browse(folder.path, render_page(folder.path / "run"));
  if (!browsed) GTEST_SKIP() << "needs chromium on the PATH";
  EXPECT_THAT(browsed->log, Not(HasSubstr("CONSOLE")));
  EXPECT_THAT(browsed->dom, HasSubstr("<title>Run run</title>"));
  int drawn = 0;  // Chart.js sets the style of each canvas that it takes over
  for (std::size_t at = browsed->dom.find("<canvas "); at != std::string::npos;
       at = browsed->dom.find("<canvas ", at + 1)) {
    drawn += browsed->dom.substr(at, browsed->dom.find('>', at) - at).find("display: block") != std::string::npos;
  }
  EXPECT_EQ(drawn, 6);
}

// By keyboard: the middle half of 700 steps, then a quarter of that further on, in all charts over the steps; then all.
TEST(Report, ChromiumLooksCloserAtAllChartsOverTheStepsTogether) {
  Folder folder;
  FakeRun{}.write(folder.path / "run");
  std::string html = render_page(folder.path / "run");
  html.insert(html.rfind("</body>"), R"(<script>
    const canvases = [...document.querySelectorAll('figure.chart canvas')], seen = [];
    for (const key of ['+', 'ArrowRight', 'Escape']) {
      canvases[1].dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));
      seen.push(canvases.map(canvas => [Chart.getChart(canvas).scales.x.min, Chart.getChart(canvas).scales.x.max]));
    }
    document.title = JSON.stringify(seen);
  </script>)");
  const auto browsed = browse(folder.path, html);
  if (!browsed) GTEST_SKIP() << "needs chromium on the PATH";
  const std::size_t begin = browsed->dom.find("<title>") + 7;
  const auto seen = nlohmann::json::parse(browsed->dom.substr(begin, browsed->dom.find("</title>") - begin));
  const double width = 699.0 / 2;
  for (std::size_t chart = 0; chart < 6; ++chart) {
    EXPECT_EQ(seen[0][chart], (std::vector<double>{width / 2, 1.5 * width})) << chart;
    EXPECT_EQ(seen[1][chart], (std::vector<double>{0.75 * width, 1.75 * width})) << chart;
    EXPECT_EQ(seen[2][chart], (std::vector<double>{0, 699})) << chart;
  }
}

}  // namespace
}  // namespace motley::report
