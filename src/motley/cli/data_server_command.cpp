// motley data-server: serves a job's samples to workers that do not have the files.
#include <cstring>
#include <optional>

#include "motley/app/train/serve_data.h"
#include "motley/base/log.h"
#include "motley/base/os/file.h"
#include "motley/base/os/signals.h"
#include "motley/cli/commands.h"
#include "motley/cli/job_flags.h"
#include "motley/cli/options.h"

namespace motley::cli {
namespace {

struct DataServerArguments {
  std::string job;
  app::DataRequest request;
  std::string address_file;
  bool quiet = false;
  JobFlags flags;

  static const OptionTable<DataServerArguments>& options() {
    using enum OptionKind;
    static const OptionTable<DataServerArguments> options = {
        {"", &DataServerArguments::request},
        {{"address_file", kPath, "write the address to this file once the server listens"},
         &DataServerArguments::address_file},
        {{"quiet", kBoolean, "log warnings and errors only"}, &DataServerArguments::quiet},
    };
    return options;
  }
};

Status run_data_server(const DataServerArguments& arguments) {
  // Before threads start; after the wait below a second one ends the process at once.
  auto stop = std::make_optional<StopSignals>();
  if (arguments.quiet) {
    start_logging("warning");
  }
  MOTLEY_ASSIGN(train::Job job, read_job_with(arguments.job, arguments.flags));
  MOTLEY_ASSIGN(const app::RunningDataServer data, app::serve_data(std::move(job), arguments.request));
  if (!arguments.address_file.empty()) {
    MOTLEY_TRY(write_file(arguments.address_file, data.address + "\n"));
  }
  spdlog::info("listening at {} with {}", data.address, data.description);
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
  add_options(*command, *arguments);
  const auto job_flags = add_job_flags(*command);
  command->callback([&action, arguments, job_flags] {
    arguments->flags = job_flags();
    action = [arguments] { return run_data_server(*arguments); };
  });
}

}  // namespace motley::cli
