// HTTP between Motley's own client and server: at unix sockets and by HTTPS. Other programs as the other side are in
// tests/scenarios/encrypted_http.py.
#include <gmock/gmock.h>
#include <httplib.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <array>
#include <thread>

#include "motley/base/os/file.h"
#include "motley/net/http_client.h"
#include "motley/net/http_server.h"
#include "motley/net/socket.h"
#include "motley/net/unix_socket.h"
#include "tests/net/test_certificates.h"

namespace motley::net {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::size_t kMegabyte = 1 << 20;

// Says back what it is sent, and as many bytes as it is asked for.
class Echo {
 public:
  explicit Echo(const HttpListen& listen) : server_({.max_body_bytes = 8 * kMegabyte}) {
    server_.server().Post("/echo", [](const httplib::Request& request, httplib::Response& response) {
      response.set_content(request.body, "text/plain");
    });
    server_.server().Get("/bytes/(\\d+)", [](const httplib::Request& request, httplib::Response& response) {
      response.set_content(std::string(std::stoul(request.matches[1]), 'x'), "text/plain");
    });
    started_ = server_.start(listen, "--listen");
    certificates_ = listen.certificates;
  }
  const Result<HttpAddress>& started() const { return started_; }
  HttpUrl url() const { return {started_.value(), certificates_ != nullptr}; }
  void stop() { server_.stop(); }

 private:
  HttpServer server_;
  std::shared_ptr<const Certificates> certificates_;
  Result<HttpAddress> started_;
};

HttpListen at_path(const std::string& path) {
  return {.address = {.endpoint = {}, .path = path}};
}

Result<HttpAnswer> post(const HttpUrl& url, const std::shared_ptr<const Certificates>& certificates,
                        const std::string& body) {
  return HttpClient(url, certificates, 20).ask({.method = "POST", .target = "/echo", .token = "a token", .body = body});
}

void expect_talk(const Echo& echo, const std::shared_ptr<const Certificates>& certificates) {
  for (const std::string& body : {std::string(), std::string("hello"), std::string(4 * kMegabyte + 7, 'b')}) {
    const auto answer = post(echo.url(), certificates, body);
    ASSERT_TRUE(answer) << answer.error().message;
    EXPECT_EQ(answer->status, 200);
    EXPECT_EQ(answer->body, body);
  }
  const HttpClient client(echo.url(), certificates, 20);
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{16384}, 5 * kMegabyte + 1}) {
    const auto answer =
        client.ask({.method = "GET", .target = fmt::format("/bytes/{}", bytes), .token = "", .body = {}});
    ASSERT_TRUE(answer) << answer.error().message;
    EXPECT_EQ(answer->body.size(), bytes);
  }
  EXPECT_EQ(client.ask({.method = "GET", .target = "/a b\r\nX: y", .token = "", .body = {}})->status, 404);
}

class UnixSocketTest : public ::testing::Test {
 protected:
  TemporaryFolder folder_;
  const std::string path_ = (folder_.path / "socket").string();
};

TEST_F(UnixSocketTest, IsForItsUserAloneAndIsRemovedAtTheEnd) {
  Echo echo(at_path(path_));
  ASSERT_TRUE(echo.started()) << echo.started().error().message;
  struct stat status{};
  ASSERT_EQ(::stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode, static_cast<mode_t>(S_IFSOCK | 0600));
  EXPECT_EQ(to_url(echo.url().address, false), "unix:" + path_);
  expect_talk(echo, nullptr);
  echo.stop();
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_FALSE(post(echo.url(), nullptr, ""));
}

