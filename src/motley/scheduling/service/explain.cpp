#include "motley/scheduling/service/explain.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "motley/base/clock.h"
#include "motley/base/units.h"
#include "motley/scheduling/service/forecast.h"
#include "motley/scheduling/simulator/placement.h"

namespace motley::scheduling {
namespace {

constexpr std::size_t kMaxFrees = 5;
constexpr double kForecastSeconds = 2;  // that forecasts of one answer may take
constexpr int kMaxNewDevices = 100'000;
constexpr double kNoticeable = 0.01;  // of a time: who waits would see less as none

double finite_or_minus_one(double seconds) {
  return std::isfinite(seconds) ? seconds : -1;
}

// Of the jobs that are not over, the first ones.
std::string list_names(const Controller::Snapshot& present) {
  std::vector<std::string> names;
  for (const JobRecord& one : present.records) {
    if (names.size() < kMaxFrees) names.push_back(one.job.name);
  }
  if (names.empty()) return "none, as there is no job";
  return fmt::format("{}{}", fmt::join(names, ", "), names.size() < present.records.size() ? ", ..." : "");
}

std::size_t find_place(const Controller::Snapshot& present, int id) {
  return static_cast<std::size_t>(std::ranges::find(present.records, id, &JobRecord::id) - present.records.begin());
}

ForecastJobs present_jobs(const Controller::Snapshot& present) {
  return {present.jobs, present.standings};
}

// ", assuming 1 h, as no duration was given"; empty: it was.
std::string describe_assumption(const Controller::Standing& one, const char* before) {
  if (one.assumed_seconds <= 0) return "";
  return fmt::format("{}assuming {}, as no duration was given", before, format_seconds(one.assumed_seconds));
}

// What is left of the nodes beside jobs that have some of them.
ClusterTopology find_rest(const Controller::Snapshot& present) {
  ClusterTopology rest = present.topology;
  for (const JobRecord& other : present.records) {
    for (const NodeAllocation& allocation : other.nodes) {
      const int place = rest.node_named(allocation.node);
      if (place < 0) continue;
      Node& node = rest.nodes[index(place)];
      node.devices = std::max(0, node.devices - allocation.workers);
      for (std::size_t i = 0; i < rest.resources.size(); ++i) {
        const double taken = allocation.workers * requested(other.job, rest.resources[i], rest);
        node.resources[i] = std::max(0.0, node.resources[i] - taken);
      }
    }
  }
  return rest;
}

// Whether another job has what this one lacks for a worker more on a node that could hold it: its device, or CPUs or
// memory. `rest`: what is left.
bool has_some_for(const ClusterTopology& all, const ClusterTopology& rest, const Job& job, const JobRecord& other) {
  return std::ranges::any_of(other.nodes, [&](const NodeAllocation& allocation) {
    const int place = all.node_named(allocation.node);
    if (place < 0 || job.speed_on(all.nodes[index(place)].type) <= 0) return false;
    const int now = rest.workers_on(place, job.requests);
    if (all.workers_on(place, job.requests) <= now) return false;
    const Node& left = rest.nodes[index(place)];
    if (left.devices <= now) return true;
    for (std::size_t i = 0; i < job.requests.size(); ++i) {
      const bool lacks = limit_workers(now + 1, {&job.requests[i], 1}, {&left.resources[i], 1}) <= now;
      if (lacks && requested(other.job, all.resources[i], all) > 0) return true;
    }
    return false;
  });
}

// When the policy decides next, in words.
std::string describe_next_decision(const Controller::Snapshot& present) {
  const double seconds = present.next_decision - present.now;
  return std::isfinite(seconds) ? "in " + format_seconds(std::max(0.0, seconds)) : "once a job comes or ends";
}

// "2 devices, each with 4 CPUs and 16 GB of memory".
std::string describe_need(const SubmittedJob& submitted, const Job& job, const ClusterTopology& topology) {
  std::vector<std::string> each;
  for (const char* resource : {kCpus, kMemory}) {
    const double amount = requested(submitted, resource, topology);
    if (amount > 0) each.push_back(describe_amount(resource, amount));
  }
  return format_count(job.min_workers(), "device") +
         (each.empty() ? ""
                       : fmt::format("{} with {}", job.min_workers() == 1 ? "" : ", each", fmt::join(each, " and ")));
}

// Workers for which there is room if the job requested only this.
int count_fitting(const ClusterTopology& topology, Job job, const std::vector<double>& requests) {
  job.requests = requests;
  return max_devices(topology, job);
}

// Which of its requests leave it fewer workers than it needs: each that does so alone, else all of them together.
std::string find_lacking(const ClusterTopology& rest, const Job& job) {
  std::vector<std::string> alone, all;
  for (std::size_t i = 0; i < job.requests.size(); ++i) {
    if (job.requests[i] <= 0) continue;
    all.push_back(rest.resources[i] == kCpus ? "CPUs" : rest.resources[i]);
    std::vector<double> one(job.requests.size());
    one[i] = job.requests[i];
    if (count_fitting(rest, job, one) < job.min_workers()) alone.push_back(all.back());
  }
  return fmt::format("{}", fmt::join(alone.empty() ? all : alone, " and "));
}

// What no node that is there has as much of as a worker of the job requests: ", of which none has more than 3 CPUs".
std::string describe_too_much(const ClusterTopology& topology, const Job& job) {
  std::string text;
  for (std::size_t i = 0; i < job.requests.size(); ++i) {
    const double most = topology.most(static_cast<int>(i));
    if (job.requests[i] <= most) continue;
    text += fmt::format("{} {}", text.empty() ? ", of which none has more than" : " or",
                        describe_amount(topology.resources[i], most));
  }
  return text;
}

// "1 device is", "3 devices are".
std::string count_devices(int devices) {
  return format_count(devices, "device") + (devices == 1 ? " is" : " are");
}

// What holds a job that waits: which constraint, and in a sentence.
void find_constraint(const Controller::Snapshot& present, const ClusterTopology& rest, const JobRecord& record,
                     Explanation& answer) {
  if (!present.problem.empty()) {
    answer.blocked_by = "scheduler";
    answer.reason = present.problem + "; it is tried again every second";
    return;
  }
  const Job& job = present.jobs[find_place(present, record.id)];
  const int available = max_devices(present.topology, job);
  if (available < job.min_workers()) {
    answer.blocked_by = "nodes";
    answer.reason = job.requests.empty()
                        ? fmt::format("it needs {}, and the nodes that are there have {} of {}",
                                      describe_need(record.job, job, present.all), available, present.all.devices())
                        : fmt::format("it needs {}, and the nodes that are there have room for {}{}",
                                      describe_need(record.job, job, present.all), available,
                                      describe_too_much(present.topology, job));
    for (std::size_t i = 0; i < present.all.nodes.size(); ++i) {
      const Node& node = present.all.nodes[i];
      if (present.node_states[i] == "up" || job.speed_on(node.type) <= 0) continue;
      if (present.all.workers_on(static_cast<int>(i), job.requests) == 0) continue;
      const bool is_drained = present.node_states[i] == std::string_view("drained");
      answer.unblocked_by.push_back(fmt::format(
          "{}, {} with {}, {}", node.name, is_drained ? "a drained node" : "a node that is down",
          format_count(node.devices, "device"),
          is_drained ? fmt::format("taking jobs again (motley schedule drain {} --undo)", node.name) : "coming back"));
    }
    return;
  }
  std::vector<std::string> stopping;
  for (const JobRecord& other : present.records) {
    if (other.state == JobState::kStopping) stopping.push_back(other.job.name);
  }
  const int free = max_devices(rest, job);
  if (free < job.min_workers()) {
    const int alone = count_fitting(rest, job, {});
    const bool has_devices = alone >= job.min_workers();
    answer.blocked_by = !stopping.empty() ? "handover" : has_devices ? "resources" : "devices";
    answer.reason = fmt::format("it needs {}, and ", describe_need(record.job, job, present.all));
    answer.reason += has_devices
                         ? fmt::format("{} free, but their nodes have {} left for {}", count_devices(alone),
                                       find_lacking(rest, job), free == 0 ? "none" : fmt::format("only {}", free))
                         : fmt::format("{} of {} {} free", free, available, free == 1 ? "is" : "are");
    if (!stopping.empty()) {
      answer.reason += fmt::format("; {} {} saving work to give back theirs", fmt::join(stopping, ", "),
                                   stopping.size() == 1 ? "is" : "are");
    }
    return;
  }
  if (Placer(rest, PlacementStrategy::kCompact).place(job, job.min_workers()).empty()) {
    answer.blocked_by = "uplinks";
    answer.reason =
        fmt::format("{} free, and no uplinks with room lead to {} of them", count_devices(free), job.min_workers());
    return;
  }
  answer.blocked_by = "turn";
  answer.reason =
      fmt::format("{} free, and {} gives {} to others first or at its next decision, {}", count_devices(free),
                  present.options.policy, free == 1 ? "it" : "them", describe_next_decision(present));
}

// What one device more would change of what is expected.
void foretell_more(const Controller::Snapshot& present, std::size_t place, const std::vector<Forecast>& expected,
                   const Deadline& deadline, Explanation& answer) {
  ClusterTopology more = present.topology;
  const std::vector<int> types = list_types(present.jobs[place]);
  more.add_node({.name = "one more", .type = std::max(0, types.empty() ? 0 : types.front())});
  const auto with_more = forecast(present, present_jobs(present), more, true, deadline);
  if (!with_more || !std::isfinite(expected[place].finishes)) return;
  double saved = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (std::isfinite(expected[i].finishes)) saved += expected[i].finishes - (*with_more)[i].finishes;
  }
  const double now = expected[place].finishes, then = (*with_more)[place].finishes;
  const bool is_sooner = then < now * (1 - kNoticeable);
  const std::string device = present.jobs[place].requests.empty()
                                 ? "one device more"
                                 : "one device more, on a node with the CPUs and memory of the largest,";
  answer.one_more_device = is_sooner ? fmt::format("with {} it would be done in {} instead of {}", device,
                                                   format_seconds(then), format_seconds(now))
                                     : device + " would not make it done sooner";
  const double saved_by_others = saved - (now - then);
  if (saved_by_others > kNoticeable * now) {
    answer.one_more_device += fmt::format("{} other jobs would be done sooner, by {} in all",
                                          is_sooner ? ", and" : "; but", format_seconds(saved_by_others));
  }
}

// What the policy waits for before it takes devices back from others: cooldowns, and its next decision.
std::string describe_wait(const Controller::Snapshot& present, const ClusterTopology& rest, std::size_t place) {
  std::vector<std::string> waits;
  for (std::size_t i = 0; i < present.records.size() && waits.size() < kMaxFrees; ++i) {
    const double held = present.standings[i].held_until - present.now;
    if (held <= 0 || !std::isfinite(held) ||
        !has_some_for(present.all, rest, present.jobs[place], present.records[i])) {
      continue;
    }
    waits.push_back(fmt::format("{} keeps its workers for another {} (preemption cooldown)",
                                present.records[i].job.name, format_seconds(held)));
  }
  return fmt::format("{}{}the next decision comes {}", fmt::join(waits, ", "), waits.empty() ? "" : ", and ",
                     describe_next_decision(present));
}

// Who is done before a job starts that waits gives back what it gets.
void find_unblocking(const Controller::Snapshot& present, const ClusterTopology& rest, std::size_t place,
                     const std::vector<Forecast>& expected, Explanation& answer) {
  std::vector<std::pair<double, std::size_t>> before;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (!has_some_for(present.all, rest, present.jobs[place], present.records[i])) continue;
    if (std::isfinite(expected[i].finishes)) before.emplace_back(expected[i].finishes, i);
  }
  std::ranges::sort(before);
  if (!before.empty() && answer.starts >= 0 && answer.starts < before.front().first) {
    answer.unblocked_by.push_back(fmt::format("{} taking devices back from others, in about {}: {}",
                                              present.options.policy, format_seconds(answer.starts),
                                              describe_wait(present, rest, place)));
  }
  for (const auto& [ends, i] : before) {
    if (answer.unblocked_by.size() == kMaxFrees) break;
    const JobRecord& other = present.records[i];
    answer.unblocked_by.push_back(fmt::format("{}, which has {}, done in about {}{}", other.job.name,
                                              format_count(count_workers(other.nodes), "device"), format_seconds(ends),
                                              describe_assumption(present.standings[i], ", ")));
  }
}

