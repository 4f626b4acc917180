// The weights and the optimizer's state, from rank 0 to its servers and back, in pieces over the control connections.
#pragma once

#include "motley/ps/client/control_connections.h"
#include "motley/ps/client/server_optimizer.h"
#include "motley/ps/protocol/divided_model.h"

namespace motley::ps {

// Collective: returns once all ranks have called it. Rank 0's state counts.
Status send_state(ControlConnections& controls, const DividedModel& model, const ServerState& state, bool is_rank_0,
                  const Deadline& deadline);

// Rank 0: the weights and `arrays` arrays of the optimizer; updates is left at 0.
Result<ServerState> fetch_state(ControlConnections& controls, const DividedModel& model, int arrays,
                                const Deadline& deadline);

}  // namespace motley::ps
