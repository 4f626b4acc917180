#include "motley/scheduling/service/job_record.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "motley/base/os/file.h"
#include "motley/base/text.h"
#include "motley/scheduling/simulator/placement.h"

namespace motley::scheduling {
namespace {

constexpr double kLongestSeconds = 1e9;
constexpr double kMostBytes = 1e15;
constexpr double kMaxWeight = 1e9;
constexpr double kLongestGrace = 3600;

bool is_plain(char letter) {
  return std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '-' || letter == '_' || letter == '.';
}

void replace(std::string& text, const std::string& what, const std::string& by) {
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size())) {
    text.replace(at, what.size(), by);
  }
}

}  // namespace

const OptionTable<SubmittedJob>& SubmittedJob::options() {
  using enum OptionKind;
  static const OptionTable<SubmittedJob> options = {
      {{"name", kText,
        "name of the job, which no other job has that is not over: letters, digits, '-', '_' and '.', and no "
        "number; default: none, it must be given, but where --file is"},
       &SubmittedJob::name},
      {{"workers", kInteger, "workers that the job asks for", 1, 1e6}, &SubmittedJob::workers},
      {{"min_workers", kInteger, "fewest workers that it can run with; default: --workers", 1, 1e6},
       &SubmittedJob::min_workers},
      {{"max_workers", kInteger, "most workers that it can use; default: --workers", 1, 1e6},
       &SubmittedJob::max_workers},
      {{"estimated_duration", kSeconds,
        "how long it should take with the workers it asks for; default: not known, and 1h is assumed", 1e-3,
        kLongestSeconds},
       &SubmittedJob::estimated_seconds},
      {{"cpus_per_worker", kReal, "CPUs that each of its workers takes of its node, beside its device", 0, 1e6},
       &SubmittedJob::cpus_per_worker},
      {{"memory_per_worker", kBytes, "memory that each of its workers takes of its node", 0, 1e15},
       &SubmittedJob::memory_bytes_per_worker},
      {{"restart_cost", kSeconds, "time that it loses whenever its workers change", 0, kLongestSeconds},
       &SubmittedJob::restart_cost_seconds},
      {{"grace_period", kSeconds, "time between the notice to stop (SIGTERM) and the end (SIGKILL)", 0, kLongestGrace},
       &SubmittedJob::grace_seconds},
      {{"weight", kReal, "weight of its utility", 1e-9, kMaxWeight}, &SubmittedJob::weight},
      {{"device_hour_cost", kReal, "cost of one of its devices per hour, in the unit of its utility", 0},
       &SubmittedJob::device_hour_cost},
      {{"max_retries", kInteger, "how often it is restarted after a failure of its own", 0, 1e6},
       &SubmittedJob::max_retries},
      {choice("resize",
              "how its number of workers changes: restart; in-place where the job runs on this machine and its "
              "launcher allows it, as that of an elastic motley train does, which --train is then made; auto: in place "
              "where the job is elastic as it is",
              {"auto", "restart", "in-place"}),
       &SubmittedJob::resize},
  };
  return options;
}

Status check(const SubmittedJob& job, const ClusterTopology& topology) {
  const auto refuse = [&](std::string_view field, const auto& value, const std::string& accepted) {
    return fail(ErrorCode::kInvalidInput, "job '{}': {} is '{}'; accepted: {}", job.name, field, value, accepted);
  };
  if (const Status plain = check_folder_name(job.name); !plain) return fail(plain.error().within("name"));
  if (!std::ranges::all_of(job.name, is_plain)) return refuse("name", job.name, "letters, digits, '-', '_' and '.'");
  if (parse_number<int>(job.name)) {
    return refuse("name", job.name, "a name that is no number, as a number is that of a job");
  }
  if (job.command.empty() || job.command.front().empty()) return refuse("command", "", "a program and its arguments");
  if (!job.directory.starts_with('/')) return refuse("directory", job.directory, "an absolute path");
  for (const auto& [field, resource, limit, accepted] : kRequestFields) {
    const double amount = requested(job, resource, topology);
    if (amount <= 0) continue;
    if (amount > limit) return refuse(field, amount, std::string(accepted));
    const int place = topology.resource_named(std::string(resource));
    if (place < 0) {
      return refuse(field, amount,
                    fmt::format("none, as the cluster does not say how much its nodes have ({} of nodes in the cluster "
                                "file, or motley schedule serve --node-{})",
                                resource, resource));
    }
    if (const double most = topology.most(place); amount > most) {
      return refuse(
          field, amount,
          fmt::format("up to {}, the most that a node has ({})", most, describe_amount(std::string(resource), most)));
    }
  }
  const Job seen = make_job(job, 0, topology);
  const int min_workers = seen.min_workers();
  if (job.workers < 1) return refuse("workers", job.workers, "an integer from 1");
  if (min_workers > job.workers) {
    return refuse("min_workers", min_workers, fmt::format("an integer from 1 to workers, {}", job.workers));
  }
  if (seen.max_workers() < job.workers) return refuse("max_workers", seen.max_workers(), "an integer from workers");
  if (!job.speeds.empty() && list_types(seen).empty()) {
    return refuse("speeds", job.speeds.front().type,
                  fmt::format("types of which the cluster has devices: {}", fmt::join(topology.types, ", ")));
  }
  const int devices = max_devices(topology, seen);
  if (devices == 0 && !seen.requests.empty()) {
    const bool is_of_cpus = job.cpus_per_worker > 0;
    return refuse(kRequestFields[is_of_cpus ? 0 : 1].name,
                  is_of_cpus ? job.cpus_per_worker : job.memory_bytes_per_worker,
                  "what a node that it may be on has, together with all else that it requests");
  }
  if (job.workers > devices) {
    return refuse(
        "workers", job.workers,
        fmt::format("up to {}, {}", devices,
                    seen.requests.empty() ? "all devices of the cluster that it could have"
                                          : "for which the nodes have the CPUs and memory that each requests"));
  }
  if (job.estimated_seconds > kLongestSeconds) return refuse("estimated_duration", job.estimated_seconds, "up to 1e9");
  if (job.compute_seconds > kLongestSeconds) return refuse("compute_seconds", job.compute_seconds, "up to 1e9");
  if (job.gradient_bytes > kMostBytes) return refuse("gradient_bytes", job.gradient_bytes, "up to 1e15");
  if (job.restart_cost_seconds > kLongestSeconds) return refuse("restart_cost", job.restart_cost_seconds, "up to 1e9");
  if (job.weight > kMaxWeight) return refuse("weight", job.weight, "up to 1e9");
  if (job.device_hour_cost > kMaxWeight) return refuse("device_hour_cost", job.device_hour_cost, "up to 1e9");
  if (job.grace_seconds > kLongestGrace) return refuse("grace_period", job.grace_seconds, "up to 3600");
  for (std::size_t i = 1; i < job.speedup.size(); ++i) {
    if (job.speedup[i].workers > job.speedup[i - 1].workers) continue;
    return refuse("speedup", fmt::format("{}:{}", job.speedup[i].workers, job.speedup[i].speedup),
                  "more workers than the entry before");
  }
  if (job.resize != "auto" && job.resize != "restart" && job.resize != "in-place") {
    return refuse("resize", job.resize, "auto, restart, in-place");
  }
  if (const Status utility = check(job.utility); !utility) {
    return fail(utility.error().within(fmt::format("job '{}'", job.name)));
  }
  return {};
}

