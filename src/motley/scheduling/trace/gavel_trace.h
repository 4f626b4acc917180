// Gavel's traces: a line a job, without a header, fields with tabs between:
//
//   model, command, the flag for its steps, whether it needs data, steps, arrival, workers
//
// and in the later form model, command, flag, data, steps, workers, weight, deadline, arrival. They say how many steps
// a job does; how long that takes on a type of devices is in a table of throughputs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "motley/base/result.h"
#include "motley/scheduling/trace/trace.h"

namespace motley::scheduling {

// Whether the first line has tabs.
bool is_gavel_trace(std::string_view text);

// In the file's order; jobs are called by their lines. A deadline is a multiple of what the job takes; negative: none.
// Errors as those of parse_trace; also where there is no table, or a model is not in it.
Result<std::vector<Job>> parse_gavel_trace(std::string_view text, const std::string& name, const TraceOptions& options);

}  // namespace motley::scheduling
