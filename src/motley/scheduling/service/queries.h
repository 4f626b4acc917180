// What the addresses of requests ask for behind "?", read from text that may be anything.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "motley/base/result.h"
#include "motley/scheduling/service/job_record.h"

namespace motley::scheduling {

using QueryParameters = std::multimap<std::string, std::string>;

// The state of the jobs that a list is to have; nothing: any. Errors: kInvalidInput with what is accepted.
Result<std::optional<JobState>> read_state_query(const QueryParameters& parameters);

// Of an attempt and a byte in its output; left out: the last one, and its beginning.
struct LogsQuery {
  int attempt = 0;
  std::int64_t offset = 0;
};
Result<LogsQuery> read_logs_query(const QueryParameters& parameters);

}  // namespace motley::scheduling
