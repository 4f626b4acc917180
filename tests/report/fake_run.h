// A run directory made up for tests: four workers of speeds 1, 1, 1/2, 1/4 whose shares settle within a few steps, with
// noise, baseline steps, evaluations, a checkpoint, decisions and a timeline, all as docs/reference/run-directory.md
// says.
#pragma once

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "motley/base/os/file.h"
#include "motley/base/random.h"
#include "motley/serial/bench_row.h"
#include "motley/train/records/metrics.h"

namespace motley::report::testing {

struct FakeRun {
  std::vector<double> speeds = {1, 1, 0.5, 0.25};
  std::vector<std::string> names = {"fast-a", "fast-b", "half", "quarter"};
  int steps = 700;
  int baseline_every = 25;
  std::string mode = "dynamic";
  bool keeps_equal = false;  // the split is never learned
  bool finished = true;
  // The last worker, before step 200, after which it takes 12.5 s to go on; another one takes its place before step
  // 300.
  bool loses_one = false;
  std::string loss = "lost";  // the kind of the event
  std::string loss_text = "rank 3 was lost; 3 of 4 workers go on";
  double row_bytes = 0;  // of the first worker's rows, pulled in a step; the others look none up
  std::string decision = "the measured speeds differ: a step should take 141 ms instead of 190 ms";
  std::string job = "model: cnn\ndataset: fashion-mnist\nglobal_batch: 256\nepochs: 3\nshares: dynamic\n";

  nlohmann::ordered_json price, planned;  // null: none
  nlohmann::ordered_json attempts = nlohmann::ordered_json::array();
  double rate = 0.05;  // of learning, where decays_rate falls to nothing along the run
  bool decays_rate = false;
  std::string gradient_sync = "shared-memory";

  double seconds_per_sample = 1.5e-3;
  double batch = 256;
  std::optional<double> last_loss = {};  // of the last fifth of the steps

