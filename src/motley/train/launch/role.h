// Which rank this process is, the cores that it may use, and where the ranks meet: as Motley's own launcher says it, or
// torchrun, mpirun or srun, or a plain file of addresses. People who outgrow one machine keep the launcher they have.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "motley/base/fields.h"
#include "motley/base/result.h"
#include "motley/cluster/cluster.h"
#include "motley/net/session.h"

namespace motley::train {

struct Role {
  std::string launcher = "none";  // none, motley, torchrun, mpirun, srun, hosts
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  std::string job_id;        // the same on all ranks of one start, different for every start
  std::string secret_file;   // of --secret-file; empty: that of MOTLEY_SECRET_FILE, if any
  bool is_newcomer = false;  // takes a free place in a run that goes on
  std::string join_at = {};  // "host:port" of one of its ranks; empty: as the run's folder says
};

// What the environment says; launcher "none" where it says nothing. Errors: a half-set or impossible environment.
Result<Role> detect_role();

// A line a rank, "host" or "host:port"; '#' starts a comment. The first line's port is where the ranks meet (default
// 29400). `rank` is this process's line, counted from 0.
Result<Role> role_from_hosts(const std::filesystem::path& hosts, int rank);

// rendezvous.json, and what rank 0 publishes in torchrun's store: where the other ranks meet it, and newcomers a rank
// that is there.
struct RendezvousPoint {
  std::string host;
  std::uint16_t port = 0;
  std::string job;          // the id of the start
  std::string secret = {};  // as hex, in the file, which only this user may read
  std::int64_t process =
      0;                // that shares the secret with this user as this descriptor, in the store, which anybody may
  int descriptor = -1;  // read; -1: all ranks have it
  bool operator==(const RendezvousPoint&) const = default;
};

template <class Archive>
void fields(Archive& archive, RendezvousPoint& point) {
  archive.required("host", point.host, kNotEmpty);
  archive.required("port", point.port, NumberIs::between(1, 65535));
  archive.required("job", point.job);
  archive.optional("secret", point.secret);
  archive.optional("process", point.process, NumberIs::kNotNegative);
  archive.optional("descriptor", point.descriptor, NumberIs::between(-1, 1 << 30));
}

Result<RendezvousPoint> parse_rendezvous(std::string_view text);
// For this user alone.
Status write_rendezvous(const std::filesystem::path& file, const RendezvousPoint& point);
// Unless it is another start's.
void remove_rendezvous(const std::filesystem::path& file, const std::string& job);

int available_cores();
// Binds this process to the cores that the cluster file gives the worker; to none where it gives none.
Status pin_to_cores(const cluster::Worker& worker);

// What torchrun's ranks share. Errors are about the store, not about the key.
class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;
  virtual Status set(const std::string& key, const std::string& text) = 0;
  virtual Result<std::string> get(const std::string& key) = 0;  // waits until the key is set
};
struct StoreAddress {
  net::Endpoint endpoint;
  bool is_server = false;      // this process serves it
  double timeout_seconds = 0;  // of each wait
};
using OpenStore = std::function<Result<std::unique_ptr<KeyValueStore>>(const StoreAddress&)>;

// Fills rendezvous, bind_host, given_secret, publish and returns the secret, for this role. `folder` is where ranks of
// one host meet through a file (mpirun and srun on one machine); `hosts` is the address file or empty, and
// `open_store` opens the store of torchrun. The secret is
// that of the role's file, or of the file that MOTLEY_SECRET_FILE names (mode 0600), or, where all ranks share this
// machine, a generated one.
Result<net::Secret> find_rendezvous(const Role& role, const std::filesystem::path& folder,
                                    const std::filesystem::path& hosts, const OpenStore& open_store,
                                    net::SessionOptions& options);

}  // namespace motley::train
