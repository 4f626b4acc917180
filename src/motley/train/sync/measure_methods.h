// Answers gradient_sync.method auto where there are servers: measures what links and memory carry, by a few rounds of a
// small model with each method that is possible, and chooses.
#pragma once

#include "motley/ps/client/server_options.h"
#include "motley/train/sync/choose_method.h"

namespace motley::train {

// Collective; all ranks leave with the same choice. Takes some seconds at most where links carry 10 MB/s and more.
// `options.servers` may be empty.
Result<MethodChoice> measure_and_choose(net::Session& session, collective::Group& group,
                                        const ps::ServerOptions& options, const collective::Layout& layout,
                                        const Deadline& deadline);

}  // namespace motley::train
