#include "motley/net/certificates.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "motley/base/os/file.h"
#include "motley/base/text.h"
#include "motley/net/secret.h"
#include "motley/net/tls_context.h"

namespace motley::net {
namespace {

constexpr std::size_t kMaxFileBytes = 1 << 20;
constexpr std::string_view kTenant = "URI:motley:tenant/";
constexpr std::string_view kServer = "URI:motley:server";
constexpr const char* kAcceptedNames = "URI:motley:tenant/NAME or URI:motley:server";

template <auto free>
struct FreedBy {
  void operator()(auto* one) const { free(one); }
};
using Bio = std::unique_ptr<BIO, FreedBy<BIO_free>>;
using Certificate = std::unique_ptr<X509, FreedBy<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, FreedBy<EVP_PKEY_free>>;
using Names = std::unique_ptr<GENERAL_NAMES, FreedBy<GENERAL_NAMES_free>>;

std::string take_text(const Bio& bio) {
  char* text = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &text);
  return {text, static_cast<std::size_t>(std::max(0L, size))};
}

std::string openssl_reason() {
  const char* reason = ERR_reason_error_string(ERR_peek_last_error());
  ERR_clear_error();
  return reason == nullptr ? "no reason given" : reason;
}

// "URI:motley:tenant/vision", "DNS:scheduler.lab".
std::vector<std::string> alternative_names(X509* certificate) {
  std::vector<std::string> all;
  const Names names(static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; names && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI && name->type != GEN_DNS) continue;
    const ASN1_IA5STRING* text = name->d.ia5;
    const std::string_view value(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                                 static_cast<std::size_t>(ASN1_STRING_length(text)));
    all.push_back((name->type == GEN_URI ? "URI:" : "DNS:") + escaped(std::string(value)));
  }
  return all;
}

std::string to_text(const ASN1_TIME* time) {
  const Bio bio(BIO_new(BIO_s_mem()));
  ASN1_TIME_print(bio.get(), time);
  return take_text(bio);
}

Status refuse(const std::string& source, const std::string& what) {
  return fail(ErrorCode::kInvalidInput, "{} {}", source, what);
}

Status check_time(X509* certificate, const std::string& source) {
  if (X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0) {
    return refuse(source, "has expired: " + to_text(X509_get0_notAfter(certificate)));
  }
  if (X509_cmp_current_time(X509_get0_notBefore(certificate)) > 0) {
    return refuse(source, "is not valid yet: from " + to_text(X509_get0_notBefore(certificate)));
  }
  return {};
}

// The certificates of a file, at least one.
Result<std::vector<Certificate>> read_certificates(const std::string& file, const std::string& source) {
  const auto text = read_file(file, kMaxFileBytes);
  if (!text) return fail(Error{ErrorCode::kInvalidInput, text.error().message}.within(source));
  const Bio bio(BIO_new_mem_buf(text->data(), static_cast<int>(text->size())));
  std::vector<Certificate> all;
  while (X509* one = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) all.emplace_back(one);
  const bool is_at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  if (all.empty() || !is_at_end) MOTLEY_TRY(refuse(source, "has no certificates in PEM: " + openssl_reason()));
  ERR_clear_error();
  return all;
}

Result<Key> read_key(const std::string& file, const std::string& source) {
  const auto text = read_private_file(file, kMaxFileBytes);
  if (!text) return fail(text.error().within(source));
  const Bio bio(BIO_new_mem_buf(text->data(), static_cast<int>(text->size())));
  const auto no_passphrase = [](char*, int, int, void*) { return -1; };
  Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, no_passphrase, nullptr));
  if (!key) {
    MOTLEY_TRY(refuse(source, fmt::format("has no private key in PEM without a passphrase: {}", openssl_reason())));
  }
  return key;
}

// Puts this side's certificate, with those between it and its CA's, and its key into the contexts.
Status use_own(const std::vector<Certificate>& chain, const Key& key, std::initializer_list<SSL_CTX*> contexts,
               const std::string& source, const std::string& key_source) {
  if (X509_check_private_key(chain.front().get(), key.get()) != 1) {
    ERR_clear_error();
    return refuse(key_source, "is not the key of " + source);
  }
  for (SSL_CTX* context : contexts) {
    bool good =
        SSL_CTX_use_certificate(context, chain.front().get()) == 1 && SSL_CTX_use_PrivateKey(context, key.get()) == 1;
    for (auto one = std::next(chain.begin()); one != chain.end(); ++one) {
      good = good && SSL_CTX_add1_chain_cert(context, one->get()) == 1;
    }
    if (!good) return refuse(source, "is of no use to OpenSSL: " + openssl_reason());
  }
  return {};
}

std::string source_text(const std::string& file, const std::string& name) {
  return fmt::format("the file '{}' ({})", file, name);
}

// That nothing is left out that is needed.
Status check_complete(const CertificateFiles& files, const CertificateNames& names, CertificateUse use) {
  const bool has_own = !files.certificate.empty() || !files.key.empty() || use != CertificateUse::kHttpClient;
  const bool wants_ca = use == CertificateUse::kPeer;
  for (const auto& [file, name, is_needed] : {std::tuple(files.certificate, names.certificate, has_own),
                                              {files.key, names.key, has_own},
                                              {files.ca, names.ca, wants_ca}}) {
    if (!is_needed || !file.empty()) continue;
    return fail(ErrorCode::kInvalidInput, "{}: no file is named; accepted: {} and {}{}, or none of them", name,
                names.certificate, names.key, wants_ca ? " and " + names.ca : "");
  }
  return {};
}

}  // namespace

