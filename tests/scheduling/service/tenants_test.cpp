// Who may do what at a service, and how much of it: tenants by certificates, at a unix socket, and by the token.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "motley/net/http_client.h"
#include "motley/report/scheduler_page.h"
#include "motley/scheduling/executors/executors.h"
#include "motley/scheduling/service/service.h"
#include "tests/net/test_certificates.h"
#include "tests/temporary_folder.h"

namespace motley::scheduling {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string job(const std::string& name, const std::string& script = "sleep 100") {
  return nlohmann::json{{"name", name},      {"command", {"bash", "-c", script}},
                        {"directory", "/"},  {"workers", 1},
                        {"restart_cost", 0}, {"grace_period", 5}}
      .dump();
}

class TenantsTest : public ::testing::Test {
 protected:
  void start(const net::HttpListen& listen, int max_jobs = 100, RequestLimits limits = {}) {
    service_.reset();
    auto store = Store::open(folder_.path);
    ASSERT_TRUE(store) << store.error().message;
    ControllerOptions options;
    options.max_jobs_per_tenant = max_jobs;
    auto controller = Controller::make(std::move(*store), uniform(2, 2), folder_.path, options);
    ASSERT_TRUE(controller) << controller.error().message;
    listen_ = listen;
    auto service = Service::start({listen, token_, report::scheduler_page, limits}, std::move(*controller),
                                  *make_local_executor());
    ASSERT_TRUE(service) << service.error().message;
    service_ = std::move(*service);
  }
  // With HTTPS, where clients show certificates.
  void start_encrypted(int max_jobs = 100, RequestLimits limits = {}) {
    start({.address = {{"127.0.0.1", 0}}, .certificates = made_.read(own_, net::CertificateUse::kHttpServer)}, max_jobs,
          limits);
  }
  void TearDown() override {
    const net::HttpClient operators = client("URI:motley:server");
    for (int id = 1; service_ != nullptr && id <= jobs_; ++id) ask(operators, "DELETE", fmt::format("/v1/jobs/{}", id));
  }

  // One that shows a certificate with this name, where the service asks for one.
  net::HttpClient client(const std::string& name) {
    net::HttpUrl url{listen_.address, listen_.certificates != nullptr};
    url.address.endpoint.port = service_->endpoint().port;
    const auto files = made_.make(fmt::format("client{}", clients_++), name);
    return {url, made_.read(files, net::CertificateUse::kHttpClient), 20};
  }
  net::HttpAnswer ask(const net::HttpClient& client, const std::string& method, const std::string& target,
                      const std::string& body = "") {
    const auto answer = client.ask({.method = method, .target = target, .token = token_.hex(), .body = body});
    EXPECT_TRUE(answer) << answer.error().message;
    const bool is_submitted = answer && method == "POST" && target == "/v1/jobs" && answer->status == 200;
    if (is_submitted) jobs_ = std::max(jobs_, nlohmann::json::parse(answer->body)["ids"].back().get<int>());
    return answer.value_or(net::HttpAnswer{});
  }
  int status(const net::HttpClient& client, const std::string& method, const std::string& target,
             const std::string& body = "") {
    return ask(client, method, target, body).status;
  }
  std::string find_tenant(const net::HttpClient& client, const std::string& name) {
    return nlohmann::json::parse(ask(client, "GET", "/v1/jobs/" + name).body).value("tenant", "none");
  }

