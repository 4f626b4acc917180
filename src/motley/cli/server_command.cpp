// motley server: a parameter server that runs apart from jobs, for as many of them as come.
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>

#include "motley/app/parameter_server.h"
#include "motley/base/log.h"
#include "motley/base/os/file.h"
#include "motley/base/os/signals.h"
#include "motley/cli/commands.h"
#include "motley/cli/options.h"
#include "motley/train/launch/launcher.h"

namespace motley::cli {
namespace {

struct ServerArguments {
  app::ServerRequest request;
  std::string address_file;
  bool quiet = false;

  static const OptionTable<ServerArguments>& options() {
    using enum OptionKind;
    static const OptionTable<ServerArguments> options = {
        {"", &ServerArguments::request},
        {{"address_file", kPath, "write the address to this file once the server listens"},
         &ServerArguments::address_file},
        {{"quiet", kBoolean, "log warnings and errors only"}, &ServerArguments::quiet},
    };
    return options;
  }
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
  spdlog::info("listening at {} with {} aggregation threads", server.address, server.service->cores());
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
  add_options(*command, *arguments);
  command->get_option("--tenants")->excludes("--token-file");
  command->get_option("--metrics-token-file")->needs("--metrics");
  command->callback([&action, arguments] { action = [arguments] { return run_server(*arguments); }; });
}

}  // namespace motley::cli
