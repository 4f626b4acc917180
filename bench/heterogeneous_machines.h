// Four machines that do not match on links of 1 Gb/s (examples/heterogeneous), on which plans are run: each rank in a
// network namespace of its own, real processes and real bytes. Networks are synthetic and devices emulated: all sides
// sleep for what the same estimate says that a layer takes.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "bench/bench.h"
#include "bench/network_namespaces.h"
#include "motley/cluster/cluster.h"
#include "motley/model/profile.h"
#include "motley/planning/plan/plan.h"

namespace motley::bench {

class HeterogeneousMachines {
 public:
  static constexpr int kMachines = 4;
  static constexpr const char* kTransformer = "transformer";

  // Files of runs go to `folder`, which outlives this. Error (kUnavailable) where namespaces cannot be had.
  static Result<HeterogeneousMachines> create(const BenchOptions& options, std::filesystem::path folder);

  // Lays the network out anew for steps of so many samples: one of model::table_names(), joined to at most kMaxLayers
  // layers, or kTransformer: like GPT-2 with a vocabulary of bytes, 6 blocks, 512 wide, 128 tokens, profiled here.
  Status use(const std::string& network, std::int64_t batch);

  const cluster::Cluster& cluster() const { return cluster_; }
  std::filesystem::path cluster_file() const;
  const model::Profile& profile() const { return profile_; }
  std::filesystem::path profile_file() const { return folder_ / "profile.json"; }

  // Median seconds of a step by this plan; the first `settling` of the steps are left out. A run that takes longer than
  // `seconds` fails.
  Result<double> run(const planning::Plan& plan, int steps, int settling, double seconds) const;
  // Of data parallelism with equal shares by all-reduce on Gloo: "bsp" (bulk-synchronous) or "ddp" (overlapped).
  Result<double> run_on_gloo(const std::string& mode, int steps) const;
  // What the slowest machine computes in a step of equal shares.
  double slowest_seconds() const { return slowest_; }
  // A step of the plan if links took no time, replayed.
  Result<double> seconds_without_links(const planning::Plan& plan) const;
  // One stage of all machines, each with the share of the batch that its speed deserves; `plan` gives the names.
  Result<planning::Plan> balanced_data_parallelism(const planning::Plan& plan) const;

 private:
  HeterogeneousMachines(const BenchOptions& options, std::filesystem::path folder)
      : options_(&options), folder_(std::move(folder)) {}
  Result<model::Graph> load_graph(const std::string& network) const;
  Status write_layers();

  const BenchOptions* options_;
  std::filesystem::path folder_;
  std::unique_ptr<NetworkNamespaces> network_;
  cluster::Cluster cluster_;
  model::Profile profile_;
  std::int64_t batch_ = 0;
  double slowest_ = 0;
};

// "1xk20x[0-12] | 1xxeon+1xdesktop[13-31], 8 micro-batches".
std::string describe_stages(const planning::Plan& plan);

}  // namespace motley::bench
