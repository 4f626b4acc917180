// What a profile that Motley measured (motley/model/profile.h) says of a job that trains the model in it.
#pragma once

#include <filesystem>

#include "motley/model/profile.h"
#include "motley/scheduling/trace/trace.h"

namespace motley::app {

scheduling::ProfiledJob profiled_job(const model::Profile& profile);
// Errors as those of model::read_profile.
Result<scheduling::ProfiledJob> read_profiled_job(const std::filesystem::path& file);

}  // namespace motley::app
