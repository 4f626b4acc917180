#include "motley/report/schedule_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "motley/report/page/chart.h"
#include "motley/report/page/html.h"
#include "motley/scheduling/trace/workload.h"

namespace motley::report {
namespace {

using report::escape;

constexpr int kMaxTracks = 256;           // devices that a Gantt chart shows
constexpr std::size_t kMaxBlocks = 6000;  // and jobs' parts
constexpr std::size_t kMaxTicks = 8;
constexpr const char* kDeadlines = "in time %";
constexpr const char* kShare = "of bound %";

std::string hours(double seconds) {
  return fmt::format("{:.2f}", seconds / 3600);
}

double per_job(const ScheduleView& view, double sum) {
  return sum / static_cast<double>(view.jobs.size());
}

// A line over time that changes by steps, from what is added to it at each time.
report::Series stairs(const std::string& name, int color, std::vector<std::pair<double, double>> changes,
                      double scale) {
  std::ranges::sort(changes);
  report::Series series{name, color, report::LineStyle::kLine, {}, {}};
  const auto add = [&](double seconds, double value) {
    series.x.push_back(seconds / 3600);
    series.y.push_back(value * scale);
  };
  double value = 0;
  for (std::size_t i = 0; i < changes.size(); ++i) {
    const bool is_first = i == 0 || changes[i - 1].first != changes[i].first;
    if (is_first) add(changes[i].first, value);
    value += changes[i].second;
    const bool is_last = i + 1 == changes.size() || changes[i + 1].first != changes[i].first;
    if (is_last) add(changes[i].first, value);
  }
  return series;
}

using Changes = std::vector<std::pair<double, double>>;  // seconds, and what is added to a sum then

// A line a policy, of sums that change by steps.
template <class ListChanges>
std::string chart_over_time(report::LineChart chart, const ScheduleView& view, double scale,
                            const ListChanges& list_changes) {
  chart.x_label = "hours";
  chart.from_zero = true;
  for (const PolicyOutcome& one : view.outcomes) {
    chart.series.push_back(stairs(one.policy, static_cast<int>(chart.series.size()), list_changes(one.outcome), scale));
  }
  return report::line_chart(chart);
}

std::string queue_chart(const ScheduleView& view) {
  report::LineChart chart;
  chart.title = "Jobs that wait";
  chart.summary = "How many jobs have arrived and have no workers, over time, by policy.";
  chart.y_label = "jobs";
  return chart_over_time(std::move(chart), view, 1, [&](const scheduling::Outcome& outcome) {
    Changes changes;
    for (std::size_t i = 0; i < view.jobs.size(); ++i) {
      changes.emplace_back(view.jobs[i].arrival, 1);
      if (std::isfinite(outcome.jobs[i].finished)) changes.emplace_back(outcome.jobs[i].finished, -1);
    }
    for (const scheduling::Run& run : outcome.runs) {
      changes.emplace_back(run.begin, -1);
      changes.emplace_back(run.end, 1);
    }
    return changes;
  });
}

std::string busy_chart(const ScheduleView& view) {
  report::LineChart chart;
  chart.title = "Devices that are busy";
  chart.summary = "The share of all devices that jobs have, over time, by policy.";
  chart.y_label = "share of devices";
  chart.percent = true;
  return chart_over_time(std::move(chart), view, 1.0 / view.topology.devices(), [](const scheduling::Outcome& outcome) {
    Changes changes;
    for (const scheduling::Run& run : outcome.runs) {
      const double workers = scheduling::count_workers(run.placement);
      changes.emplace_back(run.begin, workers);
      changes.emplace_back(run.end, -workers);
    }
    return changes;
  });
}

std::string completion_chart(const ScheduleView& view) {
  report::LineChart chart{"Time from arrival to completion",
                          "The share of jobs that are done within so many hours of their arrival, by policy.",
                          "hours",
                          "share of jobs",
                          {}};
  chart.percent = chart.from_zero = true;
  int color = 0;
  for (const PolicyOutcome& one : view.outcomes) {
    std::vector<double> seconds;
    for (std::size_t i = 0; i < view.jobs.size(); ++i) {
      const double finished = one.outcome.jobs[i].finished;
      if (std::isfinite(finished)) seconds.push_back(finished - view.jobs[i].arrival);
    }
    std::ranges::sort(seconds);
    report::Series series{one.policy, color++, report::LineStyle::kLine, {}, {}};
    for (std::size_t i = 0; i < seconds.size(); ++i) {
      series.x.push_back(seconds[i] / 3600);
      series.y.push_back(static_cast<double>(i + 1) / static_cast<double>(view.jobs.size()));
    }
    chart.series.push_back(std::move(series));
  }
  return report::line_chart(chart);
}

// A mark a policy: how soon jobs are done, and how far the one treated worst is behind.
std::string trade_off_chart(const ScheduleView& view) {
  report::LineChart chart;
  chart.title = "Soon or fair";
  chart.summary =
      "For each policy, mean hours to completion and how many times as long as with an equal part of the "
      "cluster the job took that was treated worst.";
  chart.x_label = "mean hours to completion";
  chart.y_label = "times as long, worst job";
  chart.from_zero = true;
  for (const PolicyOutcome& one : view.outcomes) {
    chart.series.push_back({one.policy,
                            static_cast<int>(chart.series.size()),
                            report::LineStyle::kMarks,
                            {scheduling::compute_completion(view.jobs, one.outcome).mean / 3600},
                            {scheduling::compute_fairness(view.jobs, view.topology, one.outcome).worst}});
  }
  return report::line_chart(chart);
}

// The share of jobs with a deadline that were done by it; none where there are no deadlines.
std::string deadlines_met(const ScheduleView& view, const scheduling::Outcome& outcome) {
  double jobs = 0, met = 0;
  for (std::size_t i = 0; i < view.jobs.size(); ++i) {
    if (std::isinf(view.jobs[i].deadline)) continue;
    ++jobs;
    if (outcome.jobs[i].finished - view.jobs[i].arrival <= view.jobs[i].deadline) ++met;
  }
  return jobs > 0 ? fmt::format("{:.1f}", 100 * met / jobs) : "";
}

// Hands out a node's tracks: each run keeps the lowest that are free, which need not be side by side.
class Tracks {
 public:
  explicit Tracks(int count) : busy_until_(static_cast<std::size_t>(count), -1) {}

