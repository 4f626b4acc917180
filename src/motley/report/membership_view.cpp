#include "motley/report/membership_view.h"

#include <algorithm>

#include "motley/base/statistics.h"
#include "motley/base/units.h"
#include "motley/report/page/chart.h"
#include "motley/report/page/html.h"

namespace motley::report {
namespace {

constexpr std::size_t kBefore = 8;  // steps whose median is how long a step took before a change
constexpr std::size_t kMaxChanges = 100;

bool is_change(const EventMetrics& event) {
  return event.event == "lost" || event.event == "left" || event.event == "joined" || event.event == "server-lost";
}

// The spans of time in which a worker had samples.
BarRow presence(const Run& run, std::size_t worker, const std::string& name) {
  const std::vector<StepMetrics>& steps = run.metrics.steps;
  std::vector<Segment> segments;
  std::size_t taken = 0;
  std::int64_t first = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (worker >= steps[i].samples.size() || steps[i].samples[worker] == 0) continue;
    // An attempt before may have had fewer workers.
    const bool goes_on = i > 0 && worker < steps[i - 1].samples.size() && steps[i - 1].samples[worker] > 0;
    if (!goes_on) {
      first = steps[i].step;
      segments.push_back({i > 0 ? steps[i - 1].time : 0, 0, "compute", ""});
    }
    segments.back().end = steps[i].time;
    segments.back().text = fmt::format("steps {} to {}", first, steps[i].step);
    ++taken;
  }
  return {name, segment_bar(segments, steps.back().time, fmt::format("{} took part in {} steps", name, taken)),
          fmt::format("{} of {} steps", taken, steps.size())};
}

// How much longer it took from the end of the step before the change to that of the next one than a step before.
std::string pause(const Run& run, const EventMetrics& event) {
  const std::vector<StepMetrics>& steps = run.metrics.steps;
  const auto next = std::ranges::upper_bound(steps, event.step, {}, &StepMetrics::step);
  const auto at = static_cast<std::size_t>(next - steps.begin());
  if (next == steps.end() || at < 2) return "–";
  std::vector<double> before;
  for (std::size_t i = at - std::min(at - 1, kBefore); i < at; ++i) {
    before.push_back(steps[i].time - steps[i - 1].time);
  }
  return format_seconds(std::max(0.0, steps[at].time - steps[at - 1].time - median(before)));
}

}  // namespace

std::string membership_view(const Run& run) {
  std::vector<const EventMetrics*> changes;
  for (const EventMetrics& event : run.metrics.events) {
    if (is_change(event)) changes.push_back(&event);
  }
  if (changes.empty() || run.metrics.steps.empty()) return "";
  std::vector<BarRow> bars;
  for (std::size_t i = 0; i < run.file.workers.size(); ++i) {
    bars.push_back(presence(run, i, worker_name(run, i)));
  }
  std::vector<std::vector<std::string>> rows = {{"after step", "at", "what happened", "pause"}};
  for (std::size_t i = changes.size(); i-- > 0 && rows.size() <= kMaxChanges;) {
    const EventMetrics& event = *changes[i];
    rows.push_back({fmt::format("{}", event.step), format_seconds(event.time), event.text, pause(run, event)});
  }
  return card("Who came and went",
              "Pause: how much longer than the steps before it the step took in which it happened; what the others "
              "computed in a lost worker's place is part of it, and so is waiting for another server.",
              bar_group("Taking part", format_seconds(run.metrics.steps.back().time), bars) +
                  fmt::format("<div class=\"log\" tabindex=\"0\">{}</div>\n", text_table(std::move(rows), {0, 3})),
              true);
}

}  // namespace motley::report
