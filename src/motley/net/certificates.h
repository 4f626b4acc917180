// Certificates by which two sides of TLS know each other, from files that a user has.
//
// Between Motley's own processes a certificate says by a subject alternative name for whom its owner speaks:
// URI:motley:tenant/NAME for the jobs of a tenant, URI:motley:server for a server, which speaks to and for all of them.
// A host's name counts at HTTP servers only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "motley/base/result.h"
#include "motley/net/session.h"

struct ssl_ctx_st;
struct x509_st;

namespace motley::net {

struct CertificateFiles {   // of PEM; "": none
  std::string certificate;  // this side's, and those between it and its CA's
  std::string key;          // of this side's certificate; mode 0600, without a passphrase
  std::string ca;           // certificates by whose signature another side's is good
  bool any() const { return !certificate.empty() || !key.empty() || !ca.empty(); }
};
// What the user calls them, for messages.
struct CertificateNames {
  std::string certificate;
  std::string key;
  std::string ca;
};
// "--tls-certificate", "--tls-key" and "--tls-ca" behind the dashes, and "network.tls_certificate" and so on.
CertificateNames tls_flags(const std::string& dashes = "--");
CertificateNames tls_keys();

// What may be left out. Of a peer's: nothing. Of an HTTP server's: the CA, and then clients show no certificate. Of an
// HTTP client's: the CA, and then it is any of the system's; the certificate and its key.
enum class CertificateUse : std::uint8_t { kPeer, kHttpServer, kHttpClient };

// Cannot be changed, and may be used from any thread.
class Certificates {
 public:
  // Errors (kInvalidInput) name the file, what names it, and what is wrong: that it is missing, cannot be read, is
  // none, has expired, names nobody, or is not that of the key.
  static Result<std::shared_ptr<const Certificates>> read(const CertificateFiles& files, const CertificateNames& names,
                                                          CertificateUse use);
  ~Certificates();
  Certificates(const Certificates&) = delete;
  Certificates& operator=(const Certificates&) = delete;

  ssl_ctx_st* context(bool accepts) const { return accepts ? acceptor_ : connector_; }
  // For messages: "the file 'ca.pem' (--tls-ca)".
  const std::string& own_source() const { return own_source_; }
  const std::string& ca_source() const { return ca_source_; }
  bool asks_clients() const { return asks_clients_; }

 private:
  Certificates();

  ssl_ctx_st* const connector_;
  ssl_ctx_st* const acceptor_;
  std::string own_source_;
  std::string ca_source_;
  bool asks_clients_ = false;
};

// Who a certificate is of and what it names, for messages.
std::string describe_certificate(x509_st* certificate);
// For whom a certificate speaks by its names.
struct Represented {
  bool is_server = false;
  std::vector<std::string> tenants = {};
};
Represented represented_by(x509_st* certificate);
// kRefused where the certificate, of `whose` side, speaks neither for the tenant nor for a server.
Status check_speaks_for(x509_st* certificate, const std::string& tenant, const std::string& whose);

// As the setting says ("auto", "on", "off"), which `what` names, and by certificates where any of these files is given,
// or, where none is, any of MOTLEY_TLS_CERTIFICATE, MOTLEY_TLS_KEY and MOTLEY_TLS_CA. With certificates everything is
// encrypted, over loopback too.
Result<Encryption> read_encryption(const std::string& setting, const std::string& what, const CertificateFiles& files,
                                   const CertificateNames& names);

}  // namespace motley::net