TEST_F(UnixSocketTest, OfADeadProcessIsReplacedAndOfALiveOneIsNot) {
  ASSERT_TRUE(listen_at_path(path_));  // closed at once, and its file stays
  ASSERT_TRUE(std::filesystem::exists(path_));
  Echo echo(at_path(path_));
  ASSERT_TRUE(echo.started()) << echo.started().error().message;
  Echo second(at_path(path_));
  ASSERT_FALSE(second.started());
  EXPECT_EQ(second.started().error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(second.started().error().message, AllOf(HasSubstr("--listen: cannot listen at 'unix:" + path_),
                                                      HasSubstr(fmt::format("process {}", ::getpid()))));
  second.stop();
  expect_talk(echo, nullptr);
}

// Of many that start at once over a dead one's socket, one listens.
TEST_F(UnixSocketTest, OneOfManyThatStartAtOnceListens) {
  ASSERT_TRUE(listen_at_path(path_));
  std::vector<Result<Descriptor>> sockets(8);
  std::vector<std::thread> threads;
  for (auto& socket : sockets) threads.emplace_back([&] { socket = listen_at_path(path_); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::ranges::count_if(sockets, [](const auto& socket) { return socket.has_value(); }), 1);
  EXPECT_TRUE(connect_to_path(path_, Deadline::after(5)));
}

TEST_F(UnixSocketTest, TakesThePlaceOfNothingElse) {
  ASSERT_TRUE(write_file(path_, "mine"));
  const auto file = listen_at_path(path_);
  ASSERT_FALSE(file);
  EXPECT_THAT(file.error().message, HasSubstr("is no socket"));
  EXPECT_EQ(*read_file(path_), "mine");
  EXPECT_THAT(listen_at_path(path_ + std::string(100, 'x')).error().message, HasSubstr("accepted: 1 to 107"));
  EXPECT_THAT(listen_at_path((folder_.path / "none/socket").string()).error().message, HasSubstr("No such file"));
}

// A client that only says how long its body is and never sends it is not waited for.
TEST_F(UnixSocketTest, RefusesABodyThatIsTooLargeByItsHead) {
  const Echo echo(at_path(path_));
  ASSERT_TRUE(echo.started()) << echo.started().error().message;
  EXPECT_EQ(post(echo.url(), nullptr, std::string(8 * kMegabyte, 'b'))->status, 200);
  for (const char* length : {"8388609", "1000000000000", "-1"}) {
    for (const char* asks : {"", "Expect: 100-continue\r\n", "expect: nothing\r\n"}) {
      const auto socket = connect_to_path(path_, Deadline::after(20));
      ASSERT_TRUE(socket) << socket.error().message;
      const std::string head =
          fmt::format("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n{}\r\n", length, asks);
      ASSERT_EQ(::send(socket->get(), head.data(), head.size(), MSG_NOSIGNAL), static_cast<ssize_t>(head.size()));
      const Deadline deadline = Deadline::after(20);
      std::string answer;
      std::array<char, 1024> block;
      for (ssize_t some = 1; some > 0 && wait_for(socket->get(), POLLIN, deadline.remaining_milliseconds());) {
        some = ::recv(socket->get(), block.data(), block.size(), MSG_DONTWAIT);
        if (some > 0) answer.append(block.data(), static_cast<std::size_t>(some));
      }
      EXPECT_THAT(answer, AllOf(HasSubstr("413"), HasSubstr("accepted: up to 8388608"))) << length;
    }
  }
}

class HttpsTest : public ::testing::Test {
 protected:
  std::shared_ptr<const Certificates> server(const CertificateFiles& files, bool asks_clients = false) const {
    return made_.read({files.certificate, files.key, asks_clients ? files.ca : ""}, CertificateUse::kHttpServer);
  }
  std::shared_ptr<const Certificates> client(const std::string& ca) const {
    return made_.read({"", "", ca}, CertificateUse::kHttpClient);
  }
  static HttpListen listen(std::shared_ptr<const Certificates> certificates) {
    return {.address = {{"127.0.0.1", 0}}, .certificates = std::move(certificates)};
  }

  TestCertificates made_;
};

TEST_F(HttpsTest, ClientsKnowTheServiceByItsCa) {
  const CertificateFiles own = made_.make("service", "IP:127.0.0.1");
  const Echo echo(listen(server(own)));
  ASSERT_TRUE(echo.started()) << echo.started().error().message;
  EXPECT_THAT(to_url(echo.url().address, true), testing::StartsWith("https://127.0.0.1:"));
  expect_talk(echo, client(own.ca));

  const CertificateFiles other = made_.make("other", "IP:127.0.0.1", "other-ca");
  const auto refused = post(echo.url(), client(other.ca), "secret");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kRefused);
  EXPECT_THAT(refused.error().message,
              AllOf(HasSubstr("the certificate of 'CN = service'"), HasSubstr("other-ca.pem' (--tls-ca)")));
}

TEST_F(HttpsTest, ACertificateForAnotherHostIsRefused) {
  const CertificateFiles own = made_.make("service", "DNS:scheduler.lab");
  const Echo echo(listen(server(own)));
  ASSERT_TRUE(echo.started());
  for (const char* host : {"127.0.0.1", "localhost"}) {
    HttpUrl url = echo.url();
    url.address.endpoint.host = host;
    const auto refused = post(url, client(own.ca), "secret");
    ASSERT_FALSE(refused) << host;
    EXPECT_THAT(refused.error().message, AllOf(HasSubstr("'DNS:scheduler.lab'"), HasSubstr("mismatch")));
  }
}

TEST_F(HttpsTest, AServiceMayWantCertificatesOfItsClients) {
  const CertificateFiles own = made_.make("service", "IP:127.0.0.1");
  const CertificateFiles known = made_.make("user", "DNS:user");
  CertificateFiles foreign = made_.make("foreign", "DNS:user", "other-ca");
  foreign.ca = own.ca;
  const Echo echo(listen(server(own, true)));
  ASSERT_TRUE(echo.started());
  expect_talk(echo, made_.read(known, CertificateUse::kHttpClient));
  const auto without = post(echo.url(), client(own.ca), "hello");
  ASSERT_FALSE(without);
  EXPECT_THAT(without.error().message, HasSubstr("wants a certificate"));
  const auto refused = post(echo.url(), made_.read(foreign, CertificateUse::kHttpClient), "hello");
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message,
              AllOf(HasSubstr("foreign.pem' (--tls-certificate)"), HasSubstr("CA that the peer does not know")));
}

