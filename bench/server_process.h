// A process of `motley server` for benchmarks, and what its clients have to know.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/child_process.h"
#include "bench/exchange_job.h"
#include "motley/net/secret.h"

namespace motley::bench {

class ServerProcess {
 public:
  // All servers of this process's benchmarks know the same token, so that one job may use several of them.
  // `flags`: more of `motley server`.
  static Result<ServerProcess> start(const BenchOptions& options, int cores, const ExchangeJob::Place& place = {},
                                     const std::vector<std::string>& flags = {});
  // The secret of that token.
  static const net::Secret& token();

  // The variables that lead ranks to these servers.
  static std::vector<std::string> environment(std::span<const ServerProcess> servers);
  std::vector<std::string> environment() const { return environment({this, 1}); }
  const std::string& address() const { return address_; }

 private:
  std::unique_ptr<ChildProcess> process_;
  std::string address_;
};

}  // namespace motley::bench
