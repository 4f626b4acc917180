// Certificates: files that are refused, each by name and reason, and who gets in by which.
#include "motley/net/certificates.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "motley/base/os/file.h"
#include "tests/net/channel_pair.h"
#include "tests/net/test_certificates.h"

namespace motley::net {
namespace {

using Role = Handshake::Role;
using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kVision = "URI:motley:tenant/vision";
constexpr const char* kServerName = "URI:motley:server";

class CertificatesTest : public ::testing::Test {
 protected:
  // What is wrong with the files.
  static std::string refusal(const CertificateFiles& files, CertificateUse use = CertificateUse::kPeer) {
    const auto certificates = Certificates::read(files, tls_flags(), use);
    if (certificates) return "";
    EXPECT_EQ(certificates.error().code, ErrorCode::kInvalidInput);
    return certificates.error().message;
  }

  TestCertificates made_;
};

TEST_F(CertificatesTest, FilesAreRefusedByNameAndReason) {
  const CertificateFiles good = made_.make("good", kVision);
  EXPECT_EQ(refusal(good), "");

  CertificateFiles files = made_.make("old", kVision, "ca", "20200101000000Z 20200102000000Z");
  EXPECT_THAT(refusal(files), AllOf(HasSubstr("old.pem' (--tls-certificate) has expired"), HasSubstr("2020")));
  files = made_.make("early", kVision, "ca", "20980101000000Z 20990101000000Z");
  EXPECT_THAT(refusal(files), AllOf(HasSubstr("early.pem"), HasSubstr("not valid yet")));
  files = made_.make("host", "DNS:vision.lab");
  EXPECT_THAT(refusal(files), AllOf(HasSubstr("host.pem"), HasSubstr("'DNS:vision.lab'"), HasSubstr(kServerName)));
  EXPECT_EQ(refusal(files, CertificateUse::kHttpServer), "");

  files = good;
  files.key = made_.path("old.key");
  EXPECT_THAT(refusal(files), AllOf(HasSubstr("old.key' (--tls-key) is not the key of"), HasSubstr("good.pem")));
  files.key = made_.path("none.key");
  EXPECT_THAT(refusal(files), AllOf(HasSubstr("none.key"), HasSubstr("No such file")));
  files.key = good.certificate;
  EXPECT_THAT(refusal(files), AllOf(HasSubstr("good.pem' (--tls-key)"), HasSubstr("no private key in PEM")));
  std::filesystem::permissions(good.key, std::filesystem::perms::group_read, std::filesystem::perm_options::add);
  EXPECT_THAT(refusal(good), AllOf(HasSubstr("good.key"), HasSubstr("mode 0640")));
  std::filesystem::permissions(good.key, std::filesystem::perms::group_read, std::filesystem::perm_options::remove);

  files = good;
  files.ca = good.key;
  EXPECT_THAT(refusal(files), AllOf(HasSubstr("good.key' (--tls-ca)"), HasSubstr("no certificates in PEM")));
  files.ca = made_.path("torn.pem");
  const std::string whole = *read_file(good.ca);
  ASSERT_TRUE(write_file(files.ca, whole + whole.substr(0, whole.size() / 2)));
  EXPECT_THAT(refusal(files), HasSubstr("torn.pem"));

  EXPECT_THAT(refusal({.certificate = good.certificate, .key = good.key, .ca = ""}), HasSubstr("--tls-ca: no file"));
  EXPECT_THAT(refusal({.certificate = "", .key = good.key, .ca = good.ca}), HasSubstr("--tls-certificate: no file"));
  EXPECT_THAT(refusal({.certificate = good.certificate, .key = "", .ca = ""}, CertificateUse::kHttpClient),
              HasSubstr("--tls-key: no file"));
  EXPECT_EQ(refusal({.certificate = "", .key = "", .ca = good.ca}, CertificateUse::kHttpClient), "");
}

TEST_F(CertificatesTest, AKeyBehindAPassphraseIsRefusedUnasked) {
  const CertificateFiles good = made_.make("good", kVision);
  CertificateFiles files = good;
  files.key = made_.path("locked.key");
  const std::string command =
      fmt::format("openssl ec -aes128 -passout pass:word -in '{}' -out '{}' 2>/dev/null", good.key, files.key);
  ASSERT_EQ(std::system(command.c_str()), 0);
  std::filesystem::permissions(files.key, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  EXPECT_THAT(refusal(files), AllOf(HasSubstr("locked.key"), HasSubstr("without a passphrase")));
}

TEST_F(CertificatesTest, WithCertificatesEverythingIsEncrypted) {
  const CertificateFiles good = made_.make("good", kVision);
  const auto encryption = read_encryption("auto", "network.encryption", good, tls_keys());
  ASSERT_TRUE(encryption) << encryption.error().message;
  EXPECT_EQ(encryption->mode, Encryption::kOn);
  EXPECT_NE(encryption->certificates, nullptr);
  const auto off = read_encryption("off", "network.encryption", good, tls_keys());
  ASSERT_FALSE(off);
  EXPECT_THAT(off.error().message, AllOf(HasSubstr("network.encryption: off"), HasSubstr("network.tls_certificate")));
  const auto partly =
      read_encryption("auto", "network.encryption", {.certificate = "", .key = "", .ca = good.ca}, tls_keys());
  ASSERT_FALSE(partly);
  EXPECT_THAT(partly.error().message, HasSubstr("network.tls_certificate: no file"));
  EXPECT_EQ(read_encryption("auto", "network.encryption", {}, tls_keys())->certificates, nullptr);
}

// One side of a handshake; without files it has the secret alone.
class CertificateHandshakeTest : public CertificatesTest {
 protected:
  ChannelHandshake side(Role role, const std::optional<CertificateFiles>& files, const std::string& tenant) const {
    Encryption encryption = Encryption::kOn;
    if (files) encryption.certificates = made_.read(*files);
    const Claim own = {{.job = "job", .tenant = role == Role::kConnector ? tenant : "", .session = 7}, "f00d"};
    return ChannelHandshake(
        role, [secret = secret_](const Claim&) { return secret; }, own, [](const Claim&) { return Status(); },
        {encryption, false});
  }
  BothSides connect(const std::optional<CertificateFiles>& connector_files,
                    const std::optional<CertificateFiles>& acceptor_files, const std::string& tenant = "vision",
                    const Between& between = {}) const {
    ChannelHandshake connector = side(Role::kConnector, connector_files, tenant);
    ChannelHandshake acceptor = side(Role::kAcceptor, acceptor_files, tenant);
    BothSides both = run(connector, acceptor, between);
    EXPECT_EQ(both.connector && both.acceptor, connector.done() && acceptor.done());
    return both;
  }
  // That both sides refuse, and how that reads there; "": the side only sees that the other one is gone.
  void expect_refused(const BothSides& both, const std::string& connector, const std::string& acceptor) const {
    for (const auto& [status, says] : {std::pair(both.connector, connector), {both.acceptor, acceptor}}) {
      if (says.empty()) continue;
      ASSERT_FALSE(status.has_value()) << says;
      EXPECT_EQ(status.error().code, ErrorCode::kRefused) << status.error().message;
      EXPECT_THAT(status.error().message, HasSubstr(says));
    }
  }

  const Secret secret_ = Secret::generate();
};

TEST_F(CertificateHandshakeTest, ATenantGetsInByItsNameAndNothingIsInTheClear) {
  const CertificateFiles vision = made_.make("vision", std::string("DNS:a.lab,") + kVision);
  const CertificateFiles server = made_.make("server", kServerName);
  for (const CertificateFiles& acceptor : {server, vision}) {  // a server, and a rank of the same tenant
    bool in_the_clear = false;
    const BothSides both = connect(vision, acceptor, "vision", [&](bool, const std::vector<std::byte>& bytes) {
      for (const std::string_view text : {"vision", "f00d"}) {
        in_the_clear = in_the_clear || !std::ranges::search(bytes, std::as_bytes(std::span(text))).empty();
      }
    });
    EXPECT_TRUE(both.connector && both.acceptor) << (both.connector ? both.acceptor : both.connector).error().message;
    EXPECT_FALSE(in_the_clear);
  }
  const BothSides between_servers = connect(server, server);  // as racks' servers do for a tenant's job
  EXPECT_TRUE(between_servers.connector && between_servers.acceptor);
}

TEST_F(CertificateHandshakeTest, AnotherTenantIsRefusedByName) {
  const CertificateFiles vision = made_.make("vision", kVision);
  const CertificateFiles server = made_.make("server", kServerName);
  const std::string text = "does not speak for tenant 'speech': it is the certificate of 'CN = vision'";
  expect_refused(connect(vision, server, "speech"), text, text);
  // Nor may it answer as a server of others.
  const CertificateFiles speech = made_.make("speech", "URI:motley:tenant/speech");
  expect_refused(connect(speech, vision, "speech"), "the answering side " + text, "");
  // A name that begins alike is another one.
  expect_refused(connect(vision, server, "visio"), "'visio'", "'visio'");
}

TEST_F(CertificateHandshakeTest, ACertificateOfAnotherCaOrPurposeIsRefused) {
  const CertificateFiles server = made_.make("server", kServerName);
  CertificateFiles other = made_.make("other", kVision, "other-ca");
  expect_refused(connect(other, server), "the certificate of 'CN = server' for 'URI:motley:server' is refused", "");
  other.ca = server.ca;  // it takes the server's
  expect_refused(connect(other, server), "other.pem' (--tls-certificate): it is of a CA that the peer does not know",
                 "ca.pem' (--tls-ca)");
  const CertificateFiles serving = made_.make("serving", kVision, "ca", "20200101000000Z 20990101000000Z serverAuth");
  expect_refused(connect(serving, server), "it is for another purpose", "purpose");
}

TEST_F(CertificateHandshakeTest, SidesOfWhichOneHasNoneSayWhatToSet) {
  const CertificateFiles vision = made_.make("vision", kVision);
  const CertificateFiles server = made_.make("server", kServerName);
  expect_refused(connect({}, server), "the peer has certificates, and this side has none", "");
  expect_refused(connect(vision, {}), "the peer has no certificates, and this side has",
                 "the peer has certificates, and this side has none");
}

TEST_F(CertificateHandshakeTest, TheSecretIsProvedBesides) {
  const CertificateFiles vision = made_.make("vision", kVision);
  const CertificateFiles server = made_.make("server", kServerName);
  ChannelHandshake connector = side(Role::kConnector, vision, "vision");
  Encryption encryption = Encryption::kOn;
  encryption.certificates = made_.read(server);
  ChannelHandshake acceptor(
      Role::kAcceptor, [](const Claim&) { return Secret::generate(); }, Claim{}, [](const Claim&) { return Status(); },
      {encryption, false});
  expect_refused(run(connector, acceptor), "secret differs", "secret differs");
  EXPECT_FALSE(acceptor.proved());
}

}  // namespace
}  // namespace motley::net
