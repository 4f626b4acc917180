// What `motley server` does: runs a parameter server for jobs, with metrics beside it.
#pragma once

#include <memory>
#include <string>

#include "motley/ps/service/metrics_service.h"
#include "motley/ps/service/service.h"
#include "motley/serial/options.h"

namespace motley::app {

struct ServerRequest {
  std::string listen = "127.0.0.1:29500";
  std::string token_file;  // "": that of MOTLEY_TOKEN_FILE
  std::string tenants;     // a file in place of the token; "": none
  std::string metrics;     // where metrics are answered; "": nowhere
  std::string metrics_token_file;
  net::CertificateFiles metrics_tls;
  std::string metrics_encryption = "auto";
  std::string embedding_dir;
  std::string encryption = "auto";
  net::CertificateFiles tls;
  int threads = 0;  // of aggregation; 0: one per core
  bool pin = false;
  double quota_bytes = 0;  // of a job; 0: no limit
  // What a tenant may have at a time for which the file gives nothing else, or, with one token, all clients together.
  int max_connections = ps::kDefaultCaps.connections;
  int max_jobs = ps::kDefaultCaps.jobs;
  int max_threads = ps::kDefaultCaps.threads;  // for embeddings
  int max_probes = ps::kDefaultCaps.probes;
  double stall_seconds = ps::ServiceOptions().stall_seconds;

  static const OptionTable<ServerRequest>& options();
};

struct RunningServer {
  std::unique_ptr<ps::Service> service;
  std::unique_ptr<ps::MetricsService> metrics;  // null: none; ends before the service
  std::string address;                          // really listening at
  std::string metrics_url;
  std::string description;  // "4 aggregation threads"
};
// Errors name the flag.
Result<RunningServer> start_server(const ServerRequest& request);

}  // namespace motley::app