// Of a job that is not over; `rest` is what jobs leave, `expected` is of all of them, or an error where it was not done
// in time.
void explain_live(const Controller::Snapshot& present, const ClusterTopology& rest, std::size_t place,
                  const Result<std::vector<Forecast>>& expected, Explanation& answer) {
  const JobRecord& record = present.records[place];
  if (expected) answer.finishes = finite_or_minus_one((*expected)[place].finishes);
  answer.assumption = describe_assumption(present.standings[place], "");
  if (record.state != JobState::kPending) {
    answer.reason = fmt::format("it {} with {} on {}", record.state == JobState::kRunning ? "runs" : "ends",
                                format_count(count_workers(record.nodes), "worker"),
                                format_count(std::ssize(record.nodes), "node"));
    if (!record.resizing.to.empty()) {
      answer.reason += fmt::format(", and is asked to go on with {} in place", count_workers(record.resizing.to));
    }
    if (const std::string& problem = present.problems[place]; !problem.empty()) {
      answer.reason += fmt::format(", but {}; it is tried again", problem);
    }
    return;
  }
  find_constraint(present, rest, record, answer);
  if (!expected) return;
  answer.starts = finite_or_minus_one((*expected)[place].starts);
  if (answer.blocked_by != "nodes") find_unblocking(present, rest, place, *expected, answer);
}

