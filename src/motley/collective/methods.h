// The methods behind make_reducer and make_group, each for two ranks or more. The session must outlive what is made.
#pragma once

#include <memory>

#include "motley/collective/gradient_reducer.h"

namespace motley::collective {

// For ranks on one host.
std::unique_ptr<GradientReducer> make_shared_memory_reducer(net::Session& session, const ReducerOptions& options);
// A segmented ring for large buckets, all to all for small ones.
std::unique_ptr<GradientReducer> make_tcp_ring_reducer(net::Session& session, const ReducerOptions& options);
// Collective. Rank 0 collects and hands out.
Result<std::unique_ptr<Group>> make_tcp_group(net::Session& session, const Deadline& deadline);

}  // namespace motley::collective
