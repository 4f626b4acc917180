#include "motley/scheduling/service/service.h"

#include <httplib.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "motley/base/clock.h"
#include "motley/net/http_server.h"
#include "motley/net/socket.h"
#include "motley/scheduling/service/explain.h"

namespace motley::scheduling {
namespace {

constexpr double kPatienceSeconds = 5;  // with a slow or silent client
constexpr std::size_t kMaxBodyBytes = 64 << 20;
constexpr const char* kRefreshSeconds = "5";

using Json = nlohmann::ordered_json;

void answer(httplib::Response& response, const Json& json) {
  response.set_content(json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n", "application/json");
}

void refuse(httplib::Response& response, const Error& error) {
  response.status = error.code == ErrorCode::kInvalidInput ? 400 : 500;
  answer(response, {{"error", error.message}});
}

template <class T>
Json as_json(T value) {
  return JsonWriter::written(value);
}

// Which jobs a list has.
struct StateQuery {
  JobState state = JobState::kPending;
};

template <class Archive>
void fields(Archive& archive, StateQuery& query) {
  archive.required("state", query.state);
}

Json brief(const JobRecord& record) {
  return {{"id", record.id},
          {"name", record.job.name},
          {"state", to_string(record.state)},
          {"workers", count_workers(record.nodes)},
          {"nodes", describe(record.nodes)},
          {"attempt", record.attempt},
          {"submitted", record.submitted},
          {"started", record.started},
          {"finished", record.finished},
          {"last_change", record.changed}};
}

// A job, or {"jobs": [...]}.
Result<std::vector<SubmittedJob>> jobs_in(const std::string& body) {
  try {
    nlohmann::json json = parse_strict_json(body);
    if (!json.is_object() || !json.contains("jobs")) json = {{"jobs", nlohmann::json::array({json})}};
    std::vector<SubmittedJob> jobs;
    JsonReader reader(json, "");
    reader.required("jobs", jobs);
    reader.finish();
    return jobs;
  } catch (const JsonReader::Problem& problem) {
    return fail(ErrorCode::kInvalidInput, "{}", problem.what());
  }
}

}  // namespace

struct Service::Parts {
  Parts(const ServiceOptions& options, DurableController what, std::unique_ptr<Executor> who)
      : token(options.token),
        page(options.page),
        endpoint(options.listen),
        executor(std::move(who)),
        controller(std::move(what)) {}

  void run();
  Status run_steps();
  void route();
  Json nodes() const;

  // Calls `what` under the lock; wakes the loop where it has changed something.
  template <class What>
  void with_controller(httplib::Response& response, bool changes, const What& what) {
    const std::lock_guard lock(mutex);
    const Result<Json> json = what(controller);
    if (!json) {
      refuse(response, json.error());
      return;
    }
    answer(response, *json);
    if (changes) {
      is_due = true;
      changed.notify_all();
    }
  }

