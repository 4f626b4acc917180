// One row of a benchmark or a summary: the form in which every measured figure leaves Motley (docs/results.md).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "motley/base/result.h"

namespace motley {

struct BenchRow {
  std::string name;  // the case, such as "shm-N2-4MB"
  std::string metric;
  double value = 0;
  std::string unit;
  bool more_is_better = false;
  std::optional<double> target;  // what we hold ourselves to
  std::optional<double> limit;   // the physical or mathematical bound, from the same run
  std::optional<double> peer;    // the compared system's value, from the same run
  std::string note = {};         // what was emulated, what the peer is

  // No target, or the value reaches it.
  bool met() const { return !target || (more_is_better ? value >= *target : value <= *target); }
};

// The rows as an array of {"case", "metric", "value", "unit", "better", "target", "limit", "peer", "note"}.
std::string to_json(const std::vector<BenchRow>& rows);

// Such an array with these rows in the places of those of the same case and metric, and at its end where it has none.
// Fails with kInvalidInput where `json` is not such an array.
Result<std::string> replace_rows(const std::string& json, const std::vector<BenchRow>& rows);

// An aligned table for the terminal.
std::string to_table(const std::vector<BenchRow>& rows);

}  // namespace motley
