// Runs attempts as processes of this machine; nodes are names only.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "motley/scheduling/executors/run_attempt.h"
#include "motley/scheduling/service/executor.h"

namespace motley::scheduling {

// Each attempt is a session of its own under a wrapper (run_attempt.h). Its output goes to `output` in its folder.
std::unique_ptr<Executor> make_local_executor(std::vector<std::string> wrapper = own_attempt_wrapper());

}  // namespace motley::scheduling
