// The page over HTTP, asked for by hand: where it may listen, and whom it answers.
#include "motley/ps/service/metrics_service.h"

#include <gmock/gmock.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "motley/net/socket.h"

namespace motley::ps {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

net::HttpListen at(const std::string& host, std::uint16_t port = 0) {
  net::HttpListen listen;
  listen.address.endpoint = {host, port};
  return listen;
}

std::string ask(const net::Endpoint& endpoint, const std::string& request, int milliseconds = 5000) {
  const auto socket = net::connect_to(endpoint, Deadline::after(5));
  if (!socket) return "no connection";
  EXPECT_EQ(::send(socket->get(), request.data(), request.size(), MSG_NOSIGNAL), std::ssize(request));
  std::string answer;
  for (char buffer[4096];;) {
    net::wait_for(socket->get(), POLLIN, milliseconds);
    const ssize_t got = ::recv(socket->get(), buffer, sizeof(buffer), MSG_DONTWAIT);
    if (got <= 0) return answer;
    answer.append(buffer, static_cast<std::size_t>(got));
  }
}

std::string get(const net::Endpoint& endpoint, const std::string& path, const std::string& header = "",
                int milliseconds = 5000) {
  return ask(endpoint, "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n" + header + "Connection: close\r\n\r\n",
             milliseconds);
}

TEST(MetricsService, AnswersWithThePageAndNothingElse) {
  int asked = 0;
  const auto service = MetricsService::start(at("127.0.0.1"), {}, [&] {
    ++asked;
    return std::string("values 1\n");
  });
  ASSERT_TRUE(service) << service.error().message;
  const std::string page = get((*service)->endpoint(), "/metrics");
  EXPECT_THAT(page, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(page, HasSubstr("text/plain; version=0.0.4"));
  EXPECT_THAT(page, ::testing::EndsWith("\r\n\r\nvalues 1\n"));
  EXPECT_THAT(get((*service)->endpoint(), "/"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(get((*service)->endpoint(), "/metrics/../etc/passwd"), StartsWith("HTTP/1.1 404"));
  EXPECT_EQ(asked, 1);
}

// Nor unpacks one, nor gives a page as often as it is asked for: none of these has shown a token.
TEST(MetricsService, ReadsNoBodyThatDoesNotSayItsLength) {
  const auto service = MetricsService::start(at("127.0.0.1"), {}, [] { return std::string("values 1\n"); });
  ASSERT_TRUE(service) << service.error().message;
  const auto& endpoint = (*service)->endpoint();
  const std::string to_page = "POST /metrics HTTP/1.1\r\nHost: localhost\r\n";
  // What is to come does not: an answer without it shows that nobody waits for it.
  EXPECT_THAT(ask(endpoint, to_page + "Transfer-Encoding: chunked\r\n\r\n"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(ask(endpoint, to_page + "\r\n"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(ask(endpoint, to_page + "Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc"),
              StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(get(endpoint, "/metrics", "Range: bytes=-,-,-\r\n"),
              ::testing::AllOf(StartsWith("HTTP/1.1 200"), ::testing::EndsWith("\r\n\r\nvalues 1\n")));
}

// Clients that send a byte now and then and never a whole request: others are answered, and the service ends.
TEST(MetricsService, OutlivesClientsThatTrickle) {
  auto service = MetricsService::start(at("127.0.0.1"), {}, [] { return std::string("values 1\n"); });
  ASSERT_TRUE(service) << service.error().message;
  std::atomic<bool> stop = false;
  std::atomic<int> trickling = 0;
  std::vector<std::thread> clients;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([&] {
      const auto socket = net::connect_to((*service)->endpoint(), Deadline::after(5));
      for (int sent = 0; !stop && socket && ::send(socket->get(), "G", 1, MSG_NOSIGNAL) == 1; ++sent) {
        if (sent == 0) ++trickling;
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
      }
    });
  }
  for (const auto deadline = Deadline::after(20); trickling < 4 && !deadline.passed();) std::this_thread::yield();
  EXPECT_EQ(trickling, 4);
  EXPECT_THAT(get((*service)->endpoint(), "/metrics", "", 60'000), HasSubstr("values 1"));
  stop = true;
  for (std::thread& client : clients) client.join();
  const auto last = net::connect_to((*service)->endpoint(), Deadline::after(5));
  ASSERT_TRUE(last);
  ASSERT_EQ(::send(last->get(), "GET", 3, MSG_NOSIGNAL), 3);
  service->reset();
}

TEST(MetricsService, IsClosedToTheNetworkWithoutAToken) {
  for (const char* host : {"0.0.0.0", "::", "192.0.2.1"}) {
    const auto service = MetricsService::start(at(host), {}, [] { return std::string(); });
    ASSERT_FALSE(service) << host;
    EXPECT_EQ(service.error().code, ErrorCode::kInvalidInput);
    EXPECT_THAT(service.error().message, HasSubstr("token"));
  }
}

TEST(MetricsService, WantsItsTokenWhereItHasOne) {
  const auto token = net::Secret::from_text("a token of the scraper", "token");
  const auto service = MetricsService::start(at("0.0.0.0"), *token, [] { return std::string("values 1\n"); });
  ASSERT_TRUE(service) << service.error().message;
  const net::Endpoint here{"127.0.0.1", (*service)->endpoint().port};
  EXPECT_THAT(get(here, "/metrics"), StartsWith("HTTP/1.1 401"));
  for (const char* wrong :
       {"Bearer a token of the scrapes", "Bearer ", "Basic a token of the scraper", "a token of the scraper"}) {
    const std::string page = get(here, "/metrics", std::string("Authorization: ") + wrong + "\r\n");
    EXPECT_THAT(page, StartsWith("HTTP/1.1 401")) << wrong;
    EXPECT_THAT(page, ::testing::Not(HasSubstr("values"))) << wrong;
  }
  EXPECT_THAT(get(here, "/metrics", "Authorization: Bearer a token of the scraper\r\n"), StartsWith("HTTP/1.1 200"));
}

TEST(MetricsService, SaysWhenAPortIsTaken) {
  const auto first = MetricsService::start(at("127.0.0.1"), {}, [] { return std::string(); });
  ASSERT_TRUE(first);
  const auto second =
      MetricsService::start(at("127.0.0.1", (*first)->endpoint().port), {}, [] { return std::string(); });
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace motley::ps
