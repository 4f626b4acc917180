#include "bench/namespaced_job.h"

#include <nlohmann/json.hpp>
#include <sstream>

#include "bench/child_process.h"
#include "motley/base/file.h"
#include "motley/transport/session.h"

namespace motley::bench {
namespace {

constexpr double kRunSeconds = 500;

}  // namespace

Result<std::vector<double>> train_in_namespaces(const BenchOptions& options, const NetworkNamespaces& network,
                                                const std::filesystem::path& folder, int ranks,
                                                const std::filesystem::path& job,
                                                const std::vector<std::string>& flags) {
  std::string addresses;
  for (int rank = 0; rank < ranks; ++rank) addresses += network.address(rank) + ":29400\n";
  MOTLEY_TRY(write_file(folder / "hosts", addresses));
  const std::string secret = "MOTLEY_SECRET=" + transport::Secret::generate().hex();
  const std::filesystem::path run = folder / "run";
  std::error_code ignored;
  std::filesystem::remove_all(run, ignored);  // so that nothing is read from a run before this one
  std::vector<std::unique_ptr<ChildProcess>> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<std::string> command = network.host_prefix(rank);
    command.insert(command.end(),
                   {options.motley.string(), "train", job.string(), "--run-directory", run.string(), "--overwrite",
                    "--quiet", "--hosts", (folder / "hosts").string(), "--rank", std::to_string(rank)});
    command.insert(command.end(), flags.begin(), flags.end());
    MOTLEY_ASSIGN(auto process, ChildProcess::start(command, {secret}));
    processes.push_back(std::move(process));
  }
  const Deadline deadline = Deadline::after(kRunSeconds);
  for (const auto& process : processes) MOTLEY_TRY(process->finish(deadline));

  MOTLEY_ASSIGN(const std::string text, read_file(run / "metrics.jsonl"));
  std::istringstream lines(text);
  std::vector<double> steps;
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line);
    if (json.contains("step_seconds")) steps.push_back(json["step_seconds"]);
  }
  if (steps.empty()) return fail(ErrorCode::kInternal, "the job did not finish; what it said is above");
  return steps;
}

}  // namespace motley::bench