CertificateNames tls_flags(const std::string& dashes) {
  return {dashes + "tls-certificate", dashes + "tls-key", dashes + "tls-ca"};
}

CertificateNames tls_keys() {
  return {"network.tls_certificate", "network.tls_key", "network.tls_ca"};
}

Certificates::Certificates() : connector_(make_tls_context(false)), acceptor_(make_tls_context(true)) {}

Certificates::~Certificates() {
  SSL_CTX_free(connector_);
  SSL_CTX_free(acceptor_);
}

Result<std::shared_ptr<const Certificates>> Certificates::read(const CertificateFiles& files,
                                                               const CertificateNames& names, CertificateUse use) {
  MOTLEY_TRY(check_complete(files, names, use));
  ERR_clear_error();
  const std::shared_ptr<Certificates> made(new Certificates);
  made->own_source_ = source_text(files.certificate, names.certificate);
  made->ca_source_ = files.ca.empty() ? "the system's CAs" : source_text(files.ca, names.ca);
  made->asks_clients_ = !files.ca.empty();
  if (!files.certificate.empty()) {
    MOTLEY_ASSIGN(const auto chain, read_certificates(files.certificate, made->own_source_));
    const std::string key_source = source_text(files.key, names.key);
    MOTLEY_ASSIGN(const Key key, read_key(files.key, key_source));
    MOTLEY_TRY(check_time(chain.front().get(), made->own_source_));
    MOTLEY_TRY(use_own(chain, key, {made->connector_, made->acceptor_}, made->own_source_, key_source));
    const auto is_ours = [](const std::string& name) { return name.starts_with(kTenant) || name == kServer; };
    const auto named = alternative_names(chain.front().get());
    if (use == CertificateUse::kPeer && std::ranges::none_of(named, is_ours)) {
      MOTLEY_TRY(refuse(made->own_source_,
                        fmt::format("speaks for nobody, as it names '{}'; accepted: a subject alternative name {}",
                                    fmt::join(named, "', '"), kAcceptedNames)));
    }
  }
  for (SSL_CTX* context : {made->connector_, made->acceptor_}) {
    if (files.ca.empty()) {
      SSL_CTX_set_default_verify_paths(context);
      continue;
    }
    MOTLEY_ASSIGN(const auto known, read_certificates(files.ca, made->ca_source_));
    X509_STORE* store = SSL_CTX_get_cert_store(context);
    for (const Certificate& one : known) X509_STORE_add_cert(store, one.get());
    X509_STORE_set_flags(store, X509_V_FLAG_PARTIAL_CHAIN);  // a CA's certificate need not be a root's
  }
  return std::shared_ptr<const Certificates>(made);
}

std::string describe_certificate(X509* certificate) {
  const Bio bio(BIO_new(BIO_s_mem()));
  X509_NAME_print_ex(bio.get(), X509_get_subject_name(certificate), 0, XN_FLAG_ONELINE);
  return fmt::format("the certificate of '{}' for '{}'", escaped(take_text(bio)),
                     fmt::join(alternative_names(certificate), "', '"));
}

Represented represented_by(X509* certificate) {
  Represented represented;
  for (const std::string& name : alternative_names(certificate)) {
    if (name == kServer) represented.is_server = true;
    if (name.starts_with(kTenant) && name != kTenant) represented.tenants.push_back(name.substr(kTenant.size()));
  }
  return represented;
}

Status check_speaks_for(X509* certificate, const std::string& tenant, const std::string& whose) {
  const Represented represented = represented_by(certificate);
  const auto& tenants = represented.tenants;
  if (represented.is_server || std::ranges::find(tenants, tenant) != tenants.end()) return {};
  return fail(ErrorCode::kRefused,
              "{} does not speak for tenant '{}': it is {}; accepted: one with the subject alternative name {}{} or {}",
              whose, tenant, describe_certificate(certificate), kTenant, tenant, kServer);
}

Result<Encryption> read_encryption(const std::string& setting, const std::string& what, const CertificateFiles& files,
                                   const CertificateNames& names) {
  MOTLEY_ASSIGN(Encryption encryption, parse_encryption(setting, what));
  const CertificateNames variables = {"MOTLEY_TLS_CERTIFICATE", "MOTLEY_TLS_KEY", "MOTLEY_TLS_CA"};
  CertificateFiles used = files;
  if (!files.any()) {
    const auto named = [](const std::string& variable) {
      const char* value = std::getenv(variable.c_str());
      return std::string(value == nullptr ? "" : value);
    };
    used = {named(variables.certificate), named(variables.key), named(variables.ca)};
  }
  if (!used.any()) return encryption;
  const CertificateNames& own = files.any() ? names : variables;
  if (encryption.mode == Encryption::kOff) {
    return fail(ErrorCode::kInvalidInput, "{}: off; accepted with {}: auto or on", what, own.certificate);
  }
  encryption.mode = Encryption::kOn;
  MOTLEY_ASSIGN(encryption.certificates, Certificates::read(used, own, CertificateUse::kPeer));
  return encryption;
}

}  // namespace motley::net
