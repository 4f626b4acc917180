// The service's durable state: a SQLite database in a folder that one service holds at a time. What save() has returned
// from survives a kill and a power cut.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "motley/base/os/descriptor.h"
#include "motley/scheduling/service/job_record.h"

struct sqlite3;

namespace motley::scheduling {

class Store {
 public:
  // Makes the folder if there is none, for its owner only. Errors: kRefused where another service holds it, by its
  // process number; kCorrupt or kIo, with SQLite's words.
  static Result<std::unique_ptr<Store>> open(const std::filesystem::path& folder);
  ~Store();

  // By id.
  Result<std::vector<JobRecord>> jobs() const;
  Result<std::vector<std::string>> drained_nodes() const;

  // All of them or none. A record with a new id is added, others are replaced.
  Status save(const std::vector<const JobRecord*>& records);
  Status save_drained(const std::string& node, bool is_drained);

 private:
  Store() = default;
  Status run(const char* sql);
  tl::unexpected<Error> problem(const char* doing) const;

  std::filesystem::path file_;
  Descriptor lock_;
  std::unique_ptr<sqlite3, int (*)(sqlite3*)> database_{nullptr, nullptr};
};

}  // namespace motley::scheduling
