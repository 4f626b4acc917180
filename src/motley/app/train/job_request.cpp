#include "motley/app/train/job_request.h"

#include <algorithm>

#include "motley/base/os/signals.h"
#include "motley/model/tables.h"
#include "motley/train/profile/profile_job.h"

namespace motley::app {
namespace {

Result<train::Job> read_job_to_profile(const ProfileRequest& request) {
  MOTLEY_ASSIGN(train::Job job, read_job(request.job));
  if (train::is_synthetic(job)) {
    return fail(ErrorCode::kInvalidInput, "model.name: {}; accepted: a network that is here to be measured",
                job.model.name);
  }
  return job;
}

// What the job's network is estimated to take on the cluster's device types.
Result<model::Profile> estimate_job(const ProfileRequest& request) {
  MOTLEY_ASSIGN(train::Job job, read_job_to_profile(request));
  if (job.execution.cluster.empty()) {
    return fail(ErrorCode::kInvalidInput, "--estimate: needs --cluster, whose device types say how fast they are");
  }
  MOTLEY_ASSIGN(const cluster::Cluster cluster, cluster::read_cluster(job.execution.cluster));
  const std::string file = std::exchange(job.execution.cluster, "");  // what could be rented need not be here
  MOTLEY_ASSIGN(const model::Graph graph, train::load_graph(job));
  MOTLEY_ASSIGN(model::Profile profile, estimate_on(cluster, file, graph, job.training.global_batch_size));
  profile.state_arrays = train::count_state_arrays(job);
  return profile;
}

// The same of a published model.
Result<model::Profile> estimate_model(const ProfileRequest& request) {
  train::Job job;
  MOTLEY_TRY(train::apply_flags(job, request.job.flags));
  if (job.execution.cluster.empty()) {
    return fail(ErrorCode::kInvalidInput, "--model: {} needs --cluster, whose device types say how fast they are",
                request.model);
  }
  MOTLEY_ASSIGN(PlanningData data, planning_data({.model = request.model,
                                                  .cluster = job.execution.cluster,
                                                  .batch = job.training.global_batch_size}));
  return std::move(data.profile);
}

Result<model::Profile> measure(const ProfileRequest& request) {
  if (request.batches.empty() || !std::ranges::is_sorted(request.batches, std::ranges::less_equal{})) {
    return fail(ErrorCode::kInvalidInput,
                "--batch-sizes: '{}' is not accepted; accepted: ascending integers from 1, such as 1,4,16",
                fmt::join(request.batches, ","));
  }
  const InterruptStop interrupt;
  MOTLEY_ASSIGN(const train::Job job, read_job_to_profile(request));
  return train::profile_job(
      job,
      {.batches = request.batches, .seconds = request.seconds, .scalings = request.scales, .stop = interrupt.token()});
}

}  // namespace

Result<train::Job> read_job(const JobRequest& request) {
  MOTLEY_ASSIGN(train::Job job, train::read_job(request.file));
  MOTLEY_TRY(train::apply_flags(job, request.flags));
  MOTLEY_TRY(train::check_job(job));
  return job;
}

std::vector<std::pair<OptionText, OptionValue>> job_options() {
  std::vector<std::pair<OptionText, OptionValue>> options;
  for (const auto& entry : train::Job::options().entries()) {
    if (entry.text.key != "version") options.emplace_back(entry.text, entry.get(train::Job()));
  }
  return options;
}

const OptionTable<ProfileRequest>& ProfileRequest::options() {
  using enum OptionKind;
  static const OptionTable<ProfileRequest> options = {
      {choice("model", "published model instead of a job, estimated from the speeds in the cluster file",
              model::table_names()),
       &ProfileRequest::model},
      {{"estimate", kBoolean,
        "measure nothing: estimate from the sizes of the job's network and the speeds in the cluster file"},
       &ProfileRequest::estimate},
      {{"batch_sizes", kIntegers, "batch sizes to measure, ascending", 1}, &ProfileRequest::batches},
      {{"time_limit", kSeconds, "about how long to measure; starting processes is not counted", 1, 86400},
       &ProfileRequest::seconds},
      {{"scale", kTexts,
        "TYPE=TYPE*FACTOR: also the profile of a device that is not here, scaled from one that is; may be repeated"},
       &ProfileRequest::scales},
  };
  return options;
}

Result<model::Profile> make_profile(const ProfileRequest& request) {
  if (request.job.file.empty() == request.model.empty()) {
    return fail(ErrorCode::kInvalidInput,
                "JOB, --model: {}; accepted: a job file, such as examples/fashion-mnist/job.yaml, or a model",
                request.model.empty() ? "neither is given" : "both are given");
  }
  if (!request.model.empty()) return estimate_model(request);
  return request.estimate ? estimate_job(request) : measure(request);
}

const OptionTable<DataRequest>& DataRequest::options() {
  using enum OptionKind;
  static const OptionTable<DataRequest> options = {
      {{"listen", kText, "address and port to listen on; port 0: any free one"}, &DataRequest::listen},
      {{"token_file", kPath,
        "file (mode 0600) with the token that workers must know; default: the file that MOTLEY_TOKEN_FILE names"},
       &DataRequest::token_file},
  };
  return options;
}

Result<train::RunningDataServer> serve_data(const DataRequest& request) {
  MOTLEY_ASSIGN(train::Job job, read_job(request.job));
  return train::serve_data(std::move(job), request.listen, request.token_file);
}

}  // namespace motley::app
