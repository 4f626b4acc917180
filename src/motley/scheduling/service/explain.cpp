#include "motley/scheduling/service/explain.h"

#include <algorithm>
#include <cmath>

#include "motley/base/units.h"

namespace motley::scheduling {
namespace {

constexpr std::size_t kMostFrees = 5;

double told(double seconds) {
  return std::isfinite(seconds) ? seconds : -1;
}

int workers_of(const std::vector<NodeShare>& nodes) {
  int workers = 0;
  for (const NodeShare& share : nodes) workers += share.workers;
  return workers;
}

std::size_t place_of(const Controller::Present& present, int id) {
  return static_cast<std::size_t>(std::ranges::find(present.ids, id) - present.ids.begin());
}

// Whether another job has devices of which this one may have some.
bool has_some_for(const Controller& controller, const Job& job, const JobRecord& other) {
  const std::vector<int> types = types_of(job);
  return std::ranges::any_of(other.nodes, [&](const NodeShare& share) {
    const auto server = std::ranges::find(controller.machines().servers, share.node, &Server::name);
    return server != controller.machines().servers.end() &&
           std::ranges::any_of(types, [&](int type) { return type == kAnyType || type == server->type; });
  });
}

// What holds a job that waits: which constraint, and in a sentence.
void find_constraint(const Controller& controller, const Controller::Present& present, const JobRecord& record,
                     Explanation& answer) {
  const Job& job = present.jobs[place_of(present, record.id)];
  const int available = most_devices(present.machines, job);
  if (available < job.least()) {
    answer.constraint = "nodes";
    answer.reason = fmt::format("it needs {} devices, and the nodes that are there have {} of {}", job.least(),
                                available, controller.machines().devices());
    for (std::size_t i = 0; i < controller.machines().servers.size(); ++i) {
      const Server& server = controller.machines().servers[i];
      if (controller.is_available(i)) continue;
      answer.frees.push_back(fmt::format("node {} with {} devices coming back ({})", server.name, server.devices,
                                         controller.is_drained(server.name) ? "drained" : "missing"));
    }
    return;
  }
  Machines rest = present.machines;
  for (const JobRecord& other : controller.records()) {
    for (const NodeShare& share : other.nodes) {
      const auto server = std::ranges::find(rest.servers, share.node, &Server::name);
      if (server != rest.servers.end()) server->devices = std::max(0, server->devices - share.workers);
    }
  }
  const int free = most_devices(rest, job);
  std::vector<std::string> stopping;
  for (const JobRecord& other : controller.records()) {
    if (other.state == JobState::kStopping) stopping.push_back(other.job.name);
  }
  if (free < job.least()) {
    answer.constraint = stopping.empty() ? "devices" : "handover";
    answer.reason = fmt::format("it needs {} devices, and {} of {} are free", job.least(), free, available);
    if (!stopping.empty()) {
      answer.reason += fmt::format("; {} {} saving work to give back theirs", fmt::join(stopping, ", "),
                                   stopping.size() == 1 ? "is" : "are");
    }
    return;
  }
  if (Room(rest, Packing::kRing).place(job, job.least()).empty()) {
    answer.constraint = "uplinks";
    answer.reason = fmt::format("{} devices are free, and no uplinks with room lead to {} of them", free, job.least());
    return;
  }
  answer.constraint = "turn";
  answer.reason = fmt::format("{} devices are free, and {} gives them to others first or at its next decision", free,
                              controller.policy());
}

}  // namespace

Result<Explanation> explain(const Controller& controller, const std::string& name, double now) {
  const JobRecord* record = controller.find(name);
  if (record == nullptr) {
    return fail(ErrorCode::kInvalidInput, "there is no job '{}'", name);
  }
  Explanation answer;
  answer.name = name;
  answer.state = to_string(record->state);
  answer.changed = record->changed;
  if (is_over(record->state)) {
    answer.reason = record->state == JobState::kFailed
                        ? fmt::format("it failed {} times, last with {}, and may be started again {} times",
                                      record->failures, record->exit_code, record->job.retries)
                        : fmt::format("it ended {} ago", format_seconds(now - record->finished));
    return answer;
  }
  const Controller::Present present = controller.present(now);
  const std::size_t place = place_of(present, record->id);
  MOTLEY_ASSIGN(const std::vector<Forecast> forecast, controller.forecast(present));
  answer.finishes = told(forecast[place].finishes);

  Controller::Present more = present;
  const std::vector<int> types = types_of(present.jobs[place]);
  more.machines.servers.push_back({.name = "one more", .type = std::max(0, types.empty() ? 0 : types.front())});
  MOTLEY_ASSIGN(const std::vector<Forecast> with_more, controller.forecast(more));
  double saved = 0;
  for (std::size_t i = 0; i < forecast.size(); ++i) {
    if (std::isfinite(forecast[i].finishes)) saved += forecast[i].finishes - with_more[i].finishes;
  }
  answer.price = std::isfinite(forecast[place].finishes)
                     ? fmt::format(
                           "with one device more it would be done in {} instead of {}, and all jobs together {} "
                           "{}",
                           format_seconds(with_more[place].finishes), format_seconds(forecast[place].finishes),
                           format_seconds(std::abs(saved)), saved >= 0 ? "sooner" : "later")
                     : "";

  if (record->state != JobState::kWaiting) {
    answer.reason =
        fmt::format("it {} with {} workers on {} nodes", record->state == JobState::kRunning ? "runs" : "ends",
                    workers_of(record->nodes), record->nodes.size());
    return answer;
  }
  answer.starts = told(forecast[place].starts);
  find_constraint(controller, present, *record, answer);
  if (answer.constraint == "nodes") return answer;
  // Who is done before it starts gives back what it gets.
  std::vector<std::pair<double, const JobRecord*>> before;
  for (const JobRecord& other : controller.records()) {
    if (is_over(other.state) || !has_some_for(controller, present.jobs[place], other)) continue;
    const double ends = forecast[place_of(present, other.id)].finishes;
    if (std::isfinite(ends)) before.emplace_back(ends, &other);
  }
  std::ranges::sort(before);
  if (!before.empty() && answer.starts >= 0 && answer.starts < before.front().first) {
    answer.frees.push_back(fmt::format("{} taking devices back from others, in about {}", controller.policy(),
                                       format_seconds(answer.starts)));
  }
  for (const auto& [ends, other] : before) {
    if (answer.frees.size() == kMostFrees) break;
    answer.frees.push_back(fmt::format("{}, which has {} devices, done in about {}", other->job.name,
                                       workers_of(other->nodes), format_seconds(ends)));
  }
  return answer;
}

Result<std::vector<Comparison>> what_if(const Controller& controller, const WhatIf& change, double now) {
  const Controller::Present present = controller.present(now);
  MOTLEY_ASSIGN(const std::vector<Forecast> forecast, controller.forecast(present));
  Controller::Present then{{}, {}, present.machines};
  for (const NewNode& node : change.add_nodes) {
    if (node.devices < 1 ||
        std::ranges::find(then.machines.servers, node.name, &Server::name) != then.machines.servers.end()) {
      return fail(ErrorCode::kInvalidInput, "add_nodes: '{}' with {} devices; accepted: a new name, and 1 or more",
                  node.name, node.devices);
    }
    const auto type = std::ranges::find(then.machines.types, node.type);
    if (!node.type.empty() && type == then.machines.types.end()) {
      return fail(ErrorCode::kInvalidInput, "add_nodes: '{}' with devices of type '{}'; accepted: {}", node.name,
                  node.type,
                  then.machines.types.empty() ? "none" : fmt::format("{}", fmt::join(then.machines.types, ", ")));
    }
    then.machines.servers.push_back(
        {.name = node.name,
         .devices = node.devices,
         .type = node.type.empty() ? 0 : static_cast<int>(type - then.machines.types.begin())});
  }
  for (const std::string& node : change.drain) {
    const auto server = std::ranges::find(then.machines.servers, node, &Server::name);
    if (server == then.machines.servers.end()) {
      return fail(ErrorCode::kInvalidInput, "drain: there is no node '{}'", node);
    }
    server->devices = 0;
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
    rows.push_back({present.jobs[i].name, told(forecast[i].starts), told(forecast[i].finishes)});
    if (std::ranges::find(change.cancel, present.jobs[i].name) != change.cancel.end()) continue;
    then.jobs.push_back(present.jobs[i]);
    then.ids.push_back(present.ids[i]);
    row_of.push_back(i);
  }
  for (const SubmittedJob& job : change.submit) {
    MOTLEY_TRY(check(job, then.machines));
    if (controller.find(job.name) != nullptr) {
      return fail(ErrorCode::kInvalidInput, "submit: there is a job '{}' already", job.name);
    }
    then.jobs.push_back(job_of(job, 0, then.machines.types));
    then.ids.push_back(0);
    row_of.push_back(rows.size());
    rows.push_back({job.name});
  }
  MOTLEY_ASSIGN(const std::vector<Forecast> other, controller.forecast(then));
  for (std::size_t i = 0; i < other.size(); ++i) {
    rows[row_of[i]].starts_then = told(other[i].starts);
    rows[row_of[i]].finishes_then = told(other[i].finishes);
  }
  return rows;
}

}  // namespace motley::scheduling
