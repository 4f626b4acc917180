#include "motley/app/train/train_job.h"

#include <algorithm>
#include <cstdlib>
#include <ctime>

#include "motley/base/os/file.h"
#include "motley/base/os/signals.h"
#include "motley/base/units.h"
#include "motley/cluster/machine.h"
#include "motley/planning/methods.h"
#include "motley/planning/replan/heterogeneous_stages.h"
#include "motley/planning/search/found_plan.h"
#include "motley/serial/bench_row.h"
#include "motley/train/checkpoint/checkpoint.h"
#include "motley/train/job/servers.h"
#include "motley/train/launch/launch_job.h"
#include "motley/train/profile/choose_devices.h"
#include "motley/train/profile/profile_job.h"
#include "motley/train/worker/summary.h"
#include "motley/train/worker/worker.h"

namespace motley::app {
namespace {

namespace fs = std::filesystem;

constexpr double kProfileSeconds = 20;
constexpr double kPlanSeconds = 30;

// This machine, with a CPU device for each worker of the job's threads that it has cores for.
cluster::Cluster describe_machine(const train::Job& job) {
  const cluster::Machine machine = cluster::detect_machine();
  cluster::Cluster cluster = cluster::default_cluster(machine);
  cluster.workers.clear();
  cluster::divide_cpu(machine, job.execution.threads, cluster);
  return cluster;
}

// Writes into the plan where it is slowest, and how far its step may be off as the measurements vary.
Status say_how_sure(const planning::Problem& of_any, const planning::Objective& objective, planning::Plan& plan) {
  planning::Problem problem = of_any;
  problem.micro_batches = plan.micro_batches;
  MOTLEY_ASSIGN(const planning::Evaluation evaluation, planning::evaluate_plan(problem, plan, objective));
  plan.bottleneck = planning::describe_bottleneck(problem, plan, evaluation);
  if (const auto uncertainty = planning::find_uncertainty(problem, objective, plan, {})) {
    plan.predicted.step_seconds_low = uncertainty->low;
    plan.predicted.step_seconds_high = uncertainty->high;
  }
  return {};
}

// From a profile of the job's network on this machine, or what a synthetic one is made from. The profile is left in the
// folder, as is the cluster where the job names none.
Result<planning::Plan> make_plan(const train::Job& job, const fs::path& folder, const TrainView& view) {
  const fs::path profile_file = folder / "profile.json";
  std::string cluster_file = job.execution.cluster;
  if (cluster_file.empty()) {
    cluster_file = (folder / "cluster.yaml").string();
    MOTLEY_TRY(write_file(cluster_file, cluster::to_yaml(describe_machine(job))));
  }
  const InterruptStop interrupt;
  MOTLEY_ASSIGN(
      const model::Profile profile,
      train::is_synthetic(job)
          ? model::read_profile(job.model.path)
          : train::profile_job(
                job, {.seconds = kProfileSeconds, .progress_prefix = "profiling: ", .stop = interrupt.token()}));
  MOTLEY_TRY(write_file(profile_file, model::to_json(profile)));

  MOTLEY_ASSIGN(
      const std::vector<planning::Problem> problems,
      planning_problems(
          {.profile = profile_file.string(), .cluster = cluster_file, .batch = job.training.global_batch_size},
          view.warn));
  const planning::Objective objective{.criterion = planning::Criterion::kMaxThroughput};
  MOTLEY_ASSIGN(const Solved solved, solve({"exact", planning::plan_exact}, problems, objective,
                                           {.seconds = kPlanSeconds}, interrupt.token(), view.ask));
  const auto is_interrupted = [&] { return interrupt.token().stop_requested(); };
  const auto interrupted = [] { return fail(ErrorCode::kInterrupted, "interrupted while it was planned"); };
  if (is_interrupted()) return interrupted();
  if (!solved.answer.best) {
    return fail(ErrorCode::kUnavailable, "plan: auto found {}; 'motley plan --profile {} --cluster {}' says more",
                solved.answer.proved ? "that no plan fits the devices" : "no plan in time", profile_file.string(),
                cluster_file);
  }
  const planning::Plan best =
      planning::to_plan(*solved.problem, *solved.answer.best, solved.answer.evaluation, objective, "exact");
  planning::Plan plan = best;
  if (job.gradient_sync.method != "parameter-server") {  // at which stages that mix types cannot meet
    MOTLEY_ASSIGN(const auto plans, planning::find_heterogeneous_stages(*solved.problem, best, interrupt.token()));
    plan = plans.front();
  }
  if (is_interrupted()) return interrupted();
  MOTLEY_TRY(say_how_sure(*solved.problem, objective, plan));
  return plan;
}

std::int64_t count_workers(const planning::Stage& stage) {
  std::int64_t count = 0;
  for (const planning::Replicas& replicas : stage.replicas) count += replicas.count;
  return count;
}

bool is_on_cpus(const planning::Plan& plan, const cluster::Cluster& cluster) {
  const auto is_cpu = [&](const planning::Replicas& replicas) {
    const cluster::DeviceType* type = cluster.device_type(replicas.type);
    return type != nullptr && type->kind == cluster::DeviceKind::kCpu;
  };
  return std::ranges::all_of(plan.stages,
                             [&](const planning::Stage& stage) { return std::ranges::all_of(stage.replicas, is_cpu); });
}

// All workers compute the whole network, and are all that the job has.
Result<bool> is_data_parallel(const train::Job& job, const planning::Plan& plan) {
  if (train::is_synthetic(job) || plan.stages.size() != 1 || plan.stages[0].recompute) return false;
  if (job.execution.cluster.empty()) return true;
  MOTLEY_ASSIGN(const cluster::Cluster cluster, cluster::read_cluster(job.execution.cluster));
  return static_cast<std::int64_t>(cluster.workers.size()) == count_workers(plan.stages[0]);
}

// "12.3 ms a step (11 ms to 14 ms as far as the measurements vary)".
std::string predicted_step(const planning::Plan& plan) {
  const planning::Prediction& predicted = plan.predicted;
  std::string text = format_seconds(predicted.step_seconds) + " a step";
  if (predicted.step_seconds_low > 0) {
    text += fmt::format(" ({} to {} as far as the measurements vary)", format_seconds(predicted.step_seconds_low),
                        format_seconds(predicted.step_seconds_high));
  }
  return text;
}

// The job of `plan: auto` as the best plan for it wants it, found by what `motley profile` and `motley plan` do; the
// files are left in the run's folder. A run that is resumed goes on by the plan that it has. The best plan may be that
// all workers compute the whole network: the job then has no plan, so that it is balanced and exchanges as any other.
Result<train::Job> plan_first(train::Job job, const train::RunDirectory& run, bool resume, const TrainView& view) {
  if (job.execution.workers != 0 && job.execution.cluster.empty()) {
    return fail(ErrorCode::kInvalidInput, "workers: {}; accepted with plan auto: 0, as the plan says how many",
                job.execution.workers);
  }
  const fs::path plan_file = fs::absolute(run.folder() / "plan.json");
  planning::Plan plan;
  if (resume && fs::exists(plan_file)) {
    MOTLEY_ASSIGN(plan, planning::read_plan(plan_file));
  } else {
    MOTLEY_ASSIGN(plan, make_plan(job, run.folder(), view));
    MOTLEY_TRY(write_file(plan_file, planning::to_json(plan)));
  }
  if (job.execution.device == "auto" && job.execution.cluster.empty()) {
    const fs::path cluster_file = fs::absolute(run.folder() / "cluster.yaml");
    MOTLEY_ASSIGN(const cluster::Cluster cluster, cluster::read_cluster(cluster_file));
    if (is_on_cpus(plan, cluster)) {
      job.execution.device = "cpu";
    } else {
      job.execution.cluster = cluster_file.string();
    }
  }
  MOTLEY_ASSIGN(const bool whole, is_data_parallel(job, plan));
  if (whole) {
    job.execution.workers = count_workers(plan.stages[0]);
    job.training.gradient_accumulation_steps = plan.micro_batches;
  } else {
    job.execution.plan = plan_file.string();
    job.execution.profile = fs::absolute(run.folder() / "profile.json").string();
  }
  view.print(fmt::format(
      "plan: {}: {}, predicted {}", plan_file.string(),
      whole ? (job.execution.workers == 1 ? std::string("one worker computes the whole network")
                                          : fmt::format("{} workers compute the whole network", job.execution.workers))
            : fmt::format("{}, {}", format_count(std::ssize(plan.stages), "stage"),
                          format_count(plan.micro_batches, "micro-batch", "es")),
      predicted_step(plan)));
  return job;
}

// Decides what device: auto is, where that needs no look at the job's steps: the CPU where this machine has no
// accelerator that the job can use. Returns those for which the job leaves it open who works; none: it says so.
Result<std::optional<train::Accelerators>> find_open_devices(train::Job& job) {
  train::ExecutionSpec& keys = job.execution;
  std::optional<train::Accelerators> found;
  if (keys.device != "auto") return found;
  MOTLEY_ASSIGN(found, train::find_accelerators());
  if (!found || !keys.elastic.empty() || train::is_synthetic(job)) keys.device = "cpu";
  const bool is_open = keys.device == "auto" && keys.workers == 0 && keys.cluster.empty() && keys.plan.empty();
  return is_open ? found : std::nullopt;
}

// The job with a worker for each accelerator, and one for the CPUs where that pays: the cluster file is left in the
// run's folder. A run that is resumed goes on with the workers that it has.
Result<train::Job> choose_workers(train::Job job, const train::Accelerators& accelerators,
                                  const train::RunDirectory& run, bool resume, const TrainView& view) {
  const fs::path file = fs::absolute(run.folder() / "cluster.yaml");
  if (!resume || !fs::exists(file)) {
    const InterruptStop interrupt;
    const fs::path tried = file.parent_path() / "tried-cluster.yaml";
    const auto chosen = train::choose_devices(job, accelerators, tried, interrupt.token());
    std::error_code ignored;
    fs::remove(tried, ignored);
    if (!chosen) return fail(chosen.error());
    MOTLEY_TRY(write_file(file, cluster::to_yaml(chosen->cluster)));
    view.print(fmt::format("devices: {} {}",
                           format_count(accelerators.count, to_string(accelerators.kind) + std::string(" accelerator")),
                           chosen->reason));
  }
  job.execution.cluster = file.string();
  return job;
}

// The run folder where none is named: the same on all ranks of one start, but for those that were started by hand, of
// which each has its own.
fs::path default_run_folder(const train::Job& job, const train::Role& role) {
  std::string suffix = role.job_id;
  if (role.launcher == "none" || role.launcher == "hosts") {
    char text[32];
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    ::localtime_r(&now, &parts);
    suffix.assign(text, std::strftime(text, sizeof(text), "%Y%m%d-%H%M%S", &parts));
  }
  if (role.launcher == "hosts" && role.rank > 0) suffix += fmt::format("-rank-{}", role.rank);
  for (char& c : suffix) c = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' ? c : '-';
  const fs::path folder = fs::path("runs") / (job.name + "-" + suffix);
  fs::path free = folder;
  // Two in one second.
  for (int number = 2; role.launcher == "none" && fs::exists(free); ++number) {
    free = fmt::format("{}-{}", folder.string(), number);
  }
  return free;
}

// `auto` never starts over where a checkpoint is, not even where all are damaged: that is an error.
bool resumes(const TrainRequest& request) {
  return request.resume == "true" ||
         (request.resume == "auto" &&
          train::holds_checkpoint(train::RunDirectory(request.run_directory).checkpoint_folder()));
}

Result<train::Job> effective_job(const TrainRequest& request, bool resume) {
  if (!request.job.file.empty()) return read_job(request.job);
  if (resume) {
    const train::RunDirectory run(request.run_directory);
    if (!fs::exists(run.job_file())) {
      return fail(ErrorCode::kInvalidInput,
                  "--run-directory: '{}' holds no run to go on with; accepted: a run's folder", request.run_directory);
    }
    return read_job({run.job_file().string(), request.job.flags});
  }
  return fail(ErrorCode::kInvalidInput, "JOB: a job file is needed, such as examples/fashion-mnist/job.yaml");
}

Status tell_end(const train::RunDirectory& run, bool prints_rows, const TrainView& view) {
  MOTLEY_ASSIGN(const std::string text, view.close(run.folder()));
  view.print(text.substr(0, text.find_last_not_of('\n') + 1));
  if (!prints_rows || !fs::exists(run.summary_file())) return {};
  MOTLEY_ASSIGN(const std::string summary, read_file(run.summary_file()));
  MOTLEY_ASSIGN(const std::vector<BenchRow> rows, read_rows(summary));
  view.print(to_table(rows));
  return {};
}

// The end of a run, on whichever process writes: run.json, the page, and what is said of both.
Status conclude(const train::RunDirectory& run, bool prints_rows, Status status, const TrainView& view) {
  if (fs::exists(run.run_file())) {
    Status written = train::finish_run_file(run, status);
    if (written) written = view.write_page(run.folder());
    if (written && status) written = tell_end(run, prints_rows, view);
    if (!written && status) return written;
  }
  Status settled = run.settle_replaced();
  return status ? settled : status;
}

// Where nothing has been trained, as the job was refused or stopped before, a folder that was made for it is of no use.
// What workers have said stays: it may tell why they were stopped.
bool remove_untrained(const train::RunDirectory& run, bool is_new, bool had_workers, const Status& status) {
  if (!is_new || status || fs::exists(run.run_file())) return false;
  const ErrorCode code = status.error().code;
  if (code != ErrorCode::kInvalidInput && (code != ErrorCode::kInterrupted || had_workers)) return false;
  std::error_code ignored;
  fs::remove_all(run.folder(), ignored);
  return true;
}

// As a rank that a launcher, ours or another, started.
Status train_as_started(train::Job job, const TrainRequest& request, const train::Role& role, bool resume,
                        const train::RunDirectory& run, const TrainView& view) {
  // Whoever started the ranks says how many there are, where nothing in the job does.
  const train::ExecutionSpec& keys = job.execution;
  const bool is_open = keys.workers == 0 && keys.elastic.empty() && keys.cluster.empty() && keys.plan.empty();
  if (is_open) job.execution.workers = role.size;
  // By hand, others may join where the file has lines for more ranks than the job begins with.
  const bool can_grow = role.launcher == "motley" || (role.launcher == "hosts" && role.size > keys.workers);
  Result<train::ResolvedJob> read = train::resolve_job(std::move(job), can_grow);
  if (role.launcher == "motley") {
    bool writes = false;  // the launcher concludes
    Status status = read ? train::train_as_rank(*read, run, role, request.hosts, resume, writes) : fail(read.error());
    if (!status) train::leave_error(status.error());
    return status ? status : fail(Error{status.error().code, "", role.rank});  // the launcher says why
  }
  MOTLEY_ASSIGN(const train::ResolvedJob resolved, std::move(read));
  const bool is_new = !fs::exists(run.folder());
  train::RunLock lock;
  if (role.rank == 0 && !role.is_newcomer) {
    MOTLEY_TRY(train::check_inputs(resolved));
    MOTLEY_ASSIGN(lock, run.prepare(resume, request.overwrite));
    view.print(fmt::format("run: {}", run.folder().string()));
  }
  bool writes = false;
  Status status = train::train_as_rank(resolved, run, role, request.hosts, resume, writes);
  if (!status && status.error().code != ErrorCode::kInterrupted) {
    status = fail(status.error().within(fmt::format("rank {}", role.rank)));
  }
  if (role.rank == 0 && !role.is_newcomer && remove_untrained(run, is_new, true, status)) return status;
  return writes ? conclude(run, request.rows, std::move(status), view) : status;
}

}  // namespace

const OptionTable<TrainRequest>& TrainRequest::options() {
  using enum OptionKind;
  static const OptionTable<TrainRequest> options = {
      {{"run_directory", kPath, "folder of the run; default: runs/NAME-TIME"}, &TrainRequest::run_directory},
      {{"overwrite", kBoolean, "replace the run that --run-directory holds"}, &TrainRequest::overwrite},
      {{"rows", kBoolean, "at the end, print the figures of summary.json as rows of a benchmark, too"},
       &TrainRequest::rows},
      {{"hosts", kPath,
        "file of addresses, one 'host' or 'host:port' a line, a line a rank; the first one's port (29400) is rank 0's"},
       &TrainRequest::hosts},
      {{"rank", kInteger, "this process's line in --hosts, from 0", 0}, &TrainRequest::rank},
      {{"join", kText,
        "with --hosts: take this rank's free place in the elastic run of which a worker is at HOST:PORT"},
       &TrainRequest::join},
      {{"secret_file", kPath,
        "file (mode 0600) with the secret that all ranks share, where they are on several hosts; default: that of the "
        "variable MOTLEY_SECRET_FILE"},
       &TrainRequest::secret_file},
  };
  return options;
}

Status train_job(const TrainRequest& request, const TrainView& view) {
  MOTLEY_ASSIGN(train::Role role, train::detect_role());
  if (!request.hosts.empty()) {
    MOTLEY_ASSIGN(role, train::role_from_hosts(request.hosts, request.rank));
    role.is_newcomer = !request.join.empty();
    role.join_at = request.join;
    if (const auto parsed = net::parse_endpoint(role.join_at); role.is_newcomer && !parsed) {
      return fail(parsed.error().within("--join"));
    }
  }
  role.secret_file = request.secret_file;
  if (request.resume != "false" && request.run_directory.empty()) {
    return fail(ErrorCode::kInvalidInput, "--resume: name the run's folder with --run-directory");
  }
  // Workers whose launcher was killed may still write what is to be gone on from.
  if (request.resume == "auto" && role.launcher == "none" && fs::exists(request.run_directory)) {
    MOTLEY_TRY(train::RunDirectory(request.run_directory).lock());
  }
  const bool resume = resumes(request);
  MOTLEY_ASSIGN(train::Job job, effective_job(request, resume));
  const bool plans = job.execution.plan == train::kAutoPlan;
  if (plans && role.launcher != "none") {
    return fail(ErrorCode::kInvalidInput,
                "plan: auto; accepted where {} starts the workers: a plan file, which 'motley profile' and 'motley "
                "plan' make",
                role.launcher);
  }
  const train::RunDirectory run(request.run_directory.empty() ? default_run_folder(job, role)
                                                              : fs::path(request.run_directory));
  if (role.launcher != "none") return train_as_started(std::move(job), request, role, resume, run, view);

  MOTLEY_ASSIGN(const std::optional<train::Accelerators> open, find_open_devices(job));
  if (plans) {
    job.execution.plan.clear();
  } else {
    MOTLEY_ASSIGN(train::Job prepared, train::prepare_job(job));
    if (!open) job = std::move(prepared);
  }
  const bool is_new = !fs::exists(run.folder());
  MOTLEY_ASSIGN(const train::RunLock lock, run.prepare(resume, request.overwrite));
  train::hand_down(lock);  // to the workers, which outlive a launcher that is killed, for their last step
  bool had_workers = false;
  const auto launch = [&]() -> Status {
    if (plans || open) {
      MOTLEY_ASSIGN(job, plans ? plan_first(std::move(job), run, resume, view)
                               : choose_workers(std::move(job), *open, run, resume, view));
      MOTLEY_ASSIGN(job, train::prepare_job(std::move(job)));
    }
    train::name_token_files(job);
    view.print(fmt::format("run: {}", run.folder().string()));
    // Where the scheduler that runs this asks for another number of workers, or else whoever has the run's folder.
    const char* attempt = std::getenv("MOTLEY_ATTEMPT_FOLDER");
    const bool has_measured = plans || open;  // with autograd, in this process
    had_workers = true;
    MOTLEY_TRY(train::launch_job(job, run, resume,
                                 {.may_fork = !has_measured && job.execution.device == "cpu",
                                  .count_folder = attempt != nullptr ? fs::path(attempt) : run.folder(),
                                  .quiet = request.quiet}));
    // The worker that was to write it may have been lost when all was done, and left that of an attempt before.
    if (!job.execution.elastic.empty()) MOTLEY_TRY(train::write_summary(run, job));
    const std::string compared = train::compare_with_plan(run, job);
    if (!compared.empty()) view.print("plan: " + compared);
    return {};
  };
  Status status = launch();
  if (remove_untrained(run, is_new, had_workers, status)) return status;
  return conclude(run, request.rows, std::move(status), view);
}

Status follow_launcher() {
  return std::getenv("MOTLEY_LAUNCHER") != nullptr ? train::follow_launcher(SIGKILL) : Status();
}

}  // namespace motley::app
