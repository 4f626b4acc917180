// Which rank this process is, and where the ranks meet: as Motley's own launcher says it, or torchrun, mpirun or srun,
// or a plain file of addresses. People who outgrow one machine keep the launcher they have.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "motley/base/result.h"
#include "motley/net/session.h"

namespace motley::train {

struct Role {
  std::string launcher = "none";  // none, motley, torchrun, mpirun, srun, hosts
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  std::string job_id;  // the same on all ranks of one start, different for every start
};

// What the environment says; launcher "none" where it says nothing. Errors: a half-set or impossible environment.
Result<Role> detect_role();

// A line a rank, "host" or "host:port"; '#' starts a comment. The first line's port is where the ranks meet (default
// 29400). `rank` is this process's line, counted from 0.
Result<Role> role_from_hosts(const std::filesystem::path& hosts, int rank);

// Fills rendezvous, bind_host, given_secret, publish and returns the secret, for this role. `folder` is where ranks of
// one host meet through a file (mpirun and srun on one machine); `hosts` is the address file or empty. The secret is
// MOTLEY_SECRET, or the file MOTLEY_SECRET_FILE (mode 0600), or, where all ranks share this machine, a generated one.
Result<net::Secret> find_rendezvous(const Role& role, const std::filesystem::path& folder,
                                    const std::filesystem::path& hosts, net::SessionOptions& options);

}  // namespace motley::train
