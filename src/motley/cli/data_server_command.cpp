// motley data-server: serves a job's samples to workers that do not have the files.
#include <cstring>
#include <optional>

#include "motley/base/log.h"
#include "motley/base/os/file.h"
#include "motley/base/os/stop_signals.h"
#include "motley/cli/commands.h"
#include "motley/cli/job_flags.h"
#include "motley/data/remote/data_server.h"
#include "motley/net/socket.h"
#include "motley/train/job/job_data.h"

namespace motley::cli {
namespace {

struct DataServerArguments {
  std::string job;
  std::string listen = "127.0.0.1:29600";
  std::string token_file;
  std::string address_file;
  bool quiet = false;
  JobFlags flags;
};

Status run_data_server(const DataServerArguments& arguments) {
  // Before threads start; after the wait below a second one ends the process at once.
  auto stop = std::make_optional<StopSignals>();
  if (arguments.quiet) {
    start_logging("warning");
  }
  MOTLEY_ASSIGN(train::Job job, read_job_with(arguments.job, arguments.flags));
  job.data.server.clear();  // it is this one
  MOTLEY_TRY(train::check_data(job));
  data::DataServerOptions options;
  MOTLEY_ASSIGN(options.listen, net::parse_endpoint(arguments.listen));
  const auto token = net::Secret::from_file(arguments.token_file, net::kTokenFileVariable);
  if (!token) {
    return fail(token.error().within("--token-file, for the token that lets workers in"));
  }
  data::ServedData data;
  data.keys = train::data_keys(job);
  MOTLEY_ASSIGN(data.training, train::open_training_data(job));
  if (train::has_test_data(job)) {
    MOTLEY_ASSIGN(data.test, train::open_test_data(job, *data.training));
  }
  MOTLEY_ASSIGN(const auto node, data::DataServer::start(options, *token, std::move(data)));
  const std::string address = net::to_string(node->endpoint());
  if (!arguments.address_file.empty()) {
    MOTLEY_TRY(write_file(arguments.address_file, address + "\n"));
  }
  const data::Description& training = *node->description(data::Set::kTraining);
  const auto& test = node->description(data::Set::kTest);
  spdlog::info("listening at {} with {} training and {} test samples of {}, {} bytes each", address, training.size,
               test ? test->size : 0, job.data.name, data::sample_bytes(training, {}));
  spdlog::info("stopping ({})", ::strsignal(stop->wait()));
  stop.reset();
  return {};
}

}  // namespace

void add_data_server(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("data-server", "Serve a job's data to workers that do not have the files");
  command->footer(
      "Jobs use it with data.server and data.token_file; every key of the job file is also a flag. Example:\n"
      "  head -c 32 /dev/urandom | base64 > token && chmod 600 token\n"
      "  motley data-server examples/fashion-mnist/job.yaml --listen 127.0.0.1:29600 --token-file token");
  auto arguments = std::make_shared<DataServerArguments>();
  command->add_option("JOB", arguments->job, "Job file (docs/reference/job.md), whose data is served")->required();
  command->add_option("--listen", arguments->listen, "Address and port; port 0 takes any free one")
      ->capture_default_str();
  command->add_option(
      "--token-file", arguments->token_file,
      "File (mode 0600) with the token that workers must know; default: that of the variable MOTLEY_TOKEN_FILE");
  command->add_option("--address-file", arguments->address_file, "Write the address there once it listens");
  command->add_flag("--quiet", arguments->quiet, "Log warnings and errors only");
  const auto job_flags = add_job_flags(*command);
  command->callback([&action, arguments, job_flags] {
    arguments->flags = job_flags();
    action = [arguments] { return run_data_server(*arguments); };
  });
}

}  // namespace motley::cli
