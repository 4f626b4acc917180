// Rank 0 reads the commands and hands them to the others through the group.
#include "bench/exchange_worker.h"

#include <poll.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <sstream>

#include "motley/collective/gradient_reducer.h"
#include "motley/train/launch/server_placement.h"
#include "motley/train/sync/choose_method.h"

namespace motley::bench {
namespace {

constexpr double kLearningRate = 1e-4;
constexpr double kSeconds = 60;        // for one command
constexpr double kIdleSeconds = 3600;  // between two commands
constexpr std::uint32_t kStreamPurpose = 0x7000;
constexpr std::size_t kStreamFrame = 256 << 10;

enum class Command : std::int64_t { kEnd, kRound, kStream };
struct Order {
  Command command = Command::kEnd;
  std::int64_t first = 0;
  std::int64_t second = 0;
  std::int64_t third = 0;
};

Order read_order() {
  std::string line;
  std::string word;
  Order order;
  std::getline(std::cin, line);
  std::istringstream words(line);
  words >> word >> order.first >> order.second >> order.third;
  order.command = word == "round" ? Command::kRound : word == "stream" ? Command::kStream : Command::kEnd;
  return order;
}

// Seconds of `count` reductions. As in training, each rank has just written its values; that is not counted, but where
// they then are in the caches is. With a group all ranks begin at once.
Result<double> reduce(const net::Membership& members, collective::Group* barrier_group,
                      collective::GradientReducer& reducer, int bucket, std::int64_t count, std::uint64_t& step) {
  const Deadline deadline = Deadline::after(kSeconds);
  const auto bytes = reducer.buffer(bucket);
  const std::span<float> values(reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float));
  const float expected = static_cast<float>(members.size() + 1) / 2;
  double seconds = 0;
  for (std::int64_t round = 0; round < count; ++round) {
    std::ranges::fill(values, static_cast<float>(members.rank + 1));
    if (barrier_group != nullptr) MOTLEY_TRY(barrier_group->barrier(deadline));
    const double began = monotonic_seconds();
    MOTLEY_TRY(reducer.start(++step, bucket, 32));
    MOTLEY_TRY(reducer.wait(bucket, deadline));
    seconds += monotonic_seconds() - began;
    if (values.front() != expected || values.back() != expected) {
      return fail(ErrorCode::kInternal, "the mean is {} and {}, not {}", values.front(), values.back(), expected);
    }
  }
  return seconds;
}

// Whole steps over all buckets: servers update the weights, or each rank its own, in one pass over memory.
class Stepper {
 public:
  Stepper(const net::Membership& members, collective::Group& group, collective::GradientReducer& reducer,
          ps::ServerOptimizer* server, const collective::Layout& layout, const ps::ServerOptions& how)
      : members_(members),
        group_(group),
        reducer_(reducer),
        server_(server),
        buckets_(static_cast<int>(layout.bucket_elements.size())),
        wire_(how.wire),
        update_(how.update) {
    update_.learning_rate = kLearningRate;
    for (const std::size_t elements : layout.bucket_elements) {
      if (server != nullptr) break;
      weights_.emplace_back(elements);
      momentum_.emplace_back(elements);
    }
  }

  // Seconds of `count` steps, each after a sleep that stands for computation and counts. All ranks begin at once and
  // go on at once, so that none counts the time in which others write their values on the processor that it needs.
  Result<double> steps(std::int64_t count, double compute_seconds) {
    const Deadline deadline = Deadline::after(kSeconds);
    double seconds = 0;
    for (std::int64_t round = 0; round < count; ++round) {
      for (int bucket = 0; bucket < buckets_; ++bucket) {
        std::ranges::fill(gradient(bucket), static_cast<float>(members_.rank + 1));
      }
      MOTLEY_TRY(group_.barrier(deadline));
      const double began = monotonic_seconds();
      if (compute_seconds > 0) SteadyClock::instance().sleep_until(began + compute_seconds);
      ++step_;
      for (int bucket = 0; bucket < buckets_; ++bucket) MOTLEY_TRY(reducer_.start(step_, bucket, 32));
      for (int bucket = 0; bucket < buckets_; ++bucket) {
        MOTLEY_TRY(reducer_.wait(bucket, deadline));
        if (server_ == nullptr) update(bucket);
      }
      seconds += monotonic_seconds() - began;
      MOTLEY_TRY(group_.barrier(deadline));
    }
    MOTLEY_TRY(check());
    return seconds;
  }

