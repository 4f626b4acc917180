// motley server: a parameter server that runs apart from jobs, for as many of them as come.
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>

#include "motley/base/log.h"
#include "motley/base/os/file.h"
#include "motley/base/os/stop_signals.h"
#include "motley/cli/commands.h"
#include "motley/net/socket.h"
#include "motley/ps/service/metrics_service.h"
#include "motley/ps/service/service.h"
#include "motley/train/job/job_parts.h"
#include "motley/train/launch/launcher.h"

namespace motley::cli {
namespace {

constexpr double kMaxGigabytes = 1e9;

struct ServerArguments {
  std::string listen = "127.0.0.1:29500";
  std::string token_file;
  std::string address_file;
  std::string tables;
  int cores = 0;
  bool pin = false;
  bool quiet = false;
  double quota_gigabytes = 0;
  std::string tenants;
  std::string metrics;
  std::string metrics_token_file;
  double stall_seconds = 10;
};

Result<ps::Tenants> read_tenants(const ServerArguments& arguments) {
  if (!arguments.tenants.empty()) {
    return ps::Tenants::read(arguments.tenants);
  }
  Result<net::Secret> token = net::Secret::from_file(arguments.token_file, net::kTokenFileVariable);
  if (!token) {
    return fail(token.error().within("--token-file (or --tenants), for the token that lets jobs in"));
  }
  return ps::Tenants(std::move(*token));
}

// Null where none is asked for.
Result<std::unique_ptr<ps::MetricsService>> make_metrics(const ServerArguments& arguments, const ps::Service& service) {
  if (arguments.metrics.empty()) {
    return nullptr;
  }
  MOTLEY_ASSIGN(const net::Endpoint endpoint, net::parse_endpoint(arguments.metrics));
  std::optional<net::Secret> token;
  if (!arguments.metrics_token_file.empty()) {
    MOTLEY_ASSIGN(token, net::Secret::from_file(arguments.metrics_token_file));
  }
  return ps::MetricsService::start(endpoint, std::move(token), [&service] { return service.metrics().text(); });
}

Status run_server(const ServerArguments& arguments) {
  // Before threads start; after the wait below a second one ends the process at once.
  auto stop = std::make_optional<StopSignals>();
  if (std::getenv("MOTLEY_LAUNCHER") != nullptr) {
    MOTLEY_TRY(train::follow_launcher());
  }
  if (arguments.quiet) {
    start_logging("warning");
  }
  ps::ServiceOptions options;
  MOTLEY_ASSIGN(options.listen, net::parse_endpoint(arguments.listen));
  options.cores = arguments.cores;
  options.pin_cores = arguments.pin;
  if (!(arguments.quota_gigabytes >= 0 && arguments.quota_gigabytes <= kMaxGigabytes) ||
      (arguments.quota_gigabytes > 0 && arguments.quota_gigabytes < 1e-9)) {
    return fail(ErrorCode::kInvalidInput, "--quota: {}; accepted: 0 for no limit, or 1e-9 to {} GB",
                arguments.quota_gigabytes, kMaxGigabytes);
  }
  if (!(arguments.stall_seconds >= 0)) {
    return fail(ErrorCode::kInvalidInput, "--stall-timeout: {}; accepted: 0 for never, or seconds",
                arguments.stall_seconds);
  }
  options.quota_bytes = static_cast<std::size_t>(arguments.quota_gigabytes * 1e9);
  options.tables = arguments.tables;
  options.stall_seconds = arguments.stall_seconds;
  MOTLEY_ASSIGN(const ps::Tenants tenants, read_tenants(arguments));
  MOTLEY_ASSIGN(const auto service, ps::Service::start(options, tenants));
  MOTLEY_ASSIGN(const auto metrics, make_metrics(arguments, *service));
  const std::string address = net::to_string(service->endpoint());
  if (!arguments.address_file.empty()) {
    MOTLEY_TRY(write_file(arguments.address_file, address + "\n"));
  }
  if (metrics) {
    spdlog::info("metrics at http://{}/metrics", net::to_string(metrics->endpoint()));
  }
  spdlog::info("listening at {} with {} cores", address, service->cores());
  spdlog::info("stopping ({})", ::strsignal(stop->wait()));
  stop.reset();
  return {};
}

}  // namespace

void add_server(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("server", "Run a parameter server for many jobs");
  command->footer(
      "Jobs use it with gradient_sync.method parameter-server and gradient_sync.servers. Example:\n"
      "  head -c 32 /dev/urandom | base64 > token && chmod 600 token\n"
      "  motley server --listen 127.0.0.1:29500 --token-file token");
  auto arguments = std::make_shared<ServerArguments>();
  command->add_option("--listen", arguments->listen, "Address and port; port 0 takes any free one")
      ->capture_default_str();
  command->add_option(
      "--token-file", arguments->token_file,
      "File (mode 0600) with the token that jobs must know; default: that of the variable MOTLEY_TOKEN_FILE");
  command->add_option("--address-file", arguments->address_file, "Write the address there once it listens");
  command->add_option("--embedding-dir", arguments->tables,
                      "Folder for sparse tables: rows that memory has no room for, and checkpoints");
  command->add_option("--threads", arguments->cores, "Threads that sum and update; 0: one for each core")
      ->check(CLI::Range(0, 1024));
  command->add_flag("--pin", arguments->pin, "Bind each of these threads to a core of its own");
  command->add_option("--quota", arguments->quota_gigabytes, "Memory that one job may take, in GB; 0: no limit")
      ->check(CLI::NonNegativeNumber);
  command
      ->add_option("--tenants", arguments->tenants,
                   "File (mode 0600) of tenants, each with a token, and a quota and a share of its own")
      ->excludes("--token-file");
  command->add_option("--metrics", arguments->metrics,
                      "Answer GET /metrics for Prometheus at this HOST:PORT of loopback; elsewhere a token is needed");
  command
      ->add_option("--metrics-token-file", arguments->metrics_token_file,
                   "File (mode 0600) with the bearer token that scrapers must show")
      ->needs("--metrics");
  command
      ->add_option("--stall-timeout", arguments->stall_seconds,
                   "Log a job that waits and does not move for so long, and for whom it waits; 0: never")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->add_flag("--quiet", arguments->quiet, "Log warnings and errors only");
  command->callback([&action, arguments] { action = [arguments] { return run_server(*arguments); }; });
}

}  // namespace motley::cli
