// Runs attempts as processes of this machine; nodes are names only.
#pragma once

#include <memory>

#include "motley/scheduling/service/executor.h"

namespace motley::scheduling {

// Each attempt is a session of its own under a wrapper (attempt_folder.h). Its output goes to `output` in its folder.
// Errors: kUnavailable where the wrapper is not there.
Result<std::unique_ptr<Executor>> make_local_executor();

}  // namespace motley::scheduling
