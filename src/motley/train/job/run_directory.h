// The folder that a run leaves: effective job, metrics, TensorBoard events, timeline, checkpoints, report, a log per
// rank. Only rank 0 (and the launcher) write the shared files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "motley/base/os/descriptor.h"
#include "motley/base/result.h"
#include "motley/cluster/cluster.h"
#include "motley/planning/plan/plan.h"
#include "motley/train/job/job.h"

namespace motley::train {

// Held by the one process that writes a run; the kernel lets go of it when that process ends, however it ends.
using RunLock = Descriptor;

// From now on programs that this process starts hold it, too: while one of them lives the run is alive.
void hand_down(const RunLock& lock);

class RunDirectory {
 public:
  explicit RunDirectory(std::filesystem::path folder) : folder_(std::move(folder)) {}

  const std::filesystem::path& folder() const { return folder_; }
  std::filesystem::path job_file() const { return folder_ / "job.yaml"; }
  // The job that a start tries; it becomes job.yaml once the state to start from has been read.
  std::filesystem::path tried_job_file() const { return folder_ / "logs" / "job.yaml"; }
  std::filesystem::path metrics_file() const { return folder_ / "metrics.jsonl"; }
  std::filesystem::path run_file() const { return folder_ / "run.json"; }
  std::filesystem::path summary_file() const { return folder_ / "summary.json"; }
  std::filesystem::path checkpoint_folder() const { return folder_ / "checkpoint"; }
  std::filesystem::path log_file(int rank) const;

  // A new run: makes the folder; refuses one that holds a run already, unless `overwrite`, which moves a run's files
  // into the folder `replaced`, and copies of its plan, profile and cluster file beside them. Resuming: the folder must
  // hold a run. Refuses a run that is alive, but waits where only processes are left that a killed launcher had
  // started: who prepares keeps the lock for as long as the run goes on, and calls settle_replaced() at its end.
  Result<RunLock> prepare(bool resume, bool overwrite) const;

  // The lock alone, of a folder that is there; waits and refuses as prepare() does.
  Result<RunLock> lock() const;

  // Removes the run that another replaced, where that has made a step; else puts it back, with the logs of the start
  // that failed in logs/failed-start.
  Status settle_replaced() const;

  // Of a run whose files one rank may take over from another, which may have a folder of its own, on another host: the
  // folder says which rank of this start, by the number of its session, writes here. Said first before any other rank
  // can have to take over.
  Status note_writer(std::uint64_t session, int rank) const;
  // Nothing: none of this start has written here, and what is here is of another one.
  Result<std::optional<int>> find_writer(std::uint64_t session) const;
  // The rank writes from now on. What another start has left is moved first to a folder earlier-SESSION, where it
  // stays; the lock is then kept for as long as the run goes on.
  Result<RunLock> take_over(std::uint64_t session, int rank) const;

  // Takes back what was written after the step of the checkpoint that a resumed run starts from: step and evaluation
  // lines of later steps, and what is no such line. Rewrites the file atomically.
  Status roll_back_metrics(std::int64_t step) const;
  // The last step that they have a line of, and the time of the last line; 0: none.
  struct Measured {
    std::int64_t step = 0;
    double seconds = 0;
  };
  Result<Measured> last_measured() const;
  // What one of the last steps took, their median; 0: there is none.
  double last_step_seconds() const;

 private:
  std::filesystem::path replaced_folder() const { return folder_ / "replaced"; }
  std::filesystem::path writer_file(std::uint64_t session) const;
  Status set_aside(const std::filesystem::path& folder, bool with_logs) const;

  std::filesystem::path folder_;
};

// What a step is predicted to take by the plan in the run's folder, where all of the job's workers compute the whole
// network, as that plan has it (plan: auto). Nothing where there is no such plan.
std::optional<planning::Prediction> read_prediction(const RunDirectory& run, const Job& job, std::int64_t workers);

// What a run is besides its job and its workers, for run.json.
struct RunFacts {
  std::string gradient_sync;
  std::uint64_t training_samples = 0;
  std::vector<std::string> class_names;
  std::int64_t done_steps = 0;            // of a run that is resumed, and
  double done_seconds = 0;                // what its attempts took so far
  const planning::Plan* plan = nullptr;   // that workers follow
  std::string device = {};                // of workers for which neither cluster nor plan says it
  std::string emulated_accelerator = {};  // what workers on one compute on
  int workers = 0;                        // that begin
};

// run.json of a run that begins, or goes on: what takes part, and on what. Of a planned run also plan.json and, where
// it is known what the plan was predicted from, profile.json and cluster.yaml, so that the folder can be read by
// itself.
Status write_run_file(const RunDirectory& run, const Job& job, const cluster::Cluster& cluster, const RunFacts& facts);
// Adds to run.json what is to be known of the emulation of each rank, where the note is not empty.
Status note_emulation(const RunDirectory& run, const std::vector<std::string>& notes);
// Completes run.json with how the run ended.
Status finish_run_file(const RunDirectory& run, const Status& outcome);

}  // namespace motley::train
