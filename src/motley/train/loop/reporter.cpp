#include "motley/train/loop/reporter.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "motley/base/log.h"
#include "motley/base/os/file.h"
#include "motley/base/units.h"

namespace motley::train {
namespace {

std::vector<double> list(std::span<const Report> reports, double Report::* value) {
  std::vector<double> values;
  for (const Report& report : reports) values.push_back(report.*value);
  return values;
}

double sum(std::span<const Report> reports, double Report::* value) {
  double total = 0;
  for (const Report& report : reports) total += report.*value;
  return total;
}

}  // namespace

Status Reporter::open(const std::filesystem::path& folder) {
  const std::filesystem::path metrics = folder / "metrics.jsonl";
  if (!std::ofstream(metrics, std::ios::app)) {  // it is there before the first step is done
    return fail(ErrorCode::kIo, "cannot open '{}': {}", metrics.string(), errno_text());
  }
  MOTLEY_ASSIGN(TensorBoardWriter tensorboard, TensorBoardWriter::open(folder / "tensorboard", wall_seconds()));
  outputs_.emplace(metrics, std::move(tensorboard), ProgressLine());
  return {};
}

Status Reporter::write(const MetricsLine& line) const {
  return outputs_ ? append_line(outputs_->metrics, to_json(line)) : Status();
}

Status Reporter::step(const Step& step, std::span<const Report> reports, const BatchPlan& plan, double seconds) {
  if (!outputs_ && !options_.is_elastic) {
    return {};
  }
  const StepMetrics line = measure(step, reports, plan, seconds);
  if (options_.is_elastic) last_ = line;
  if (!outputs_) {
    return {};
  }
  MOTLEY_TRY(write(line));
  MOTLEY_TRY(draw(line));
  show_progress(step, line);
  return {};
}

Status Reporter::repeat(std::int64_t step) {
  return last_ && last_->step == step ? write(*last_) : Status();
}

StepMetrics Reporter::measure(const Step& step, std::span<const Report> reports, const BatchPlan& plan,
                              double seconds) {
  const double metric = sum(reports, &Report::metric_sum) / sum(reports, &Report::metric_count);
  StepMetrics line;
  line.step = step.number;
  line.epoch = step.ledger.epoch;
  line.time = now();
  line.loss = sum(reports, &Report::loss_sum) / sum(reports, &Report::loss_count);
  (options_.has_accuracy ? line.accuracy : line.mean_absolute_error) = metric;
  line.learning_rate = step.learning_rate;
  line.step_seconds = seconds;
  line.mode = plan.mode(step);
  line.baseline = step.baseline;
  const double last = last_compute(reports);
  for (const Report& r : reports) {
    // At a step of its own a rank waits for the server, which may wait for others; else it waits for the last rank, and
    // by a plan for its neighbours, too.
    const double wait = r.total == 0 ? 0 : (options_.is_async ? r.total : last) - r.compute + r.waited;
    line.batch_split.push_back(static_cast<std::int64_t>(r.samples));
    line.compute_seconds.push_back(r.compute - r.load - r.waited);
    line.wait_seconds.push_back(wait);
    line.gradient_sync_seconds.push_back(std::max(0.0, r.total - r.compute - wait + r.waited));
    if (options_.is_async) {
      line.staleness.push_back(static_cast<std::int64_t>(r.staleness));
    }
  }
  line.samples = line.batch_split;
  line.load_seconds = list(reports, &Report::load);
  line.memory_bytes = list(reports, &Report::memory);
  line.sent_bytes = list(reports, &Report::sent_bytes);
  if (options_.has_remote_data) {
    line.data_wait_seconds = list(reports, &Report::fetched);
  }
  if (options_.has_served_table) {
    const auto rows = [&](double RowsReport::* value) {
      std::vector<double> values;
      for (const Report& report : reports) values.push_back(report.rows.*value);
      return values;
    };
    line.embedding = {rows(&RowsReport::pulled_bytes), rows(&RowsReport::pushed_bytes), rows(&RowsReport::waited),
                      rows(&RowsReport::needed),       rows(&RowsReport::cached),       rows(&RowsReport::prefetched)};
  }
  const BatchPlan::Figures split = plan.figures();
  line.predicted_seconds = split.predicted;
  line.split.bound_seconds = split.bound;
  line.split.equal_seconds = split.equal;
  if (plan.moves() != moves_) {
    moves_ = plan.moves();
    line.decision = split.reason;
  }
  return line;
}

Status Reporter::draw(const StepMetrics& line) {
  const std::pair<std::string, double> points[] = {
      {"train/loss", line.loss},
      line.accuracy ? std::pair("train/accuracy", *line.accuracy)
                    : std::pair("train/mean_absolute_error", *line.mean_absolute_error),
      {"train/learning_rate", line.learning_rate},
      {"time/step_seconds", line.step_seconds}};
  for (const auto& [tag, value] : points) MOTLEY_TRY(outputs_->tensorboard.scalar(tag, line.step, value));
  for (std::size_t rank = 0; rank < line.samples.size(); ++rank) {
    MOTLEY_TRY(outputs_->tensorboard.scalar(fmt::format("batch_split/rank_{}", rank), line.step,
                                            static_cast<double>(line.samples[rank])));
  }
  return {};
}

void Reporter::show_progress(const Step& step, const StepMetrics& line) {
  const double seconds = line.step_seconds;
  const double samples = step.window.size();
  const bool is_first = smooth_step_seconds_ == 0;
  smooth_step_seconds_ = is_first ? seconds : 0.95 * smooth_step_seconds_ + 0.05 * seconds;
  smooth_step_samples_ = is_first ? samples : 0.95 * smooth_step_samples_ + 0.05 * samples;
  const double epoch = static_cast<double>(step.ledger.epoch) + (step.ledger.cursor + samples) / step.ledger.size;
  const bool is_last = step.number == options_.steps;
  const double left = static_cast<double>(options_.steps - step.number) * smooth_step_seconds_;
  const double rate = std::round(smooth_step_samples_ / smooth_step_seconds_);
  outputs_->progress.show(
      {static_cast<double>(step.number) / static_cast<double>(options_.steps),
       fmt::format("step {:>{}}/{}  epoch {:.2f}  loss {:<6.4g}{}  {}", step.number,
                   fmt::formatted_size("{}", options_.steps), options_.steps, epoch, line.loss,
                   line.accuracy ? fmt::format("  accuracy {:.3f}", *line.accuracy) : "",
                   is_last ? "in " + format_seconds(now())
                           : fmt::format("{:>6} samples/s  {} left", format_number(rate), format_seconds(left)))},
      is_last);
}

Status Reporter::evaluation(std::int64_t step, std::uint64_t epoch, const std::vector<Evaluator::Value>& values) {
  if (!outputs_) {
    return {};
  }
  nlohmann::ordered_json found = nlohmann::ordered_json::object();
  std::string text;
  for (const auto& [name, value] : values) {
    found[name] = value;
    text += fmt::format("  test {} {:.4f}", name, value);
    MOTLEY_TRY(outputs_->tensorboard.scalar("test/" + name, step, value));
  }
  MOTLEY_TRY(flush());
  clear_progress();
  spdlog::info("step {}:{}", step, text);
  found = {{"step", step}, {"epoch", epoch}, {"time", now()}, {"evaluation", found}};
  return append_line(outputs_->metrics, found.dump());
}

Status Reporter::audit(std::int64_t step, const SampleAudit::Finding& finding) {
  const std::string text =
      fmt::format("epoch {}: {} lost or duplicated", finding.epoch, format_count(finding.wrong, "sample"));
  if (outputs_ && finding.wrong > 0) {
    spdlog::error("{}", text);
  }
  return write(EventMetrics{step, finding.epoch, now(), "audit", text, finding.wrong});
}

Status Reporter::event(std::int64_t step, const std::string& kind, const std::string& text) {
  return write(EventMetrics{step, {}, now(), kind, text, {}});
}

void Reporter::clear_progress() {
  if (outputs_) outputs_->progress.clear();
}

Status Reporter::flush() {
  return outputs_ ? outputs_->tensorboard.flush() : Status();
}

}  // namespace motley::train
