#include "tests/simulation/server_job.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "motley/base/random.h"
#include "motley/ps/client/server_reducer.h"
#include "motley/ps/service/service.h"

namespace motley::simulation {
namespace {

constexpr int kBuckets = 2;
constexpr double kWaitSeconds = 20;
constexpr double kStepSeconds = 10e-3;
constexpr float kLearningRate = 0.25F;
constexpr double kYear = 3e7;

// Small integers, whose sums have no rounding in whatever order.
float gradient(int rank, std::uint64_t step, int bucket, std::size_t element) {
  const std::uint64_t drawn =
      mix({static_cast<std::uint64_t>(rank), step, static_cast<std::uint64_t>(bucket), element});
  return static_cast<float>(drawn % 16) - 8;
}

// After so many steps, as one worker would have them.
std::vector<float> expected_weights(std::uint64_t steps, int bucket, std::size_t elements) {
  std::vector<float> weights(elements);
  for (std::uint64_t step = 0; step < steps; ++step) {
    for (std::size_t i = 0; i < elements; ++i) {
      float sum = 0;
      for (int rank = 0; rank < kServerWorkers; ++rank) sum += gradient(rank, step, bucket, i);
      weights[i] -= kLearningRate * sum / kServerWorkers;
    }
  }
  return weights;
}

Status train(const ServerJobSetup& setup, net::Session& session, collective::Group& group, Observer& observer) {
  ps::ServerOptions options;
  options.method = collective::Method::kParameterServer;
  options.servers = {{setup.server, server_token()}};
  options.servers_share_memory = setup.shares_memory;
  options.update = {.rule = kernels::UpdateRule::kSgd};
  options.chunk_bytes = 64;
  MOTLEY_ASSIGN(const auto reducer, ps::ServerReducer::create(session, options));
  const collective::Layout layout{.type = collective::DataType::kFloat32,
                                  .bucket_elements = std::vector(kBuckets, setup.elements)};
  MOTLEY_TRY(reducer->prepare(layout, Deadline::after(kWaitSeconds)));
  ps::ServerState zeros;
  zeros.weights.assign(kBuckets, std::vector<float>(setup.elements));
  MOTLEY_TRY(reducer->load(zeros, Deadline::after(kWaitSeconds)));
  reducer->set_learning_rate(kLearningRate);
  const int rank = session.membership().rank;
  for (std::uint64_t step = 0; step < kServerSteps; ++step) {
    SteadyClock::instance().sleep_until(monotonic_seconds() + kStepSeconds);
    for (int bucket = 0; bucket < kBuckets; ++bucket) {
      auto* values = reinterpret_cast<float*>(reducer->buffer(bucket).data());
      for (std::size_t i = 0; i < setup.elements; ++i) values[i] = gradient(rank, step, bucket, i);
      MOTLEY_TRY(reducer->start(step, bucket, 1));
    }
    for (int bucket = 0; bucket < kBuckets; ++bucket) {
      MOTLEY_ASSIGN(const collective::Outcome outcome, reducer->wait(bucket, Deadline::after(kWaitSeconds)));
      const auto weights = reducer->weights(bucket);
      if (outcome.version == step && std::ranges::equal(weights, expected_weights(step + 1, bucket, setup.elements))) {
        continue;
      }
      observer.violate(
          kSameWeights,
          fmt::format("worker {} has other weights of bucket {} after the server's step {} than one worker", rank,
                      bucket, step));
    }
  }
  return group.barrier(Deadline::after(kWaitSeconds));  // before anybody leaves
}

Status run(const ServerJobSetup& setup, Observer& observer) {
  const auto secret = net::Secret::from_text("the workers of the server's job know this", "secret");
  MOTLEY_ASSIGN(const auto session, net::Session::join(setup.session, *secret));
  MOTLEY_ASSIGN(const auto group, collective::make_group(*session));
  const Status done = train(setup, *session, *group, observer);
  if (done) {
    session->leave();
    return done;
  }
  const Error error = net::first_cause(*session, done.error());
  session->abort(error);
  return fail(error);
}

}  // namespace

net::Secret server_token() {
  return *net::Secret::from_text("whoever knows this may use the server", "token");
}

int run_parameter_server(const net::Endpoint& listen) {
  const auto service =
      ps::Service::start({.listen = listen, .cores = 2, .encryption = net::Encryption::kOff}, server_token());
  if (!service) return 1;
  SteadyClock::instance().sleep_until(monotonic_seconds() + kYear);
  return 0;
}

int run_server_worker(const ServerJobSetup& setup, Observer& observer) {
  const Status done = run(setup, observer);
  observer.finish_worker(setup.session.rank, done);
  return done ? 0 : 1;
}

}  // namespace motley::simulation
