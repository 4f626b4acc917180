// The service over HTTP: what it answers, and to whom.
#include "motley/scheduling/service/service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <nlohmann/json.hpp>

#include "motley/base/clock.h"
#include "motley/report/schedule_page.h"
#include "motley/scheduling/executors/executors.h"
#include "tests/temporary_folder.h"

namespace motley::scheduling {
namespace {

using ::testing::HasSubstr;

class ServiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto store = Store::open(folder_.path);
    ASSERT_TRUE(store) << store.error().message;
    auto controller = Controller::make(std::move(*store), uniform(2, 2), folder_.path, ControllerOptions());
    ASSERT_TRUE(controller) << controller.error().message;
    const net::Secret token = net::Secret::generate();
    const ServiceOptions options{net::Endpoint{"127.0.0.1", 0}, token, report::scheduler_page};
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
  EXPECT_THAT(get("/v1/jobs/long/why")["reason"].get<std::string>(), HasSubstr("it runs with 1 workers on 1 nodes"));
  EXPECT_THAT(get("/v1/jobs/bad/why")["reason"].get<std::string>(), HasSubstr("last with 4"));
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
  EXPECT_EQ(client_->Get("/v1/jobs/nobody/why")->status, 400);
  EXPECT_EQ(client_->Post("/v1/nodes/nobody/drain", "", "text/plain")->status, 400);
  EXPECT_EQ(client_->Get("/v2")->status, 404);
}

}  // namespace
}  // namespace motley::scheduling