TEST_F(HttpsTest, NeitherSideFallsBackToPlainHttp) {
  const CertificateFiles own = made_.make("service", "IP:127.0.0.1");
  const Echo encrypted(listen(server(own)));
  const Echo plain(listen(nullptr));
  ASSERT_TRUE(encrypted.started() && plain.started());
  EXPECT_FALSE(post({encrypted.url().address, false}, nullptr, "hello"));
  EXPECT_FALSE(post({plain.url().address, true}, client(own.ca), "hello"));
}

TEST(HttpListen, PlainHttpStaysOnLoopbackUnlessItIsAskedFor) {
  const HttpFlagNames names = {"--listen", tls_flags(), "--encryption"};
  for (const char* where : {"127.0.0.1:0", "[::1]:0", "localhost:0", "unix:/tmp/a"}) {
    EXPECT_TRUE(read_http_listen({where, {}, false}, names)) << where;
  }
  for (const char* where : {"0.0.0.0:0", "[::]:0", "192.0.2.1:80"}) {
    const auto refused = read_http_listen({where, {}, false}, names);
    ASSERT_FALSE(refused) << where;
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidInput);
    for (const std::string& named : {std::string("--listen: '") + where, std::string("unix:/PATH"),
                                     std::string("--tls-certificate"), std::string("--encryption off")}) {
      EXPECT_THAT(refused.error().message, HasSubstr(named));
    }
    EXPECT_TRUE(read_http_listen({where, {}, true}, names)) << where;
  }
  const TestCertificates made;
  const CertificateFiles own = made.make("service", "DNS:scheduler.lab");
  EXPECT_TRUE(read_http_listen({"0.0.0.0:0", {own.certificate, own.key, ""}, false}, names));
  EXPECT_THAT(read_http_listen({"0.0.0.0:0", {own.certificate, own.key, ""}, true}, names).error().message,
              HasSubstr("--encryption: off"));
  EXPECT_THAT(read_http_listen({"unix:/tmp/a", {own.certificate, own.key, ""}, false}, names).error().message,
              HasSubstr("accepted with --tls-certificate: HOST:PORT"));
  EXPECT_THAT(read_http_listen({"unix:", {}, false}, names).error().message, HasSubstr("unix:/PATH"));
}

TEST(HttpUrl, IsReadBack) {
  for (const char* text : {"https://scheduler.lab:29600", "http://[::1]:80", "unix:/run/scheduler"}) {
    const auto url = parse_http_url(text, "--address");
    ASSERT_TRUE(url) << url.error().message;
    EXPECT_EQ(to_url(url->address, url->is_encrypted), text);
  }
  for (const char* text : {"scheduler.lab:29600", "ftp://scheduler.lab:1", "https://scheduler.lab", "unix:", ""}) {
    const auto url = parse_http_url(text, "--address");
    ASSERT_FALSE(url) << text;
    EXPECT_THAT(url.error().message, HasSubstr("--address"));
  }
}

}  // namespace
}  // namespace motley::net