 private:
  std::span<float> gradient(int bucket) {
    const auto bytes = reducer_.buffer(bucket);
    return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
  }
  std::span<const float> weights(int bucket) {
    return server_ != nullptr ? server_->weights(bucket) : weights_[static_cast<std::size_t>(bucket)];
  }
  void update(int bucket) {
    const kernels::WireInput input{gradient(bucket).data(), kernels::WireFormat::kFloat32};
    const float one = 1;
    float* const state = momentum_[static_cast<std::size_t>(bucket)].data();
    update_.step = step_;
    kernels::fused_update({&input, 1}, {&one, 1}, 1, update_, weights_[static_cast<std::size_t>(bucket)].data(), &state,
                          nullptr, kernels::WireFormat::kFloat32, gradient(bucket).size());
  }
  // Weights after that many steps of momentum 0.9 on the constant mean gradient. Those of top-k are late by many steps.
  Status check() {
    if (wire_ == collective::WireType::kTopK) return {};
    double momentum = 0;
    double weight = 0;
    for (std::uint64_t step = 0; step < step_; ++step) {
      momentum = 0.9 * momentum + (members_.size() + 1) / 2.0;
      weight -= kLearningRate * momentum;
    }
    for (int bucket = 0; bucket < buckets_; ++bucket) {
      for (const float value : {weights(bucket).front(), weights(bucket).back()}) {
        if (std::abs(value - weight) > 0.02 * std::abs(weight)) {
          return fail(ErrorCode::kInternal, "a weight of bucket {} is {}, not {}", bucket, value, weight);
        }
      }
    }
    return {};
  }

