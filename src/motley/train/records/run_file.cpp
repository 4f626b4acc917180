#include "motley/train/records/run_file.h"

#include "motley/base/os/file.h"
#include "motley/serial/json_schema.h"

namespace motley::train {

// Found by argument-dependent lookup, so not in an anonymous namespace.
template <class Archive>
static void fields(Archive& archive, RunWorker& worker) {
  archive.allow_others();
  archive.required("rank", worker.rank);
  archive.required("name", worker.name);
  archive.defaulted("device", worker.device, "its type's name in the cluster file, else the device's own");
  archive.defaulted("kind", worker.kind, "of the device: cpu, cuda, xpu, mps or emulated; empty: not known");
  archive.defaulted("emulated", worker.emulated, "what is emulated, such as \"3 ms a sample\"; null: nothing");
}

template <class Archive>
static void fields(Archive& archive, PlannedFiles& files) {
  archive.allow_others();
  archive.required("plan", files.plan);
  archive.defaulted("profile", files.profile);
  archive.defaulted("cluster", files.cluster);
}

template <class Archive>
static void fields(Archive& archive, RunAttempt& attempt) {
  archive.allow_others();
  archive.required("started", attempt.started, "seconds since 1970");
  archive.defaulted("first_step", attempt.first_step, "that it was to do");
  archive.defaulted("after_seconds", attempt.after_seconds,
                    "that the attempts before it took, as the times of metrics.jsonl count them");
  archive.defaulted("workers", attempt.workers, "with which it began");
  archive.defaulted("exit", attempt.exit,
                    "done, failed or interrupted; null while it goes on, and after it was killed");
}

template <class Archive>
static void fields(Archive& archive, RunFile& run) {
  archive.allow_others();
  archive.defaulted("motley_version", run.motley_version);
  archive.defaulted("started", run.started, "seconds since 1970");
  archive.defaulted("name", run.name, "of the job");
  archive.required("workers", run.workers);
  archive.defaulted("gradient_sync", run.gradient_sync);
  archive.defaulted("global_batch_size", run.global_batch_size, "samples of a step");
  archive.defaulted("training_samples", run.training_samples);
  archive.defaulted("class_names", run.class_names,
                    "of data with labels: the label of class 0, of class 1 and so on, which are the network's outputs");
  archive.defaulted("price_per_hour", run.price_per_hour,
                    "of all workers' devices, by the cluster file; null: not every one has a price");
  archive.defaulted("planned", run.planned,
                    "files of the run's folder: the plan that it began with, and what that was predicted from");
  archive.defaulted("attempts", run.attempts, "one, and another one for each time that the run was resumed");
  archive.defaulted("finished", run.finished, "false while the run goes on, and after it was killed");
  archive.defaulted("exit", run.exit, "done, failed or interrupted");
  archive.defaulted("error", run.error, "the message, where it failed");
  archive.defaulted("machine", run.machine, "such as \"2 cores, 23 GB\"");
}

Result<RunFile> read_run_file(const std::filesystem::path& file) {
  MOTLEY_ASSIGN(const std::string text, read_file(file));
  return parse_json<RunFile>(text, fmt::format("'{}'", file.string()));
}

Status write_run_file(const std::filesystem::path& file, const RunFile& run) {
  return write_file(file, write_json(run));
}

void continue_run(RunFile& run, const RunFile& before, RunAttempt attempt) {
  run.started = before.started;
  run.attempts = before.attempts;
  if (run.attempts.empty()) {  // written by another program
    run.attempts.push_back(
        {.started = before.started, .workers = static_cast<int>(before.workers.size()), .exit = before.exit});
  }
  run.attempts.push_back(std::move(attempt));
}

std::string run_schema() {
  return json_schema<RunFile>("run.json of a run directory", "Who takes part in a run, on what, and how it ended.");
}

}  // namespace motley::train
