#include "motley/cli/planning_flags.h"

#include <cmath>
#include <cstdio>

namespace motley::cli {

CLI::Validator above_zero() {
  return {[](const std::string& text) {
            double value = 0;
            const bool number = CLI::detail::lexical_cast(text, value);
            return number && std::isfinite(value) && value > 0
                       ? std::string()
                       : fmt::format("'{}' is not accepted; accepted: a number above 0", text);
          },
          "NUMBER"};
}

void add_planning_input(CLI::App& command, app::PlanningInput& input) {
  command.add_option("--profile", input.profile, "File of 'motley profile'");
  command.add_option("--model", input.model, "A published model instead, estimated from the cluster's speeds")
      ->check(CLI::IsMember(app::model_names()));
  command.add_option("--cluster", input.cluster, "Device types, prices, counts and links; default: this machine");
  command.add_option("--cost-model", input.cost_model, "pipeline: synchronous pipeline; heterps: steady state")
      ->check(CLI::IsMember({"pipeline", "heterps"}))
      ->capture_default_str();
  command.add_option("--pipeline-schedule", input.schedule, "Order of micro-batches (pipeline)")
      ->check(CLI::IsMember({"1f1b", "gpipe"}))
      ->capture_default_str();
  command.add_option("--global-batch-size", input.batch, "Samples of a step")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1'000'000'000}))
      ->capture_default_str();
  command
      .add_option("--micro-batches", input.micro_batches,
                  "Into which a step is cut (pipeline); 0: the best power of two up to 64")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1'000'000}))
      ->capture_default_str();
  command.add_option("--total-samples", input.total_samples, "Samples that the job trains on in all, for its cost")
      ->check(above_zero())
      ->capture_default_str();
  command.add_flag("--recompute", input.recompute, "Stages may recompute activations to save memory (pipeline)");
  command.add_option("--max-layers", input.max_layers, "Longer chains are joined to so many blocks")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
}

void print_warning(const std::string& text) {
  std::fprintf(stderr, "motley: warning: %s\n", text.c_str());
}

}  // namespace motley::cli