  const net::Membership& members_;
  collective::Group& group_;
  collective::GradientReducer& reducer_;
  ps::ServerOptimizer* const server_;  // where servers take the step
  const int buckets_;
  const collective::WireType wire_;
  kernels::UpdateOptions update_;
  std::vector<std::vector<float>> weights_;  // of ranks that move their own
  std::vector<std::vector<float>> momentum_;
  std::uint64_t step_ = 0;
};

// Where the bytes of a plain stream are read and written: frames go round in each. Of the size of one frame, nothing
// but the sockets and links is measured; of a model's size, memory as well, as where a model is sent.
struct StreamBuffers {
  std::vector<std::byte> out;
  std::vector<std::byte> in;
  void resize(std::size_t bytes) {
    out.assign(std::max(bytes, kStreamFrame), std::byte{1});
    in.assign(out.size(), std::byte{0});
  }
};

Status stream(net::Connection& right, net::Connection& left, StreamBuffers& buffers, std::size_t bytes) {
  const Deadline deadline = Deadline::after(kSeconds);
  const auto next = [](std::vector<std::byte>& buffer, std::size_t& at, std::size_t rest) {
    if (at + kStreamFrame > buffer.size()) at = 0;
    at += kStreamFrame;
    return std::span(buffer).subspan(at - kStreamFrame, std::min(rest, kStreamFrame));
  };
  std::size_t sent = 0;
  std::size_t received = 0;
  std::size_t to_send = bytes;
  std::size_t to_receive = bytes;
  while (to_send > 0 || to_receive > 0 || right.pending_sends() > 0 || left.pending_receives() > 0) {
    if (to_send > 0 && right.pending_sends() < 4) {
      const auto part = next(buffers.out, sent, to_send);
      right.post_send(1, 0, part);
      to_send -= part.size();
    }
    if (to_receive > 0 && left.pending_receives() < 4) {
      const auto part = next(buffers.in, received, to_receive);
      left.post_receive(1, 0, part);
      to_receive -= part.size();
    }
    MOTLEY_ASSIGN(const bool right_moved, right.progress());
    bool moved = right_moved;
    if (&left != &right) {
      MOTLEY_ASSIGN(const bool left_moved, left.progress());
      moved = moved || left_moved;
    }
    if (moved) continue;
    if (deadline.passed()) return fail(ErrorCode::kTimeout, "the plain stream took longer than {} s", kSeconds);
    pollfd descriptors[] = {{right.descriptor(), static_cast<short>(right.wants_to_write() ? POLLOUT : 0), 0},
                            {left.descriptor(), POLLIN, 0}};
    ::poll(descriptors, 2, 100);
  }
  return {};
}

// A method as it is named on the command line.
struct BenchMethod {
  const char* name;
  collective::Method method;
  collective::WireType wire = collective::WireType::kNative;
  bool whole_steps = false;           // a round is a step over all buckets, with the weights' update
  bool ranks_begin_together = false;  // a round begins with a barrier (whole steps always do)
  bool servers_share_memory = true;
  bool servers_beside_ranks = false;
};
constexpr BenchMethod kMethods[] = {
    {.name = "shared-memory", .method = collective::Method::kSharedMemory},
    {.name = "shared-memory-step", .method = collective::Method::kSharedMemory, .whole_steps = true},
    {.name = "tcp-ring", .method = collective::Method::kTcpRing},
    {.name = "tcp-ring-barrier", .method = collective::Method::kTcpRing, .ranks_begin_together = true},
    {.name = "tcp-ring-step", .method = collective::Method::kTcpRing, .whole_steps = true},
    {.name = "tcp-ring-bfloat16-step",
     .method = collective::Method::kTcpRing,
     .wire = collective::WireType::kBfloat16,
     .whole_steps = true},
    {.name = "ps-memory", .method = collective::Method::kParameterServer, .whole_steps = true},
    {.name = "ps-tcp",
     .method = collective::Method::kParameterServer,
     .whole_steps = true,
     .servers_share_memory = false},
    {.name = "ps-tcp-bfloat16",
     .method = collective::Method::kParameterServer,
     .wire = collective::WireType::kBfloat16,
     .whole_steps = true,
     .servers_share_memory = false},
    {.name = "ps-tcp-int8",
     .method = collective::Method::kParameterServer,
     .wire = collective::WireType::kInt8,
     .whole_steps = true,
     .servers_share_memory = false},
    {.name = "ps-tcp-top-k",
     .method = collective::Method::kParameterServer,
     .wire = collective::WireType::kTopK,
     .whole_steps = true,
     .servers_share_memory = false},
    {.name = "ps-colocated",
     .method = collective::Method::kParameterServer,
     .whole_steps = true,
     .servers_beside_ranks = true},
    {.name = "auto", .method = collective::Method::kAuto, .whole_steps = true},
    {.name = "auto-bfloat16",
     .method = collective::Method::kAuto,
     .wire = collective::WireType::kBfloat16,
     .whole_steps = true},
};

Result<BenchMethod> find_method(const std::string& name) {
  const auto* const found =
      std::ranges::find(kMethods, name, [](const BenchMethod& one) { return std::string(one.name); });
  if (found != std::end(kMethods)) return *found;
  std::vector<std::string> names;
  for (const BenchMethod& one : kMethods) names.emplace_back(one.name);
  return fail(ErrorCode::kInvalidInput, "METHOD: '{}'; accepted: {}", name, fmt::join(names, ", "));
}

std::vector<std::string> split_at_commas(const char* text) {
  std::vector<std::string> parts;
  std::istringstream rest(text);
  for (std::string part; std::getline(rest, part, ',');) parts.push_back(part);
  return parts;
}

Result<net::Secret> read_secret() {
  return net::Secret::from_text(std::getenv("MOTLEY_BENCH_SECRET"), "the bench's secret");
}

// RANK SIZE HOST:PORT METHOD BYTES [BIND-HOST]
Result<std::unique_ptr<net::Session>> join(const std::vector<std::string>& arguments) {
  net::SessionOptions options;
  const char* name = std::getenv("MOTLEY_BENCH_JOB");
  options.job = name == nullptr ? "bench" : name;
  options.rank = std::stoi(arguments[0]);
  options.size = std::stoi(arguments[1]);
  MOTLEY_ASSIGN(options.rendezvous, net::parse_endpoint(arguments[2]));
  options.payload_checksum = false;  // the peer has none either
  MOTLEY_ASSIGN(options.encryption, net::encryption_from_environment());
  if (arguments.size() > 5) {
    options.bind_host = arguments[5];
    options.given_secret = true;
  }
  options.publish = [](const net::Endpoint& endpoint) {
    std::printf("%s:%d\n", endpoint.host.c_str(), static_cast<int>(endpoint.port));
    std::fflush(stdout);
    return Status{};
  };
  MOTLEY_ASSIGN(const auto secret, read_secret());
  return net::Session::join(options, secret);
}

// How a method reduces, with the servers that the environment names, if there are any yet.
Result<ps::ServerOptions> make_options(const BenchMethod& method) {
  ps::ServerOptions how;
  how.method = method.method;
  how.wire = method.wire;
  how.update = {.rule = kernels::UpdateRule::kMomentum, .momentum = 0.9};
  if (how.wire == collective::WireType::kTopK) how.update = {.rule = kernels::UpdateRule::kSgd};  // what top-k is for
  if (method.method != collective::Method::kParameterServer && method.method != collective::Method::kAuto) return how;
  how.servers_share_memory = method.servers_share_memory;
  how.background_progress = false;  // there is nothing to compute meanwhile
  if (method.servers_beside_ranks) return how;
  MOTLEY_ASSIGN(const auto token, net::Secret::from_file("", net::kTokenFileVariable));
  for (const std::string& server : split_at_commas(std::getenv("MOTLEY_SERVERS"))) {
    MOTLEY_ASSIGN(const auto endpoint, net::parse_endpoint(server));
    how.servers.push_back({endpoint, token});
  }
  if (const char* racks = std::getenv("MOTLEY_BENCH_RACKS")) {
    for (const std::string& rack : split_at_commas(racks)) how.rank_racks.push_back(std::stoi(rack));
  }
  if (const char* chunk = std::getenv("MOTLEY_BENCH_CHUNK")) how.chunk_bytes = std::stoull(chunk);
  return how;
}

// Sends and receives plain bytes between neighbours of the ring of ranks.
class Streamer {
 public:
  explicit Streamer(net::Session& session) : session_(session) {
    const auto& members = session.membership();
    right_rank_ = (members.rank + 1) % members.size();
    left_rank_ = (members.rank + members.size() - 1) % members.size();
  }

