// motley profile: measures a job's network on the devices of this machine and writes what planning starts from.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "motley/app/planning_input.h"
#include "motley/base/os/file.h"
#include "motley/base/units.h"
#include "motley/cli/commands.h"
#include "motley/cli/job_flags.h"
#include "motley/cli/options.h"
#include "motley/train/loop/progress.h"
#include "motley/train/profile/profile_job.h"

namespace motley::cli {
namespace {

struct ProfileArguments {
  std::string job;
  std::string model;
  std::string output = "profile.json";
  std::vector<std::int64_t> batches = {1, 4, 16, 64};
  double seconds = 40;
  bool estimate = false;
  std::vector<std::string> scales;
  JobFlags flags;

  static const OptionTable<ProfileArguments>& options() {
    using enum OptionKind;
    static const OptionTable<ProfileArguments> options = {
        {choice("model", "published model instead of a job, estimated from the speeds in the cluster file",
                app::model_names()),
         &ProfileArguments::model},
        {{"estimate", kBoolean,
          "measure nothing: estimate from the sizes of the job's network and the speeds in the cluster file"},
         &ProfileArguments::estimate},
        {{"output", kPath, "file to write the profile to"}, &ProfileArguments::output},
        {{"batch_sizes", kIntegers, "batch sizes to measure, ascending", 1}, &ProfileArguments::batches},
        {{"time_limit", kSeconds, "about how long to measure; starting processes is not counted", 1, 86400},
         &ProfileArguments::seconds},
        {{"scale", kTexts,
          "TYPE=TYPE*FACTOR: also the profile of a device that is not here, scaled from one that is; may be "
          "repeated"},
         &ProfileArguments::scales},
    };
    return options;
  }
};

// One line per layer: its times at the profile's own batch size.
void print_device(const model::Profile& profile, const model::DeviceProfile& device) {
  const bool is_measured = device.origin == model::Origin::kMeasured;
  std::printf("\n%s: %s, batch %.0f\n", device.type.c_str(), model::to_string(device.origin), profile.batch);
  std::printf("  %-28s %-16s %12s %12s %12s %12s %8s\n", "layer", "kind", "parameters", "bytes out", "forward ms",
              "backward ms", "spread");
  double forward = 0;
  double backward = 0;
  double parameters = 0;
  for (std::size_t i = 0; i < device.layers.size(); ++i) {
    const model::Layer& layer = profile.graph.layers[i];
    const model::LayerTime& time = device.layers[i];
    const auto measured = std::ranges::find(time.measurements, profile.batch, &model::Measurement::batch);
    const std::string spread =
        measured != time.measurements.end() ? fmt::format("{:.1f}%", 100 * measured->spread) : "-";
    std::printf("  %-28s %-16s %12.0f %12s %12.3f %12.3f %8s\n", layer.name.c_str(), model::to_string(layer.kind),
                layer.parameters, format_bytes(layer.activation_bytes).c_str(), 1e3 * time.forward.at(profile.batch),
                1e3 * time.backward.at(profile.batch), spread.c_str());
    forward += time.forward.at(profile.batch);
    backward += time.backward.at(profile.batch);
    parameters += layer.parameters;
  }
  std::printf("  %-28s %-16s %12.0f %12s %12.3f %12.3f\n", "all", "", parameters, "", 1e3 * forward, 1e3 * backward);
  std::printf("  %s\n", device.rule.c_str());
  std::printf("  fraction that more devices divide: %.3f of computation, %.3f of communication (%s: %s)\n",
              device.compute_fraction, device.communication_fraction,
              is_measured ? model::to_string(device.fractions_origin) : "scaled", device.fractions_rule.c_str());
}

Result<train::Job> make_job(const ProfileArguments& arguments) {
  MOTLEY_ASSIGN(train::Job job, read_job_with(arguments.job, arguments.flags));
  if (train::is_synthetic(job)) {
    return fail(ErrorCode::kInvalidInput, "model.name: {}; accepted: a network that is here to be measured",
                job.model.name);
  }
  return job;
}

// What the job's network is estimated to take on the cluster's device types.
Result<model::Profile> estimate_job(const ProfileArguments& arguments) {
  MOTLEY_ASSIGN(train::Job job, make_job(arguments));
  if (job.execution.cluster.empty()) {
    return fail(ErrorCode::kInvalidInput, "--estimate: needs --cluster, whose device types say how fast they are");
  }
  MOTLEY_ASSIGN(const cluster::Cluster cluster, cluster::read_cluster(job.execution.cluster));
  const std::string file = std::exchange(job.execution.cluster, "");  // what could be rented need not be here
  MOTLEY_ASSIGN(const model::Graph graph, train::load_graph(job));
  return app::estimate_on(cluster, file, graph, job.training.global_batch_size);
}

// The same of a published model.
Result<model::Profile> estimate_model(const ProfileArguments& arguments) {
  train::Job job;
  MOTLEY_TRY(train::apply_flags(job, arguments.flags));
  if (job.execution.cluster.empty()) {
    return fail(ErrorCode::kInvalidInput, "--model: {} needs --cluster, whose device types say how fast they are",
                arguments.model);
  }
  app::PlanningInput input;
  input.model = arguments.model;
  input.cluster = job.execution.cluster;
  input.batch = job.training.global_batch_size;
  MOTLEY_ASSIGN(app::PlanningData data, app::planning_data(input));
  return std::move(data.profile);
}

Result<model::Profile> measure(const ProfileArguments& arguments) {
  if (arguments.batches.empty() || !std::ranges::is_sorted(arguments.batches, std::ranges::less_equal{})) {
    return fail(ErrorCode::kInvalidInput,
                "--batch-sizes: '{}' is not accepted; accepted: ascending integers from 1, such as 1,4,16",
                fmt::join(arguments.batches, ","));
  }
  train::ProfileJobOptions options;
  options.batches = arguments.batches;
  options.seconds = arguments.seconds;
  options.motley = std::filesystem::read_symlink("/proc/self/exe");
  for (const std::string& text : arguments.scales) {
    MOTLEY_ASSIGN(const train::Scaling scaling, train::parse_scaling(text));
    options.scalings.push_back(scaling);
  }
  train::ProgressLine progress;
  options.progress = [&](const std::string& text) { progress.show(text); };
  MOTLEY_ASSIGN(const train::Job job, make_job(arguments));
  Result<model::Profile> profile = train::profile_job(job, options);
  progress.clear();
  return profile;
}

Status run_profile(const ProfileArguments& arguments) {
  if (arguments.job.empty() == arguments.model.empty()) {
    return fail(ErrorCode::kInvalidInput,
                "JOB, --model: {}; accepted: a job file, such as examples/fashion-mnist/job.yaml, or a model",
                arguments.job.empty() ? "neither is given" : "both are given");
  }
  const Result<model::Profile> profile = !arguments.model.empty() ? estimate_model(arguments)
                                         : arguments.estimate     ? estimate_job(arguments)
                                                                  : measure(arguments);
  if (!profile) {
    return fail(profile.error());
  }
  MOTLEY_TRY(write_file(arguments.output, model::to_json(*profile)));
  std::printf("%s: %zu layers; %s\n", profile->graph.name.c_str(), profile->graph.layers.size(),
              profile->graph.source.c_str());
  for (const model::DeviceProfile& device : profile->devices) {
    print_device(*profile, device);
  }
  for (const model::ProfiledLink& link : profile->links) {
    std::printf("\nlink %s - %s: %s/s in each direction, latency %s (%s, TCP over loopback)\n", link.from.c_str(),
                link.to.c_str(), format_bytes(link.bytes_per_second).c_str(),
                format_seconds(link.latency_seconds).c_str(), model::to_string(link.origin));
  }
  std::printf("\nprofile: %s\n", arguments.output.c_str());
  return {};
}

}  // namespace

void add_profile(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("profile", "Measure a job's network on the devices here, for planning");
  command->footer(
      "Every key of the job file is also a flag. Examples:\n"
      "  motley profile examples/fashion-mnist/job.yaml\n"
      "  motley profile examples/fashion-mnist/job.yaml --model.name resnet18 --scale gpu=cpu*0.05 --output "
      "r18.json\n"
      "  motley profile examples/clicks/job.yaml --estimate --cluster examples/clicks/cluster.yaml\n"
      "  motley profile --model vgg16 --cluster examples/heterogeneous/cluster.yaml --global-batch-size 128");
  auto arguments = std::make_shared<ProfileArguments>();
  command->add_option("JOB", arguments->job, "Job file (docs/reference/job.md)");
  add_options(*command, *arguments);
  const auto job_flags = add_job_flags(*command);
  command->callback([&action, arguments, job_flags] {
    arguments->flags = job_flags();
    action = [arguments] { return run_profile(*arguments); };
  });
}

}  // namespace motley::cli
