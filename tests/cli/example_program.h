// A program with two commands, as ours are made: one with flags of its own, and one with keys of a job.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "motley/cli/command_text.h"
#include "motley/cli/options.h"
#include "motley/cli/output_files.h"

namespace motley::cli {

struct PlanLike {
  std::string profile;
  std::string method = "exact";
  double time_limit = 60;
  std::vector<std::string> what_ifs;
  std::string output = "plan.json";
  std::string page;
  bool compare = false;

  static const OptionTable<PlanLike>& options() {
    using enum OptionKind;
    static const OptionTable<PlanLike> options = {
        {{"profile", kPath, "profile to plan from; default: this machine's"}, &PlanLike::profile},
        {choice("method", "how it's planned", {"exact", "greedy"}), &PlanLike::method},
        {{"time_limit", kSeconds, "time limit", 1}, &PlanLike::time_limit},
        {{"what_if", kTexts, "TYPE.price=VALUE [a question]: may be repeated"}, &PlanLike::what_ifs},
        {{"output", kOutput, "file to write the plan to"}, &PlanLike::output},
        {{"html", kOutput, "file to write a page to"}, &PlanLike::page},
        {{"compare", kBoolean, "compare all methods"}, &PlanLike::compare},
    };
    return options;
  }
};

struct ExampleProgram {
  CLI::App app{"An example.", "motley"};
  PlanLike plan;
  std::string job, run;
  std::vector<std::pair<std::string, std::string>> keys;

  ExampleProgram() {
    using enum OptionKind;
    app.require_subcommand(1);
    CLI::App* one =
        app.add_subcommand("plan", "Choose a plan")->footer("Example:\n  motley plan --compare\n  .5 of it");
    add_options(*one, plan);
    one->get_help_ptr()->group(kGeneralFlags);
    CLI::App* other = app.add_subcommand("train", "Train a job");
    add_argument(*other, {"JOB", kPath, "job file"}, job);
    other->get_help_ptr()->group(kGeneralFlags);
    add_keys(*other,
             {{common({"global_batch_size", kInteger, "samples of a step", 1}), std::int64_t{256}},
              {{"seed", kInteger, "seed", 0}, std::int64_t{1}},
              {{"embedding.learning_rate", kReal, "learning rate of embeddings", 0}, 0.05},
              {common(choice("optimizer.name", "optimizer", {"sgd", "adam"})), std::string("sgd")},
              {common({"optimizer.learning_rate", kReal, "peak learning rate", 0}), 0.05},
              {{"data.token_file", kPath, "token"}, std::string()}},
             keys);
    CLI::App* several = app.add_subcommand("schedule", "Schedule jobs")->require_subcommand(1);
    CLI::App* below = several->add_subcommand("report", "Write a page");
    add_argument(*below, {"RUN", kPath, "folder of the run"}, run)->required();
    app.add_subcommand("secret", "Not for users")->group("");
  }
  // Nothing where the line is accepted.
  std::unique_ptr<CLI::ParseError> parse(const std::string& line) {
    try {
      app.parse(line, false);
    } catch (const CLI::ParseError& problem) {
      return std::make_unique<CLI::ParseError>(problem);
    }
    return nullptr;
  }
  CommandText command(const std::string& name) const { return describe(*app.get_subcommand(name)); }
};

}  // namespace motley::cli
