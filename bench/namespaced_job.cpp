#include "bench/namespaced_job.h"

#include <cstdlib>

#include "bench/child_process.h"
#include "motley/base/os/file.h"
#include "motley/net/session.h"
#include "motley/train/records/metrics.h"

namespace motley::bench {
namespace {

constexpr double kPeerSeconds = 560;

}  // namespace

Result<std::vector<double>> train_in_namespaces(const BenchOptions& options, const NetworkNamespaces& network,
                                                const std::filesystem::path& folder, int ranks,
                                                const std::filesystem::path& job, const std::vector<std::string>& flags,
                                                const std::vector<std::string>& environment, double seconds) {
  std::string addresses;
  for (int rank = 0; rank < ranks; ++rank) addresses += network.address(rank) + ":29400\n";
  MOTLEY_TRY(write_file(folder / "hosts", addresses));
  std::vector<std::string> variables = environment;
  MOTLEY_TRY(net::Secret::generate().write(folder / "secret"));
  variables.push_back(fmt::format("{}={}", net::kSecretFileVariable, (folder / "secret").string()));
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
    MOTLEY_ASSIGN(auto process, ChildProcess::start(command, variables));
    processes.push_back(std::move(process));
  }
  const Deadline deadline = Deadline::after(seconds);
  for (const auto& process : processes) MOTLEY_TRY(process->finish(deadline));

  MOTLEY_ASSIGN(const train::Metrics metrics, train::read_metrics(run / "metrics.jsonl"));
  std::vector<double> steps;
  for (const train::StepMetrics& line : metrics.steps) steps.push_back(line.step_seconds);
  if (steps.empty()) return fail(ErrorCode::kInternal, "the job did not finish; what it said is above");
  return steps;
}

Result<double> run_peer_in_namespaces(const BenchOptions& options, const NetworkNamespaces& network, int ranks,
                                      const std::string& program, const std::vector<std::string>& arguments) {
  const std::string file = (options.source_folder / "bench/peers" / program).string();
  std::vector<std::unique_ptr<ChildProcess>> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<std::string> command = network.host_prefix(rank);
    command.insert(command.end(), {options.python.string(), file, std::to_string(rank), std::to_string(ranks),
                                   network.address(0) + ":29500", "eth0"});
    command.insert(command.end(), arguments.begin(), arguments.end());
    MOTLEY_ASSIGN(auto process, ChildProcess::start(command));
    processes.push_back(std::move(process));
  }
  const Deadline deadline = Deadline::after(kPeerSeconds);
  MOTLEY_ASSIGN(const std::string line, processes[0]->read_line(deadline));
  for (const auto& process : processes) MOTLEY_TRY(process->finish(deadline));
  const double seconds = std::strtod(line.c_str(), nullptr);
  if (seconds <= 0) return fail(ErrorCode::kInternal, "{} said '{}'", program, line);
  return seconds;
}

}  // namespace motley::bench
