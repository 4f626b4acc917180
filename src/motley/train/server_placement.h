// Where a job's gradients meet parameter servers: at those that it names or that run beside its workers, racks told
// apart or not.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "motley/cluster/cluster.h"
#include "motley/exchange/exchange.h"
#include "motley/server/service.h"
#include "motley/train/job.h"
#include "motley/train/run_directory.h"

namespace motley::train {

// What the server of a job's own is started with, beside its workers; empty for a job that needs none. Rows of a table
// are kept in the run's folder.
std::vector<std::string> own_server_arguments(const Job& job, const RunDirectory& run);

// What is wrong with the job's servers and racks, as far as the keys tell.
Status check_placement(const Job& job, int workers);

// Chooses, and fills in options.servers and rack_of_rank; the same on all ranks, and collective. `secret`: the job's,
// which is the token of servers beside workers. The result is this host's server, where this rank runs it.
Result<std::unique_ptr<server::Service>> place_servers(const Job& job, transport::Session& session,
                                                       exchange::Group& group, const transport::Secret& secret,
                                                       double model_bytes, exchange::ExchangeOptions& options);

}  // namespace motley::train
