#include "motley/report/scheduler_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "motley/base/units.h"
#include "motley/report/page/chart.h"
#include "motley/report/page/html.h"
#include "motley/scheduling/service/job_files.h"

namespace motley::report {
namespace {

using scheduling::Explanation;
using scheduling::JobRecord;
using scheduling::JobState;
using scheduling::PageInput;
using Rows = std::vector<std::vector<std::string>>;

constexpr std::size_t kMaxJobs = 500;  // that a table lists

// Whole seconds: what is below them changes nothing for who waits.
std::string duration(double seconds) {
  return seconds < 1 ? "under 1 s" : format_seconds(std::floor(seconds));
}

std::string from_now(double seconds) {
  return seconds < 0 ? "–" : "in " + duration(seconds);
}

std::string badge(JobState state) {
  const char* tone = state == JobState::kCompleted ? " good" : state == JobState::kFailed ? " bad" : "";
  return fmt::format("<span class=\"badge{}\">{}</span>", tone, to_string(state));
}

std::string why_cell(const std::string& text) {
  return fmt::format("<div class=\"why\">{}</div>", escape(text));
}

// Links to what the job may have left to read. Whether it is there is not looked at: the page is made while the service
// is locked, which a file system that hangs would stop. Who follows a link to nothing is told so.
std::string links(const PageInput& input, const JobRecord& record) {
  if (record.attempt == 0) return "–";
  const auto link = [&](const char* name) {
    return fmt::format("<a href=\"v1/jobs/{0}/{1}\">{1}</a>", record.id, name);
  };
  const bool has_report = !report_file(input.controller.make_attempt(record)).empty();
  return link("log") + (has_report ? " · " + link("report") : "");
}

// What the page says of the jobs in one state or another.
class JobTables {
 public:
  explicit JobTables(const PageInput& input) : input_(input) {
    for (const Explanation& one : input.explanations) explanations_[one.name] = &one;
    for (const JobRecord& record : input.controller.records()) {
      (is_over(record.state) ? over_ : record.state == JobState::kPending ? pending_ : running_).push_back(&record);
    }
    std::ranges::stable_sort(running_, std::greater(), &JobRecord::attempt_started);
    std::ranges::stable_sort(over_, std::greater(), &JobRecord::finished);
  }

  std::string tiles() const {
    const auto count = [&](JobState state) { return std::ranges::count(over_, state, &JobRecord::state); };
    const auto failed = count(JobState::kFailed);
    return tile("Running", fmt::format("{}", running_.size()), "jobs that have devices") +
           tile("Pending", fmt::format("{}", pending_.size()), "jobs that wait for devices") +
           tile("Ended", fmt::format("{}", over_.size()),
                fmt::format("{} completed, {} failed, {} cancelled", count(JobState::kCompleted), failed,
                            count(JobState::kCancelled)));
  }

  std::string running() const {
    Rows rows;
    for (const JobRecord* record : shown(running_)) {
      const Explanation* why = find(*record);
      const std::string resizing =
          record->resizing.to.empty() ? "" : fmt::format(", to go on with {}", count_workers(record->resizing.to));
      rows.push_back({fmt::format("{}", record->id), escape(record->job.name), escape(record->tenant),
                      badge(record->state), fmt::format("{}{}", count_workers(record->nodes), resizing),
                      escape(scheduling::describe(record->nodes)),
                      record->started > 0 ? duration(input_.now - record->started) : "–",
                      from_now(why != nullptr ? why->finishes : -1), fmt::format("{}", record->attempt),
                      format_seconds(record->restart_cost()) + (record->measured_restart_cost ? " measured" : ""),
                      links(input_, *record), escape(record->changed)});
    }
    return job_card("Running", running_.size(), "Expected ends are as good as the jobs' estimated durations.",
                    {"id", "name", "tenant", "state", "workers", "nodes", "elapsed", "expected end", "attempt",
                     "restart cost", "to read", "last change"},
                    rows, {0, 8});
  }

  std::string pending() const {
    Rows rows;
    for (const JobRecord* record : shown(pending_)) {
      const Explanation* why = find(*record);
      std::string reason = why != nullptr ? why->reason : "";
      if (why != nullptr && !why->unblocked_by.empty()) reason += "; what would let it start: " + why->unblocked_by[0];
      rows.push_back({fmt::format("{}", record->id), escape(record->job.name), escape(record->tenant), why_cell(reason),
                      fmt::format("{}", record->job.workers), duration(input_.now - record->submitted),
                      from_now(why != nullptr ? why->starts : -1), from_now(why != nullptr ? why->finishes : -1),
                      fmt::format("{}", record->attempt), links(input_, *record)});
    }
    return job_card("Pending", pending_.size(), "In the order of their arrival.",
                    {"id", "name", "tenant", "why it waits", "asks for", "submitted", "expected start", "expected end",
                     "attempts", "to read"},
                    rows, {0, 4, 8});
  }

