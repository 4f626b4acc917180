// Which parameter servers a job's gradients go to: at those that it names or that run beside its workers, racks told
// apart or not.
#pragma once

#include <memory>
#include <vector>

#include "motley/collective/gradient_reducer.h"
#include "motley/ps/client/server_options.h"
#include "motley/ps/service/service.h"
#include "motley/train/job/job.h"

namespace motley::train {

// Those that the job names, of which `central` uses the first.
Result<std::vector<ps::ServerAddress>> list_servers(const Job& job);

// A server of so many threads in the process of the first rank of each host: adds all of them to `servers`, in the
// order of those ranks. Collective. `secret`: their token. The result is this host's server, where this rank runs it.
Result<std::unique_ptr<ps::Service>> start_beside_workers(int threads, const net::Session& session,
                                                          collective::Group& group, const net::Secret& secret,
                                                          const Deadline& deadline,
                                                          std::vector<ps::ServerAddress>& servers);

// Chooses, and fills in options.servers and rank_racks; the same on all ranks, and collective. `secret`: the job's,
// which is the token of servers beside workers. The result is this host's server, where this rank runs it.
Result<std::unique_ptr<ps::Service>> place_servers(const Job& job, net::Session& session, collective::Group& group,
                                                   const net::Secret& secret, double model_bytes,
                                                   ps::ServerOptions& options);

}  // namespace motley::train
