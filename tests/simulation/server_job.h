// A job whose gradients go through a parameter server: the server's process, and its workers' with the client's code.
#pragma once

#include <cstdint>

#include "motley/net/session.h"
#include "tests/simulation/observer.h"

namespace motley::simulation {

struct ServerJobSetup {
  net::SessionOptions session;  // of the workers
  net::Endpoint server;
  bool shares_memory = false;
  std::size_t elements = 24;  // of each of its buckets
};
inline constexpr int kServerWorkers = 2;
inline constexpr std::uint64_t kServerSteps = 8;

// Lets workers use a server.
net::Secret server_token();

// The main functions of their processes: the server's never ends by itself.
int run_parameter_server(const net::Endpoint& listen);
int run_server_worker(const ServerJobSetup& setup, Observer& observer);

}  // namespace motley::simulation
