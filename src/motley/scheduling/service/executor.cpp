#include "motley/scheduling/service/executor.h"

#include "motley/base/log.h"

namespace motley::scheduling {

std::vector<std::pair<std::string, std::string>> list_variables(const Attempt& attempt) {
  return {{"MOTLEY_JOB", attempt.name},
          {"MOTLEY_ATTEMPT", fmt::format("{}", attempt.number)},
          {"MOTLEY_WORKERS", fmt::format("{}", count_workers(attempt.nodes))},
          {"MOTLEY_NODES", describe(attempt.nodes, ",")}};
}

Result<Observation> observe(Executor& executor, const std::vector<Attempt>& watched) {
  Observation seen;
  MOTLEY_ASSIGN(seen.down_nodes, executor.down_nodes());
  for (const Attempt& attempt : watched) {
    MOTLEY_ASSIGN(const AttemptStatus status, executor.look(attempt));
    seen.attempts.push_back({attempt.job, attempt.number, status});
  }
  return seen;
}

void carry_out(Executor& executor, const std::vector<Command>& commands) {
  for (const auto& [kind, attempt] : commands) {
    const Status done = kind == Command::Kind::kStart      ? executor.start(attempt)
                        : kind == Command::Kind::kAskToEnd ? executor.ask_to_end(attempt)
                                                           : executor.kill(attempt);
    if (!done) spdlog::warn("job '{}', attempt {}: {}", attempt.name, attempt.number, done.error().message);
  }
}

}  // namespace motley::scheduling
