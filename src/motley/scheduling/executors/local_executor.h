// Runs attempts as processes of this machine; nodes are names only.
#pragma once

#include <memory>

#include "motley/scheduling/service/executor.h"

namespace motley::scheduling {

// Each attempt is a session of its own under a shell that holds a lock in the attempt's folder for as long as the
// command runs, notes that it has begun before it does, and notes how it ended. Its output goes to `output` there.
std::unique_ptr<Executor> make_local_executor();

}  // namespace motley::scheduling
