// Runs held against each other: their figures side by side, what their jobs differ in, and which run is faster and why,
// all of it from what the runs recorded of themselves. As a page, and as text for a terminal.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "motley/base/result.h"
#include "motley/report/run.h"

namespace motley::report {

// Where the time of a typical step goes: means over the workers, which with `other`, such as the optimizer, add up to
// the step.
struct StepTime {
  double total = 0;
  double compute = 0, load = 0, gradient_sync = 0, wait = 0, other = 0;
};

struct ComparedRun {
  std::string name;  // no other one has it
  std::filesystem::path folder;
  Run run;
  Figures figures;
  std::optional<StepTime> time;  // none where it recorded no step
};

// A figure of every run; none where a run has it not.
struct ComparedFigure {
  enum class Better { kMore, kLess, kNeither };
  std::string group, name;
  std::vector<std::optional<double>> values;
  std::vector<std::string> texts;  // the same for people
  Better better = Better::kNeither;

  // By run, as far as the texts tell them apart; none where it is better in neither direction, where all are equal, and
  // where one run alone has it.
  std::vector<bool> best() const;
};

struct Comparison {
  std::vector<ComparedRun> runs;
  std::vector<ComparedFigure> figures;
  // A key of job.yaml, or of what run.json says, and its value in every run; those that differ.
  std::vector<std::vector<std::string>> differences;
  std::vector<std::string> sentences;  // each run beside the first: what got faster, and why
};

// Errors: those of read_run; kInvalidInput for fewer than two runs, and for one that is named twice.
Result<Comparison> compare_runs(const std::vector<std::filesystem::path>& folders);

std::string comparison_text(const Comparison& comparison);
// With links to the runs' own pages, as seen from the folder in which it will be.
std::string comparison_page(const Comparison& comparison, const std::filesystem::path& folder);

}  // namespace motley::report
