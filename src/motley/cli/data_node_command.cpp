// motley data-node: serves a job's samples to workers that do not have the files.
#include <signal.h>

#include "motley/base/log.h"
#include "motley/base/os/file.h"
#include "motley/cli/commands.h"
#include "motley/cli/job_flags.h"
#include "motley/data/remote/node.h"
#include "motley/net/socket.h"
#include "motley/train/job/job_data.h"

namespace motley::cli {
namespace {

struct DataNodeArguments {
  std::string job;
  std::string listen = "127.0.0.1:29600";
  std::string token_file;
  std::string address_file;
  bool quiet = false;
  JobFlags flags;
};

Status run_data_node(const DataNodeArguments& arguments) {
  // Taken before threads start, so that a stop comes to the wait below.
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGINT);
  sigaddset(&stop, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &stop, nullptr);
  if (arguments.quiet) {
    start_logging("warning");
  }
  MOTLEY_ASSIGN(train::Job job, read_job_with(arguments.job, arguments.flags));
  job.data_node.clear();  // it is this one
  MOTLEY_TRY(train::check_data(job));
  data::NodeOptions options;
  MOTLEY_ASSIGN(options.listen, net::parse_endpoint(arguments.listen));
  const auto token = arguments.token_file.empty() ? net::Secret::from_environment(train::kDataTokenVariable)
                                                  : net::Secret::from_file(arguments.token_file);
  if (!token) {
    return fail(token.error().within("--token-file, for the token that lets workers in"));
  }
  data::NodeData data;
  data.keys = train::data_keys(job);
  MOTLEY_ASSIGN(data.training, train::open_training_data(job));
  if (train::has_test_data(job)) {
    MOTLEY_ASSIGN(data.test, train::open_test_data(job, *data.training));
  }
  MOTLEY_ASSIGN(const auto node, data::DataNode::start(options, *token, std::move(data)));
  const std::string address = net::to_string(node->endpoint());
  if (!arguments.address_file.empty()) {
    MOTLEY_TRY(write_file(arguments.address_file, address + "\n"));
  }
  const data::Description& training = *node->description(data::Set::kTraining);
  const auto& test = node->description(data::Set::kTest);
  spdlog::info("listening at {} with {} training and {} test samples of {}, {} bytes each", address, training.size,
               test ? test->size : 0, job.data_name, data::sample_bytes(training, {}));
  int signal = 0;
  ::sigwait(&stop, &signal);
  spdlog::info("stopping ({})", ::strsignal(signal));
  ::pthread_sigmask(SIG_UNBLOCK, &stop, nullptr);  // a second one ends the process at once
  return {};
}

}  // namespace

void add_data_node(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("data-node", "Serve a job's data to workers that do not have the files");
  command->footer(
      "Jobs use it with data.node and data.node_token; every key of the job file is also a flag. Example:\n"
      "  head -c 32 /dev/urandom | base64 > token && chmod 600 token\n"
      "  motley data-node examples/fashion-mnist/job.yaml --listen 127.0.0.1:29600 --token-file token");
  auto arguments = std::make_shared<DataNodeArguments>();
  command->add_option("JOB", arguments->job, "Job file (docs/job.md), whose data is served")->required();
  command->add_option("--listen", arguments->listen, "Address and port; port 0 takes any free one")
      ->capture_default_str();
  command->add_option(
      "--token-file", arguments->token_file,
      "File (mode 0600) with the token that workers must know; default: the variable MOTLEY_DATA_TOKEN");
  command->add_option("--address-file", arguments->address_file, "Write the address there once it listens");
  command->add_flag("--quiet", arguments->quiet, "Log warnings and errors only");
  const auto job_flags = add_job_flags(*command);
  command->callback([&action, arguments, job_flags] {
    arguments->flags = job_flags();
    action = [arguments] { return run_data_node(*arguments); };
  });
}

}  // namespace motley::cli