  TemporaryFolder folder_;
  net::TestCertificates made_;
  const net::CertificateFiles own_ = made_.make("service", "IP:127.0.0.1");
  const net::Secret token_ = net::Secret::generate();
  net::HttpListen listen_;
  std::unique_ptr<Service> service_;
  int clients_ = 0;
  int jobs_ = 0;  // that were submitted
};

TEST_F(TenantsTest, AJobIsOfTheTenantOfACertificateWhateverServiceRuns) {
  start_encrypted();
  ASSERT_EQ(status(client("URI:motley:tenant/vision"), "POST", "/v1/jobs", job("a")), 200);
  ASSERT_EQ(status(client("URI:motley:tenant/speech,URI:motley:tenant/other"), "POST", "/v1/jobs", job("b")), 200);
  ASSERT_EQ(status(client("DNS:somebody"), "POST", "/v1/jobs", job("c")), 200);
  ASSERT_EQ(status(client("URI:motley:server"), "POST", "/v1/jobs", job("d")), 200);
  for (int services = 0; services < 2; ++services) {
    const net::HttpClient anybody = client("URI:motley:tenant/vision");
    EXPECT_EQ(find_tenant(anybody, "a"), "vision");
    EXPECT_EQ(find_tenant(anybody, "b"), "speech");
    EXPECT_EQ(find_tenant(anybody, "c"), kDefaultTenant);
    EXPECT_EQ(find_tenant(anybody, "d"), kDefaultTenant);
    EXPECT_THAT(ask(anybody, "GET", "/v1/jobs").body, HasSubstr("\"tenant\": \"speech\""));
    EXPECT_THAT(ask(anybody, "GET", "/").body, HasSubstr("<td>speech</td>"));
    start_encrypted();
  }
}

TEST_F(TenantsTest, ATenantChangesAndReadsItsOwnJobsOnly) {
  start_encrypted();
  const net::HttpClient vision = client("URI:motley:tenant/vision"), speech = client("URI:motley:tenant/speech"),
                        nobody = client("DNS:somebody"), operators = client("URI:motley:server");
  ASSERT_EQ(status(vision, "POST", "/v1/jobs", job("a", "echo private; exit 3")), 200);
  ASSERT_EQ(status(vision, "POST", "/v1/jobs", job("long")), 200);
  const Deadline deadline = Deadline::after(20);
  while (nlohmann::json::parse(ask(vision, "GET", "/v1/jobs/a").body)["state"] != "failed" && !deadline.passed()) {
    SteadyClock::instance().sleep_until(monotonic_seconds() + 0.02);
  }
  for (const net::HttpClient* other : {&speech, &nobody}) {
    const auto refused = ask(*other, "DELETE", "/v1/jobs/long");
    EXPECT_EQ(refused.status, 403);
    EXPECT_THAT(refused.body, HasSubstr("job 'long' is of tenant 'vision', and cancelling it is not for '"));
    for (const char* part : {"log", "logs", "report"}) {
      EXPECT_EQ(status(*other, "GET", fmt::format("/v1/jobs/a/{}", part)), 403) << part;
    }
    const auto why = ask(*other, "GET", "/v1/jobs/a/why");
    EXPECT_EQ(why.status, 200);
    EXPECT_THAT(why.body, ::testing::Not(HasSubstr("private")));
    EXPECT_EQ(status(*other, "POST", "/v1/nodes/node0/drain"), 403);
    EXPECT_EQ(status(*other, "DELETE", "/v1/nodes/node0/drain"), 403);
    const auto taken = ask(*other, "POST", "/v1/jobs", job("long"));
    EXPECT_EQ(taken.status, 400) << "the same job of another tenant is another one";
    EXPECT_THAT(taken.body, HasSubstr("name is that of another job"));
  }
  EXPECT_EQ(status(vision, "POST", "/v1/nodes/node0/drain"), 403);
  EXPECT_EQ(status(operators, "POST", "/v1/nodes/node0/drain"), 200);
  for (const net::HttpClient* own : {&vision, &operators}) {
    EXPECT_THAT(ask(*own, "GET", "/v1/jobs/a/why").body, HasSubstr("private"));
    EXPECT_THAT(ask(*own, "GET", "/v1/jobs/a/log").body, HasSubstr("private"));
    EXPECT_EQ(status(*own, "GET", "/v1/jobs/a/logs"), 200);
  }
  EXPECT_EQ(status(vision, "DELETE", "/v1/jobs/long"), 200);
  ASSERT_EQ(status(speech, "POST", "/v1/jobs", job("other")), 200);
  EXPECT_EQ(status(operators, "DELETE", "/v1/jobs/other"), 200);
}

TEST_F(TenantsTest, NoTenantHasMoreUnfinishedJobsThanItMay) {
  start_encrypted(2);
  const net::HttpClient vision = client("URI:motley:tenant/vision");
  ASSERT_EQ(status(vision, "POST", "/v1/jobs", job("a")), 200);
  const std::string two = fmt::format(R"({{"jobs": [{}, {}]}})", job("b"), job("c"));
  const auto refused = ask(vision, "POST", "/v1/jobs", two);
  EXPECT_EQ(refused.status, 429);
  EXPECT_THAT(refused.body, HasSubstr("tenant 'vision' has 1 unfinished job and wants 2 more; "
                                      "--max-jobs-per-tenant lets it have 2"));
  EXPECT_EQ(status(vision, "POST", "/v1/jobs", job("b")), 200) << "none of the two was taken";
  EXPECT_EQ(status(vision, "POST", "/v1/jobs", job("b")), 200) << "it is there already";
  EXPECT_EQ(status(client("URI:motley:tenant/speech"), "POST", "/v1/jobs", job("other")), 200);
  start_encrypted(2);
  const net::HttpClient again = client("URI:motley:tenant/vision");
  EXPECT_EQ(status(again, "POST", "/v1/jobs", job("c")), 429) << "another service counts those that are there";
  ASSERT_EQ(status(again, "DELETE", "/v1/jobs/a"), 200);
  const Deadline deadline = Deadline::after(20);
  while (status(again, "POST", "/v1/jobs", job("c")) != 200 && !deadline.passed()) {
    SteadyClock::instance().sleep_until(monotonic_seconds() + 0.02);
  }
  EXPECT_FALSE(deadline.passed()) << "once one is over";
}

TEST_F(TenantsTest, NoTenantAsksForMoreThanItMay) {
  start_encrypted(100, {.changes = 3, .forecasts = 2});
  const net::HttpClient vision = client("URI:motley:tenant/vision"), speech = client("URI:motley:tenant/speech");
  ASSERT_EQ(status(vision, "POST", "/v1/jobs", job("a")), 200);
  EXPECT_EQ(status(vision, "DELETE", "/v1/jobs/none"), 400);
  EXPECT_EQ(status(vision, "POST", "/v1/jobs", "{"), 400);
  const auto refused = ask(vision, "DELETE", "/v1/jobs/a");
  EXPECT_EQ(refused.status, 429);
  EXPECT_THAT(refused.body, HasSubstr("tenant 'vision' has asked for 3 changes within a minute; "
                                      "--max-changes-per-tenant lets it ask for 3"));
  EXPECT_EQ(status(vision, "GET", "/v1/jobs/a/why"), 200) << "forecasts are counted apart";
  EXPECT_EQ(status(vision, "POST", "/v1/what-if", "{}"), 200);
  EXPECT_THAT(ask(vision, "GET", "/v1/jobs/a/why").body, HasSubstr("--max-forecasts-per-tenant lets it ask for 2"));
  EXPECT_EQ(status(vision, "POST", "/v1/what-if", "{}"), 429);
  EXPECT_EQ(status(vision, "GET", "/v1/jobs"), 200) << "what costs little is not counted";
  EXPECT_EQ(status(speech, "POST", "/v1/jobs", job("b")), 200);
  EXPECT_EQ(status(speech, "GET", "/v1/jobs/b/why"), 200);
}

TEST_F(TenantsTest, AtASocketUsersAreTenantsAndTheServicesOwnIsAnOperator) {
  const Requester own = find_requester({.user = ::geteuid()}), other = find_requester({.user = 4242424242U});
  EXPECT_TRUE(own.is_operator);
  EXPECT_TRUE(find_requester({.user = 0}).is_operator);
  EXPECT_EQ(find_requester({.user = 0}).tenant, "root");
  EXPECT_FALSE(other.is_operator);
  EXPECT_EQ(other.tenant, "4242424242");
  start({.address = {.endpoint = {}, .path = (folder_.path / "socket").string()}});
  const net::HttpClient client({listen_.address, false}, nullptr, 20);
  ASSERT_EQ(status(client, "POST", "/v1/jobs", job("a")), 200);
  EXPECT_EQ(find_tenant(client, "a"), own.tenant);
  EXPECT_EQ(status(client, "POST", "/v1/nodes/node0/drain"), 200);
  EXPECT_EQ(status(client, "DELETE", "/v1/jobs/a"), 200);
}

TEST_F(TenantsTest, WhoShowsTheTokenIsAnOperatorWhereClientsAreNotToldApart) {
  start({.address = {{"127.0.0.1", 0}}});
  const net::HttpClient anybody = client("URI:motley:tenant/vision");
  ASSERT_EQ(status(anybody, "POST", "/v1/jobs", job("a")), 200);
  EXPECT_EQ(find_tenant(anybody, "a"), kDefaultTenant);
  EXPECT_EQ(status(anybody, "POST", "/v1/nodes/node0/drain"), 200);
  EXPECT_EQ(status(anybody, "DELETE", "/v1/jobs/a"), 200);
}

TEST(RateLimit, IsUsedUpAndComesBackPieceByPiece) {
  RateLimit limit(60, "--flag", "things");
  for (int i = 0; i < 60; ++i) EXPECT_TRUE(limit.take("a", 100)) << i;
  EXPECT_EQ(limit.take("a", 100).error().message,
            "tenant 'a' has asked for 60 things within a minute; --flag lets it ask for 60");
  EXPECT_TRUE(limit.take("b", 100));
  EXPECT_FALSE(limit.take("a", 100.9));
  EXPECT_TRUE(limit.take("a", 101));
  EXPECT_FALSE(limit.take("a", 101));
  for (int i = 0; i < 60; ++i) EXPECT_TRUE(limit.take("a", 1000)) << "no more than a minute's is saved";
  EXPECT_FALSE(limit.take("a", 1000));
}

}  // namespace
}  // namespace motley::scheduling
