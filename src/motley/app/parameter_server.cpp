#include "motley/app/parameter_server.h"

namespace motley::app {
namespace {

Result<ps::Tenants> read_tenants(const ServerRequest& request) {
  const ps::TenantCounts caps = {.connections = request.max_connections,
                                 .jobs = request.max_jobs,
                                 .threads = request.max_threads,
                                 .probes = request.max_probes};
  if (!request.tenants.empty()) return ps::Tenants::read(request.tenants, caps);
  Result<net::Secret> token = net::Secret::from_file(request.token_file, net::kTokenFileVariable);
  if (!token) return fail(token.error().within("--token-file (or --tenants), for the token that lets jobs in"));
  return ps::Tenants(std::move(*token), caps);
}

// Null where none is asked for.
Result<std::unique_ptr<ps::MetricsService>> start_metrics(const ServerRequest& request, const ps::Service& service) {
  if (request.metrics.empty()) return nullptr;
  MOTLEY_ASSIGN(const net::HttpListen listen,
                net::read_http_listen({request.metrics, request.metrics_tls, request.metrics_encryption == "off"},
                                      {"--metrics", net::tls_flags("--metrics-"), "--metrics-encryption"}));
  std::optional<net::Secret> token;
  if (!request.metrics_token_file.empty()) {
    MOTLEY_ASSIGN(token, net::Secret::from_file(request.metrics_token_file));
  }
  return ps::MetricsService::start(listen, std::move(token), [&service] { return service.metrics().text(); });
}

const OptionTable<net::CertificateFiles>& own_files() {
  using enum OptionKind;
  static const OptionTable<net::CertificateFiles> options = {
      {{"tls_certificate", kPath,
        "file (PEM) with the server's certificate, for URI:motley:server or URI:motley:tenant/NAME, and those between "
        "it and its CA's; jobs then need one, too, besides the token; default: MOTLEY_TLS_CERTIFICATE's, if any"},
       &net::CertificateFiles::certificate},
      {{"tls_key", kPath, "file (PEM, mode 0600) with the private key of --tls-certificate; default: MOTLEY_TLS_KEY's"},
       &net::CertificateFiles::key},
      {{"tls_ca", kPath,
        "file (PEM) with CA certificates, one of which signed those of jobs and other servers; default: "
        "MOTLEY_TLS_CA's"},
       &net::CertificateFiles::ca},
  };
  return options;
}

const OptionTable<net::CertificateFiles>& metrics_files() {
  using enum OptionKind;
  static const OptionTable<net::CertificateFiles> options = {
      {{"metrics_tls_certificate", kPath,
        "file (PEM) with the certificate that scrapers see, and those between it and its CA's: HTTPS in place of HTTP"},
       &net::CertificateFiles::certificate},
      {{"metrics_tls_key", kPath, "file (PEM, mode 0600) with the private key of --metrics-tls-certificate"},
       &net::CertificateFiles::key},
      {{"metrics_tls_ca", kPath,
        "file (PEM) with CA certificates: scrapers then need a certificate that one of them signed"},
       &net::CertificateFiles::ca},
  };
  return options;
}

}  // namespace

const OptionTable<ServerRequest>& ServerRequest::options() {
  using enum OptionKind;
  static const OptionTable<ServerRequest> options = {
      {{"listen", kText, "address and port to listen on; port 0: any free one"}, &ServerRequest::listen},
      {{"token_file", kPath,
        "file (mode 0600) with the token that jobs must know; default: the file that MOTLEY_TOKEN_FILE names"},
       &ServerRequest::token_file},
      {choice("encryption",
              "TLS 1.3; auto: on all connections but those over loopback; off: in the clear, where others on the "
              "network can read what comes and goes, and change it",
              {"auto", "on", "off"}),
       &ServerRequest::encryption},
      {"", &ServerRequest::tls, own_files()},
      {{"embedding_dir", kPath, "directory for embedding rows that do not fit into memory, and for checkpoints"},
       &ServerRequest::embedding_dir},
      {{"threads", kInteger, "aggregation threads; 0: one per core", 0, 1024}, &ServerRequest::threads},
      {{"pin", kBoolean, "pin each of these threads to a core"}, &ServerRequest::pin},
      {{"quota", kBytes, "memory that one job may take; 0: no limit", 0, 1e18}, &ServerRequest::quota_bytes},
      {{"tenants", kPath, "file (mode 0600) of tenants, each with its token, quota and share of the threads"},
       &ServerRequest::tenants},
      {{"max_connections", kInteger, "connections that a tenant may have at a time", 1, ps::kMaxCap},
       &ServerRequest::max_connections},
      {{"max_jobs", kInteger, "jobs that a tenant may have at a time, dense parts and embeddings counted apart", 1,
        ps::kMaxCap},
       &ServerRequest::max_jobs},
      {{"max_threads", kInteger,
        "threads that a tenant's embeddings may take: one per connection, and two per table with --embedding-dir", 1,
        ps::kMaxCap},
       &ServerRequest::max_threads},
      {{"max_probes", kInteger, "connections of a tenant that may measure links at a time, one per rank", 1,
        ps::kMaxCap},
       &ServerRequest::max_probes},
      {{"metrics", kText,
        "serve GET /metrics for Prometheus at this HOST:PORT, or unix:/PATH; off loopback it needs "
        "--metrics-token-file or --metrics-tls-ca"},
       &ServerRequest::metrics},
      {"", &ServerRequest::metrics_tls, metrics_files()},
      {choice("metrics_encryption",
              "auto: HTTP only over loopback, elsewhere HTTPS by --metrics-tls-certificate; off: HTTP at any address, "
              "where others on the network can read the token",
              {"auto", "off"}),
       &ServerRequest::metrics_encryption},
      {{"metrics_token_file", kPath, "file (mode 0600) with the bearer token that scrapers must send"},
       &ServerRequest::metrics_token_file},
      {{"stall_timeout", kSeconds,
        "log a job that makes no progress for this long although something waits, and whom it waits for; 0: never"},
       &ServerRequest::stall_seconds},
  };
  return options;
}

Result<RunningServer> start_server(const ServerRequest& request) {
  if (request.quota_bytes > 0 && request.quota_bytes < 1) {
    return fail(ErrorCode::kInvalidInput, "--quota: less than a byte; accepted: 0 for no limit, or a size from 1B");
  }
  MOTLEY_ASSIGN(const net::Endpoint listen, net::parse_endpoint(request.listen));
  MOTLEY_ASSIGN(const auto encryption,
                net::read_encryption(request.encryption, "--encryption", request.tls, net::tls_flags()));
  const ps::ServiceOptions options{.listen = listen,
                                   .cores = request.threads,
                                   .pin_cores = request.pin,
                                   .quota_bytes = static_cast<std::size_t>(request.quota_bytes),
                                   .stall_seconds = request.stall_seconds,
                                   .encryption = encryption,
                                   .tables = request.embedding_dir};
  MOTLEY_ASSIGN(const ps::Tenants tenants, read_tenants(request));
  RunningServer running;
  MOTLEY_ASSIGN(running.service, ps::Service::start(options, tenants));
  MOTLEY_ASSIGN(running.metrics, start_metrics(request, *running.service));
  running.address = running.service->address();
  if (running.metrics) running.metrics_url = running.metrics->url();
  running.description = format_count(running.service->cores(), "aggregation thread");
  return running;
}

}  // namespace motley::app
