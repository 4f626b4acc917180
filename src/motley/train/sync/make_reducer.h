// The one place where a method of gradient synchronisation is chosen among all that there are: those among the ranks,
// and parameter servers.
#pragma once

#include <memory>

#include "motley/collective/gradient_reducer.h"

namespace motley::train {

// One rank alone gets an exchange that does nothing, unless it is to use a parameter server. The session must outlive
// the exchange.
Result<std::unique_ptr<collective::GradientReducer>> make_reducer(net::Session& session,
                                                                  const collective::ReducerOptions& options);

}  // namespace motley::train
