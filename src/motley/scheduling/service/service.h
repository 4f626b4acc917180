// The scheduler as a service: a controller behind HTTP, for owners of jobs and operators of the cluster.
//
//   POST   /v1/jobs                 a job, or {"jobs": [...]}; durable once it is answered
//   GET    /v1/jobs                 all of them, briefly; ?state=pending those in that state
//   GET    /v1/jobs/NAME            everything known of one; NAME may also be its number
//   GET    /v1/jobs/NAME/why        why it is where it is
//   GET    /v1/jobs/NAME/log        the end of what its latest attempt has printed, as text
//   GET    /v1/jobs/NAME/report     the page of its run, where it trains with motley train --run-directory
//   GET    /v1/jobs/NAME/logs       what its last attempt has printed; ?attempt=1&offset=0 from there on
//   DELETE /v1/jobs/NAME            cancels it
//   POST   /v1/what-if              what would change
//   GET    /v1/nodes                the nodes, and who is on them
//   POST   /v1/nodes/NAME/drain     no job runs there any more; DELETE takes that back
//   GET    /                        a page, which keeps itself up to date
//
// Every request shows the token, as "Authorization: Bearer TOKEN", or, where it is GET, as the password of a browser's
// Basic authentication: a browser resends that whoever's page asks for it. A body is JSON, and says so. Errors are
// {"error": "..."} with status 4xx for what the client can mend.
//
// Whoever may ask sees all jobs. A tenant (requester.h) changes its own, and reads what they print; operators change
// all jobs and the nodes. No tenant has more unfinished jobs, changes or forecasts than it may.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "motley/net/http_server.h"
#include "motley/scheduling/service/controller.h"
#include "motley/scheduling/service/explain.h"
#include "motley/scheduling/service/requester.h"

namespace httplib {
struct Response;
}  // namespace httplib

namespace motley::scheduling {

// What the page of GET / is made from.
struct PageInput {
  const Controller& controller;
  const std::vector<Explanation>& explanations;  // of jobs that are not over, a few seconds old
  double now = 0;                                // seconds since 1970
};

struct ServiceOptions {
  net::HttpListen listen;  // port 0 takes any free one
  net::Secret token;
  std::function<std::string(const PageInput&)> page;  // HTML of GET /
  RequestLimits limits = {};
  double forecast_turn_seconds = 20;  // in which forecasts that were asked for before are to be done
};

class Service {
 public:
  static Result<std::unique_ptr<Service>> start(const ServiceOptions& options, Controller controller,
                                                std::unique_ptr<Executor> executor);
  // Attempts go on; the next service takes them up. Nothing else ends a service: what fails is tried again.
  ~Service();

  const net::Endpoint& endpoint() const { return address_.endpoint; }  // really listening at, if not at a unix socket
  std::string url() const;                                             // of where it listens

 private:
  using Json = nlohmann::ordered_json;
  using What =
      std::function<Result<Json>(Controller& controller, const httplib::Request& request, const Requester& requester)>;

  Service(const ServiceOptions& options, Controller controller, std::unique_ptr<Executor> executor);
  void run_steps();
  void route();
  Status count(const httplib::Request& request);
  void answer_forecast(httplib::Response& response, const std::string& asked,
                       const std::function<Result<Json>(const Controller::Snapshot&)>& what);
  std::shared_ptr<const std::vector<Explanation>> recent_explanations();
  Result<Attempt> find_own_attempt(const std::string& name);
  Result<Json> read_logs(const httplib::Request& request);
  void answer_locked(const httplib::Request& request, httplib::Response& response, bool changes, const What& what);

  const ServiceOptions options_;
  net::HttpAddress address_;
  net::HttpServer http_;
  std::thread loop_;
  const std::unique_ptr<Executor> executor_;  // the loop's own
  RateLimit changes_limit_, forecasts_limit_;
  std::timed_mutex forecasts_;  // one is computed at a time
  std::mutex mutex_;            // guards all below
  std::condition_variable changed_;
  Controller controller_;
  std::shared_ptr<const std::vector<Explanation>> explanations_ = std::make_shared<std::vector<Explanation>>();
  double explain_after_ = 0;  // monotonic seconds, before which they are recent
  bool is_due_ = true;
  bool is_stopping_ = false;
};

}  // namespace motley::scheduling
