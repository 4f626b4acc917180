#include "motley/scheduling/service/explain.h"

#include <algorithm>
#include <cmath>

#include "motley/base/units.h"

namespace motley::scheduling {
namespace {

constexpr std::size_t kMaxFrees = 5;

double finite_or_minus_one(double seconds) {
  return std::isfinite(seconds) ? seconds : -1;
}

std::size_t find_place(const Controller::Snapshot& present, int id) {
  return static_cast<std::size_t>(std::ranges::find(present.ids, id) - present.ids.begin());
}

// Whether another job has devices of which this one may have some.
bool has_some_for(const Controller& controller, const Job& job, const JobRecord& other) {
  return std::ranges::any_of(other.nodes, [&](const NodeAllocation& allocation) {
    const int node = controller.topology().node_named(allocation.node);
    return node >= 0 && job.speed_on(controller.topology().nodes[index(node)].type) > 0;
  });
}

// What holds a job that waits: which constraint, and in a sentence.
void find_constraint(const Controller& controller, const Controller::Snapshot& present, const JobRecord& record,
                     Explanation& answer) {
  if (const std::string problem = controller.problem(); !problem.empty()) {
    answer.blocked_by = "scheduler";
    answer.reason = problem + "; it is tried again every second";
    return;
  }
  const Job& job = present.jobs[find_place(present, record.id)];
  const int available = max_devices(present.topology, job);
  if (available < job.min_workers()) {
    answer.blocked_by = "nodes";
    answer.reason = fmt::format("it needs {} devices, and the nodes that are there have {} of {}", job.min_workers(),
                                available, controller.topology().devices());
    for (std::size_t i = 0; i < controller.topology().nodes.size(); ++i) {
      const Node& node = controller.topology().nodes[i];
      if (controller.is_available(i)) continue;
      answer.unblocked_by.push_back(
          fmt::format("node {} with {} devices coming back ({})", node.name, node.devices, controller.node_state(i)));
    }
    return;
  }
  ClusterTopology rest = present.topology;
  std::vector<std::string> stopping;
  for (const JobRecord& other : controller.records()) {
    for (const NodeAllocation& allocation : other.nodes) {
      const int node = rest.node_named(allocation.node);
      if (node >= 0)
        rest.nodes[index(node)].devices = std::max(0, rest.nodes[index(node)].devices - allocation.workers);
    }
    if (other.state == JobState::kStopping) stopping.push_back(other.job.name);
  }
  const int free = max_devices(rest, job);
  if (free < job.min_workers()) {
    answer.blocked_by = stopping.empty() ? "devices" : "handover";
    answer.reason = fmt::format("it needs {} devices, and {} of {} are free", job.min_workers(), free, available);
    if (!stopping.empty()) {
      answer.reason += fmt::format("; {} {} saving work to give back theirs", fmt::join(stopping, ", "),
                                   stopping.size() == 1 ? "is" : "are");
    }
    return;
  }
  if (Placer(rest, PlacementStrategy::kCompact).place(job, job.min_workers()).empty()) {
    answer.blocked_by = "uplinks";
    answer.reason =
        fmt::format("{} devices are free, and no uplinks with room lead to {} of them", free, job.min_workers());
    return;
  }
  answer.blocked_by = "turn";
  answer.reason = fmt::format("{} devices are free, and {} gives them to others first or at its next decision", free,
                              controller.policy());
}

}  // namespace

Result<Explanation> explain(const Controller& controller, const std::string& name, double now) {
  const JobRecord* record = controller.find(name);
  if (record == nullptr) return fail(ErrorCode::kInvalidInput, "there is no job '{}'", name);
  Explanation answer;
  answer.name = name;
  answer.state = to_string(record->state);
  answer.changed = record->changed;
  if (is_over(record->state)) {
    answer.reason = record->state == JobState::kFailed
                        ? fmt::format("it failed {} times, last with {}, and may be started again {} times",
                                      record->failures, record->exit_code, record->job.max_retries)
                        : fmt::format("it ended {} ago", format_seconds(now - record->finished));
    return answer;
  }
  const Controller::Snapshot present = controller.present(now);
  const std::size_t place = find_place(present, record->id);
  MOTLEY_ASSIGN(const std::vector<Forecast> forecast, controller.forecast(present));
  answer.finishes = finite_or_minus_one(forecast[place].finishes);

  Controller::Snapshot more = present;
  const std::vector<int> types = list_types(present.jobs[place]);
  more.topology.nodes.push_back({.name = "one more", .type = std::max(0, types.empty() ? 0 : types.front())});
  MOTLEY_ASSIGN(const std::vector<Forecast> with_more, controller.forecast(more));
  double saved = 0;
  for (std::size_t i = 0; i < forecast.size(); ++i) {
    if (std::isfinite(forecast[i].finishes)) saved += forecast[i].finishes - with_more[i].finishes;
  }
  if (std::isfinite(forecast[place].finishes)) {
    answer.one_more_device =
        fmt::format("with one device more it would be done in {} instead of {}, and all jobs together {} {}",
                    format_seconds(with_more[place].finishes), format_seconds(forecast[place].finishes),
                    format_seconds(std::abs(saved)), saved >= 0 ? "sooner" : "later");
  }

  if (record->state != JobState::kPending) {
    answer.reason =
        fmt::format("it {} with {} workers on {} nodes", record->state == JobState::kRunning ? "runs" : "ends",
                    count_workers(record->nodes), record->nodes.size());
    if (const std::string problem = controller.problem_of(*record); !problem.empty()) {
      answer.reason += fmt::format(", but {}; it is tried again", problem);
    }
    return answer;
  }
  answer.starts = finite_or_minus_one(forecast[place].starts);
  find_constraint(controller, present, *record, answer);
  if (answer.blocked_by == "nodes") return answer;
  // Who is done before it starts gives back what it gets.
  std::vector<std::pair<double, const JobRecord*>> before;
  for (const JobRecord& other : controller.records()) {
    if (is_over(other.state) || !has_some_for(controller, present.jobs[place], other)) continue;
    const double ends = forecast[find_place(present, other.id)].finishes;
    if (std::isfinite(ends)) before.emplace_back(ends, &other);
  }
  std::ranges::sort(before);
  if (!before.empty() && answer.starts >= 0 && answer.starts < before.front().first) {
    answer.unblocked_by.push_back(fmt::format("{} taking devices back from others, in about {}", controller.policy(),
                                              format_seconds(answer.starts)));
  }
  for (const auto& [ends, other] : before) {
    if (answer.unblocked_by.size() == kMaxFrees) break;
    answer.unblocked_by.push_back(fmt::format("{}, which has {} devices, done in about {}", other->job.name,
                                              count_workers(other->nodes), format_seconds(ends)));
  }
  return answer;
}

Result<std::vector<Comparison>> what_if(const Controller& controller, const WhatIf& change, double now) {
  const Controller::Snapshot present = controller.present(now);
  MOTLEY_ASSIGN(const std::vector<Forecast> forecast, controller.forecast(present));
  Controller::Snapshot then{{}, {}, present.topology};
  for (const NewNode& node : change.add_nodes) {
    if (node.devices < 1 || then.topology.node_named(node.name) >= 0) {
      return fail(ErrorCode::kInvalidInput, "add_nodes: '{}' with {} devices; accepted: a new name, and 1 or more",
                  node.name, node.devices);
    }
    const std::vector<std::string>& types = then.topology.types;
    if (!node.type.empty() && std::ranges::find(types, node.type) == types.end()) {
      return fail(ErrorCode::kInvalidInput, "add_nodes: '{}' with devices of type '{}'; accepted: {}", node.name,
                  node.type, types.empty() ? "none" : fmt::format("{}", fmt::join(types, ", ")));
    }
    const int type = node.type.empty() ? 0 : then.topology.type_named(node.type);
    then.topology.nodes.push_back({.name = node.name, .devices = node.devices, .type = type});
  }
  for (const std::string& name : change.drain) {
    const int node = then.topology.node_named(name);
    if (node < 0) return fail(ErrorCode::kInvalidInput, "drain: there is no node '{}'", name);
    then.topology.nodes[index(node)].devices = 0;
  }
  for (const std::string& name : change.cancel) {
    const JobRecord* record = controller.find(name);
    if (record == nullptr || is_over(record->state)) {
      return fail(ErrorCode::kInvalidInput, "cancel: there is no job '{}' that is not over", name);
    }
  }
  std::vector<Comparison> rows;
  std::vector<std::size_t> row_of;  // of each job then
  for (std::size_t i = 0; i < present.jobs.size(); ++i) {
    rows.push_back(
        {present.jobs[i].name, finite_or_minus_one(forecast[i].starts), finite_or_minus_one(forecast[i].finishes)});
    if (std::ranges::find(change.cancel, present.jobs[i].name) != change.cancel.end()) continue;
    then.jobs.push_back(present.jobs[i]);
    then.ids.push_back(present.ids[i]);
    row_of.push_back(i);
  }
  for (const SubmittedJob& job : change.submit) {
    MOTLEY_TRY(check(job, then.topology));
    if (controller.find(job.name) != nullptr) {
      return fail(ErrorCode::kInvalidInput, "submit: there is a job '{}' already", job.name);
    }
    then.jobs.push_back(make_job(job, 0, then.topology.types));
    then.ids.push_back(0);
    row_of.push_back(rows.size());
    rows.push_back({job.name});
  }
  MOTLEY_ASSIGN(const std::vector<Forecast> other, controller.forecast(then));
  for (std::size_t i = 0; i < other.size(); ++i) {
    rows[row_of[i]].starts_then = finite_or_minus_one(other[i].starts);
    rows[row_of[i]].finishes_then = finite_or_minus_one(other[i].finishes);
  }
  return rows;
}

}  // namespace motley::scheduling
