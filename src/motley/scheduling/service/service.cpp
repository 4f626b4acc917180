#include "motley/scheduling/service/service.h"

#include <httplib.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "motley/base/clock.h"
#include "motley/base/log.h"
#include "motley/net/http_server.h"
#include "motley/scheduling/service/explain.h"
#include "motley/scheduling/service/job_files.h"
#include "motley/scheduling/service/queries.h"

namespace motley::scheduling {
namespace {

constexpr double kRequestSeconds = 60;  // for which a client is waited for that sends jobs or takes its answer
constexpr std::size_t kMaxBodyBytes = 64 << 20;
constexpr std::int64_t kMaxLogBytes = 1 << 20;  // of what a job has printed, its end
constexpr std::int64_t kMaxReportBytes = 64 << 20;
constexpr std::size_t kMaxExplained = 500;    // jobs on the page
constexpr double kRecentSeconds = 4;          // for which explanations hold, and
constexpr double kMaxForecastFraction = 0.1;  // of its time that the service computes them for the page, at most
// A run's page is whatever its job has written: it may run its own scripts, and sees nothing of the service.
constexpr const char* kReportPolicy =
    "sandbox allow-scripts allow-popups; default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "img-src data:";

using Json = nlohmann::ordered_json;

void answer(httplib::Response& response, const Json& json) {
  response.set_content(json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n", "application/json");
}

void refuse(httplib::Response& response, const Error& error) {
  response.status = error.code == ErrorCode::kInvalidInput ? 400
                    : error.code == ErrorCode::kForbidden  ? 403
                    : error.code == ErrorCode::kTooMany    ? 429
                                                           : 500;
  answer(response, {{"error", error.message}});
}

template <class T>
Json as_json(T value) {
  return JsonWriter::written(value);
}

Json brief(const JobRecord& record) {
  return {{"id", record.id},
          {"name", record.job.name},
          {"tenant", record.tenant},
          {"state", to_string(record.state)},
          {"workers", count_workers(record.nodes)},
          {"nodes", describe(record.nodes)},
          {"resizing_to", record.resizing.to.empty() ? Json() : Json(count_workers(record.resizing.to))},
          {"attempt", record.attempt},
          {"restart_cost", record.job.restart_cost_seconds},
          {"measured_restart_cost", record.measured_restart_cost ? Json(*record.measured_restart_cost) : Json()},
          {"submitted", record.submitted},
          {"started", record.started},
          {"finished", record.finished},
          {"last_change", record.changed}};
}

// --- Answers to requests

Result<Json> list_jobs(Controller& controller, const httplib::Request& request, const Requester&) {
  MOTLEY_ASSIGN(const std::optional<JobState> state, read_state_query(request.params));
  Json jobs = Json::array();
  for (const JobRecord& record : controller.records()) {
    if (!state || state == record.state) jobs.push_back(brief(record));
  }
  return Json{{"jobs", jobs}};
}

Result<Json> get_job(Controller& controller, const httplib::Request& request, const Requester&) {
  const JobRecord* record = controller.find(request.matches[1]);
  if (record == nullptr) return fail(ErrorCode::kInvalidInput, "there is no job '{}'", request.matches[1].str());
  return as_json(*record);
}

// A file of a job, as `type`; nothing of it is taken for something else.
void answer_file(httplib::Response& response, const Result<std::string>& content, const char* type) {
  if (!content) {
    response.status = 404;
    return answer(response, {{"error", content.error().message}});
  }
  response.set_header("X-Content-Type-Options", "nosniff");
  response.set_content(*content, type);
}

Result<std::string> read_report(const Attempt& attempt) {
  const std::filesystem::path file = report_file(attempt);
  if (file.empty()) {
    return fail(ErrorCode::kInvalidInput, "job '{}' has no report: its command names no --run-directory", attempt.name);
  }
  return read_whole(file, kMaxReportBytes);
}

Result<Json> cancel_job(Controller& controller, const httplib::Request& request, const Requester& requester) {
  if (const JobRecord* record = controller.find(request.matches[1])) {
    MOTLEY_TRY(check_owner(requester, *record, "cancelling it is"));
  }
  MOTLEY_TRY(controller.cancel(request.matches[1], wall_seconds()));
  return get_job(controller, request, requester);
}

Result<Json> list_nodes(Controller& controller, const httplib::Request&, const Requester&) {
  Json all = Json::array();
  for (std::size_t i = 0; i < controller.topology().nodes.size(); ++i) {
    const Node& node = controller.topology().nodes[i];
    Json resources = Json::array();
    for (const auto& [name, total, taken] : controller.resources(i)) {
      resources.push_back({{"name", name}, {"total", total}, {"used", taken}});
    }
    Json jobs = Json::object();
    int used = 0;
    for (const JobRecord& record : controller.records()) {
      for (const NodeAllocation& allocation : record.nodes) {
        if (allocation.node != node.name) continue;
        jobs[record.job.name] = allocation.workers;
        used += allocation.workers;
      }
    }
    all.push_back({{"name", node.name},
                   {"type", controller.topology().type_name(node)},
                   {"devices", node.devices},
                   {"used", used},
                   {"state", controller.node_state(i)},
                   {"jobs", jobs},
                   {"resources", resources}});
  }
  return Json{{"nodes", all}};
}

template <bool is_drained>
Result<Json> drain_node(Controller& controller, const httplib::Request& request, const Requester& requester) {
  if (!requester.is_operator) {
    return fail(ErrorCode::kForbidden, "node '{}': tenant '{}' may not drain nodes; accepted: of an operator",
                request.matches[1].str(), requester.tenant);
  }
  MOTLEY_TRY(controller.drain(request.matches[1], is_drained));
  return list_nodes(controller, request, requester);
}

// Says what fails, once for as long as it does; returns what it is.
std::set<std::string> warn(const Controller& controller, const std::vector<Problem>& problems,
                           const std::set<std::string>& warned) {
  std::set<std::string> all;
  if (const std::string problem = controller.problem(); !problem.empty()) all.insert(problem + "; trying again");
  for (const Problem& one : problems) {
    const std::string whose =
        one.job == 0
            ? ""
            : fmt::format("job '{}', attempt {}: ", controller.records()[index(one.job - 1)].job.name, one.attempt);
    all.insert(whose + one.what);
  }
  for (const std::string& one : all) {
    if (!warned.contains(one)) spdlog::warn("{}", one);
  }
  return all;
}

}  // namespace

// Whether a browser sends it for another site's page.
bool is_cross_origin(const httplib::Request& request) {
  const std::string origin = request.get_header_value("Origin");
  const std::string host = request.get_header_value("Host");
  const std::string site = request.get_header_value("Sec-Fetch-Site");
  return (!origin.empty() && origin != "http://" + host && origin != "https://" + host) ||
         (!site.empty() && site != "same-origin" && site != "none");
}

// Status and error of a request that is not to be answered; nothing of others.
std::optional<std::pair<int, std::string>> find_refusal(const httplib::Request& request, const net::Secret& token) {
  const bool reads = request.method == "GET" || request.method == "HEAD";
  if (!net::shows_token(request, token, reads)) {
    return {{401, "the token is missing or wrong; accepted: 'Authorization: Bearer TOKEN'"}};
  }
  if (reads) return {};
  if (is_cross_origin(request)) {
    return {{403, fmt::format("Origin is '{}'; accepted: none, or that of this service",
                              request.get_header_value("Origin"))}};
  }
  const std::string type = request.get_header_value("Content-Type");
  if (request.method == "POST" && type.substr(0, type.find(';')) != "application/json") {
    return {{415, fmt::format("Content-Type is '{}'; accepted: application/json", type)}};
  }
  return {};
}

// Answers with what `what` makes of the request and the controller, under the lock; wakes the loop where that has
// changed something.
void Service::answer_locked(const httplib::Request& request, httplib::Response& response, bool changes,
                            const What& what) {
  const Requester requester = find_requester(net::current_peer());
  const std::lock_guard lock(mutex_);
  const Result<Json> json = what(controller_, request, requester);
  if (!json) return refuse(response, json.error());
  answer(response, *json);
  if (!changes) return;
  is_due_ = true;
  changed_.notify_all();
}

// Answers with what `what` makes of what is there now, copied: attempts are started and ended meanwhile.
void Service::answer_forecast(httplib::Response& response, const std::string& asked,
                              const std::function<Result<Json>(const Controller::Snapshot&)>& what) {
  const std::unique_lock turn(forecasts_, std::chrono::duration<double>(options_.forecast_turn_seconds));
  if (!turn) {
    response.status = 503;
    return answer(response, {{"error", "forecasts that were asked for before are not done yet; ask again"}});
  }
  const Controller::Snapshot present = [&] {
    const std::lock_guard lock(mutex_);
    return controller_.present(wall_seconds(), asked);
  }();
  const Result<Json> json = what(present);
  if (!json) return refuse(response, json.error());
  answer(response, *json);
}

// Those of the page: computed anew where they are old, and nobody else computes forecasts.
std::shared_ptr<const std::vector<Explanation>> Service::recent_explanations() {
  const std::unique_lock turn(forecasts_, std::try_to_lock);
  std::unique_lock lock(mutex_);
  const double begin = monotonic_seconds();
  if (!turn || begin < explain_after_) return explanations_;
  const Controller::Snapshot present = controller_.present(wall_seconds());
  lock.unlock();
  const auto explanations = std::make_shared<const std::vector<Explanation>>(explain_all(present, kMaxExplained));
  lock.lock();
  const double end = monotonic_seconds();
  explain_after_ = end + std::max(kRecentSeconds, (end - begin) / kMaxForecastFraction);
  explanations_ = explanations;
  return explanations;
}

// The latest attempt of a job of the requester's, copied.
Result<Attempt> Service::find_own_attempt(const std::string& name) {
  const Requester requester = find_requester(net::current_peer());
  const std::lock_guard lock(mutex_);
  const JobRecord* record = controller_.find(name);
  if (record == nullptr) return fail(ErrorCode::kInvalidInput, "there is no job '{}'", name);
  MOTLEY_TRY(check_owner(requester, *record, "what it leaves to read is"));
  return controller_.make_attempt(*record);
}

// A part of what an attempt has printed, read without the lock.
Result<Service::Json> Service::read_logs(const httplib::Request& request) {
  MOTLEY_ASSIGN(const LogsQuery query, read_logs_query(request.params));
  const Requester requester = find_requester(net::current_peer());
  JobRecord record;
  std::filesystem::path file;
  {
    const std::lock_guard lock(mutex_);
    const JobRecord* found = controller_.find(request.matches[1]);
    if (found == nullptr) return fail(ErrorCode::kInvalidInput, "there is no job '{}'", request.matches[1].str());
    MOTLEY_TRY(check_owner(requester, *found, "what it prints is"));
    record = *found;
    JobRecord read = record;
    if (query.attempt > 0) read.attempt = query.attempt;
    file = output_file(controller_.make_attempt(read));
  }
  if (query.attempt > record.attempt) {
    return fail(ErrorCode::kInvalidInput, "attempt is {}; accepted: 1 to {}, as often as '{}' has been started",
                query.attempt, record.attempt, record.job.name);
  }
  const bool has_ended = is_over(record.state) || (query.attempt > 0 && query.attempt < record.attempt);
  MOTLEY_ASSIGN(const OutputPart part, read_output(file, query.offset, has_ended));
  return Json{{"name", record.job.name},
              {"state", to_string(record.state)},
              {"is_over", is_over(record.state)},
              {"attempt", query.attempt > 0 ? query.attempt : record.attempt},
              {"last_attempt", record.attempt},
              {"file", file.string()},
              {"next", part.next},
              {"text", part.text}};
}

// The controller's steps, one after another. What they command is done, and what became of it is looked at, without the
// lock: the executor may take long, and requests are answered meanwhile.
void Service::run_steps() {
  std::unique_lock lock(mutex_);
  std::vector<Problem> failed;
  std::set<std::string> warned;  // of what failed in the last round
  while (!is_stopping_) {
    const std::vector<Attempt> watched = controller_.watched();
    lock.unlock();
    Observation seen = observe(*executor_, watched);
    seen.problems.insert(seen.problems.end(), failed.begin(), failed.end());
    lock.lock();
    is_due_ = false;
    const double now = wall_seconds();
    const Controller::Step step = controller_.step(now, seen);
    warned = warn(controller_, seen.problems, warned);
    lock.unlock();
    failed = carry_out(*executor_, step.commands);
    lock.lock();
    const auto wait = std::chrono::duration<double>(std::clamp(step.wake - wall_seconds(), 0.0, 60.0));
    changed_.wait_for(lock, wait, [this] { return is_due_ || is_stopping_; });
  }
}

// Counts what costs the service much, before its body is read.
Status Service::count(const httplib::Request& request) {
  const bool reads = request.method == "GET" || request.method == "HEAD";
  const bool forecasts = reads ? request.path.ends_with("/why") : request.path == "/v1/what-if";
  if (reads && !forecasts) return {};
  return (forecasts ? forecasts_limit_ : changes_limit_)
      .take(find_requester(net::current_peer()).tenant, monotonic_seconds());
}

void Service::route() {
  using HandlerResponse = httplib::Server::HandlerResponse;
  httplib::Server& server = http_.server();
  server.set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
    const auto refusal = find_refusal(request, options_.token);
    const Status counted = refusal ? Status() : count(request);
    if (!counted) refuse(response, counted.error());
    if (!refusal) return counted ? HandlerResponse::Unhandled : HandlerResponse::Handled;
    response.status = refusal->first;
    if (response.status == 401) {
      response.set_header("WWW-Authenticate", "Basic realm=\"motley\", charset=\"UTF-8\"");
    }
    answer(response, {{"error", refusal->second}});
    return HandlerResponse::Handled;
  });
  const auto handler = [this](bool changes, const What& what) {
    return [this, changes, what](const httplib::Request& request, httplib::Response& response) {
      answer_locked(request, response, changes, what);
    };
  };
  server.Post("/v1/jobs", [this](const httplib::Request& request, httplib::Response& response) {
    const auto jobs = parse_submitted_jobs(request.body);
    if (!jobs) return refuse(response, jobs.error());
    answer_locked(
        request, response, true, [&](Controller& controller, const auto&, const Requester& requester) -> Result<Json> {
          MOTLEY_ASSIGN(const std::vector<int> ids, controller.submit(*jobs, wall_seconds(), requester.tenant));
          return Json{{"ids", ids}};
        });
  });
  server.Post("/v1/what-if", [this](const httplib::Request& request, httplib::Response& response) {
    const auto change = parse_json<WhatIf>(request.body, "the request");
    if (!change) return refuse(response, change.error());
    answer_forecast(response, "", [&](const Controller::Snapshot& present) -> Result<Json> {
      MOTLEY_ASSIGN(const std::vector<Comparison> rows, what_if(present, *change));
      return Json{{"jobs", as_json(rows)}};
    });
  });
  server.Get("/v1/jobs/([^/]+)/why", [this](const httplib::Request& request, httplib::Response& response) {
    answer_forecast(response, request.matches[1], [&](const Controller::Snapshot& present) -> Result<Json> {
      MOTLEY_ASSIGN(Explanation explanation, explain(present, request.matches[1]));
      const bool may_read = check_owner(find_requester(net::current_peer()), *present.asked, "").has_value();
      if (present.asked->failures > 0 && may_read) explanation.last_output = last_lines(present.output_file);
      return as_json(explanation);
    });
  });
  server.Get("/v1/jobs/([^/]+)/logs", [this](const httplib::Request& request, httplib::Response& response) {
    const Result<Json> logs = read_logs(request);
    if (!logs) return refuse(response, logs.error());
    answer(response, *logs);
  });
  server.Get("/v1/jobs", handler(false, list_jobs));
  server.Get("/v1/jobs/([^/]+)", handler(false, get_job));
  server.Delete("/v1/jobs/([^/]+)", handler(true, cancel_job));
  server.Get("/v1/nodes", handler(false, list_nodes));
  server.Post("/v1/nodes/([^/]+)/drain", handler(true, drain_node<true>));
  server.Delete("/v1/nodes/([^/]+)/drain", handler(true, drain_node<false>));
  server.Get("/v1/jobs/([^/]+)/log", [this](const httplib::Request& request, httplib::Response& response) {
    const Result<Attempt> attempt = find_own_attempt(request.matches[1]);
    if (!attempt) return refuse(response, attempt.error());
    answer_file(response, read_end(output_file(*attempt), kMaxLogBytes), "text/plain; charset=utf-8");
  });
  server.Get("/v1/jobs/([^/]+)/report", [this](const httplib::Request& request, httplib::Response& response) {
    const Result<Attempt> attempt = find_own_attempt(request.matches[1]);
    if (!attempt) return refuse(response, attempt.error());
    response.set_header("Content-Security-Policy", kReportPolicy);
    answer_file(response, read_report(*attempt), "text/html; charset=utf-8");
  });
  server.Get("/", [this](const httplib::Request&, httplib::Response& response) {
    const auto explanations = recent_explanations();
    const std::lock_guard lock(mutex_);
    response.set_content(options_.page({controller_, *explanations, wall_seconds()}), "text/html; charset=utf-8");
  });
}

Service::Service(const ServiceOptions& options, Controller controller, std::unique_ptr<Executor> executor)
    : options_(options),
      http_({.request_seconds = kRequestSeconds, .max_body_bytes = kMaxBodyBytes}),
      executor_(std::move(executor)),
      changes_limit_(options.limits.changes, "--max-changes-per-tenant", "changes"),
      forecasts_limit_(options.limits.forecasts, "--max-forecasts-per-tenant", "forecasts"),
      controller_(std::move(controller)) {}

Result<std::unique_ptr<Service>> Service::start(const ServiceOptions& options, Controller controller,
                                                std::unique_ptr<Executor> executor) {
  std::unique_ptr<Service> service(new Service(options, std::move(controller), std::move(executor)));
  service->route();
  MOTLEY_ASSIGN(service->address_, service->http_.start(options.listen, "--listen"));
  service->loop_ = std::thread([all = service.get()] { all->run_steps(); });
  return service;
}

std::string Service::url() const {
  return net::to_url({address_, options_.listen.certificates});
}

Service::~Service() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
    changed_.notify_all();
  }
  http_.stop();
  if (loop_.joinable()) loop_.join();
}

}  // namespace motley::scheduling
