#include "motley/report/schedule_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "motley/base/units.h"
#include "motley/report/page/chart.h"
#include "motley/report/page/html.h"
#include "motley/scheduling/trace/workload.h"

namespace motley::report {
namespace {

using Rows = std::vector<std::vector<std::string>>;

constexpr int kMaxTracks = 256;           // devices that a Gantt chart shows
constexpr std::size_t kMaxBlocks = 6000;  // and jobs' parts
constexpr std::size_t kMaxTicks = 8;
constexpr std::size_t kMaxJobs = 500;  // that the page of live jobs lists
constexpr const char* kDeadlines = "in time %";
constexpr const char* kShare = "of bound %";

std::string hours(double seconds) {
  return fmt::format("{:.2f}", seconds / 3600);
}

double per_job(const ScheduleView& view, double sum) {
  return sum / static_cast<double>(view.jobs.size());
}

using Changes = std::vector<std::pair<double, double>>;  // seconds, and what is added to a sum then

// A line a policy over time, of a sum that changes by steps.
template <class ListChanges>
std::string chart_over_time(LineChart chart, const ScheduleView& view, double scale, const ListChanges& list_changes) {
  chart.x_label = "hours";
  chart.from_zero = true;
  for (const scheduling::PolicyOutcome& one : view.outcomes) {
    Changes changes = list_changes(one.outcome);
    std::ranges::sort(changes);
    Series series{one.policy, static_cast<int>(chart.series.size())};
    double sum = 0;
    for (std::size_t i = 0; i < changes.size(); ++i) {
      const auto& [seconds, added] = changes[i];
      if (i == 0 || changes[i - 1].first != seconds) series.add(seconds / 3600, sum * scale);
      sum += added;
      if (i + 1 == changes.size() || changes[i + 1].first != seconds) series.add(seconds / 3600, sum * scale);
    }
    chart.series.push_back(std::move(series));
  }
  return line_chart(chart);
}

std::string queue_chart(const ScheduleView& view) {
  const LineChart chart{.title = "Jobs that wait",
                        .summary = "How many jobs have arrived and have no workers, over time, by policy.",
                        .y_label = "jobs"};
  return chart_over_time(chart, view, 1, [&](const scheduling::Outcome& outcome) {
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
  const LineChart chart{.title = "Devices that are busy",
                        .summary = "The share of all devices that jobs have, over time, by policy.",
                        .y_label = "share of devices",
                        .percent = true};
  return chart_over_time(chart, view, 1.0 / view.topology.devices(), [](const scheduling::Outcome& outcome) {
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
  LineChart chart{.title = "Time from arrival to completion",
                  .summary = "The share of jobs that are done within so many hours of their arrival, by policy.",
                  .x_label = "hours",
                  .y_label = "share of jobs",
                  .percent = true,
                  .from_zero = true};
  for (const scheduling::PolicyOutcome& one : view.outcomes) {
    std::vector<double> seconds;
    for (std::size_t i = 0; i < view.jobs.size(); ++i) {
      const double finished = one.outcome.jobs[i].finished;
      if (std::isfinite(finished)) seconds.push_back(finished - view.jobs[i].arrival);
    }
    std::ranges::sort(seconds);
    Series series{one.policy, static_cast<int>(chart.series.size())};
    for (std::size_t i = 0; i < seconds.size(); ++i) {
      series.add(seconds[i] / 3600, per_job(view, static_cast<double>(i + 1)));
    }
    chart.series.push_back(std::move(series));
  }
  return line_chart(chart);
}

// A mark a policy: how soon jobs are done, and how far the one treated worst is behind.
std::string trade_off_chart(const ScheduleView& view) {
  LineChart chart{.title = "Soon or fair",
                  .summary =
                      "For each policy, mean hours to completion and how many times as long as with an equal part "
                      "of the cluster the job took that was treated worst.",
                  .x_label = "mean hours to completion",
                  .y_label = "times as long, worst job",
                  .from_zero = true};
  for (const scheduling::PolicyOutcome& one : view.outcomes) {
    Series series{one.policy, static_cast<int>(chart.series.size()), LineStyle::kMarks};
    series.add(scheduling::compute_completion(view.jobs, one.outcome).mean / 3600,
               scheduling::compute_fairness(view.jobs, view.topology, one.outcome).worst);
    chart.series.push_back(std::move(series));
  }
  return line_chart(chart);
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

// Hands out a node's tracks, which are busy until these times: a run keeps the lowest that are free, which need not be
// side by side.
std::vector<int> take_tracks(std::vector<double>& busy_until, int count, double begin, double end) {
  std::vector<int> tracks;
  for (std::size_t track = 0; track < busy_until.size() && static_cast<int>(tracks.size()) < count; ++track) {
    if (busy_until[track] > begin) continue;
    busy_until[track] = end;
    tracks.push_back(static_cast<int>(track));
  }
  return tracks;
}

// A card of who ran where: on the first nodes, and from the begin on for as long as there are not too many blocks.
std::string gantt(const ScheduleView& view, const scheduling::PolicyOutcome& one) {
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

  std::vector<std::vector<double>> busy_until;  // of each node's tracks
  for (const auto& [name, count] : groups) busy_until.emplace_back(static_cast<std::size_t>(count), -1);
  std::vector<Block> blocks;
  double end = std::max(one.outcome.end, 1.0);
  for (const scheduling::Run* run : runs) {
    if (blocks.size() >= kMaxBlocks) {
      end = run->begin;
      break;
    }
    for (const scheduling::Part& part : run->placement) {
      const auto node = static_cast<std::size_t>(part.node);
      if (node >= groups.size()) continue;
      const std::vector<int> taken = take_tracks(busy_until[node], part.workers, run->begin, run->end);
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
  const std::string hint = fmt::format("A row is a device, a colour a job. {} of {} devices, {} of {} hours.", tracks,
                                       view.topology.devices(), hours(end), hours(one.outcome.end));
  return card("Who ran where: " + one.policy, escape(hint),
              gantt_chart(blocks, groups, end, "Which jobs ran where under " + one.policy) + bar_axis(ticks, end),
              true);
}

// The nodes of a live cluster, and which jobs have their devices.
Rows node_rows(const scheduling::Controller& controller) {
  std::map<std::string, std::pair<int, std::vector<std::string>>> used;  // devices, and by which jobs
  for (const scheduling::JobRecord& record : controller.records()) {
    for (const scheduling::NodeAllocation& allocation : record.nodes) {
      auto& [devices, jobs] = used[allocation.node];
      devices += allocation.workers;
      jobs.push_back(fmt::format("{} ({})", record.job.name, allocation.workers));
    }
  }
  Rows rows = {{"node", "type", "state", "devices used", "jobs"}};
  for (std::size_t i = 0; i < controller.topology().nodes.size(); ++i) {
    const scheduling::Node& node = controller.topology().nodes[i];
    const auto& [devices, jobs] = used[node.name];
    rows.push_back({node.name, controller.topology().type_name(node), controller.node_state(i),
                    fmt::format("{} of {}", devices, node.devices), fmt::format("{}", fmt::join(jobs, ", "))});
  }
  return rows;
}

}  // namespace

Rows schedule_rows(const ScheduleView& view) {
  Rows rows = {{"policy", "mean h", "median h", "p99 h", "makespan h", "busy %", "utility", "unfair %", "worst",
                "restarts a job", "decisions", "ms each"}};
  for (const scheduling::PolicyOutcome& one : view.outcomes) {
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
  const Rows rows = schedule_rows(view);
  std::vector<std::size_t> numeric(rows.front().size() - 1);
  std::iota(numeric.begin(), numeric.end(), 1);
  std::string cards = card("Policies compared",
                           "Hours from arrival to completion. Utility is the sum of the jobs' own, and its bound what "
                           "each would have alone. Unfair are jobs that took longer than they would have with an equal "
                           "part of the cluster; the worst one so many times as long.",
                           text_table(rows, numeric), true) +
                      card("Waiting", "", queue_chart(view)) + card("Busy devices", "", busy_chart(view)) +
                      card("Done within", "", completion_chart(view)) + card("Soon or fair", "", trade_off_chart(view));
  for (const scheduling::PolicyOutcome& one : view.outcomes) cards += gantt(view, one);
  return document(
      {.title = "Schedule of " + view.trace,
       .heading = view.trace,
       .facts = {fmt::format("{} jobs", view.jobs.size()),
                 fmt::format("{} device-hours asked for", hours(device_seconds)),
                 fmt::format("{} devices on {} nodes", view.topology.devices(), view.topology.nodes.size())},
       .cards_html = cards});
}

std::string scheduler_page(const scheduling::Controller& controller) {
  Rows rows = {{"id", "name", "state", "workers", "nodes", "attempt", "restart cost", "last change"}};
  int pending = 0, running = 0, over = 0;
  const std::vector<scheduling::JobRecord>& records = controller.records();
  for (auto record = records.rbegin(); record != records.rend(); ++record) {
    const bool is_pending = record->state == scheduling::JobState::kPending;
    ++(is_over(record->state) ? over : is_pending ? pending : running);
    if (rows.size() > kMaxJobs) continue;
    const std::string resizing =
        record->resizing.empty() ? "" : fmt::format(", to go on with {}", count_workers(record->resizing));
    rows.push_back({fmt::format("{}", record->id), record->job.name, to_string(record->state),
                    fmt::format("{}{}", count_workers(record->nodes), resizing), scheduling::describe(record->nodes),
                    fmt::format("{}", record->attempt),
                    format_seconds(record->restart_cost()) + (record->measured_restart_cost ? " measured" : ""),
                    record->changed});
  }
  return document({.title = "Scheduler",
                   .facts = {fmt::format("{} pending", pending), fmt::format("{} running", running),
                             fmt::format("{} over", over), fmt::format("policy {}", controller.policy())},
                   .cards_html = card("Nodes", "", text_table(node_rows(controller)), true) +
                                 card("Jobs", "The newest first.", text_table(rows, {0, 3, 5}), true)});
}

}  // namespace motley::report
