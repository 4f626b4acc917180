// Jobs whose ranks stand in namespaces of an emulated network, each as if on a host of its own: ours and peers'.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "bench/network_namespaces.h"

namespace motley::bench {

// `motley train` with this job file and these flags on `ranks` hosts, rank r in namespace r; returns the seconds of
// each step. The run's files (in "run") and those that tell the ranks of each other are in `folder`; `environment`
// ("NAME=value") is added to the ranks'. Fails with what the job said last, and where it takes longer than `seconds`.
Result<std::vector<double>> train_in_namespaces(const BenchOptions& options, const NetworkNamespaces& network,
                                                const std::filesystem::path& folder, int ranks,
                                                const std::filesystem::path& job, const std::vector<std::string>& flags,
                                                const std::vector<std::string>& environment = {}, double seconds = 560);

// The Python program of bench/peers on `ranks` hosts, called with RANK RANKS HOST:PORT INTERFACE and these arguments;
// returns the seconds that rank 0 prints.
Result<double> run_peer_in_namespaces(const BenchOptions& options, const NetworkNamespaces& network, int ranks,
                                      const std::string& program, const std::vector<std::string>& arguments);

}  // namespace motley::bench
