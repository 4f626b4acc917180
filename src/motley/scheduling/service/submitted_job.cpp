#include "motley/scheduling/service/submitted_job.h"

#include <algorithm>
#include <cctype>

#include "motley/scheduling/simulator/placing.h"

namespace motley::scheduling {
namespace {

constexpr std::size_t kLongestName = 200;
constexpr double kLongestSeconds = 1e9;
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

Status check(const SubmittedJob& job, const Machines& machines) {
  const auto refuse = [&](const char* field, const auto& value, const std::string& accepted) {
    return fail(ErrorCode::kInvalidInput, "job '{}': {} is '{}'; accepted: {}", job.name, field, value, accepted);
  };
  if (job.name.empty() || job.name.size() > kLongestName || !std::ranges::all_of(job.name, is_plain)) {
    return refuse("name", job.name, "1 to 200 letters, digits, '-', '_' and '.'");
  }
  if (job.command.empty() || job.command.front().empty()) return refuse("command", "", "a program and its arguments");
  if (!job.directory.starts_with('/')) return refuse("directory", job.directory, "an absolute path");
  const int least = job.least > 0 ? job.least : job.workers;
  const int most = job.most > 0 ? job.most : job.workers;
  if (job.workers < 1) return refuse("workers", job.workers, "a whole number from 1");
  if (least > job.workers) return refuse("least", least, "a whole number from 1 to workers");
  if (most < job.workers) return refuse("most", most, "a whole number from workers");
  const Job seen = job_of(job, 0, machines.types);
  if (!job.speeds.empty() && types_of(seen).empty()) {
    return refuse("speeds", job.speeds.front().type,
                  fmt::format("types of which the cluster has devices: {}", fmt::join(machines.types, ", ")));
  }
  if (const int devices = most_devices(machines, seen); least > devices) {
    return refuse("least", least, fmt::format("up to {}, all devices of the cluster that it could have", devices));
  }
  if (job.seconds > kLongestSeconds) return refuse("seconds", job.seconds, "up to 1e9");
  if (job.restart_seconds > kLongestSeconds) return refuse("restart_seconds", job.restart_seconds, "up to 1e9");
  if (job.grace_seconds > kLongestGrace) return refuse("grace_seconds", job.grace_seconds, "up to 3600");
  if (const Status utility = check(job.utility); !utility) {
    return fail(utility.error().within(fmt::format("job '{}'", job.name)));
  }
  return {};
}

Job job_of(const SubmittedJob& submitted, double arrival, const std::vector<std::string>& types) {
  Job job;
  job.name = submitted.name;
  job.arrival = arrival;
  job.duration = submitted.seconds;
  job.workers = submitted.workers;
  job.utility = submitted.utility;
  job.utility.weight = submitted.weight;
  Elastic elastic;
  elastic.least = submitted.least > 0 ? submitted.least : submitted.workers;
  elastic.most = submitted.most > 0 ? submitted.most : submitted.workers;
  elastic.compute_seconds = submitted.compute_seconds;
  elastic.gradient_bytes = submitted.gradient_bytes;
  elastic.restart_seconds = submitted.restart_seconds;
  job.elastic = elastic;
  job.device_hour_cost = submitted.device_hour_cost;
  for (std::size_t type = 0; !submitted.speeds.empty() && type < types.size(); ++type) {
    const auto found = std::ranges::find(submitted.speeds, types[type], &SubmittedJob::Speed::type);
    job.type_speeds.push_back(found == submitted.speeds.end() ? 0 : found->speed);
  }
  return job;
}

std::vector<std::string> command_of(const SubmittedJob& job, int workers, int attempt, const std::string& folder) {
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
