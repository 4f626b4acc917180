// motley server and motley data-server: what jobs use while it runs apart from them, until it is asked to stop.
#include <cstring>
#include <optional>

#include "motley/app/parameter_server.h"
#include "motley/app/train/train_job.h"
#include "motley/base/log.h"
#include "motley/base/os/file.h"
#include "motley/base/os/signals.h"
#include "motley/cli/commands.h"

namespace motley::cli {
namespace {

template <class Request>
struct ServiceArguments {
  Request request;
  std::string address_file;

  static const OptionTable<ServiceArguments>& options() {
    using enum OptionKind;
    static const OptionTable<ServiceArguments> options = {
        {"", &ServiceArguments::request},
        {{"address_file", kPath, "write the address to this file once the server listens"},
         &ServiceArguments::address_file},
    };
    return options;
  }
};
using ServerArguments = ServiceArguments<app::ServerRequest>;
using DataServerArguments = ServiceArguments<app::DataRequest>;

// `start` gives what runs, with its address and description.
template <class Arguments, class Start>
Status serve_until_stopped(const Arguments& arguments, const Start& start) {
  // Before threads start; after the wait below a second one ends the process at once.
  auto stop = std::make_optional<StopSignals>();
  MOTLEY_ASSIGN(const auto running, start(arguments.request));
  if (!arguments.address_file.empty()) MOTLEY_TRY(write_file(arguments.address_file, running.address + "\n"));
  spdlog::info("listening at {} with {}", running.address, running.description);
  spdlog::info("stopping ({})", ::strsignal(stop->wait()));
  stop.reset();
  return {};
}

Result<app::RunningServer> start_server(const app::ServerRequest& request) {
  MOTLEY_TRY(app::follow_launcher());
  MOTLEY_ASSIGN(app::RunningServer server, app::start_server(request));
  if (server.metrics) spdlog::info("metrics at {}", server.metrics_url);
  return server;
}

// The keys of a job that say what its data are and how they are sent.
std::vector<std::pair<OptionText, OptionValue>> data_options() {
  auto options = app::job_options();
  std::erase_if(options, [](const auto& option) {
    const std::string& key = option.first.key;
    const bool is_of_workers = key == "data.server" || key == "data.token_file";
    return is_of_workers || !(key.starts_with("data.") || key.starts_with("network.") || key == "seed");
  });
  return options;
}

}  // namespace

void add_server(CLI::App& app, CommandLine& line) {
  const auto [command, arguments] = add_command<ServerArguments>(
      app, line, "server", "Run a parameter server for many jobs",
      "Jobs use it with gradient_sync.method parameter-server and gradient_sync.servers. Example:\n"
      "  head -c 32 /dev/urandom | base64 > token && chmod 600 token\n"
      "  motley server --listen 127.0.0.1:29500 --token-file token",
      [](const ServerArguments& given) { return serve_until_stopped(given, start_server); });
  command.get_option("--tenants")->excludes("--token-file");
  for (const char* flag :
       {"--metrics-token-file", "--metrics-tls-certificate", "--metrics-tls-key", "--metrics-tls-ca"}) {
    command.get_option(flag)->needs("--metrics");
  }
}

void add_data_server(CLI::App& app, CommandLine& line) {
  const auto [command, arguments] = add_command<DataServerArguments>(
      app, line, "data-server", "Serve a job's data to workers that do not have the files",
      "Jobs use it with data.server and data.token_file. Example:\n"
      "  head -c 32 /dev/urandom | base64 > token && chmod 600 token\n"
      "  motley data-server examples/fashion-mnist/job.yaml --listen 127.0.0.1:29700 --token-file token",
      [](const DataServerArguments& given) { return serve_until_stopped(given, app::serve_data); });
  app::JobRequest& job = arguments.request.job;
  add_argument(command, {"JOB", OptionKind::kPath, "job file (docs/reference/job.md) whose data is served"}, job.file)
      ->required();
  add_keys(command, data_options(), job.flags);
}

}  // namespace motley::cli
