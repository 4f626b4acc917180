#include "motley/report/schedule_page.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <tuple>

#include "motley/base/units.h"
#include "motley/report/page/chart.h"
#include "motley/report/page/html.h"
#include "motley/report/text_columns.h"
#include "motley/scheduling/trace/workload.h"

namespace motley::report {
namespace {

using scheduling::Outcome;
using scheduling::PolicyOutcome;
using Rows = std::vector<std::vector<std::string>>;

constexpr int kMaxTracks = 256;                // devices that a Gantt chart shows
constexpr std::size_t kMaxBlocks = 20'000;     // and jobs' parts, of all charts together
constexpr std::size_t kMaxChartBlocks = 6000;  // of one

std::string hours(double seconds) {
  return fmt::format("{:.2f}", seconds / 3600);
}

double per_job(const ScheduleView& view, double sum) {
  return sum / static_cast<double>(view.jobs.size());
}

// --- Figures

enum class Better { kMore, kLess, kNeither };

// Of headings that do not say it themselves.
constexpr std::pair<const char*, const char*> kMeanings[] = {
    {"mean h", "hours from a job's arrival to its end"},
    {"p99 h", "the hours within which 99 of 100 jobs are done"},
    {"makespan h", "hours from the first arrival to the last end"},
    {"busy %", "of the devices' time, how much jobs had"},
    {"utility", "the sum of the jobs' own utilities, of the iterations that they have done"},
    {"unfair %", "of the jobs, how many took longer than with an equal part of the cluster of their own"},
    {"worst", "how many times as long the job took that is furthest behind an equal part"},
    {"ms each", "computation of a decision"},
    {"of bound %", "utility, of what all jobs would have if each had the cluster to itself"},
};

// A figure of each policy: its heading, how it is computed, and how it is written.
struct Column {
  const char* name;
  Better better;
  std::function<double(const Outcome&)> figure;
  std::function<std::string(double)> format;
};

std::string two_digits(double value) {
  return fmt::format("{:.2f}", value);
}
std::string one_digit(double value) {
  return fmt::format("{:.1f}", value);
}

// The percentage of jobs with a deadline that were done by it.
double percent_in_time(const ScheduleView& view, const Outcome& outcome) {
  double jobs = 0, met = 0;
  for (std::size_t i = 0; i < view.jobs.size(); ++i) {
    if (std::isinf(view.jobs[i].deadline)) continue;
    ++jobs;
    if (outcome.jobs[i].finished - view.jobs[i].arrival <= view.jobs[i].deadline) ++met;
  }
  return jobs > 0 ? 100 * met / jobs : 0;
}

double sum_over_jobs(const Outcome& outcome, int scheduling::JobOutcome::* value) {
  double sum = 0;
  for (const scheduling::JobOutcome& job : outcome.jobs) sum += job.*value;
  return sum;
}

std::vector<Column> list_columns(const ScheduleView& view) {
  using enum Better;
  const auto completion = [&view](double scheduling::Completion::* value) {
    return [&view, value](const Outcome& one) { return scheduling::compute_completion(view.jobs, one).*value; };
  };
  const auto fairness = [&view](double scheduling::Fairness::* value, double scale) {
    return [&view, value, scale](const Outcome& one) {
      return scale * scheduling::compute_fairness(view.jobs, view.topology, one).*value;
    };
  };
  std::vector<Column> columns = {
      {"mean h", kLess, completion(&scheduling::Completion::mean), hours},
      {"median h", kLess, completion(&scheduling::Completion::median), hours},
      {"p99 h", kLess, completion(&scheduling::Completion::p99), hours},
      {"makespan h", kLess, [](const Outcome& one) { return one.end - one.begin; }, hours},
      {"busy %", kMore, [](const Outcome& one) { return 100 * one.utilisation; }, one_digit},
      {"utility", kMore, [](const Outcome& one) { return one.utility; },
       [](double value) { return fmt::format("{:.4g}", value); }},
      {"unfair %", kLess, fairness(&scheduling::Fairness::unfair, 100), one_digit},
      {"worst", kLess, fairness(&scheduling::Fairness::worst, 1), two_digits},
      {"restarts a job", kLess,
       [&view](const Outcome& one) { return per_job(view, sum_over_jobs(one, &scheduling::JobOutcome::restarts)); },
       two_digits},
      {"decisions", kNeither, [](const Outcome& one) { return static_cast<double>(one.decisions); },
       [](double value) { return fmt::format("{:.0f}", value); }},
      {"ms each", kLess,
       [](const Outcome& one) { return 1e3 * one.decision_seconds / static_cast<double>(one.decisions); },
       [](double value) { return fmt::format("{:.4f}", value); }},
  };
  if (std::isfinite(view.horizon)) {
    const double bound = scheduling::utility_bound(view.jobs, view.topology, view.horizon);
    columns.push_back(
        {"of bound %", kMore, [bound](const Outcome& one) { return 100 * one.utility / bound; }, two_digits});
  }
  if (view.has_failures) {
    columns.push_back({"jobs lost places", kLess,
                       [](const Outcome& one) { return sum_over_jobs(one, &scheduling::JobOutcome::failures); },
                       [](double value) { return fmt::format("{:.0f}", value); }});
    columns.push_back({"lost device-h", kLess, [](const Outcome& one) { return one.lost_device_seconds; }, hours});
  }
  if (std::ranges::any_of(view.jobs, [](const scheduling::Job& job) { return std::isfinite(job.deadline); })) {
    columns.push_back(
        {"in time %", kMore, [&view](const Outcome& one) { return percent_in_time(view, one); }, one_digit});
  }
  return columns;
}

// --- Policies that do the same

// Policies under which every job ran at the same times with as many workers: one line, one mark and one chart for all.
struct Group {
  std::string name;  // "drf, optimus"
  std::vector<std::string> policies;
  const Outcome* outcome = nullptr;
};

using RunTimes = std::vector<std::tuple<int, double, double, int>>;

RunTimes list_runs(const Outcome& outcome) {
  RunTimes runs;
  for (const scheduling::Run& run : outcome.runs) {
    runs.emplace_back(run.job, run.begin, run.end, scheduling::count_workers(run.placement));
  }
  std::ranges::sort(runs);
  return runs;
}

std::size_t count_unfinished(const Outcome& outcome) {
  return static_cast<std::size_t>(std::ranges::count_if(
      outcome.jobs, [](const scheduling::JobOutcome& job) { return !std::isfinite(job.finished); }));
}

// Ranked: those first that leave the fewest jobs undone, and of these those whose jobs are done soonest.
std::vector<Group> rank_groups(const ScheduleView& view) {
  std::vector<Group> groups;
  std::vector<RunTimes> runs;
  for (const PolicyOutcome& one : view.outcomes) {
    const RunTimes own = list_runs(one.outcome);
    const auto same = static_cast<std::size_t>(std::ranges::find(runs, own) - runs.begin());
    if (same == runs.size()) {
      runs.push_back(own);
      groups.push_back({one.policy, {one.policy}, &one.outcome});
    } else {
      groups[same].name += ", " + one.policy;
      groups[same].policies.push_back(one.policy);
    }
  }
  std::ranges::stable_sort(groups, {}, [&](const Group& group) {
    return std::pair(count_unfinished(*group.outcome), scheduling::compute_completion(view.jobs, *group.outcome).mean);
  });
  return groups;
}

using Changes = std::vector<std::pair<double, double>>;  // seconds, and what is added to a sum then

// Marks tell many lines apart without their colours.
Series begin_line(const Group& group, const LineChart& chart) {
  return {group.name, static_cast<int>(chart.series.size()), LineStyle::kSpaced};
}

// A line a policy over time, of a sum that changes by steps.
template <class ListChanges>
std::string chart_over_time(LineChart chart, const std::vector<Group>& groups, double scale,
                            const ListChanges& list_changes) {
  chart.x_label = "hours of the trace";
  chart.from_zero = true;
  for (const Group& group : groups) {
    Changes changes = list_changes(*group.outcome);
    std::ranges::sort(changes);
    Series series = begin_line(group, chart);
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

std::string queue_chart(const ScheduleView& view, const std::vector<Group>& groups) {
  const LineChart chart{.title = "Jobs that wait",
                        .summary = "How many jobs have arrived and have no workers, over time, by policy.",
                        .y_label = "jobs"};
  return chart_over_time(chart, groups, 1, [&](const Outcome& outcome) {
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

std::string busy_chart(const ScheduleView& view, const std::vector<Group>& groups) {
  const LineChart chart{.title = "Devices that are busy",
                        .summary = "The share of all devices that jobs have, over time, by policy.",
                        .y_label = "share of devices",
                        .percent = true};
  return chart_over_time(chart, groups, 1.0 / view.topology.devices(), [](const Outcome& outcome) {
    Changes changes;
    for (const scheduling::Run& run : outcome.runs) {
      const double workers = scheduling::count_workers(run.placement);
      changes.emplace_back(run.begin, workers);
      changes.emplace_back(run.end, -workers);
    }
    return changes;
  });
}

std::string completion_chart(const ScheduleView& view, const std::vector<Group>& groups) {
  LineChart chart{.title = "Time from arrival to completion",
                  .summary = "The share of jobs that are done within so many hours of their arrival, by policy.",
                  .x_label = "hours from arrival",
                  .y_label = "share of jobs",
                  .percent = true,
                  .from_zero = true};
  for (const Group& group : groups) {
    std::vector<double> seconds;
    for (std::size_t i = 0; i < view.jobs.size(); ++i) {
      const double finished = group.outcome->jobs[i].finished;
      if (std::isfinite(finished)) seconds.push_back(finished - view.jobs[i].arrival);
    }
    std::ranges::sort(seconds);
    Series series = begin_line(group, chart);
    for (std::size_t i = 0; i < seconds.size(); ++i) {
      series.add(seconds[i] / 3600, per_job(view, static_cast<double>(i + 1)));
    }
    chart.series.push_back(std::move(series));
  }
  return line_chart(chart);
}

// A mark a policy: how soon jobs are done, and how far the one treated worst is behind.
std::string trade_off_chart(const ScheduleView& view, const std::vector<Group>& groups) {
  LineChart chart{.title = "Soon or fair",
                  .summary =
                      "For each policy, mean hours to completion and how many times as long as with an equal part "
                      "of the cluster the job took that was treated worst.",
                  .x_label = "mean hours to completion",
                  .y_label = "times as long, worst job",
                  .named = true};
  for (const Group& group : groups) {
    Series series{group.name, static_cast<int>(chart.series.size()), LineStyle::kMarks};
    series.add(scheduling::compute_completion(view.jobs, *group.outcome).mean / 3600,
               scheduling::compute_fairness(view.jobs, view.topology, *group.outcome).worst);
    chart.series.push_back(std::move(series));
  }
  return line_chart(chart);
}

// --- Who ran where

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

// The nodes that Gantt charts show: the first ones.
struct Tracks {
  std::vector<std::pair<std::string, int>> nodes;  // names, and how many devices
  std::vector<int> first;                          // track of each node
  int count = 0;
};

Tracks list_tracks(const scheduling::ClusterTopology& topology) {
  Tracks tracks;
  for (const scheduling::Node& node : topology.nodes) {
    if (!tracks.nodes.empty() && tracks.count + node.devices > kMaxTracks) break;
    tracks.first.push_back(tracks.count);
    const std::string type = topology.type_name(node);
    tracks.nodes.emplace_back(type.empty() ? node.name : fmt::format("{} ({})", node.name, type),
                              std::min(node.devices, kMaxTracks));
    tracks.count += tracks.nodes.back().second;
  }
  return tracks;
}

// From the begin on for as long as there are not too many blocks.
struct Gantt {
  std::vector<Block> blocks;
  double end = 0;  // seconds
};

Gantt draw_runs(const ScheduleView& view, const Outcome& outcome, const Tracks& tracks, std::size_t most) {
  std::vector<const scheduling::Run*> runs;
  for (const scheduling::Run& run : outcome.runs) runs.push_back(&run);
  std::ranges::stable_sort(runs, {}, [](const scheduling::Run* run) { return run->begin; });
  std::vector<std::vector<double>> busy_until;  // of each node's tracks
  for (const auto& [name, count] : tracks.nodes) busy_until.emplace_back(static_cast<std::size_t>(count), -1);
  Gantt gantt{{}, std::max(outcome.end, 1.0)};
  for (const scheduling::Run* run : runs) {
    if (gantt.blocks.size() >= most) {
      gantt.end = run->begin;
      break;
    }
    for (const scheduling::Part& part : run->placement) {
      const auto node = static_cast<std::size_t>(part.node);
      if (node >= tracks.nodes.size()) continue;
      const std::vector<int> taken = take_tracks(busy_until[node], part.workers, run->begin, run->end);
      for (std::size_t i = 0; i < taken.size();) {  // tracks side by side are one block
        std::size_t next = i + 1;
        while (next < taken.size() && taken[next] == taken[next - 1] + 1) ++next;
        gantt.blocks.push_back(
            {run->begin, run->end, tracks.first[node] + taken[i], static_cast<int>(next - i), run->job,
             fmt::format("{}: {} of {} on {}, {} h to {} h", view.jobs[static_cast<std::size_t>(run->job)].name,
                         part.workers, format_count(scheduling::count_workers(run->placement), "worker"),
                         tracks.nodes[node].first, hours(run->begin), hours(run->end))});
        i = next;
      }
    }
  }
  return gantt;
}

// A card a group, all on one scale of time: that of the schedule that takes longest, or as far as all are drawn.
std::string gantt_cards(const ScheduleView& view, const std::vector<Group>& groups) {
  const Tracks tracks = list_tracks(view.topology);
  const std::size_t most = std::min(kMaxChartBlocks, kMaxBlocks / groups.size());
  std::vector<Gantt> charts;
  double longest = 0, shown = std::numeric_limits<double>::infinity();
  for (const Group& group : groups) {
    charts.push_back(draw_runs(view, *group.outcome, tracks, most));
    longest = std::max(longest, std::max(group.outcome->end, 1.0));
    if (charts.back().end < group.outcome->end) shown = std::min(shown, charts.back().end);
  }
  const double extent = std::min(longest, shown);
  std::vector<std::pair<double, std::string>> ticks;
  for (const double at : round_ticks(extent / 3600)) ticks.emplace_back(at * 3600, fmt::format("{:g} h", at));
  std::string html;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    std::string hint = "A row is a device, a colour a job.";
    if (tracks.count < view.topology.devices()) {
      hint += fmt::format(" The first {} of {}.", tracks.count, format_count(view.topology.devices(), "device"));
    }
    hint += extent < groups[i].outcome->end
                ? fmt::format(" The first {} of {} hours.", hours(extent), hours(groups[i].outcome->end))
                : fmt::format(" All is done after {} hours.", hours(groups[i].outcome->end));
    html += card("Who ran where: " + groups[i].name, escape(hint),
                 gantt_chart(charts[i].blocks, tracks.nodes, extent, "Which jobs ran where under " + groups[i].name) +
                     bar_axis(ticks, extent),
                 true);
  }
  return html;
}

// --- What comes first

// The policy that is best at something, and how far the next and the last are behind.
std::string best_tile(const std::vector<Group>& groups, const Column& column, const char* label, const char* unit) {
  std::vector<std::pair<double, const Group*>> order;
  for (const Group& group : groups) order.emplace_back(column.figure(*group.outcome), &group);
  std::ranges::stable_sort(order, [&](const auto& a, const auto& b) {
    return column.better == Better::kMore ? a.first > b.first : a.first < b.first;
  });
  const auto& [best, first] = order.front();
  const auto text = [&](double value) { return column.format(value) + unit; };
  if (order.size() == 1) return tile(label, text(best), "");
  const auto behind = [&, best = best](const std::pair<double, const Group*>& other) {
    const double ratio = best > 0 ? other.first / best : 0;
    return fmt::format("{} {}{}", other.second->name, text(other.first),
                       ratio <= 0   ? ""
                       : ratio >= 2 ? fmt::format(" ({:.1f} times as much)", ratio)
                                    : fmt::format(" ({:+.0f} %)", 100 * (ratio - 1)));
  };
  std::string remark = text(best);
  std::size_t next = 1;
  for (; next < order.size() && text(order[next].first) == text(best); ++next) {
    remark += (next == 1 ? "; the same: " : ", ") + order[next].second->name;
  }
  if (next < order.size()) remark += "; next: " + behind(order[next]);
  if (next + 1 < order.size()) remark += "; last: " + behind(order.back());
  return tile(label, first->name, remark);
}

std::string tiles(const ScheduleView& view, const std::vector<Group>& groups, const std::vector<Column>& columns) {
  const bool is_one = groups.size() == 1;
  std::string html;
  for (const auto& [name, label, alone, unit] :
       {std::tuple("mean h", "Jobs done soonest", "Mean time to completion", " h on average"),
        {"makespan h", "All jobs done soonest", "All jobs done after", " h"},
        {"worst", "Fairest to the worst job", "Worst job, times as long as fair", "×"},
        {"busy %", "Devices busiest", "Devices busy", " %"},
        {"in time %", "Most jobs in time", "Jobs in time", " %"},
        {"of bound %", "Most utility", "Utility, of its bound", " %"}}) {
    const auto column =
        std::ranges::find_if(columns, [&](const Column& one) { return one.name == std::string_view(name); });
    if (column != columns.end() && !view.jobs.empty()) html += best_tile(groups, *column, is_one ? alone : label, unit);
  }
  return html;
}

bool is_elastic(const scheduling::Job& job) {
  return job.min_workers() < job.max_workers();
}

// What a reader would wonder about: policies that do the same, figures that are all the same, jobs that are not done.
std::vector<std::string> remarks(const ScheduleView& view, const std::vector<Group>& groups,
                                 const std::vector<std::pair<std::string, std::string>>& constants) {
  std::vector<std::string> sentences;
  for (const Group& group : groups) {
    if (group.policies.size() < 2) continue;
    sentences.push_back(fmt::format(
        "{} run every job at the same times with as many workers, so they share a line, a mark and a chart.{}",
        group.name,
        std::ranges::none_of(view.jobs, is_elastic)
            ? " Here no job is elastic: the number of its workers, which several policies differ "
              "in choosing, is given."
            : ""));
  }
  const bool all_done =
      std::ranges::all_of(groups, [](const Group& group) { return count_unfinished(*group.outcome) == 0; });
  std::vector<std::string> same;
  for (const auto& [name, value] : constants) same.push_back(fmt::format("{} ({})", name, value));
  if (!same.empty()) {
    std::string text = fmt::format("The same under every policy, and so not in the table: {}.", fmt::join(same, ", "));
    const bool has_utility = std::ranges::any_of(constants, [](const auto& one) { return one.first == "utility"; });
    if (has_utility && all_done) {
      text += " Utility counts the iterations that jobs have done, not when, and every policy finishes all jobs.";
    }
    sentences.push_back(text);
  }
  for (const Group& group : groups) {
    if (const std::size_t left = count_unfinished(*group.outcome); left > 0) {
      sentences.push_back(fmt::format("{} leaves {} of {} undone at the end; its hours are of those that are done.",
                                      group.name, left, format_count(view.jobs.size(), "job")));
    }
  }
  return sentences;
}

// The ranked table: a row a policy, the best cell of each column marked, and no column that says the same everywhere.
struct Table {
  std::string html;
  std::vector<std::pair<std::string, std::string>> constants;  // headings and values of the columns left out
};

Table rank_table(const std::vector<Group>& groups, const std::vector<Column>& columns) {
  Table result;
  std::vector<std::string> headings = {"", "policy"};
  Rows rows;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    rows.push_back(
        {fmt::format("{}", i + 1), fmt::format("<span class=\"key\" style=\"background:var(--series-{})\"></span>{}",
                                               i % 8, escape(groups[i].name))});
  }
  for (const Column& column : columns) {
    std::vector<std::string> texts;
    std::vector<double> values;
    for (const Group& group : groups) {
      values.push_back(column.figure(*group.outcome));
      texts.push_back(column.format(values.back()));
    }
    const bool is_constant = std::ranges::all_of(texts, [&](const std::string& text) { return text == texts[0]; });
    if (is_constant && groups.size() > 1) {
      result.constants.emplace_back(column.name, texts[0]);
      continue;
    }
    headings.emplace_back(column.name);
    const auto best =
        column.better == Better::kMore ? std::ranges::max_element(values) : std::ranges::min_element(values);
    const std::string best_text = texts[static_cast<std::size_t>(best - values.begin())];
    const bool marks = column.better != Better::kNeither && groups.size() > 1;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      rows[i].push_back(marks && texts[i] == best_text ? best_cell(texts[i]) : texts[i]);
    }
  }
  std::vector<std::size_t> numeric(headings.size() - 2);
  std::iota(numeric.begin(), numeric.end(), 2);
  result.html = table(headings, rows, numeric);
  return result;
}

}  // namespace

std::string schedule_legend(const std::vector<std::string>& columns) {
  std::string lines;
  for (const auto& [name, meaning] : kMeanings) {
    if (std::ranges::find(columns, name) != columns.end()) lines += fmt::format("{}: {}\n", name, meaning);
  }
  return lines.empty() ? "" : "\n" + lines;
}

std::string schedule_text(const ScheduleView& view) {
  Rows rows = {{"policy"}};
  for (const PolicyOutcome& one : view.outcomes) rows.push_back({one.policy});
  std::vector<std::string> same;
  for (const Column& column : list_columns(view)) {
    std::vector<std::string> texts;
    for (const PolicyOutcome& one : view.outcomes) texts.push_back(column.format(column.figure(one.outcome)));
    if (texts.size() > 1 && std::ranges::count(texts, texts[0]) == std::ssize(texts)) {
      same.push_back(fmt::format("{} ({})", column.name, texts[0]));
      continue;
    }
    rows.front().emplace_back(column.name);
    for (std::size_t i = 0; i < texts.size(); ++i) rows[i + 1].push_back(texts[i]);
  }
  const std::string left_out =
      same.empty() ? "" : fmt::format("the same under every policy: {}\n", fmt::join(same, ", "));
  return text_columns(rows) + left_out + schedule_legend(rows.front());
}

std::string schedule_page(const ScheduleView& view) {
  double device_seconds = 0;
  for (const scheduling::Job& job : view.jobs) device_seconds += job.device_seconds();
  const std::vector<Group> groups = rank_groups(view);
  const std::vector<Column> columns = list_columns(view);
  const Table table = rank_table(groups, columns);
  std::string sentences;
  for (const std::string& one : remarks(view, groups, table.constants)) sentences += "<li>" + escape(one) + "</li>\n";
  if (!sentences.empty()) sentences = "<ul class=\"sentences\">\n" + sentences + "</ul>\n";
  const std::string cards =
      card(
          groups.size() > 1 ? "Policies ranked" : "Figures",
          "By the mean hours from arrival to completion; ★ marks the best of a column. Utility is the sum of the jobs' "
          "own, and its bound what each would have alone. Unfair are jobs that took longer than they would have with "
          "an "
          "equal part of the cluster; the worst one so many times as long.",
          table.html + sentences, true) +
      card("Waiting", "", queue_chart(view, groups)) + card("Busy devices", "", busy_chart(view, groups)) +
      card("Done within", "", completion_chart(view, groups)) +
      card("Soon or fair", "Both are best at the lower left.", trade_off_chart(view, groups)) +
      gantt_cards(view, groups);
  return document(
      {.title = "Schedule of " + view.trace,
       .heading = view.trace,
       .facts = {format_count(view.jobs.size(), "job"), fmt::format("{} device-hours asked for", hours(device_seconds)),
                 fmt::format("{} on {}", format_count(view.topology.devices(), "device"),
                             format_count(view.topology.nodes.size(), "node")),
                 view.outcomes.size() == 1 ? "1 policy" : fmt::format("{} policies", view.outcomes.size())},
       .tiles_html = tiles(view, groups, columns),
       .cards_html = cards});
}

}  // namespace motley::report
