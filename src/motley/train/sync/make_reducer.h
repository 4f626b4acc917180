// The one place where a method of gradient synchronisation is chosen among all that there are: those among the ranks,
// and parameter servers.
#pragma once

#include <memory>

#include "motley/ps/client/server_options.h"
#include "motley/ps/client/server_reducer.h"

namespace motley::train {

struct SyncMethod {
  std::unique_ptr<collective::GradientReducer> reducer;
  ps::ServerReducer* server_optimizer = nullptr;  // part of the reducer; null where each rank takes the step itself
};

// One rank alone gets a reducer that does nothing, unless it is to use a parameter server. The session must outlive the
// reducer.
Result<SyncMethod> make_reducer(net::Session& session, const ps::ServerOptions& options);

}  // namespace motley::train
