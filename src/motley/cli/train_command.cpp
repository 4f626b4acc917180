// motley train: starts the workers of a job on this machine, or joins as the rank that torchrun, mpirun, srun or a file
// of addresses gives this process.
#include <ctime>
#include <filesystem>
#include <optional>

#include "motley/app/train/auto_plan.h"
#include "motley/base/os/file.h"
#include "motley/cli/commands.h"
#include "motley/cli/job_flags.h"
#include "motley/cli/planner_progress.h"
#include "motley/report/report.h"
#include "motley/train/checkpoint/checkpoint.h"
#include "motley/train/job/job_document.h"
#include "motley/train/job/resolved_job.h"
#include "motley/train/job/servers.h"
#include "motley/train/launch/check_inputs.h"
#include "motley/train/launch/launcher.h"
#include "motley/train/launch/role.h"
#include "motley/train/launch/server_placement.h"
#include "motley/train/loop/progress.h"
#include "motley/train/worker/worker.h"

namespace motley::cli {
namespace {

namespace fs = std::filesystem;

struct TrainArguments {
  std::string job;
  std::string run;
  std::string hosts;
  int rank = -1;
  std::string secret_file;
  std::string resume = "false";  // or "true" or "auto"
  bool overwrite = false;
  bool quiet = false;
  bool keys = false;
  bool schema = false;
  JobFlags flags;
};

std::string time_stamp() {
  char text[32];
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::localtime_r(&now, &parts);
  std::strftime(text, sizeof(text), "%Y%m%d-%H%M%S", &parts);
  return text;
}

// The run folder where none is named: the same on all ranks of one start.
fs::path default_run_folder(const train::Job& job, const train::Role& role) {
  std::string suffix = role.launcher == "none" ? time_stamp() : role.job_id;
  for (char& c : suffix) {
    c = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' ? c : '-';
  }
  return fs::path("runs") / (job.name + "-" + suffix);
}

Result<train::Job> effective_job(const TrainArguments& arguments, bool resume) {
  if (arguments.job.empty() && !resume) {
    return fail(ErrorCode::kInvalidInput, "JOB: a job file is needed, such as examples/fashion-mnist/job.yaml");
  }
  const fs::path file = arguments.job.empty() ? fs::path(arguments.run) / "job.yaml" : fs::path(arguments.job);
  return read_job_with(file, arguments.flags);
}

// `auto` never starts over where a checkpoint is, not even where all are damaged: that is an error.
bool resumes(const TrainArguments& arguments) {
  return arguments.resume == "true" ||
         (arguments.resume == "auto" &&
          train::holds_checkpoint(train::RunDirectory(arguments.run).checkpoint_folder()));
}

// The job as the best plan for it wants it, with what is found on the terminal.
Result<train::Job> plan_first(train::Job job, const train::RunDirectory& run, bool resume) {
  train::ProgressLine progress;
  MOTLEY_ASSIGN(
      app::AutoPlan planned,
      app::plan_automatically(std::move(job), run, resume,
                              {.profiling = [&](const std::string& text) { progress.show("profiling: " + text); },
                               .profiled = [&] { progress.clear(); },
                               .warn = print_warning,
                               .ask = ask}));
  std::printf("plan: %s\n", planned.summary.c_str());
  std::fflush(stdout);
  return std::move(planned.job);
}

// The end of a run, on whichever process writes: run.json and the page.
Status conclude(const train::RunDirectory& run, Status status) {
  train::RunEnd end;
  end.exit = status ? "done" : status.error().code == ErrorCode::kInterrupted ? "interrupted" : "failed";
  end.error = status ? "" : status.error().message;
  if (fs::exists(run.run_file())) {
    Status written = train::finish_run_file(run, end);
    if (written) {
      written = report::write_report(run.folder());
    }
    if (written && status) {
      std::printf("report: %s/report.html\n", run.folder().c_str());
    }
    if (!written && status) {
      return written;
    }
  }
  Status settled = run.settle_replaced();
  return status ? settled : status;
}

Status run_train(const TrainArguments& arguments) {
  if (arguments.keys) {
    std::printf("%s", train::document_job().c_str());
    return {};
  }
  if (arguments.schema) {
    std::printf("%s", train::job_schema().c_str());
    return {};
  }
  MOTLEY_ASSIGN(train::Role role, train::detect_role());
  if (!arguments.hosts.empty()) {
    MOTLEY_ASSIGN(role, train::role_from_hosts(arguments.hosts, arguments.rank));
  }
  role.secret_file = arguments.secret_file;
  if (arguments.resume != "false" && arguments.run.empty()) {
    return fail(ErrorCode::kInvalidInput, "--resume: name the run's folder with --run-directory");
  }
  const bool resume = resumes(arguments);
  MOTLEY_ASSIGN(train::Job job, effective_job(arguments, resume));
  const bool plans = job.execution.plan == train::kAutoPlan;
  if (plans && role.launcher != "none") {
    return fail(ErrorCode::kInvalidInput,
                "plan: auto; accepted where {} starts the workers: a plan file, which 'motley profile' and 'motley "
                "plan' make",
                role.launcher);
  }
  if (plans) job.execution.plan.clear();
  const train::RunDirectory run(arguments.run.empty() ? default_run_folder(job, role) : fs::path(arguments.run));

  if (role.launcher == "motley") {
    const auto train_rank = [&]() -> Status {
      MOTLEY_ASSIGN(const train::ResolvedJob resolved, train::resolve_job(std::move(job)));
      return train::train_as_rank(resolved, run, role, arguments.hosts, resume);
    };
    Status status = train_rank();
    if (!status) {
      train::leave_error(status.error());
    }
    return status;
  }
  if (role.launcher != "none") {
    MOTLEY_ASSIGN(const train::ResolvedJob resolved, train::resolve_job(std::move(job)));
    std::optional<train::RunLock> lock;
    if (role.rank == 0) {
      MOTLEY_TRY(train::check_inputs(resolved));
      MOTLEY_ASSIGN(train::RunLock held, run.prepare(resume, arguments.overwrite));
      lock.emplace(std::move(held));
    }
    Status status = train::train_as_rank(resolved, run, role, arguments.hosts, resume);
    if (!status && status.error().code != ErrorCode::kInterrupted) {
      status = fail(status.error().within(fmt::format("rank {}", role.rank)));
    }
    return role.rank == 0 ? conclude(run, std::move(status)) : status;
  }

  // The keys that follow from the job's files, after a look at whether all that it names is there.
  const auto resolve = [&]() -> Status {
    MOTLEY_ASSIGN(train::ResolvedJob resolved, train::resolve_job(std::move(job)));
    MOTLEY_TRY(train::check_inputs(resolved));
    job = std::move(resolved.job);
    job.execution.workers = static_cast<std::int64_t>(resolved.cluster.workers.size());
    return {};
  };
  if (!plans) {
    MOTLEY_TRY(resolve());
  }
  MOTLEY_ASSIGN(const train::RunLock lock, run.prepare(resume, arguments.overwrite));
  const auto launch = [&]() -> Status {
    if (plans) {
      MOTLEY_ASSIGN(job, plan_first(std::move(job), run, resume));
      MOTLEY_TRY(resolve());
    }
    train::name_token_files(job);
    MOTLEY_TRY(write_file(run.tried_job_file(), train::format_job(job)));
    train::LaunchOptions options;
    options.motley = fs::read_symlink("/proc/self/exe");
    options.workers = static_cast<int>(job.execution.workers);
    options.quiet = arguments.quiet;
    options.worker_arguments = {"train", run.tried_job_file().string(), "--run-directory", run.folder().string()};
    if (resume) {
      options.worker_arguments.push_back("--resume");
    }
    options.server_arguments = train::own_server_arguments(job, run);
    std::printf("run: %s\n", run.folder().c_str());
    std::fflush(stdout);
    return train::launch_workers(options, run);
  };
  return conclude(run, launch());
}

}  // namespace

void add_train(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("train", "Train a job: starts its workers here, or joins as the rank it is given");
  command->footer(
      "Every key of the job file is also a flag. Examples:\n"
      "  motley train examples/fashion-mnist/job.yaml --workers 2 --global-batch-size 128\n"
      "  motley train examples/fashion-mnist/job.yaml --plan auto\n"
      "  motley train examples/fashion-mnist/job.yaml --plan plan.json\n"
      "  motley train --resume --run-directory runs/demo\n"
      "  torchrun --no-python --nproc-per-node 2 motley train examples/fashion-mnist/job.yaml");
  auto arguments = std::make_shared<TrainArguments>();
  command->add_option("JOB", arguments->job,
                      "Job file (docs/reference/job.md); with --resume the run's own by default");
  command->add_option("--run-directory", arguments->run, "Folder of the run; default: runs/NAME-TIME");
  command
      ->add_flag("--resume", arguments->resume,
                 "Go on from the newest good checkpoint of --run-directory; --resume=auto: where it holds one, else "
                 "start (with --overwrite also over a run that came to have none)")
      ->check(CLI::IsMember({"true", "false", "auto"}));
  command->add_flag("--overwrite", arguments->overwrite, "Replace the run that --run-directory holds");
  command->add_flag("--quiet", arguments->quiet, "Logs go to the run folder only");
  command->add_flag("--keys", arguments->keys,
                    "Print the keys of a job file as a table (docs/reference/job.md) and end");
  command->add_flag("--schema", arguments->schema, "Print the JSON Schema of a job file (docs/schema) and end");
  CLI::Option* hosts =
      command->add_option("--hosts", arguments->hosts, "File of addresses, one 'host:port' a line, a line a rank");
  command->add_option("--rank", arguments->rank, "This process's line in --hosts, from 0")->needs(hosts);
  command->add_option(
      "--secret-file", arguments->secret_file,
      "File (mode 0600) with the secret that all ranks share, where they are on several hosts; default: "
      "that of the variable MOTLEY_SECRET_FILE");
  const auto job_flags = add_job_flags(*command);
  command->callback([&action, arguments, job_flags] {
    arguments->flags = job_flags();
    action = [arguments] { return run_train(*arguments); };
  });
}

}  // namespace motley::cli
