// The service over HTTP: what it answers, and to whom.
#include "motley/scheduling/service/service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cmath>
#include <nlohmann/json.hpp>
#include <thread>

#include "motley/base/clock.h"
#include "motley/base/os/file.h"
#include "motley/base/units.h"
#include "motley/net/socket.h"
#include "motley/report/scheduler_page.h"
#include "motley/scheduling/executors/executors.h"
#include "tests/temporary_folder.h"

namespace motley::scheduling {
namespace {

using ::testing::HasSubstr;

class ServiceTest : public ::testing::Test {
 protected:
  void SetUp() override { serve(ControllerOptions()); }
  void serve(const ControllerOptions& policy, double forecast_turn_seconds = 20) {
    auto store = Store::open(folder_.path);
    ASSERT_TRUE(store) << store.error().message;
    auto controller = Controller::make(std::move(*store), uniform(2, 2), folder_.path, policy);
    ASSERT_TRUE(controller) << controller.error().message;
    const net::Secret token = net::Secret::generate();
    net::HttpListen listen;
    listen.address.endpoint = {"127.0.0.1", 0};
    const ServiceOptions options{.listen = listen,
                                 .token = token,
                                 .page = report::scheduler_page,
                                 .limits = {.forecasts = 1'000'000},
                                 .forecast_turn_seconds = forecast_turn_seconds};
    auto service = Service::start(options, std::move(*controller), *make_local_executor());
    ASSERT_TRUE(service) << service.error().message;
    service_ = std::move(*service);
    client_ = std::make_unique<httplib::Client>("127.0.0.1", service_->endpoint().port);
    unauthenticated_ = std::make_unique<httplib::Client>("127.0.0.1", service_->endpoint().port);
    client_->set_bearer_token_auth(token.hex().c_str());
    token_ = token.hex();
  }
  nlohmann::json submit(const std::string& name, const std::string& script) {
    const nlohmann::json job = {{"name", name},     {"command", {"bash", "-c", script}}, {"directory", "/"},
                                {"workers", 1},     {"estimated_duration", 5},           {"restart_cost", 0},
                                {"grace_period", 5}};
    const auto answer = client_->Post("/v1/jobs", job.dump(), "application/json");
    EXPECT_TRUE(answer);
    return answer ? nlohmann::json::parse(answer->body) : nlohmann::json();
  }
  nlohmann::json get(const std::string& path) {
    const auto answer = client_->Get(path.c_str());
    EXPECT_TRUE(answer) << path;
    return answer ? nlohmann::json::parse(answer->body) : nlohmann::json();
  }
  void wait_until(const std::string& name, const std::string& state) {
    std::string now;
    for (const Deadline deadline = Deadline::after(20); now != state && !deadline.passed();) {
      now = get("/v1/jobs/" + name)["state"];
      SteadyClock::instance().sleep_until(monotonic_seconds() + 0.02);
    }
    EXPECT_EQ(now, state);
  }

