// A rank of an elastic training job, as the program runs it: session, collectives, batch plan, training loop and
// checkpoints are production's; only the network is a linear model.
#pragma once

#include <filesystem>
#include <memory>

#include "motley/net/session.h"
#include "motley/ps/client/server_options.h"
#include "tests/simulation/launcher_job.h"
#include "tests/simulation/observer.h"

namespace motley::simulation {

inline constexpr double kGrowSeconds = 3;  // that the job waits for more ranks where too few are left

struct RankSetup {
  net::SessionOptions session;
  ps::ServerOptions sync;  // how gradients are synchronised
  int minimum = 1;         // ranks that the job goes on with
  int generation = 1;      // start of the job
  std::filesystem::path folder;
  double seconds_per_sample = 0.5e-3;
  LaunchedRank* launched = nullptr;  // by a launcher
  double load_seconds = 0;           // until the process begins to join
};

// The main function of its process. The status that it exits with.
int run_training_rank(const RankSetup& setup, const LinearJob& job, Observer& observer);

}  // namespace motley::simulation