  const net::Secret token;
  const std::function<std::string(const Controller&)> page;
  net::Endpoint endpoint;
  net::HttpServer http{{.patience_seconds = kPatienceSeconds, .max_body_bytes = kMaxBodyBytes}};
  std::thread loop;
  const std::unique_ptr<Executor> executor;  // the loop's own
  std::mutex mutex;                          // guards all below
  std::condition_variable changed;
  DurableController controller;
  bool is_due = true;
  bool is_stopping = false;
  Status outcome;
};

// The controller's steps, one after another. What they command is done, and what became of it is looked at, without the
// lock: the executor may take long, and requests are answered meanwhile.
Status Service::Parts::run_steps() {
  std::unique_lock lock(mutex);
  while (!is_stopping) {
    const std::vector<Attempt> watched = controller.controller().watched();
    lock.unlock();
    MOTLEY_ASSIGN(const Observation seen, observe(*executor, watched));
    lock.lock();
    is_due = false;
    const double now = wall_seconds();
    MOTLEY_ASSIGN(const Controller::Step step, controller.step(now, seen));
    lock.unlock();
    carry_out(*executor, step.commands);
    lock.lock();
    const auto wait = std::chrono::duration<double>(std::clamp(step.wake - wall_seconds(), 0.0, 60.0));
    changed.wait_for(lock, wait, [this] { return is_due || is_stopping; });
  }
  return {};
}

void Service::Parts::run() {
  const Status ended = run_steps();
  const std::lock_guard lock(mutex);
  outcome = ended;
  is_stopping = true;
  changed.notify_all();
}

Json Service::Parts::nodes() const {
  Json all = Json::array();
  for (std::size_t i = 0; i < controller.controller().topology().nodes.size(); ++i) {
    const Node& node = controller.controller().topology().nodes[i];
    Json jobs = Json::object();
    int used = 0;
    for (const JobRecord& record : controller.controller().records()) {
      for (const NodeAllocation& allocation : record.nodes) {
        if (allocation.node != node.name) continue;
        jobs[record.job.name] = allocation.workers;
        used += allocation.workers;
      }
    }
    all.push_back({{"name", node.name},
                   {"type", controller.controller().topology().type_name(node)},
                   {"devices", node.devices},
                   {"used", used},
                   {"state", controller.controller().node_state(i)},
                   {"jobs", jobs}});
  }
  return all;
}

void Service::Parts::route() {
  httplib::Server& server = http.server();
  server.set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
    if (net::shows_token(request, token, true)) return httplib::Server::HandlerResponse::Unhandled;
    response.status = 401;
    response.set_header("WWW-Authenticate", "Basic realm=\"motley\", charset=\"UTF-8\"");
    answer(response, {{"error", "the token is missing or wrong; accepted: 'Authorization: Bearer TOKEN'"}});
    return httplib::Server::HandlerResponse::Handled;
  });
  server.Post("/v1/jobs", [this](const httplib::Request& request, httplib::Response& response) {
    const auto jobs = jobs_in(request.body);
    if (!jobs) return refuse(response, jobs.error());
    with_controller(response, true, [&](DurableController& one) -> Result<Json> {
      MOTLEY_ASSIGN(const std::vector<int> ids, one.submit(*jobs, wall_seconds()));
      return Json{{"ids", ids}};
    });
  });
  server.Get("/v1/jobs", [this](const httplib::Request& request, httplib::Response& response) {
    std::optional<JobState> state;
    if (const std::string named = request.get_param_value("state"); !named.empty()) {
      const auto query = parse_json<StateQuery>(Json{{"state", named}}.dump(), "the query");
      if (!query) return refuse(response, query.error());
      state = query->state;
    }
    with_controller(response, false, [&](DurableController& one) -> Result<Json> {
      Json jobs = Json::array();
      for (const JobRecord& record : one.controller().records()) {
        if (!state || state == record.state) jobs.push_back(brief(record));
      }
      return Json{{"jobs", jobs}};
    });
  });
  server.Get(R"(/v1/jobs/([^/]+))", [this](const httplib::Request& request, httplib::Response& response) {
    with_controller(response, false, [&](DurableController& one) -> Result<Json> {
      const JobRecord* record = one.controller().find(request.matches[1]);
      if (record == nullptr) return fail(ErrorCode::kInvalidInput, "there is no job '{}'", request.matches[1].str());
      return as_json(*record);
    });
  });
  server.Delete(R"(/v1/jobs/([^/]+))", [this](const httplib::Request& request, httplib::Response& response) {
    with_controller(response, true, [&](DurableController& one) -> Result<Json> {
      MOTLEY_TRY(one.cancel(request.matches[1], wall_seconds()));
      return as_json(*one.controller().find(request.matches[1]));
    });
  });
  server.Get(R"(/v1/jobs/([^/]+)/why)", [this](const httplib::Request& request, httplib::Response& response) {
    with_controller(response, false, [&](DurableController& one) -> Result<Json> {
      MOTLEY_ASSIGN(const Explanation explanation, explain(one.controller(), request.matches[1], wall_seconds()));
      return as_json(explanation);
    });
  });
  server.Post("/v1/what-if", [this](const httplib::Request& request, httplib::Response& response) {
    const auto change = parse_json<WhatIf>(request.body, "the request");
    if (!change) return refuse(response, change.error());
    with_controller(response, false, [&](DurableController& one) -> Result<Json> {
      MOTLEY_ASSIGN(const std::vector<Comparison> rows, what_if(one.controller(), *change, wall_seconds()));
      return Json{{"jobs", as_json(rows)}};
    });
  });
  server.Get("/v1/nodes", [this](const httplib::Request&, httplib::Response& response) {
    with_controller(response, false, [&](DurableController&) -> Result<Json> { return Json{{"nodes", nodes()}}; });
  });
  const auto drain = [this](bool is_drained) {
    return [this, is_drained](const httplib::Request& request, httplib::Response& response) {
      with_controller(response, true, [&](DurableController& one) -> Result<Json> {
        MOTLEY_TRY(one.drain(request.matches[1], is_drained));
        return Json{{"nodes", nodes()}};
      });
    };
  };
  server.Post(R"(/v1/nodes/([^/]+)/drain)", drain(true));
  server.Delete(R"(/v1/nodes/([^/]+)/drain)", drain(false));
  server.Get("/", [this](const httplib::Request&, httplib::Response& response) {
    const std::lock_guard lock(mutex);
    response.set_header("Refresh", kRefreshSeconds);
    response.set_content(page(controller.controller()), "text/html; charset=utf-8");
  });
}

Service::Service(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Result<std::unique_ptr<Service>> Service::start(const ServiceOptions& options, DurableController controller,
                                                std::unique_ptr<Executor> executor) {
  auto parts = std::make_unique<Parts>(options, std::move(controller), std::move(executor));
  parts->route();
  MOTLEY_ASSIGN(parts->endpoint, parts->http.start(options.listen, "--listen:"));
  parts->loop = std::thread([all = parts.get()] { all->run(); });
  return std::unique_ptr<Service>(new Service(std::move(parts)));
}

const net::Endpoint& Service::endpoint() const {
  return parts_->endpoint;
}

std::string Service::address() const {
  return net::to_string(parts_->endpoint);
}

Status Service::wait() {
  std::unique_lock lock(parts_->mutex);
  parts_->changed.wait(lock, [this] { return parts_->is_stopping; });
  return parts_->outcome;
}

void Service::stop() {
  const std::lock_guard lock(parts_->mutex);
  parts_->is_stopping = true;
  parts_->changed.notify_all();
}

Service::~Service() {
  stop();
  parts_->http.stop();
  if (parts_->loop.joinable()) parts_->loop.join();
}

}  // namespace motley::scheduling
