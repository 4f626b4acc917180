#include "motley/train/sync/make_reducer.h"

#include "motley/ps/client/server_reducer.h"

namespace motley::train {

Result<SyncMethod> make_reducer(net::Session& session, const ps::ServerOptions& options) {
  SyncMethod method;
  if (options.method == collective::Method::kParameterServer) {
    MOTLEY_ASSIGN(auto reducer, ps::ServerReducer::create(session, options));
    if (reducer->updates_weights()) method.server_optimizer = reducer.get();
    method.reducer = std::move(reducer);
  } else {
    MOTLEY_ASSIGN(method.reducer, collective::make_reducer(session, options));
  }
  return method;
}

}  // namespace motley::train
