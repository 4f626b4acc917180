// A job with sparse tables in real processes: two servers and two ranks train a logistic regression; a server is killed
// in the middle; ranks and servers start again from the last checkpoint, on three servers. Every sample must then have
// been used once, and the weights must be those of one process that did it all in double precision.
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <fstream>
#include <map>
#include <thread>

#include "motley/base/os/file.h"
#include "motley/base/random.h"
#include "motley/data/local/ledger.h"
#include "motley/net/socket.h"
#include "motley/ps/client/sparse_client.h"
#include "motley/ps/service/service.h"
#include "tests/collective/ranks.h"
#include "tests/ps/embedding/sparse_support.h"

namespace motley::ps {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr std::uint32_t kSamples = 1200;
constexpr std::uint32_t kBatch = 40;
constexpr std::int64_t kSteps = kSamples / kBatch;
constexpr std::int64_t kStepsBetweenCheckpoints = 4;
constexpr std::array<std::uint32_t, 2> kShares = {25, 15};
constexpr float kRate = 0.5F;
constexpr std::size_t kFeatures = 3;
constexpr int kExitWithError = 3;

// Feature f of a sample as an id; some are frequent. The label follows from hidden weights.
Ids convert_features(std::uint32_t sample) {
  Ids ids;
  for (std::uint64_t f = 0; f < kFeatures; ++f) {
    Random random(mix({sample, f}));
    ids.push_back(mix({f, random.below(f == 0 ? 10 : 150)}));
  }
  return ids;
}
double make_label(std::uint32_t sample) {
  double sum = 0;
  for (const std::uint64_t id : convert_features(sample)) sum += Random(id).normal();
  return sum > 0 ? 1 : 0;
}
Ids every_id() {
  Ids ids;
  for (std::uint32_t sample = 0; sample < kSamples; ++sample) {
    for (const std::uint64_t id : convert_features(sample)) ids.push_back(id);
  }
  std::ranges::sort(ids);
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}
double compute_error(double sum, double label) {
  return 1 / (1 + std::exp(-sum)) - label;
}

SparseTableOptions table() {
  SparseTableOptions table;
  table.name = "weights";
  table.dimension = 1;
  table.initializer = {RowInitializer::Kind::kUniform, 0.1F, 5};
  table.optimizer.kind = RowOptimizer::Kind::kSgd;
  table.optimizer.learning_rate = kRate;
  return table;
}

// What a rank knows of the run: what the last whole checkpoint holds.
struct Checkpoint {
  std::int64_t step = 0;
  int written_by = 0;
  data::LedgerState ledger = {.seed = 11, .size = kSamples};
};
Status save(const fs::path& folder, const Checkpoint& checkpoint) {
  return write_file(folder / "checkpoint",
                    fmt::format("{} {} {}", checkpoint.step, checkpoint.written_by, checkpoint.ledger.cursor));
}
Checkpoint load(const fs::path& folder) {
  Checkpoint checkpoint;
  if (const auto text = read_file(folder / "checkpoint")) {
    long step = 0;
    EXPECT_EQ(std::sscanf(text->c_str(), "%ld %d %u", &step, &checkpoint.written_by, &checkpoint.ledger.cursor), 3);
    checkpoint.step = step;
  }
  return checkpoint;
}
fs::path counts_file(const fs::path& folder, int rank, std::int64_t step) {
  return folder / fmt::format("counts-{}-{}", rank, step);
}

Status train(const fs::path& folder, net::Session& session, const std::vector<ServerAddress>& servers) {
  const int rank = session.membership().rank;
  Checkpoint checkpoint = load(folder);
  MOTLEY_ASSIGN(data::Ledger ledger, data::Ledger::open(checkpoint.ledger));
  data::UseCounts counts(kSamples, 0);
  if (checkpoint.step > 0) {
    MOTLEY_ASSIGN(const std::string saved, read_file(counts_file(folder, rank, checkpoint.step)));
    MOTLEY_ASSIGN(counts, data::UseCounts::parse(saved));
  }
  SparseClientOptions options;
  options.servers = servers;
  options.tables = {table()};
  options.step = checkpoint.step;
  options.written_by = checkpoint.written_by;
  MOTLEY_ASSIGN(const auto client, SparseClient::open(session, options, Deadline::after(60)));
  for (std::int64_t step = checkpoint.step + 1; step <= kSteps; ++step) {
    const data::Range window = ledger.next(kBatch);
    const auto samples = ledger.samples(data::rank_range(window, kShares, rank));
    Ids ids;
    for (const std::uint32_t sample : samples) {
      for (const std::uint64_t id : convert_features(sample)) ids.push_back(id);
    }
    Floats weights(ids.size());
    MOTLEY_TRY(client->pull(0, ids, weights, Deadline::after(60)));
    Floats gradients(ids.size());
    for (std::size_t i = 0; i < samples.size(); ++i) {
      double sum = 0;
      for (std::size_t f = 0; f < kFeatures; ++f) sum += weights[i * kFeatures + f];
      const double error = compute_error(sum, make_label(samples[i])) / static_cast<double>(samples.size());
      std::fill_n(&gradients[i * kFeatures], kFeatures, static_cast<float>(error));
    }
    counts.record(samples);
    const auto weight = static_cast<double>(samples.size());
    MOTLEY_TRY(client->push(0, ids, gradients, weight));
    const bool saves = step % kStepsBetweenCheckpoints == 0 || step == kSteps;
    if (saves) {
      MOTLEY_TRY(write_file(counts_file(folder, rank, step), counts.serialise()));
    }
    MOTLEY_TRY(client->finish_step(weight, Deadline::after(60)));
    MOTLEY_TRY(ledger.commit(window));
    if (rank == 0 && saves && step < kSteps) {
      // Once the servers have written it, all ranks have finished the step, and so have written their counts.
      MOTLEY_TRY(client->start_checkpoint());
      MOTLEY_TRY(client->wait_for_checkpoint(Deadline::after(60)));
      MOTLEY_TRY(save(folder, {step, static_cast<int>(servers.size()), ledger.state()}));
    }
    if (rank == 0) std::ofstream(folder / "progress") << step << "\n";
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  Floats weights(every_id().size());
  MOTLEY_TRY(client->pull(0, every_id(), weights, Deadline::after(60)));
  return rank != 0 ? Status()
                   : write_file(folder / "weights",
                                {reinterpret_cast<const char*>(weights.data()), weights.size() * sizeof(float)});
}

class SparseJobOfProcesses : public testing::Test {
 protected:
  ~SparseJobOfProcesses() override {
    for (const pid_t process : processes_) {
      ::kill(process, SIGKILL);
      ::waitpid(process, nullptr, 0);
    }
  }

  template <class Body>
  pid_t start(Body body) {
    std::fflush(nullptr);
    const pid_t process = ::fork();
    if (process == 0) {
      const Status done = body();
      if (!done) std::fprintf(stderr, "%s\n", done.error().message.c_str());
      std::_Exit(done ? 0 : kExitWithError);
    }
    processes_.push_back(process);
    return process;
  }
  // How it ended, as waitpid says.
  int wait_for(pid_t process) {
    int end = -1;
    ::waitpid(process, &end, 0);
    std::erase(processes_, process);
    return end;
  }

  void add_server() {
    const fs::path address = folder.path / fmt::format("address-{}", ++servers_started_);
    server_processes.push_back(start([&]() -> Status {
      ServiceOptions options;
      options.cores = 1;
      options.tables = folder.path / "tables";
      MOTLEY_ASSIGN(const auto service, Service::start(options, token));
      MOTLEY_TRY(write_file(address, net::to_string(service->endpoint())));
      for (;;) ::pause();
    }));
    const Deadline deadline = Deadline::after(20);
    while (!fs::exists(address) && !deadline.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    servers.push_back({net::parse_endpoint(read_file(address).value()).value(), token});
  }

  std::vector<pid_t> start_ranks(const char* run) {
    const auto secret = net::Secret::generate();
    net::SessionOptions options;
    options.size = 2;
    const collective::RendezvousPort port;
    std::vector<pid_t> ranks;
    for (options.rank = 0; options.rank < options.size; ++options.rank) {
      ranks.push_back(start([&]() -> Status {
        port.use_in(options);
        MOTLEY_ASSIGN(const auto session, net::Session::join(options, secret));
        const Status done = train(folder.path, *session, servers);
        if (done) {
          session->leave();
          return {};
        }
        static_cast<void>(
            write_file(folder.path / fmt::format("error-{}-{}", run, options.rank), done.error().message));
        session->abort(done.error());
        return fail(done.error());
      }));
    }
    return ranks;
  }

  std::int64_t progress() const {
    std::int64_t step = 0;
    std::ifstream(folder.path / "progress") >> step;
    return step;
  }

  TemporaryFolder folder;
  const net::Secret token = net::Secret::generate();
  std::vector<ServerAddress> servers;
  std::vector<pid_t> server_processes;

 private:
  std::vector<pid_t> processes_;
  int servers_started_ = 0;
};

TEST_F(SparseJobOfProcesses, GoesOnAfterAServerWasKilledAsIfNothingHadHappened) {
  add_server();
  add_server();
  const auto ranks = start_ranks("first");
  const Deadline deadline = Deadline::after(60);
  while (progress() < 2 * kStepsBetweenCheckpoints + 1) {
    ASSERT_FALSE(deadline.passed());
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  ::kill(server_processes[1], SIGKILL);
  wait_for(server_processes[1]);
  for (const pid_t rank : ranks) {
    const int end = wait_for(rank);
    ASSERT_TRUE(WIFEXITED(end));
    ASSERT_EQ(WEXITSTATUS(end), kExitWithError);
  }
  std::string errors;
  for (const int rank : {0, 1}) {
    errors += read_file(folder.path / fmt::format("error-first-{}", rank)).value_or("") + "\n";
  }
  EXPECT_THAT(errors, HasSubstr(net::to_string(servers[1].endpoint) + " was lost"));
  const Checkpoint from = load(folder.path);
  EXPECT_GE(from.step, 2 * kStepsBetweenCheckpoints);
  EXPECT_LT(from.step, kSteps);
  EXPECT_EQ(from.written_by, 2);

  // The other server still runs; with it, two new ones go on.
  servers.pop_back();
  add_server();
  add_server();
  for (const pid_t rank : start_ranks("second")) {
    const int end = wait_for(rank);
    ASSERT_TRUE(WIFEXITED(end));
    ASSERT_EQ(WEXITSTATUS(end), 0);
  }

  std::map<std::uint64_t, double> reference;
  for (const std::uint64_t id : every_id()) {
    float value = 0;
    initialize_row(table().initializer, id, 1, {&value, 1});
    reference[id] = value;
  }
  auto ledger = data::Ledger::open({.seed = 11, .size = kSamples}).value();
  for (std::int64_t step = 1; step <= kSteps; ++step) {
    const data::Range window = ledger.next(kBatch);
    std::map<std::uint64_t, double> gradients;
    for (const std::uint32_t sample : ledger.samples(window)) {
      double sum = 0;
      for (const std::uint64_t id : convert_features(sample)) sum += reference[id];
      for (const std::uint64_t id : convert_features(sample))
        gradients[id] += compute_error(sum, make_label(sample)) / kBatch;
    }
    for (const auto& [id, gradient] : gradients) reference[id] -= kRate * gradient;
    ASSERT_TRUE(ledger.commit(window));
  }
  const std::string bytes = read_file(folder.path / "weights").value();
  Floats weights(reference.size());
  ASSERT_EQ(bytes.size(), weights.size() * sizeof(float));
  std::memcpy(weights.data(), bytes.data(), bytes.size());
  std::size_t at = 0;
  double moved = 0;
  for (const auto& [id, expected] : reference) {
    EXPECT_NEAR(weights[at++], expected, 1e-5);
    moved = std::max(moved, std::fabs(expected));
  }
  EXPECT_GT(moved, 0.3) << "the reference has learnt something";

  auto counts = data::UseCounts::parse(read_file(counts_file(folder.path, 0, kSteps)).value()).value();
  ASSERT_TRUE(counts.merge(data::UseCounts::parse(read_file(counts_file(folder.path, 1, kSteps)).value()).value()));
  EXPECT_EQ(counts.not_used_exactly_once(ledger.state()).value(), 0U);
}

}  // namespace
}  // namespace motley::ps