  TemporaryFolder folder_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<httplib::Client> client_, unauthenticated_;
  std::string token_;
};

TEST_F(ServiceTest, RunsWhatIsSubmitted) {
  EXPECT_EQ(submit("good", "exit 0")["ids"], nlohmann::json::array({1}));
  submit("bad", "exit 4");
  submit("long", "sleep 100");
  wait_until("good", "completed");
  wait_until("bad", "failed");
  wait_until("long", "running");
  EXPECT_EQ(get("/v1/jobs")["jobs"].size(), 3u);
  EXPECT_EQ(get("/v1/jobs?state=completed")["jobs"].size(), 1u);
  EXPECT_THAT(get("/v1/jobs/long/why")["reason"].get<std::string>(), HasSubstr("it runs with 1 worker on 1 node"));
  EXPECT_THAT(get("/v1/jobs/bad/why")["reason"].get<std::string>(), HasSubstr("with exit code 4"));
  ASSERT_TRUE(client_->Delete("/v1/jobs/long"));
  wait_until("long", "cancelled");
}

TEST_F(ServiceTest, AnswersNobodyWithoutTheToken) {
  for (const char* path : {"/", "/v1/jobs", "/v1/nodes", "/nothing"}) {
    const auto answer = unauthenticated_->Get(path);
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->status, 401) << path;
  }
  unauthenticated_->set_bearer_token_auth(std::string(64, 'a').c_str());
  EXPECT_EQ(unauthenticated_->Post("/v1/jobs", "{}", "application/json")->status, 401);
  EXPECT_EQ(get("/v1/jobs")["jobs"].size(), 0u);
  httplib::Client browser("127.0.0.1", service_->endpoint().port);
  browser.set_basic_auth("me", token_.c_str());
  const auto page = browser.Get("/");
  ASSERT_TRUE(page);
  EXPECT_EQ(page->status, 200);
  EXPECT_THAT(page->body, HasSubstr("<!"));
}

// A browser resends Basic credentials whoever's page asks for it: they read, and change nothing.
TEST_F(ServiceTest, IsChangedByItsClientsOnly) {
  const std::string job = R"({"name": "a", "command": ["true"], "directory": "/", "workers": 1,
                              "estimated_duration": 5, "restart_cost": 0, "grace_period": 5})";
  httplib::Client browser("127.0.0.1", service_->endpoint().port);
  browser.set_basic_auth("me", token_.c_str());
  EXPECT_EQ(browser.Post("/v1/jobs", job, "application/json")->status, 401);
  EXPECT_EQ(browser.Post("/v1/nodes/node0/drain", "", "application/json")->status, 401);
  EXPECT_EQ(browser.Delete("/v1/jobs/a")->status, 401);
  const std::string own = fmt::format("http://127.0.0.1:{}", service_->endpoint().port);
  for (const httplib::Headers& elsewhere :
       {httplib::Headers{{"Origin", "http://evil.example"}}, httplib::Headers{{"Origin", "null"}},
        httplib::Headers{{"Origin", own + "0"}}, httplib::Headers{{"Sec-Fetch-Site", "cross-site"}}}) {
    EXPECT_EQ(client_->Post("/v1/jobs", elsewhere, job, "application/json")->status, 403);
  }
  const auto text = client_->Post("/v1/jobs", job, "text/plain");
  EXPECT_EQ(text->status, 415);
  EXPECT_THAT(text->body, HasSubstr("accepted: application/json"));
  EXPECT_EQ(get("/v1/jobs")["jobs"].size(), 0u);
  EXPECT_EQ(client_->Post("/v1/jobs", {{"Origin", own}}, job, "application/json; charset=utf-8")->status, 200);
  wait_until("a", "completed");
}

