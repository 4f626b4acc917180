#include "motley/report/scheduler_page.h"

#include <map>

#include "motley/report/page/html.h"

namespace motley::report {
namespace {

constexpr std::size_t kMaxRows = 500;  // of jobs

std::vector<std::vector<std::string>> node_rows(const scheduling::Controller& controller) {
  std::map<std::string, std::pair<int, std::string>> used;  // devices, and by which jobs
  for (const scheduling::JobRecord& record : controller.records()) {
    for (const scheduling::NodeAllocation& allocation : record.nodes) {
      auto& [devices, jobs] = used[allocation.node];
      devices += allocation.workers;
      jobs += fmt::format("{}{} ({})", jobs.empty() ? "" : ", ", escape(record.job.name), allocation.workers);
    }
  }
  std::vector<std::vector<std::string>> rows;
  for (std::size_t i = 0; i < controller.topology().nodes.size(); ++i) {
    const scheduling::Node& node = controller.topology().nodes[i];
    const auto& [devices, jobs] = used[node.name];
    rows.push_back({escape(node.name), escape(controller.topology().type_name(node)), controller.node_state(i),
                    fmt::format("{} of {}", devices, node.devices), jobs});
  }
  return rows;
}

}  // namespace

std::string scheduler_page(const scheduling::Controller& controller) {
  std::vector<std::vector<std::string>> rows;
  int waiting = 0, running = 0, over = 0;
  const std::vector<scheduling::JobRecord>& records = controller.records();
  for (auto record = records.rbegin(); record != records.rend(); ++record) {
    const bool is_pending = record->state == scheduling::JobState::kPending;
    ++(is_over(record->state) ? over : is_pending ? waiting : running);
    if (rows.size() >= kMaxRows) continue;
    rows.push_back({fmt::format("{}", record->id), escape(record->job.name), to_string(record->state),
                    fmt::format("{}", count_workers(record->nodes)), escape(describe(record->nodes)),
                    fmt::format("{}", record->attempt), escape(record->changed)});
  }
  const std::string body =
      fmt::format(
          "<header><h1>Scheduler</h1>\n<div class=\"facts\"><span>{} pending</span><span>{} running</span>"
          "<span>{} over</span><span>policy {}</span></div></header>\n<main><div class=\"cards\">",
          waiting, running, over, escape(controller.policy())) +
      card("Nodes", "", table({"node", "type", "state", "devices used", "jobs"}, node_rows(controller)), true) +
      card("Jobs", "The newest first.",
           table({"id", "name", "state", "workers", "nodes", "attempt", "last change"}, rows, {0, 3, 5}), true) +
      "</div></main>";
  return document("Scheduler", body);
}

}  // namespace motley::report