  // Memory of so many bytes on either side; connections where there are none yet.
  Status prepare(std::size_t buffer_bytes) {
    buffers_.resize(buffer_bytes);
    if (right_) return {};
    // In the order of pairs, as the ring does: the pair (0, size - 1) comes before all but (0, 1).
    const Deadline deadline = Deadline::after(kSeconds);
    for (int peer : {std::min(left_rank_, right_rank_), std::max(left_rank_, right_rank_)}) {
      auto& connection = peer == right_rank_ ? right_ : left_;
      if (connection) continue;
      MOTLEY_ASSIGN(connection, session_.connect(peer, kStreamPurpose, deadline));
    }
    return {};
  }

  Result<double> run(std::size_t bytes) {
    const double began = monotonic_seconds();
    MOTLEY_TRY(stream(*right_, left_ ? *left_ : *right_, buffers_, bytes));
    return monotonic_seconds() - began;
  }

 private:
  net::Session& session_;
  int right_rank_ = 0;
  int left_rank_ = 0;
  std::unique_ptr<net::Connection> right_;
  std::unique_ptr<net::Connection> left_;  // none where both neighbours are one rank
  StreamBuffers buffers_;
};

// The rounds of one method: of whole steps, or of reductions of one bucket.
class Rounds {
 public:
  // After a first run of each, so that memory is mapped and connections are there.
  static Result<Rounds> prepare(const BenchMethod& method, const collective::Layout& layout,
                                const ps::ServerOptions& how, const net::Membership& members, collective::Group& group,
                                const train::SyncMethod& sync) {
    collective::GradientReducer& reducer = *sync.reducer;
    Rounds rounds(members, method.ranks_begin_together ? &group : nullptr, reducer);
    if (sync.server_optimizer != nullptr) {
      ps::ServerState zeros;
      for (const std::size_t elements : layout.bucket_elements) zeros.weights.emplace_back(elements);
      MOTLEY_TRY(sync.server_optimizer->load(zeros, Deadline::after(kSeconds)));
      sync.server_optimizer->set_learning_rate(kLearningRate);
    }
    if (method.whole_steps) {
      rounds.stepper_ = std::make_unique<Stepper>(members, group, reducer, sync.server_optimizer, layout, how);
      MOTLEY_TRY(rounds.stepper_->steps(2, 0));
      return rounds;
    }
    for (int bucket = 0; bucket < static_cast<int>(layout.bucket_elements.size()); ++bucket) {
      MOTLEY_TRY(reduce(members, rounds.barrier_group_, reducer, bucket, 2, rounds.step_));
    }
    return rounds;
  }