// Sends bytes, and returns all that comes until the other end closes.
std::string talk(const net::Endpoint& endpoint, const std::string& request) {
  const auto socket = net::connect_to(endpoint, Deadline::after(5));
  EXPECT_TRUE(socket);
  if (!socket) return "";
  (void)::send(socket->get(), request.data(), request.size(), MSG_NOSIGNAL);
  std::string answer;
  for (std::array<char, 4096> block{};;) {
    net::wait_for(socket->get(), POLLIN, 20'000);
    const ssize_t got = ::recv(socket->get(), block.data(), block.size(), MSG_DONTWAIT);
    if (got <= 0) return answer;
    answer.append(block.data(), static_cast<std::size_t>(got));
  }
}

// Behind a proxy that keeps connections, the body of one client's request must not become another's request.
TEST_F(ServiceTest, TheBodyOfARefusedRequestIsNoRequest) {
  const std::string smuggled = "DELETE /v1/nodes/node0/drain HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer " + token_ +
                               "\r\nContent-Length: 0\r\n\r\n";
  std::string head =
      "POST /v1/jobs HTTP/1.1\r\nHost: a\r\nContent-Length: " + std::to_string(smuggled.size()) + "\r\nX: ";
  head += std::string(4096 - 4 - head.size(), 'x') + "\r\n\r\n";  // as much as the library reads at a time
  const std::string answer = talk(service_->endpoint(), head + smuggled);
  EXPECT_THAT(answer, ::testing::StartsWith("HTTP/1.1 401"));
  EXPECT_THAT(answer, ::testing::Not(HasSubstr("200")));
}

TEST_F(ServiceTest, AnswersThoughOthersTrickleAndEndsThen) {
  std::atomic<bool> stop = false;
  std::atomic<int> trickling = 0;
  std::vector<std::thread> clients;
  for (int i = 0; i < 12; ++i) {
    clients.emplace_back([&, i] {
      while (!stop) {  // again where it is sent away
        const auto socket = net::connect_to(service_->endpoint(), Deadline::after(5));
        const std::string whole = "POST /v1/jobs HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n";
        std::string begin = i % 2 == 0 ? "" : whole;  // in the head, or in the body
        if (!socket || ::send(socket->get(), begin.data(), begin.size(), MSG_NOSIGNAL) < 0) continue;
        for (int sent = 0; !stop && ::send(socket->get(), "G", 1, MSG_NOSIGNAL) == 1; ++sent) {
          if (sent == 0) ++trickling;
          std::this_thread::sleep_for(std::chrono::milliseconds(100));
        }
      }
    });
  }
  for (const auto deadline = Deadline::after(20); trickling < 12 && !deadline.passed();) std::this_thread::yield();
  for (int asked = 0; asked < 5; ++asked) {
    const auto answer = client_->Get("/v1/jobs");
    ASSERT_TRUE(answer) << httplib::to_string(answer.error());
    EXPECT_EQ(answer->status, 200);
  }
  stop = true;
  for (std::thread& client : clients) client.join();
}

// More idle connections than the process may have descriptors, and a head that never ends.
TEST_F(ServiceTest, OutlivesConnectionsAndHeadersWithoutEnd) {
  std::vector<Descriptor> idle;
  for (int i = 0; i < 200; ++i) {
    auto socket = net::connect_to(service_->endpoint(), Deadline::after(5));
    ASSERT_TRUE(socket) << socket.error().message;
    idle.push_back(std::move(*socket));
  }
  EXPECT_EQ(submit("good", "exit 0")["ids"], nlohmann::json::array({1}));
  wait_until("good", "completed");
  const auto descriptors = std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  EXPECT_LT(descriptors, 200 + 100) << "of which 200 are this end's";

  const double memory = peak_resident_bytes();
  const auto socket = net::connect_to(service_->endpoint(), Deadline::after(5));
  ASSERT_TRUE(socket);
  const std::string line = "X: " + std::string(4000, 'x') + "\r\n";
  for (int i = 0; i < 10'000 && ::send(socket->get(), line.data(), line.size(), MSG_NOSIGNAL) > 0; ++i) {
    net::wait_for(socket->get(), POLLOUT, 1000);
  }
  EXPECT_LT(peak_resident_bytes() - memory, 10e6);
  EXPECT_EQ(get("/v1/jobs")["jobs"].size(), 1u);
}

// While somebody asks all the time for forecasts that take all the time that they may.
class ForecastTest : public ServiceTest {
 protected:
  void SetUp() override {
    ControllerOptions options;
    options.policy = "drf";
    options.policy_options.slot_seconds = 1;
    serve(options, 0);
    submit_long("long");
    forecaster_ = std::jthread([this](const std::stop_token& stop) {
      httplib::Client client("127.0.0.1", service_->endpoint().port);
      client.set_bearer_token_auth(token_.c_str());
      client.set_read_timeout(60);
      nlohmann::json change;
      for (const char* name : {"a", "b", "c"}) change["submit"].push_back(long_job(name, 4));
      while (!stop.stop_requested()) {
        const auto answer = client.Post("/v1/what-if", change.dump(), "application/json");
        if (answer && answer->status != 503) ++forecasts_;
      }
    });
  }
  void TearDown() override {
    forecaster_.request_stop();
    forecaster_.join();
    client_->Delete("/v1/jobs/long");
    wait_until("long", "cancelled");
  }
  static nlohmann::json long_job(const std::string& name, int workers) {
    return {{"name", name},       {"command", {"sleep", "1000"}}, {"directory", "/"},  {"workers", workers},
            {"min_workers", 1},   {"max_workers", workers},       {"restart_cost", 0}, {"estimated_duration", 1e9},
            {"grace_period", 0.1}};
  }
  void submit_long(const std::string& name) {
    const auto answer = client_->Post("/v1/jobs", long_job(name, 1).dump(), "application/json");
    ASSERT_TRUE(answer);
    ASSERT_EQ(answer->status, 200) << answer->body;
  }

  std::atomic<int> forecasts_ = 0;
  std::jthread forecaster_;
};

TEST_F(ForecastTest, JobsAreStartedAndEndedWhileAForecastIsComputed) {
  bool has_started = false, has_ended = false;
  const Deadline deadline = Deadline::after(60);
  for (int i = 0; (!has_started || !has_ended) && !deadline.passed(); ++i) {
    const std::string name = fmt::format("other-{}", i);
    const int before = forecasts_;
    submit_long(name);
    wait_until(name, "running");
    const int between = forecasts_;
    EXPECT_EQ(client_->Delete("/v1/jobs/" + name)->status, 200);
    wait_until(name, "cancelled");
    has_started |= between == before;
    has_ended |= forecasts_ == between;
  }
  EXPECT_TRUE(has_started);
  EXPECT_TRUE(has_ended);
}

TEST_F(ForecastTest, AnotherOneMeanwhileHasItsTurnOrIsToldToAskAgain) {
  int status = 0;
  for (const Deadline deadline = Deadline::after(60); status != 503 && !deadline.passed();) {
    const auto answer = client_->Get("/v1/jobs/long/why");
    ASSERT_TRUE(answer);
    status = answer->status;
    if (status == 503) {
      EXPECT_THAT(answer->body, HasSubstr("ask again"));
    } else {
      EXPECT_EQ(status, 200);
    }
  }
  EXPECT_EQ(status, 503);
  EXPECT_EQ(client_->Get("/v1/jobs")->status, 200);
}

// A job's output and the page of its run: as they are there, and as nothing that could act for the reader.
TEST_F(ServiceTest, ShowsWhatAJobLeavesToRead) {
  const auto run = folder_.path / "run";
  std::filesystem::create_directory(run);
  ASSERT_TRUE(write_file(run / "report.html", "<script>1</script>"));
  const nlohmann::json job = {
      {"name", "trains"},
      {"command", {"bash", "-c", "echo one line; echo another", "--run-directory", run.string()}},
      {"directory", "/"},
      {"workers", 1},
      {"estimated_duration", 5},
      {"restart_cost", 0},
      {"grace_period", 5}};
  ASSERT_EQ(client_->Post("/v1/jobs", job.dump(), "application/json")->status, 200);
  submit("plain", "exit 3");
  wait_until("trains", "completed");
  wait_until("plain", "failed");
  const auto log = client_->Get("/v1/jobs/trains/log");
  ASSERT_TRUE(log);
  EXPECT_EQ(log->body, "one line\nanother\n");
  EXPECT_EQ(log->get_header_value("Content-Type"), "text/plain; charset=utf-8");
  EXPECT_EQ(log->get_header_value("X-Content-Type-Options"), "nosniff");
  const auto report = client_->Get("/v1/jobs/trains/report");
  ASSERT_TRUE(report);
  EXPECT_EQ(report->body, "<script>1</script>");
  EXPECT_THAT(report->get_header_value("Content-Security-Policy"),
              ::testing::AllOf(::testing::StartsWith("sandbox allow-scripts"), HasSubstr("default-src 'none'"),
                               ::testing::Not(HasSubstr("allow-same-origin"))));
  EXPECT_EQ(client_->Get("/v1/jobs/plain/report")->status, 404);
  EXPECT_EQ(client_->Get("/v1/jobs/nobody/log")->status, 400);
  EXPECT_EQ(unauthenticated_->Get("/v1/jobs/trains/log")->status, 401);
  const std::string page = client_->Get("/")->body;
  EXPECT_THAT(page, HasSubstr("href=\"v1/jobs/1/log\""));
  EXPECT_THAT(page, HasSubstr("href=\"v1/jobs/1/report\""));
  EXPECT_THAT(page, HasSubstr("href=\"v1/jobs/2/log\""));
  EXPECT_THAT(page, ::testing::Not(HasSubstr("v1/jobs/2/report")));
  EXPECT_THAT(page, HasSubstr("it failed 1 time, last "));
}

// The page is made while the service is locked: it does not look for files, which may take long.
TEST_F(ServiceTest, LinksToWhatAJobMayHaveLeftToRead) {
  const nlohmann::json job = {
      {"name", "trains"},        {"command", {"true", "--run-directory", (folder_.path / "nothing").string()}},
      {"directory", "/"},        {"workers", 1},
      {"estimated_duration", 5}, {"restart_cost", 0},
      {"grace_period", 5}};
  ASSERT_EQ(client_->Post("/v1/jobs", job.dump(), "application/json")->status, 200);
  wait_until("trains", "completed");
  submit("plain", "exit 0");
  wait_until("plain", "completed");
  const std::string page = client_->Get("/")->body;
  EXPECT_THAT(page, HasSubstr("href=\"v1/jobs/1/log\""));
  EXPECT_THAT(page, HasSubstr("href=\"v1/jobs/1/report\""));
  EXPECT_THAT(page, ::testing::Not(HasSubstr("v1/jobs/2/report")));
  const auto not_there = client_->Get("/v1/jobs/trains/report");
  ASSERT_TRUE(not_there);
  EXPECT_EQ(not_there->status, 404);
  EXPECT_THAT(not_there->body, HasSubstr("nothing/report.html"));
  const auto none = client_->Get("/v1/jobs/plain/report");
  ASSERT_TRUE(none);
  EXPECT_EQ(none->status, 404);
  EXPECT_THAT(none->body, HasSubstr("job 'plain' has no report: its command names no --run-directory"));
}

TEST_F(ServiceTest, ThePageSaysWhyJobsWaitAndWhenTheyShouldEnd) {
  nlohmann::json job = {{"command", {"sleep", "100"}}, {"directory", "/"},  {"workers", 4},
                        {"estimated_duration", 3600},  {"restart_cost", 0}, {"grace_period", 5}};
  for (const char* name : {"first", "second"}) {
    job["name"] = name;
    ASSERT_EQ(client_->Post("/v1/jobs", job.dump(), "application/json")->status, 200);
    if (name == std::string("first")) wait_until("first", "running");
  }
  std::string page;
  // Explanations are a few seconds old at most.
  for (const Deadline deadline = Deadline::after(60); !deadline.passed();) {
    page = client_->Get("/")->body;
    if (page.find("it needs 4 devices, and 0 of 4 are free") != std::string::npos) break;
    SteadyClock::instance().sleep_until(monotonic_seconds() + 0.1);
  }
  EXPECT_THAT(page, HasSubstr("it needs 4 devices, and 0 of 4 are free"));
  EXPECT_THAT(page, HasSubstr("4 of 4"));
  EXPECT_THAT(page, ::testing::Not(HasSubstr("http-equiv=\"refresh\" content=\"5\"><meta")));
  // As the forecast says that `why` makes at the moment; the page's is a little older.
  const double ends = get("/v1/jobs/second/why")["finishes_in_seconds"];
  EXPECT_GT(ends, 3600);
  bool is_said = false;
  for (int older = 0; older < 120; ++older) {
    is_said |= page.find("<td>in " + format_seconds(std::floor(ends) + older) + "</td>") != std::string::npos;
  }
  EXPECT_TRUE(is_said) << ends;
  for (const char* name : {"second", "first"}) {
    EXPECT_EQ(client_->Delete(fmt::format("/v1/jobs/{}", name))->status, 200);
    wait_until(name, "cancelled");
  }
}

TEST_F(ServiceTest, SaysWhatIsWrong) {
  const auto refused = [&](const std::string& body) {
    const auto answer = client_->Post("/v1/jobs", body, "application/json");
    EXPECT_TRUE(answer);
    EXPECT_EQ(answer->status, 400);
    return nlohmann::json::parse(answer->body)["error"].get<std::string>();
  };
  EXPECT_THAT(refused("{"), HasSubstr("parse error"));
  EXPECT_THAT(refused(R"({"jobs": [{"name": "a"}]})"), HasSubstr("jobs[0].command"));
  EXPECT_THAT(refused(R"({"jobs": [{"name": "a", "command": ["x"], "directory": "/", "workers": -1}]})"),
              HasSubstr("jobs[0].workers"));
  EXPECT_EQ(client_->Get("/v1/jobs/nobody")->status, 400);
  const auto unknown = client_->Get("/v1/jobs?state=done");
  EXPECT_EQ(unknown->status, 400);
  EXPECT_THAT(unknown->body, ::testing::AllOf(HasSubstr("done"), HasSubstr("pending"), HasSubstr("completed")));
  EXPECT_EQ(client_->Get("/v1/jobs?state=%ff")->status, 400);
  EXPECT_EQ(client_->Get("/v1/jobs/nobody/logs?attempt=%ff")->status, 400);
  EXPECT_EQ(client_->Get("/v1/jobs/nobody/why")->status, 400);
  EXPECT_EQ(client_->Post("/v1/nodes/nobody/drain", "", "application/json")->status, 400);
  EXPECT_EQ(client_->Get("/v2")->status, 404);
}

}  // namespace
}  // namespace motley::scheduling