Result<std::vector<SubmittedJob>> parse_submitted_jobs(std::string_view body) {
  try {
    nlohmann::json json = parse_strict_json(body);
    if (!json.is_object() || !json.contains("jobs")) json = {{"jobs", nlohmann::json::array({json})}};
    std::vector<SubmittedJob> jobs;
    JsonReader reader(json, "");
    reader.required("jobs", jobs);
    reader.finish();
    return jobs;
  } catch (const JsonReader::Problem& problem) {
    return fail(ErrorCode::kInvalidInput, "{}", problem.what());
  }
}

bool scales(const SubmittedJob& job) {
  return !job.speedup.empty() || std::ranges::any_of(job.command, [](const std::string& word) {
    return word.find("{workers}") != std::string::npos || word.find("MOTLEY_WORKERS") != std::string::npos;
  });
}

double requested(const SubmittedJob& job, std::string_view resource, const ClusterTopology& topology) {
  if (resource == kCpus && topology.gives_whole_cpus) return std::ceil(job.cpus_per_worker);
  if (resource == kCpus) return job.cpus_per_worker;
  return resource == kMemory ? job.memory_bytes_per_worker : 0;
}

Job make_job(const SubmittedJob& submitted, double arrival, const ClusterTopology& topology) {
  Job job;
  job.name = submitted.name;
  job.arrival = arrival;
  job.duration = submitted.estimated_seconds > 0 ? submitted.estimated_seconds : kAssumedSeconds;
  job.workers = submitted.workers;
  job.utility = submitted.utility;
  job.utility.weight = submitted.weight;
  job.elastic = Elastic{.min_workers = submitted.min_workers > 0 ? submitted.min_workers : submitted.workers,
                        .max_workers = submitted.max_workers > 0 ? submitted.max_workers : submitted.workers,
                        .compute_seconds = submitted.compute_seconds,
                        .gradient_bytes = submitted.gradient_bytes,
                        .restart_cost_seconds = submitted.restart_cost_seconds};
  job.device_hour_cost = submitted.device_hour_cost;
  job.elastic->speedup = submitted.speedup;
  if (!scales(submitted)) {
    job.elastic->max_workers = std::min(job.elastic->max_workers, job.workers);
    job.elastic->speedup = {{2, 1}};
  }
  for (std::size_t type = 0; !submitted.speeds.empty() && type < topology.types.size(); ++type) {
    const auto found = std::ranges::find(submitted.speeds, topology.types[type], &SubmittedJob::Speed::type);
    job.type_speeds.push_back(found == submitted.speeds.end() ? 0 : found->speed);
  }
  if (submitted.cpus_per_worker > 0 || submitted.memory_bytes_per_worker > 0) {
    for (const std::string& resource : topology.resources) {
      job.requests.push_back(requested(submitted, resource, topology));
    }
  }
  return job;
}

std::vector<std::string> make_command(const SubmittedJob& job, int workers, int attempt, const std::string& folder) {
  std::vector<std::string> words;
  for (std::string word : job.command) {
    if (word == "{resume}") {
      if (attempt > 1) words.emplace_back("--resume");
      continue;
    }
    replace(word, "{workers}", fmt::format("{}", workers));
    replace(word, "{attempt}", fmt::format("{}", attempt));
    replace(word, "{folder}", folder);
    words.push_back(std::move(word));
  }
  return words;
}

}  // namespace motley::scheduling
