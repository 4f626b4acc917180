#include "motley/scheduling/service/executor.h"

namespace motley::scheduling {

std::vector<std::pair<std::string, std::string>> list_variables(const Attempt& attempt) {
  std::vector<std::pair<std::string, std::string>> variables = {
      {"MOTLEY_JOB", attempt.name},
      {"MOTLEY_ATTEMPT", fmt::format("{}", attempt.number)},
      {kFolderVariable, attempt.folder.string()},
      {"MOTLEY_WORKERS", fmt::format("{}", count_workers(attempt.nodes))},
      {"MOTLEY_NODES", describe(attempt.nodes, ",")}};
  if (attempt.cpus_per_worker > 0) {
    variables.emplace_back("MOTLEY_CPUS_PER_WORKER", fmt::format("{}", attempt.cpus_per_worker));
  }
  return variables;
}

Observation observe(Executor& executor, const std::vector<Attempt>& watched) {
  Observation seen;
  if (auto down = executor.down_nodes()) {
    seen.down_nodes = std::move(*down);
  } else {
    seen.problems.push_back({.what = down.error().within("nodes could not be looked at").message});
  }
  for (const Attempt& attempt : watched) {
    if (const auto status = executor.look(attempt)) {
      seen.attempts.push_back({attempt.job, attempt.number, *status});
    } else {
      seen.problems.push_back(
          {attempt.job, attempt.number, status.error().within("it could not be looked at").message});
    }
  }
  return seen;
}

std::vector<Problem> carry_out(Executor& executor, const std::vector<Command>& commands) {
  std::vector<Problem> problems;
  for (const auto& [kind, attempt] : commands) {
    Status done;
    const char* what = "";
    switch (kind) {
      case Command::Kind::kStart:
        done = executor.start(attempt), what = "started";
        break;
      case Command::Kind::kResize:
        done = executor.resize(attempt), what = "resized";
        break;
      case Command::Kind::kAskToEnd:
        done = executor.ask_to_end(attempt), what = "asked to end";
        break;
      case Command::Kind::kKill:
        done = executor.kill(attempt), what = "killed";
        break;
    }
    if (done) continue;
    problems.push_back({attempt.job, attempt.number, fmt::format("it could not be {}: {}", what, done.error().message),
                        kind == Command::Kind::kAskToEnd});
  }
  return problems;
}

}  // namespace motley::scheduling