  std::string over() const {
    Rows rows;
    for (const JobRecord* record : shown(over_)) {
      rows.push_back({fmt::format("{}", record->id), escape(record->job.name), escape(record->tenant),
                      badge(record->state), duration(input_.now - record->finished) + " ago",
                      record->started > 0 ? duration(record->finished - record->started) : "never started",
                      fmt::format("{}", record->attempt), links(input_, *record),
                      record->state == JobState::kFailed ? why_cell(describe_end(*record, input_.now)) : ""});
    }
    return job_card("Ended", over_.size(), "The latest first.",
                    {"id", "name", "tenant", "state", "ended", "took", "attempts", "to read", "why"}, rows, {0, 6});
  }

  std::vector<std::string> facts() const {
    const scheduling::ClusterTopology& topology = input_.controller.topology();
    return {"policy " + input_.controller.policy(),
            format_count(topology.devices(), "device") + " on " + format_count(std::ssize(topology.nodes), "node")};
  }

 private:
  using Records = std::vector<const JobRecord*>;

  const Explanation* find(const JobRecord& record) const {
    const auto found = explanations_.find(record.job.name);
    return found == explanations_.end() ? nullptr : found->second;
  }

  static Records shown(const Records& records) {
    return {records.begin(), records.begin() + static_cast<std::ptrdiff_t>(std::min(kMaxJobs, records.size()))};
  }

  static std::string job_card(const char* title, std::size_t count, const char* hint,
                              const std::vector<std::string>& headings, const Rows& rows,
                              const std::vector<std::size_t>& numeric) {
    if (count == 0) return card(title, "", "<p>None.</p>\n", true);
    const std::string cut = count > kMaxJobs ? fmt::format(" The first {} of {}.", kMaxJobs, count) : "";
    return card(title, hint + cut, table(headings, rows, numeric), true);
  }

  const PageInput& input_;
  std::map<std::string, const Explanation*> explanations_;  // by job
  Records running_, pending_, over_;
};

// The nodes, and which jobs have their devices.
class NodeTable {
 public:
  explicit NodeTable(const scheduling::Controller& controller) : controller_(controller) {
    for (const JobRecord& record : controller.records()) {
      for (const scheduling::NodeAllocation& allocation : record.nodes) {
        auto& [devices, jobs] = used_[allocation.node];
        devices += allocation.workers;
        jobs.push_back(fmt::format("{} ({})", record.job.name, allocation.workers));
        all_ += allocation.workers;
      }
    }
  }

  std::string tile_html() const {
    int absent = 0;
    for (std::size_t i = 0; i < controller_.topology().nodes.size(); ++i) absent += controller_.is_available(i) ? 0 : 1;
    return tile("Devices used", fmt::format("{} of {}", all_, controller_.topology().devices()),
                absent == 0 ? "all nodes are up"
                            : format_count(absent, "node") + (absent == 1 ? " is" : " are") + " drained or down");
  }

  std::string card_html() const {
    const bool has_resources = !controller_.topology().resources.empty();
    Rows rows;
    for (std::size_t i = 0; i < controller_.topology().nodes.size(); ++i) {
      const scheduling::Node& node = controller_.topology().nodes[i];
      const auto found = used_.find(node.name);
      const int devices = found == used_.end() ? 0 : found->second.first;
      const std::string words = fmt::format("{} of {}", devices, node.devices);
      const std::string jobs = found == used_.end() ? "" : fmt::format("{}", fmt::join(found->second.second, ", "));
      const double extent = std::max(1, node.devices);
      std::vector<std::string> requested;
      for (const auto& [name, total, used] : controller_.resources(i)) {
        requested.push_back(scheduling::describe_used(name, used, total));
      }
      rows.push_back({escape(node.name), escape(controller_.topology().type_name(node)), controller_.node_state(i),
                      words,
                      segment_bar({{0, static_cast<double>(devices), "compute", words + " devices are used"}}, extent,
                                  fmt::format("{}: {} devices are used", node.name, words)),
                      escape(jobs)});
      if (has_resources) rows.back().push_back(escape(fmt::format("{}", fmt::join(requested, ", "))));
    }
    std::vector<std::string> head = {"node", "type", "state", "devices used", "", "jobs"};
    if (has_resources) head.emplace_back("requested");
    return card("Nodes", "", table(head, rows, {3}), true);
  }

 private:
  const scheduling::Controller& controller_;
  std::map<std::string, std::pair<int, std::vector<std::string>>> used_;  // devices, and by which jobs
  int all_ = 0;
};

}  // namespace

std::string scheduler_page(const PageInput& input) {
  const JobTables jobs(input);
  const NodeTable nodes(input.controller);
  const std::string problem = input.controller.problem();
  return document({.title = "Scheduler",
                   .facts = jobs.facts(),
                   .notices_html = problem.empty() ? "" : notice("Nothing new is done", escape(problem), Tone::kBad),
                   .tiles_html = jobs.tiles() + nodes.tile_html(),
                   .cards_html = jobs.running() + jobs.pending() + nodes.card_html() + jobs.over(),
                   .is_live = true});
}

}  // namespace motley::report
