#include "motley/cli/results.h"

#include "motley/app/replay_trace.h"
#include "motley/app/simulate_plan.h"
#include "motley/serial/json_schema.h"

namespace motley::cli {

std::vector<std::pair<std::string, std::string>> result_schemas() {
  return {{"check-result", json_schema<CheckResult>("motley check --json", "What works on this machine.")},
          {"plan-result", json_schema<PlanResult>("motley plan --json", "The plan, and what was asked beside it.")},
          {"simulate-result", app::step_schema()},
          {"train-result", json_schema<TrainResult>("motley train --json", "The figures of a finished run.")},
          {"report-result", json_schema<ReportResult>("motley report --json", "Where the page is.")},
          {"schedule-simulate-result", app::replay_schema()},
          {"schedule-submit-result", json_schema<SubmitResult>("motley schedule submit --json", "Submitted jobs.")},
          {"schedule-list-result", json_schema<ListResult>("motley schedule list --json", "Jobs and nodes.")},
          {"schedule-why-result", json_schema<WhyResult>("motley schedule why --json", "Why a job is where it is.")},
          {"schedule-what-if-result",
           json_schema<WhatIfResult>("motley schedule what-if --json", "Jobs as things are, and after the change.")}};
}

}  // namespace motley::cli