  // Seconds of one of `count` rounds.
  Result<double> run(int bucket, std::int64_t count, double compute_seconds) {
    double seconds = 0;
    if (stepper_) {
      MOTLEY_ASSIGN(seconds, stepper_->steps(count, compute_seconds));
    } else {
      MOTLEY_ASSIGN(seconds, reduce(members_, barrier_group_, reducer_, bucket, count, step_));
    }
    return seconds / static_cast<double>(count);
  }

 private:
  Rounds(const net::Membership& members, collective::Group* barrier_group, collective::GradientReducer& reducer)
      : members_(members), barrier_group_(barrier_group), reducer_(reducer) {}

  const net::Membership& members_;
  collective::Group* barrier_group_;
  collective::GradientReducer& reducer_;
  std::unique_ptr<Stepper> stepper_;  // of whole steps
  std::uint64_t step_ = 0;
};

// Does what rank 0 reads until it reads the end.
Status obey(const net::Session& session, collective::Group& group, Rounds& rounds, Streamer& streamer) {
  const bool reads = session.membership().rank == 0;
  for (;;) {
    Order order;
    if (reads) order = read_order();
    MOTLEY_TRY(group.broadcast(std::as_writable_bytes(std::span(&order, 1)), 0, Deadline::after(kIdleSeconds)));
    if (order.command == Command::kEnd) return {};
    if (order.command == Command::kStream) MOTLEY_TRY(streamer.prepare(static_cast<std::size_t>(order.second)));
    MOTLEY_TRY(group.barrier(Deadline::after(kSeconds)));
    double seconds = 0;
    if (order.command == Command::kRound) {
      MOTLEY_ASSIGN(seconds,
                    rounds.run(static_cast<int>(order.first), order.second, static_cast<double>(order.third) * 1e-3));
    } else {
      MOTLEY_ASSIGN(seconds, streamer.run(static_cast<std::size_t>(order.first)));
    }
    MOTLEY_ASSIGN(const auto all, group.all_gather(std::span(&seconds, 1), Deadline::after(kSeconds)));
    if (reads) std::cout << *std::ranges::max_element(all) << std::endl;
  }
}

Status work(const std::vector<std::string>& arguments) {
  if (arguments.size() < 5) return fail(ErrorCode::kInvalidInput, "exchange-worker: five arguments are needed");
  MOTLEY_ASSIGN(const BenchMethod method, find_method(arguments[3]));
  MOTLEY_ASSIGN(const auto session, join(arguments));
  MOTLEY_ASSIGN(const auto group, collective::make_group(*session));
  MOTLEY_ASSIGN(ps::ServerOptions how, make_options(method));
  collective::Layout layout;
  for (const std::string& size : split_at_commas(arguments[4].c_str())) {
    layout.bucket_elements.push_back(std::stoull(size) / sizeof(float));
  }
  std::unique_ptr<ps::Service> own_server;
  if (method.servers_beside_ranks) {
    MOTLEY_ASSIGN(const auto secret, read_secret());
    MOTLEY_ASSIGN(own_server,
                  train::start_beside_workers(1, *session, *group, secret, Deadline::after(kSeconds), how.servers));
  }
  if (how.method == collective::Method::kAuto) {
    MOTLEY_ASSIGN(const train::MethodChoice choice,
                  train::measure_and_choose(*session, *group, how, layout, Deadline::after(kSeconds)));
    how.method = choice.method;
  }
  MOTLEY_ASSIGN(const auto sync, train::make_reducer(*session, how));
  MOTLEY_TRY(sync.reducer->prepare(layout, Deadline::after(kSeconds)));
  Streamer streamer(*session);
  MOTLEY_ASSIGN(Rounds rounds, Rounds::prepare(method, layout, how, session->membership(), *group, sync));
  if (session->membership().rank == 0) std::cout << "ready " << sync.reducer->name() << std::endl;
  MOTLEY_TRY(obey(*session, *group, rounds, streamer));
  session->leave();
  return {};
}

}  // namespace

int exchange_worker_main(const std::vector<std::string>& arguments) {
  const Status done = work(arguments);
  if (!done) std::fprintf(stderr, "exchange-worker: %s\n", done.error().message.c_str());
  return done ? 0 : 1;
}

}  // namespace motley::bench