  void write(const std::filesystem::path& folder) const {
    using Json = nlohmann::ordered_json;
    const std::size_t workers = speeds.size();
    (void)make_folders(folder);
    Random random(11);

    Json people = Json::array();
    for (std::size_t i = 0; i < workers; ++i) {
      people.push_back({{"rank", i},
                        {"name", names[i]},
                        {"device", "cpu"},
                        {"emulated", Json(fmt::format("{:.1f} ms a sample", 1e3 * seconds_per_sample / speeds[i]))}});
    }
    const Json head = {{"motley_version", "0.1.0"},
                       {"started", 1773480413.5},
                       {"workers", people},
                       {"gradient_sync", gradient_sync},
                       {"attempts", attempts},
                       {"finished", finished},
                       {"exit", finished ? "done" : ""},
                       {"error", nullptr},
                       {"machine", "2 cores, 8 GB"},
                       {"global_batch_size", static_cast<int>(batch)},
                       {"training_samples", 60000},
                       {"price_per_hour", price},
                       {"planned", planned}};
    (void)write_file(folder / "run.json", head.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
    (void)write_file(folder / "job.yaml", job);

    double total_speed = 0;
    for (const double speed : speeds) {
      total_speed += speed;
    }
    std::string lines;
    Json trace = Json::array();
    double time = 0;
    for (int step = 0; step < steps; ++step) {
      const bool baseline = workers > 1 && step > 0 && step % baseline_every == 0;
      const double learned = baseline || keeps_equal ? 0 : std::min(1.0, step / 4 / 3.0);
      std::vector<double> samples(workers), compute(workers), load(workers), gradient_sync(workers), wait(workers);
      double last = 0;
      double rest = batch;
      for (std::size_t i = 0; i < workers; ++i) {
        samples[i] =
            std::round(batch * ((1 - learned) / static_cast<double>(workers) + learned * speeds[i] / total_speed));
        rest -= samples[i];
      }
      samples[0] += rest;
      for (std::size_t i = 0; i < workers; ++i) {
        load[i] = 1.2e-3 * (1 + 0.2 * random.uniform());
        compute[i] = samples[i] * seconds_per_sample / speeds[i] * (1 + 0.015 * random.normal());
        last = std::max(last, load[i] + compute[i]);
      }
      for (std::size_t i = 0; i < workers; ++i) {
        gradient_sync[i] = workers > 1 ? 4e-3 * (1 + 0.1 * random.uniform()) : 0;
        wait[i] = std::max(0.0, last - load[i] - compute[i]);
      }
      const double seconds = last + (workers > 1 ? 4.4e-3 : 0) + (step == 350 ? 1.2 : 0);
      if (step < 10 || step == 675 || step == 676) {
        for (std::size_t i = 0; i < workers; ++i) {
          double at = time;
          const auto span = [&](const char* name, int thread, double length) {
            trace.push_back({{"ph", "X"},
                             {"name", name},
                             {"pid", i},
                             {"tid", thread},
                             {"ts", at * 1e6},
                             {"dur", length * 1e6},
                             {"args", {{"step", step}}}});
            at += length;
          };
          span("load", 0, load[i]);
          span("forward", 0, compute[i] / 3);
          span("backward", 0, compute[i] * 2 / 3);
          at -= compute[i] / 4;
          span("emulated", 0, compute[i] / 4);
          at -= 2e-3;
          span("gradient_sync", 1, 2e-3);
          span("wait", 1, wait[i]);
          span("gradient_sync", 1, gradient_sync[i]);
          span("optimizer", 0, 1e-3);
        }
      }
      time += seconds;
      const double progress = static_cast<double>(step) / 250;
      train::StepMetrics line;
      line.step = step;
      line.epoch = static_cast<std::uint64_t>(step / 234);
      line.time = time;
      line.loss = 0.28 + 2.0 * std::exp(-4 * progress) + 0.06 * random.normal();
      if (last_loss && step >= steps * 4 / 5) line.loss = *last_loss;
      line.accuracy = std::min(1.0, 0.9 - 0.8 * std::exp(-5 * progress) + 0.02 * random.normal());
      line.learning_rate = rate * (decays_rate ? 1 - static_cast<double>(step) / steps : 1);
      line.step_seconds = seconds;
      line.mode = mode;
      line.baseline = baseline;
      line.samples.assign(samples.begin(), samples.end());
      if (loses_one && step >= 200 && step < 300) line.samples.back() = 0;
      line.batch_split = line.samples;
      line.compute_seconds = compute;
      line.load_seconds = load;
      line.gradient_sync_seconds = gradient_sync;
      line.wait_seconds = wait;
      if (step >= 4) line.predicted_seconds = batch * seconds_per_sample / total_speed + 5.5e-3;
      if (row_bytes > 0) {
        const auto of_first = [&](double value) {
          std::vector<double> values(workers);
          values[0] = value;
          return values;
        };
        line.sent_bytes.assign(workers, 2e6);
        line.embedding = {of_first(row_bytes), of_first(row_bytes / 2), of_first(0.25e-3),
                          of_first(1000),      of_first(400),           of_first(450)};
      }
      if (step == 4 || step == 8 || step == 12) {
        line.decision = decision;
      }
      lines += train::to_json(line) + "\n";
      if (step % 117 == 116) {
        lines += train::to_json(train::EvaluationMetrics{line.step,
                                                         line.epoch,
                                                         time,
                                                         {.loss = 0.32 + 1.2 * std::exp(-4 * progress),
                                                          .accuracy = 0.889 - 0.4 * std::exp(-5 * progress)}}) +
                 "\n";
      }
      if (loses_one && (step == 199 || step == 299)) {
        const bool is_lost = step == 199;
        lines += train::to_json(
                     train::EventMetrics{.step = step,
                                         .time = time,
                                         .event = is_lost ? loss : "joined",
                                         .text = is_lost ? loss_text : "rank 3 has joined; 4 of 4 workers go on"}) +
                 "\n";
        time += is_lost ? 12.5 : 0;
      }
      if (step == 350) {
        lines += train::to_json(train::EventMetrics{
                     .step = step, .time = time, .event = "checkpoint", .text = "checkpoint/ at step 350"}) +
                 "\n";
      }
    }
    (void)write_file(folder / "metrics.jsonl", lines);
    (void)write_file(folder / "timeline.json", Json{{"traceEvents", trace}}.dump());
    if (finished) {
      const std::string name = "speeds-1-1-half-quarter";
      (void)write_file(folder / "summary.json",
                       to_json({{name, "test_accuracy", 0.8862, "", true, 0.88},
                                {name, "step_speedup_over_equal", 2.58, "x", true, 2.2, 2.75, {}, "workers emulated"},
                                {name, "worst_wait_share", 0.042, "", false, 0.10, {}, {}, "after step 20"},
                                {name, "samples_not_used_exactly_once", 0, "samples", false, 0}}));
    }
  }
};

}  // namespace motley::report::testing
