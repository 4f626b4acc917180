// Traces of jobs: the published ones as they are, and our own, whose columns docs/reference/job-traces.md lists. The
// header line tells them apart.
//
// Gavel's traces have no header, and tabs between their fields:
//
//   model, command, the flag for its steps, whether it needs data, steps, arrival, workers
//
// and in the later form model, command, flag, data, steps, workers, weight, deadline, arrival. They say how many steps
// a job does; how long that takes on a type of devices is in a table of throughputs. Jobs are called by their lines. A
// deadline is a multiple of what the job takes; negative: none.
//
// Sia's workloads (name,time,application,num_replicas,batch_size) say which application a job trains; how long that
// takes is in the tables of its applications. Jobs have the workers and the batch that the workload says, or adapt
// both.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "motley/base/result.h"
#include "motley/scheduling/trace/applications.h"
#include "motley/scheduling/trace/job.h"
#include "motley/scheduling/trace/throughputs.h"

namespace motley::scheduling {

// What a profile says of a job.
struct ProfiledJob {
  double compute_seconds = 0;  // of an iteration of the profile's batch, on the first of its devices
  double gradient_bytes = 0;   // of the dense parameters, and of the rows of sparse tables that a batch reads
  std::vector<std::pair<std::string, double>> speeds;  // of each of its devices, by name, beside the first's
};

struct TraceOptions {
  // Of Gavel's traces: how fast its models are. Durations are those on devices of this type.
  const Throughputs* throughputs = nullptr;
  std::string device_type = "v100";
  // Of Sia's workloads: how fast its applications are, and whether its jobs adapt their workers and batches.
  const Applications* applications = nullptr;
  bool is_adaptive = false;
  // Types of the devices there are (ClusterTopology::types). Where there are several, jobs of traces that say so are
  // not as fast on all.
  std::vector<std::string> types = {};
  // What nodes have beside devices (ClusterTopology::resources); a job may request no other.
  std::vector<std::string> resources = {};
  // Reads the profiles that a trace names; none: it may name none.
  std::function<Result<ProfiledJob>(const std::filesystem::path&)> read_profile = {};
};

// The jobs by arrival, those of one instant in the file's order; the first arrives at 0.
//
// Errors: kInvalidInput (kIo if unreadable), with file, line, field, value and what would be accepted: a header that is
// none of these, a line that does not parse, a number that is out of bounds, a job's name for the second time; of
// Gavel's and Sia's, no table, or a model that is not in it.
Result<std::vector<Job>> read_trace(const std::filesystem::path& file, const TraceOptions& options = {});
Result<std::vector<Job>> parse_trace(std::string_view text, const std::string& name, const TraceOptions& options = {});

// Whether our format has a column for all that the jobs are.
bool fits_format(const std::vector<Job>& jobs);
// Our format; with speeds by these types of devices where jobs have them, and what they request of these resources.
std::string format_trace(const std::vector<Job>& jobs, const std::vector<std::string>& types = {},
                         const std::vector<std::string>& resources = {});

}  // namespace motley::scheduling