Explanation begin_explanation(const JobRecord& record) {
  Explanation answer;
  answer.name = record.job.name;
  answer.state = to_string(record.state);
  answer.changed = record.changed;
  return answer;
}

}  // namespace

std::string describe_end(const JobRecord& record, double now) {
  const std::string ago = format_seconds(std::max(0.0, now - record.finished)) + " ago";
  return record.state == JobState::kFailed
             ? fmt::format("it failed {}, last {} ({}), and is not started again (max_retries {})",
                           format_count(record.failures, "time"), ago, record.changed, record.job.max_retries)
             : fmt::format("it ended {}", ago);
}

Result<Explanation> explain(const Controller::Snapshot& present, const std::string& name) {
  if (!present.asked) return fail(ErrorCode::kInvalidInput, "there is no job '{}'", name);
  const JobRecord& record = *present.asked;
  Explanation answer = begin_explanation(record);
  if (record.attempt > 0) answer.output_file = present.output_file;
  if (is_over(record.state)) {
    answer.reason = describe_end(record, present.now);
    return answer;
  }
  const std::size_t place = find_place(present, record.id);
  const Deadline deadline = Deadline::after(kForecastSeconds);
  const auto expected = forecast(present, present_jobs(present), present.topology, false, deadline);
  explain_live(present, find_rest(present), place, expected, answer);
  if (expected) foretell_more(present, place, *expected, deadline, answer);
  return answer;
}

