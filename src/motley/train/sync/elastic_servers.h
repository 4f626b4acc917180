// The parameter servers of an elastic run, as one of its ranks sees them. After each change of who is there the ranks
// agree on what they know of the servers, join them anew, and give those that have come in place of lost ones their
// state.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "motley/ps/client/server_options.h"
#include "motley/train/loop/elastic_session.h"
#include "motley/train/loop/parts.h"

namespace motley::train {

// A rank's gradient synchronisation, as far as servers may take the optimizer's step in it; where none does, it says
// that there are none.
class ServedSync {
 public:
  virtual ~ServedSync() = default;
  // What ps::ServerOptimizer says.
  virtual std::uint64_t updates() const = 0;
  virtual std::optional<int> lost_server() const = 0;
  virtual bool has_replicas() const = 0;
  virtual std::vector<int> server_cores() const = 0;
  virtual std::vector<std::string> list_servers_without_state() const = 0;
  // The ranks of this session are left; gradients stay. Collective, as is the next.
  virtual Status go_on(net::Session& session, const ps::ServerOptions& options, const Deadline& deadline) = 0;
  // After go_on(): servers without state get the network's weights, and this state of the optimizer, as a checkpoint
  // has it; empty: it begins anew.
  virtual Status restore_servers(const std::string& optimizer, const Deadline& deadline) = 0;
};

class ElasticServers {
 public:
  // How gradients are synchronised, as this rank has worked it out; with ServerOptions::elastic. A newcomer does not
  // know yet what the others have measured and done. `racks`: for each rank of the job which server is in its rack, if
  // ranks are to use racks.
  void use(ps::ServerOptions options, std::vector<int> racks, bool is_newcomer) {
    options_ = std::move(options);
    racks_ = std::move(racks);
    knows_ = !is_newcomer;
  }

  // As ElasticRanks' functions of these names, after the epoch's regroup(). `checkpoints`: the run's folder of them.
  Status synchronise(const RankContext& context, ElasticSession& epochs, ServedSync& sync,
                     const std::filesystem::path& checkpoints, double join_seconds);
  const std::string& lost_servers() const { return lost_servers_; }

 private:
  Status agree(const RankContext& context, std::uint64_t epoch, const ServedSync& sync);
  Status restore(const RankContext& context, const std::vector<std::string>& servers, ServedSync& sync,
                 const std::filesystem::path& checkpoints);

  ps::ServerOptions options_;
  std::vector<int> racks_;
  bool knows_ = false;
  std::string lost_servers_;
};

}  // namespace motley::train
