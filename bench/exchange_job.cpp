// Starting the processes, and a line to and from the first of them.
#include "bench/exchange_job.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "motley/net/session.h"

namespace motley::bench {
namespace {

constexpr std::size_t kMostPolledBytes = 1 << 20;  // of a model that Gloo's polling pairs exchange
constexpr double kStartSeconds = 120;              // for processes to load libraries and meet
constexpr double kBatchSeconds = 60;               // for one batch

}  // namespace

Result<ExchangeJob> ExchangeJob::start(const BenchOptions& options, const std::string& method, const std::string& bytes,
                                       const std::vector<Place>& places, const std::vector<std::string>& environment,
                                       const std::string& name) {
  ExchangeJob job;
  std::vector<std::string> variables = environment;
  variables.push_back("MOTLEY_BENCH_SECRET=" + net::Secret::generate().hex());
  variables.push_back("MOTLEY_BENCH_JOB=" + name);
  std::string address = (places[0].address.empty() ? "127.0.0.1" : places[0].address) + ":0";
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    std::vector<std::string> command = places[rank].prefix;
    for (const std::string& word : {options.program.string(), std::string("exchange-worker"), std::to_string(rank),
                                    std::to_string(places.size()), address, method, bytes}) {
      command.push_back(word);
    }
    if (!places[rank].address.empty()) command.push_back(places[rank].address);
    MOTLEY_ASSIGN(auto process, ChildProcess::start(command, variables));
    job.processes_.push_back(std::move(process));
    if (rank == 0) {
      MOTLEY_ASSIGN(address, job.processes_[0]->read_line(Deadline::after(kStartSeconds)));
    }
  }
  MOTLEY_ASSIGN(const std::string ready, job.processes_[0]->read_line(Deadline::after(kStartSeconds)));
  job.method_ = ready.substr(std::min(ready.size(), ready.find(' ') + 1));
  return job;
}

Result<ExchangeJob> ExchangeJob::start_gloo(const BenchOptions& options, int ranks, const std::string& bytes,
                                            const std::vector<std::string>& flags) {
  const std::string script = (options.source_folder / "bench/peers/gloo_allreduce.py").string();
  std::vector<std::string> command = {options.python.string(), script, std::to_string(ranks), bytes};
  command.insert(command.end(), flags.begin(), flags.end());
  return start_peer(command);
}

Result<std::vector<ExchangeJob>> ExchangeJob::start_gloo_algorithms(int ranks, std::size_t bytes) {
  MOTLEY_ASSIGN(const std::string program, built_peer("gloo_collectives"));
  std::vector<ExchangeJob> jobs;
  for (const char* algorithm : kGlooAlgorithms) {
    // Pairs that poll write until all is gone: where sockets do not hold a message, both sides would write for ever.
    if (std::string_view(algorithm).ends_with("-polling") && bytes > kMostPolledBytes) continue;
    MOTLEY_ASSIGN(ExchangeJob job,
                  start_peer({program, std::to_string(ranks), std::to_string(bytes), std::string(algorithm)}));
    jobs.push_back(std::move(job));
  }
  return jobs;
}

Result<ExchangeJob> ExchangeJob::start_peer(const std::vector<std::string>& command) {
  ExchangeJob job;
  MOTLEY_ASSIGN(auto process, ChildProcess::start(command));
  job.processes_.push_back(std::move(process));
  MOTLEY_TRY(job.processes_[0]->read_line(Deadline::after(kStartSeconds)));
  return job;
}

Status ExchangeJob::begin(const std::string& command) {
  return processes_[0]->write_line(command);
}

Result<double> ExchangeJob::end() {
  MOTLEY_ASSIGN(const auto line, processes_[0]->read_line(Deadline::after(kBatchSeconds)));
  return std::strtod(line.c_str(), nullptr);
}

Result<double> ExchangeJob::run(const std::string& command) {
  MOTLEY_TRY(begin(command));
  return end();
}

Result<std::string> built_peer(const std::string& name) {
  const std::filesystem::path program = std::filesystem::path(MOTLEY_PEERS_FOLDER) / name;
  if (std::filesystem::exists(program)) return program.string();
  return fail(ErrorCode::kUnavailable, "'{}' was not built, for want of {}", name,
              name.starts_with("openmpi")   ? "libopenmpi-dev"
              : name.starts_with("ps_lite") ? "its folder in MOTLEY_PS_LITE when this was built"
                                            : "libgloo-dev");
}

}  // namespace motley::bench
