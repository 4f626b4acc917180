// Where the controller's records are before anybody acts on them. It is all that the controller does outside of memory,
// and an interface, so that the controller can be run on one in memory, or on one that fails.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "motley/scheduling/service/job_record.h"

namespace motley::scheduling {

class Store {
 public:
  // A SQLite database in a folder, which one service holds at a time; what it has saved survives a kill and a power
  // cut. Makes the folder if there is none, for its owner only. Errors: kRefused where another service holds it, by its
  // process number; kCorrupt or kIo, with SQLite's words.
  static Result<std::unique_ptr<Store>> open(const std::filesystem::path& folder);
  virtual ~Store() = default;

  // By id.
  virtual Result<std::vector<JobRecord>> jobs() const = 0;
  virtual Result<std::vector<std::string>> drained_nodes() const = 0;

  // All of them or none, and durable on return. A record with a new id is added, others are replaced.
  virtual Status save(const std::vector<const JobRecord*>& records) = 0;
  virtual Status save_drained(const std::string& node, bool is_drained) = 0;
};

}  // namespace motley::scheduling
