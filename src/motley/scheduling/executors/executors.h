// What runs attempts: processes of this machine, where nodes are names only, or jobs of Slurm, on the nodes that the
// policy chose.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "motley/scheduling/service/executor.h"
#include "motley/scheduling/trace/cluster_topology.h"

namespace motley::scheduling {

// Each attempt is a session of its own under a wrapper (attempt_folder.h). Its output goes to `output` in its folder.
// Errors: kUnavailable where the wrapper is not there.
Result<std::unique_ptr<Executor>> make_local_executor();

struct SlurmOptions {
  std::string partition;             // empty: Slurm's default
  std::vector<std::string> options;  // further ones of sbatch, such as --account=ml
};

// The nodes of a partition. The devices of a node are its GPUs, where Slurm knows of GPUs there, of the type that it
// has for them, else its CPUs, of type "cpu". Errors: kUnavailable where Slurm's programs are not there or do not
// answer.
Result<ClusterTopology> slurm_topology(const SlurmOptions& options);

// An attempt is a batch job with one task a worker, `workers` of them on each node of the attempt; where nodes have
// different numbers of workers, a heterogeneous job with a part for each number. Its command runs once, on the first of
// its nodes, and starts its tasks by `$MOTLEY_SRUN`: srun with what it takes to reach all parts. MOTLEY_SECRET_FILE
// names a secret that they share; the other variables are those of the local executor. SIGTERM goes to the tasks where
// the command has srun start some, else to all processes of the command.
//
// What Slurm forgets is in the attempt's folder, which all nodes must see under the same name, as they must the wrapper
// of the command: what it notes there (attempt_folder.h) makes sure that the command runs once even where a job was
// submitted twice.
//
// Where Slurm does not answer, what it said last holds, and what was to be done is tried again.
Result<std::unique_ptr<Executor>> make_slurm_executor(const SlurmOptions& options);

}  // namespace motley::scheduling
