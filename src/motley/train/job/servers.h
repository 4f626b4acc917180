// The parameter servers of a job, and what its gradient synchronisation asks of them.
#pragma once

#include <string>
#include <vector>

#include "motley/base/result.h"
#include "motley/ps/client/server_options.h"
#include "motley/train/job/job.h"

namespace motley::train {

// The variable in which a launcher tells its workers where the server is that it started for them.
inline constexpr const char* kServersVariable = "MOTLEY_SERVERS";

// Without the servers' addresses. Where the job clips gradients, the servers only add up.
ps::ServerOptions make_server_options(const Job& job);

// The rule by which a server does what the job's optimizer does.
kernels::UpdateOptions make_update_options(const OptimizerSpec& optimizer);

// Of the value of a key such as gradient_sync.comm_dtype.
collective::WireType parse_wire_type(const std::string& name);

// The parameter servers that the job names, or that the launcher started, and the token for them.
Result<std::vector<ps::ServerAddress>> read_servers(const Job& job);

// Names the file of MOTLEY_TOKEN_FILE in the keys that leave it open, before a launcher gives its workers another one.
void name_token_files(Job& job);

}  // namespace motley::train
