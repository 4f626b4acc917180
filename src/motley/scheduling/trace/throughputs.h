// How fast models train on types of devices: a table that was measured, as Gavel's simulator keeps it
// (simulation_throughputs.json):
//
//   {"v100": {"('ResNet-18 (batch size 64)', 2)": {"null": 74.1, ...}, ...}, ...}
//
// by device type, then by model and number of workers; "null" are steps a second of such a job on its own. What it says
// of pairs of jobs on the same devices is not read.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "motley/base/result.h"

namespace motley::scheduling {

class Throughputs {
 public:
  // Errors: kInvalidInput with file, field, value and what would be accepted (kIo if unreadable).
  static Result<Throughputs> read(const std::filesystem::path& file);
  static Result<Throughputs> parse(const std::string& text, const std::string& name);

  std::vector<std::string> types() const;
  // Those that have been measured on a type with so many workers.
  std::vector<std::string> models(const std::string& type, int workers) const;
  // Of so many workers together; 0 where the table has no such job on this type.
  double steps_per_second(const std::string& type, const std::string& model, int workers) const;

 private:
  using Job = std::pair<std::string, int>;  // model and workers
  std::map<std::string, std::map<Job, double>> types_;
};

}  // namespace motley::scheduling
