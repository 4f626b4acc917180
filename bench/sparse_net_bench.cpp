// sparse-loopback: one rank pulls and pushes batches of uniformly random rows in synchronous steps, the next batch's
// pull under way before the push; the same batches go to a table in this process by plain calls. Both take turns, round
// by round.
#include "bench/sparse_net_bench.h"

#include "motley/base/clock.h"
#include "motley/base/random.h"
#include "motley/collective/sparse_client.h"
#include "motley/ps/service.h"

namespace motley::bench {
namespace {

constexpr std::size_t kDimension = 32;
constexpr std::size_t kBatch = 8192;
constexpr double kSeconds = 60;  // that anything may take

using Batches = std::vector<std::vector<std::uint64_t>>;

Result<double> seconds_over_loopback(collective::SparseClient& client, const Batches& batches,
                                     const std::vector<float>& gradients) {
  std::vector<float> rows(kBatch * kDimension);
  const double begin = monotonic_seconds();
  MOTLEY_ASSIGN(auto ticket, client.start_pull(0, batches[0], client.step()));
  for (std::size_t b = 0; b < batches.size(); ++b) {
    MOTLEY_TRY(client.wait(ticket, rows, Deadline::after(kSeconds)));
    if (b + 1 < batches.size()) {
      MOTLEY_ASSIGN(ticket, client.start_pull(0, batches[b + 1], client.step() + 1));
    }
    MOTLEY_TRY(client.push(0, batches[b], gradients, 1));
    MOTLEY_TRY(client.finish_step(1, Deadline::after(kSeconds)));
  }
  // The last push is done when a pull has seen it.
  MOTLEY_TRY(
      client.pull(0, std::span(batches[0]).first(1), std::span(rows).first(kDimension), Deadline::after(kSeconds)));
  return monotonic_seconds() - begin;
}

Result<double> seconds_in_process(ps::SparseTable& table, const Batches& batches, const std::vector<float>& gradients) {
  std::vector<float> rows(kBatch * kDimension);
  const double begin = monotonic_seconds();
  for (const auto& ids : batches) {
    MOTLEY_TRY(table.pull(ids, rows));
    MOTLEY_TRY(table.push(ids, gradients));
  }
  return monotonic_seconds() - begin;
}

}  // namespace

Result<std::vector<BenchRow>> sparse_net_rows(const BenchOptions& options) {
  const std::uint64_t row_count = options.quick ? 500'000 : 2'000'000;
  const int rounds = options.quick ? 5 : 11;
  const std::size_t batches_in_round = options.quick ? 10 : 60;

  const net::Secret token = net::Secret::generate();
  const ps::ServiceOptions service_options;
  MOTLEY_ASSIGN(const auto service, ps::Service::start(service_options, token));
  const net::SessionOptions session_options;
  MOTLEY_ASSIGN(const auto session, net::Session::join(session_options, net::Secret::generate()));
  collective::SparseClientOptions client_options;
  client_options.servers = {{service->endpoint(), token}};
  client_options.tables.resize(1);
  client_options.tables[0].dimension = kDimension;
  MOTLEY_ASSIGN(const auto client, collective::SparseClient::open(*session, client_options, Deadline::after(kSeconds)));
  ps::SparseTableSpec spec;
  spec.dimension = kDimension;
  MOTLEY_ASSIGN(const auto table, ps::SparseTable::create(spec));

  const std::vector<float> gradients(kBatch * kDimension, 0.01F);
  Batches all;
  for (std::uint64_t begin = 0; begin < row_count; begin += kBatch) {
    auto& ids = all.emplace_back(kBatch);
    for (std::size_t i = 0; i < kBatch; ++i) ids[i] = mix({(begin + i) % row_count});
  }
  MOTLEY_TRY(seconds_over_loopback(*client, all, gradients));
  MOTLEY_TRY(seconds_in_process(*table, all, gradients));

  std::vector<double> loopback;
  std::vector<double> in_process;
  Random random(1);
  for (int round = 0; round < rounds; ++round) {
    Batches batches(batches_in_round, std::vector<std::uint64_t>(kBatch));
    for (auto& ids : batches) {
      for (auto& id : ids) id = mix({random.below(row_count)});
    }
    for (int turn = 0; turn < 2; ++turn) {
      if (turn == round % 2) {
        MOTLEY_ASSIGN(const double seconds, seconds_over_loopback(*client, batches, gradients));
        loopback.push_back(seconds);
      } else {
        MOTLEY_ASSIGN(const double seconds, seconds_in_process(*table, batches, gradients));
        in_process.push_back(seconds);
      }
    }
  }
  const double operations = 2.0 * static_cast<double>(batches_in_round * kBatch);
  const double value = operations / median(loopback) / 1e6;
  const double limit = operations / median(in_process) / 1e6;
  if (options.progress) {
    options.progress(fmt::format("sparse-loopback {:.2f} million rows a second, in this process {:.2f}", value, limit));
  }
  return std::vector<BenchRow>{
      {"sparse-loopback",
       "million_rows_per_second",
       value,
       "M/s",
       true,
       {},
       limit,
       {},
       fmt::format("one rank pulls and pushes {} uniformly random rows a step over TCP, {} rows of {} floats with "
                   "row-wise Adagrad, server and rank share the processors; limit: the same calls on a table in the "
                   "process, one thread",
                   kBatch, row_count, kDimension)}};
}

}  // namespace motley::bench
