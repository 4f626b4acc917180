// How fast jobs train that adapt their batch to their devices: what Sia's artifact measured of its applications
// (sia-simulator/traces of the artifact of Jayaram Subramanya et al., SOSP 2023), a folder each with
//
//   validation-BATCH.csv   progress,iteration,metric,grad_sqr,grad_var, a line an epoch: how far training with this
//                          batch has come by the epoch's end, in iterations of the smallest batch, and the squared norm
//                          and the variance of gradients
//   placements-TYPE.csv    placement,local_bsz,step_time,sync_time: seconds of a step and of the part of it that
//   synchronises, with
//                          so many examples a device; a placement has a digit a node, that of its workers
//   scalability-TYPE.csv   num_nodes,num_replicas,local_bsz,step_time,sync_time: the same on more nodes
//
// Goodput is throughput times statistical efficiency (Pollux, Qiao et al., OSDI 2021): with a batch M, in units of the
// smallest one, an iteration is worth (var + sqr) / (var / M + sqr) of those with the smallest. A job that adapts has
// in each epoch the batch that promises the highest goodput of those that fit, in steps that accumulate where its
// devices cannot hold it at once; what it promises follows from the gradients that the job sees with the batch it has.
// Its speed at a place is that of its whole training there.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "motley/base/result.h"
#include "motley/scheduling/trace/cluster_topology.h"
#include "motley/scheduling/trace/job.h"

namespace motley::scheduling {

class Applications {
 public:
  // Those that were measured on each type of the cluster's devices. Errors: kInvalidInput (kIo if unreadable) with
  // file, line, field, value and what would be accepted; where there are none.
  static Result<Applications> read(const std::filesystem::path& folder, const ClusterTopology& topology);

  std::vector<std::string> names() const;
  bool has(const std::string& name) const { return applications_.contains(name); }
  // A job, which has to be there, that has any number of workers and adapts its batch: its duration is that on one
  // device of the type on which it is fastest so.
  Job adaptive(const std::string& name) const;
  // One with so many workers, always, and this batch: its duration is that on the type on which it is fastest, on as
  // few nodes as can be. Duration 0: there is no type on which that was measured.
  Job fixed(const std::string& name, int workers, double batch) const;

 private:
  struct Step {
    double batch = 0;    // examples on each device
    double seconds = 0;  // of a step
    double sync = 0;     // seconds of it
  };
  using Steps = std::vector<Step>;  // by batch, ascending
  struct Epoch {
    double progress = 0, square = 0, variance = 0;
  };
  struct Measured {                              // on a type of devices
    std::map<std::pair<int, int>, Steps> steps;  // by nodes and workers
    double least_batch = 0;                      // on a device
    int devices = 0, devices_per_node = 0;       // that there are
  };
  // A batch as it is trained.
  struct Split {
    double on_device = 0;  // examples in a step
    int more_steps = 0;    // before the one that synchronises
    double batch = 0;      // all together
  };
  struct Application {
    std::map<double, std::vector<Epoch>> epochs;  // by batch
    std::vector<Measured> types;
    double restart_seconds = 0;
    double slowdown = 1;  // of real runs beside what was measured

    double smallest() const { return epochs.begin()->first; }
    double largest() const { return epochs.rbegin()->first; }
    std::size_t epoch_count() const;
    double progress_until(std::size_t epoch) const;
    double gain(double batch, double seen, std::size_t epoch) const;
    Split split(double batch, int workers, double least, double most) const;
    double seconds(const Steps& steps, const Split& split, bool is_ideal) const;
    double adapted(const Steps& steps, double least_batch, int workers, bool is_ideal) const;
    double with_batch(const Steps& steps, int workers, double batch) const;
  };

  static Result<Application> read_application(const std::filesystem::path& folder, const ClusterTopology& topology);
  static Status read_epochs(const std::filesystem::path& file, std::string_view batch, Application& into);
  static Status read_steps(const std::filesystem::path& folder, const std::string& type, Measured& into);

  std::map<std::string, Application> applications_;
};

}  // namespace motley::scheduling
