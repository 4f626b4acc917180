// Which devices train where a job leaves that to us (device: auto): each accelerator of this machine is a worker, and
// its CPUs are one more where steps with them are shorter than without, which is measured.
#pragma once

#include <filesystem>
#include <optional>
#include <stop_token>
#include <string>

#include "motley/base/result.h"
#include "motley/cluster/cluster.h"
#include "motley/train/job/job.h"

namespace motley::train {

struct Accelerators {
  cluster::DeviceKind kind = cluster::DeviceKind::kCuda;
  int count = 0;
};
// Those that this process can use, of one kind; none: it computes on the CPU. The emulated one is here where the
// variable MOTLEY_EMULATED is. Errors: what that says is not accepted.
Result<std::optional<Accelerators>> find_accelerators();

struct ChosenDevices {
  cluster::Cluster cluster;  // with a worker for each
  std::string reason;        // why with the CPUs, or without
};
// Runs a few steps of the job on the accelerators alone and a few with the CPUs, whose worker has the cores that are
// left. Where the job has few steps, or uses servers of others, nothing is measured and the CPUs stay out. Uses a file
// of this name meanwhile. Errors: those of the steps on the accelerators; kInterrupted where it was stopped.
Result<ChosenDevices> choose_devices(const Job& job, const Accelerators& accelerators,
                                     const std::filesystem::path& cluster_file, const std::stop_token& stop);

}  // namespace motley::train