  std::vector<int> take(int count, double begin, double end) {
    std::vector<int> tracks;
    for (std::size_t track = 0; track < busy_until_.size() && static_cast<int>(tracks.size()) < count; ++track) {
      if (busy_until_[track] > begin) continue;
      busy_until_[track] = end;
      tracks.push_back(static_cast<int>(track));
    }
    return tracks;
  }

 private:
  std::vector<double> busy_until_;
};

struct Gantt {
  std::string html;
  std::string hint;
};

// Of the first nodes, and from the begin on for as long as there are not too many blocks.
Gantt gantt(const ScheduleView& view, const PolicyOutcome& one) {
  std::vector<std::pair<std::string, int>> groups;
  std::vector<int> first_track;
  int tracks = 0;
  for (const scheduling::Node& node : view.topology.nodes) {
    if (!groups.empty() && tracks + node.devices > kMaxTracks) break;
    first_track.push_back(tracks);
    const std::string type = view.topology.type_name(node);
    groups.emplace_back(type.empty() ? node.name : fmt::format("{} ({})", node.name, type),
                        std::min(node.devices, kMaxTracks));
    tracks += groups.back().second;
  }
  std::vector<const scheduling::Run*> runs;
  for (const scheduling::Run& run : one.outcome.runs) runs.push_back(&run);
  std::ranges::stable_sort(runs, {}, [](const scheduling::Run* run) { return run->begin; });

  std::vector<Tracks> free;
  for (const auto& [name, count] : groups) free.emplace_back(count);
  std::vector<report::Block> blocks;
  double end = std::max(one.outcome.end, 1.0);
  for (const scheduling::Run* run : runs) {
    if (blocks.size() >= kMaxBlocks) {
      end = run->begin;
      break;
    }
    for (const scheduling::Part& part : run->placement) {
      const auto node = static_cast<std::size_t>(part.node);
      if (node >= groups.size()) continue;
      const std::vector<int> taken = free[node].take(part.workers, run->begin, run->end);
      for (std::size_t i = 0; i < taken.size();) {  // tracks side by side are one block
        std::size_t next = i + 1;
        while (next < taken.size() && taken[next] == taken[next - 1] + 1) ++next;
        blocks.push_back(
            {run->begin, run->end, first_track[node] + taken[i], static_cast<int>(next - i), run->job,
             fmt::format("{}: {} of {} workers on {}, {} h to {} h", view.jobs[static_cast<std::size_t>(run->job)].name,
                         part.workers, scheduling::count_workers(run->placement), groups[node].first, hours(run->begin),
                         hours(run->end))});
        i = next;
      }
    }
  }
  std::vector<std::pair<double, std::string>> ticks;
  for (std::size_t i = 0; i <= kMaxTicks; ++i) {
    const double at = end * static_cast<double>(i) / kMaxTicks;
    ticks.emplace_back(at, hours(at) + " h");
  }
  Gantt drawn;
  drawn.html = report::gantt_chart(blocks, groups, end, "Which jobs ran where under " + one.policy) +
               report::bar_axis(ticks, end);
  drawn.hint = fmt::format("A row is a device, a colour a job. {} of {} devices, {} of {} hours.", tracks,
                           view.topology.devices(), hours(end), hours(one.outcome.end));
  return drawn;
}

}  // namespace

std::vector<std::vector<std::string>> schedule_rows(const ScheduleView& view) {
  std::vector<std::vector<std::string>> rows = {{"policy", "mean h", "median h", "p99 h", "makespan h", "busy %",
                                                 "utility", "unfair %", "worst", "restarts a job", "decisions",
                                                 "ms each"}};
  for (const PolicyOutcome& one : view.outcomes) {
    const scheduling::Outcome& outcome = one.outcome;
    const scheduling::Completion completion = scheduling::compute_completion(view.jobs, outcome);
    const scheduling::Fairness fairness = scheduling::compute_fairness(view.jobs, view.topology, outcome);
    double restarts = 0;
    for (const scheduling::JobOutcome& job : outcome.jobs) restarts += job.restarts;
    rows.push_back({one.policy, hours(completion.mean), hours(completion.median), hours(completion.p99),
                    hours(outcome.end - outcome.begin), fmt::format("{:.1f}", 100 * outcome.utilisation),
                    fmt::format("{:.4g}", outcome.utility), fmt::format("{:.1f}", 100 * fairness.unfair),
                    fmt::format("{:.2f}", fairness.worst), fmt::format("{:.2f}", per_job(view, restarts)),
                    fmt::format("{}", outcome.decisions),
                    fmt::format("{:.4f}", 1e3 * outcome.decision_seconds / static_cast<double>(outcome.decisions))});
    if (std::isfinite(view.horizon)) {
      if (rows.size() == 2) rows.front().emplace_back(kShare);
      rows.back().push_back(fmt::format(
          "{:.2f}", 100 * outcome.utility / scheduling::utility_bound(view.jobs, view.topology, view.horizon)));
    }
    if (view.has_failures) {
      int failures = 0;
      for (const scheduling::JobOutcome& job : outcome.jobs) failures += job.failures;
      if (rows.size() == 2) rows.front().insert(rows.front().end(), {"jobs lost places", "lost device-h"});
      rows.back().push_back(fmt::format("{}", failures));
      rows.back().push_back(hours(outcome.lost_device_seconds));
    }
    const std::string met = deadlines_met(view, outcome);
    if (met.empty()) continue;
    if (rows.front().back() != kDeadlines) rows.front().emplace_back(kDeadlines);
    rows.back().push_back(met);
  }
  return rows;
}

std::string schedule_page(const ScheduleView& view) {
  double device_seconds = 0;
  for (const scheduling::Job& job : view.jobs) device_seconds += job.device_seconds();
  std::string body = fmt::format(
      "<header><h1>{}</h1>\n<div class=\"facts\"><span>{} jobs</span><span>{} device-hours asked for</span><span>{} "
      "devices on {} nodes</span></div></header>\n<main>\n<div class=\"cards\">",
      escape(view.trace), view.jobs.size(), hours(device_seconds), view.topology.devices(), view.topology.nodes.size());
  std::vector<std::vector<std::string>> rows = schedule_rows(view);
  const std::vector<std::string> headings = rows.front();
  rows.erase(rows.begin());
  for (std::vector<std::string>& row : rows) {
    for (std::string& cell : row) cell = escape(cell);
  }
  std::vector<std::size_t> numeric(headings.size() - 1);
  std::iota(numeric.begin(), numeric.end(), 1);
  body += report::card("Policies compared",
                       "Hours from arrival to completion. Utility is the sum of the jobs' own, and its bound what each "
                       "would have alone. Unfair are jobs that took longer than they would have with an equal part of "
                       "the cluster; the worst one so many times as long.",
                       report::table(headings, rows, numeric), true);
  body += report::card("Waiting", "", queue_chart(view));
  body += report::card("Busy devices", "", busy_chart(view));
  body += report::card("Done within", "", completion_chart(view));
  body += report::card("Soon or fair", "", trade_off_chart(view));
  for (const PolicyOutcome& one : view.outcomes) {
    const Gantt drawn = gantt(view, one);
    body += report::card("Who ran where: " + one.policy, escape(drawn.hint), drawn.html, true);
  }
  return report::document("Schedule of " + view.trace, body + "</div></main>");
}

}  // namespace motley::report
