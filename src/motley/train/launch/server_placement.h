// Which parameter servers a job's gradients go to: at those that it names or that run beside its workers, racks told
// apart or not.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "motley/cluster/cluster.h"
#include "motley/collective/gradient_reducer.h"
#include "motley/ps/client/server_options.h"
#include "motley/ps/service/service.h"
#include "motley/train/job/job.h"
#include "motley/train/job/run_directory.h"

namespace motley::train {

// What the server of a job's own is started with, beside its workers; empty for a job that needs none. Rows of a table
// are kept in the run's folder.
std::vector<std::string> own_server_arguments(const Job& job, const RunDirectory& run);

// What is wrong with the job's servers and racks, as far as the keys tell.
Status check_placement(const Job& job, int workers);

// Chooses, and fills in options.servers and rank_racks; the same on all ranks, and collective. `secret`: the job's,
// which is the token of servers beside workers. The result is this host's server, where this rank runs it.
Result<std::unique_ptr<ps::Service>> place_servers(const Job& job, net::Session& session, collective::Group& group,
                                                   const net::Secret& secret, double model_bytes,
                                                   ps::ServerOptions& options);

}  // namespace motley::train
