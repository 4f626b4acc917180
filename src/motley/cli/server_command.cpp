// motley server: a parameter server that runs apart from jobs, for as many of them as come.
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>

#include "motley/app/parameter_server.h"
#include "motley/base/log.h"
#include "motley/base/os/file.h"
#include "motley/base/os/stop_signals.h"
#include "motley/cli/commands.h"
#include "motley/train/launch/launcher.h"

namespace motley::cli {
namespace {

struct ServerArguments {
  app::ServerRequest request;
  std::string address_file;
  std::string tables;
  bool quiet = false;
};

Status run_server(const ServerArguments& arguments) {
  // Before threads start; after the wait below a second one ends the process at once.
  auto stop = std::make_optional<StopSignals>();
  if (std::getenv("MOTLEY_LAUNCHER") != nullptr) {
    MOTLEY_TRY(train::follow_launcher());
  }
  if (arguments.quiet) {
    start_logging("warning");
  }
  MOTLEY_ASSIGN(const app::RunningServer server, app::start_server(arguments.request));
  if (!arguments.address_file.empty()) {
    MOTLEY_TRY(write_file(arguments.address_file, server.address + "\n"));
  }
  if (server.metrics) {
    spdlog::info("metrics at http://{}/metrics", server.metrics_address);
  }
  spdlog::info("listening at {} with {} cores", server.address, server.service->cores());
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
  command->add_option("--listen", arguments->request.listen, "Address and port; port 0 takes any free one")
      ->capture_default_str();
  command->add_option(
      "--token-file", arguments->request.token_file,
      "File (mode 0600) with the token that jobs must know; default: that of the variable MOTLEY_TOKEN_FILE");
  command->add_option("--address-file", arguments->address_file, "Write the address there once it listens");
  command->add_option("--embedding-dir", arguments->tables,
                      "Folder for sparse tables: rows that memory has no room for, and checkpoints");
  command
      ->add_option("--threads", arguments->request.options.cores, "Threads that sum and update; 0: one for each core")
      ->check(CLI::Range(0, 1024));
  command->add_flag("--pin", arguments->request.options.pin_cores, "Bind each of these threads to a core of its own");
  command->add_option("--quota", arguments->request.quota_gigabytes, "Memory that one job may take, in GB; 0: no limit")
      ->check(CLI::NonNegativeNumber);
  command
      ->add_option("--tenants", arguments->request.tenants,
                   "File (mode 0600) of tenants, each with a token, and a quota and a share of its own")
      ->excludes("--token-file");
  command->add_option("--metrics", arguments->request.metrics,
                      "Answer GET /metrics for Prometheus at this HOST:PORT of loopback; elsewhere a token is needed");
  command
      ->add_option("--metrics-token-file", arguments->request.metrics_token_file,
                   "File (mode 0600) with the bearer token that scrapers must show")
      ->needs("--metrics");
  command
      ->add_option("--stall-timeout", arguments->request.options.stall_seconds,
                   "Log a job that waits and does not move for so long, and for whom it waits; 0: never")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->add_flag("--quiet", arguments->quiet, "Log warnings and errors only");
  command->callback([&action, arguments] {
    arguments->request.options.tables = arguments->tables;
    action = [arguments] { return run_server(*arguments); };
  });
}

}  // namespace motley::cli
