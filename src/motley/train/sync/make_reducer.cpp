#include "motley/train/sync/make_reducer.h"

#include "motley/ps/client/server_reducer.h"

namespace motley::train {

Result<std::unique_ptr<collective::GradientReducer>> make_reducer(net::Session& session,
                                                                  const collective::ReducerOptions& options) {
  if (options.method == collective::Method::kParameterServer) return ps::ServerReducer::create(session, options);
  return collective::make_reducer(session, options);
}

}  // namespace motley::train