std::vector<Explanation> explain_all(const Controller::Snapshot& present, std::size_t most) {
  const auto expected =
      forecast(present, present_jobs(present), present.topology, false, Deadline::after(kForecastSeconds));
  const ClusterTopology rest = find_rest(present);
  std::vector<Explanation> all;
  for (std::size_t place = 0; place < std::min(most, present.records.size()); ++place) {
    all.push_back(begin_explanation(present.records[place]));
    explain_live(present, rest, place, expected, all.back());
  }
  return all;
}

Result<std::vector<Comparison>> what_if(const Controller::Snapshot& present, const WhatIf& change) {
  ClusterTopology topology = present.topology;
  ForecastJobs jobs;
  for (const NewNode& node : change.add_nodes) {
    if (node.devices < 1 || node.devices > kMaxNewDevices - topology.devices() || topology.node_named(node.name) >= 0) {
      return fail(ErrorCode::kInvalidInput,
                  "add_nodes: '{}' with {}; accepted: a new name, 1 device or more, and no more than {} in the "
                  "whole cluster",
                  node.name, format_count(node.devices, "device"), kMaxNewDevices);
    }
    const std::vector<std::string>& types = topology.types;
    if (!node.type.empty() && std::ranges::find(types, node.type) == types.end()) {
      return fail(ErrorCode::kInvalidInput, "add_nodes: '{}' with devices of type '{}'; accepted: {}", node.name,
                  node.type, types.empty() ? "none" : fmt::format("{}", fmt::join(types, ", ")));
    }
    const int type = node.type.empty() ? 0 : topology.type_named(node.type);
    topology.add_node({.name = node.name, .devices = node.devices, .type = type});
  }
  for (const std::string& name : change.drain) {
    const int node = topology.node_named(name);
    if (node < 0) return fail(ErrorCode::kInvalidInput, "drain: there is no node '{}'", name);
    topology.nodes[index(node)].devices = 0;
  }
  std::set<int> cancelled;
  for (const std::string& name : change.cancel) {
    const auto found = std::ranges::find_if(present.records, [&](const JobRecord& one) { return one.is_named(name); });
    if (found == present.records.end()) {
      return fail(ErrorCode::kInvalidInput, "cancel: there is no job '{}' that is not over; accepted: {}", name,
                  list_names(present));
    }
    cancelled.insert(found->id);
  }
  const Deadline deadline = Deadline::after(kForecastSeconds);
  MOTLEY_ASSIGN(const std::vector<Forecast> expected,
                forecast(present, present_jobs(present), present.topology, false, deadline));
  std::vector<Comparison> rows;
  std::vector<std::size_t> row_of;  // of each job then
  for (std::size_t i = 0; i < present.jobs.size(); ++i) {
    rows.push_back(
        {present.jobs[i].name, finite_or_minus_one(expected[i].starts), finite_or_minus_one(expected[i].finishes)});
    if (cancelled.contains(present.records[i].id)) continue;
    jobs.jobs.push_back(present.jobs[i]);
    jobs.standings.push_back(present.standings[i]);
    row_of.push_back(i);
  }
  for (const SubmittedJob& job : change.submit) {
    MOTLEY_TRY(check(job, topology));
    if (std::ranges::find(present.jobs, job.name, &Job::name) != present.jobs.end()) {
      return fail(ErrorCode::kInvalidInput, "submit: there is a job '{}' already", job.name);
    }
    jobs.jobs.push_back(make_job(job, present.now, topology));
    jobs.standings.push_back({.cooldown = present.options.cooldown(job.restart_cost_seconds)});
    row_of.push_back(rows.size());
    rows.push_back({job.name});
  }
  MOTLEY_ASSIGN(const std::vector<Forecast> other, forecast(present, jobs, topology, true, deadline));
  for (std::size_t i = 0; i < other.size(); ++i) {
    rows[row_of[i]].starts_then = finite_or_minus_one(other[i].starts);
    rows[row_of[i]].finishes_then = finite_or_minus_one(other[i].finishes);
  }
  return rows;
}

}  // namespace motley::scheduling
