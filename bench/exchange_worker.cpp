// Rank 0 reads the commands and hands them to the others through the group.
#include "bench/exchange_worker.h"

#include <poll.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <sstream>

#include "motley/collective/exchange.h"
#include "motley/collective/measure_methods.h"

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
Result<double> reduce(const net::Membership& members, collective::Group* meet, collective::Exchange& exchange,
                      int bucket, std::int64_t count, std::uint64_t& step) {
  const Deadline deadline = Deadline::after(kSeconds);
  const auto bytes = exchange.buffer(bucket);
  const std::span<float> values(reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float));
  const float expected = static_cast<float>(members.size() + 1) / 2;
  double seconds = 0;
  for (std::int64_t round = 0; round < count; ++round) {
    std::ranges::fill(values, static_cast<float>(members.rank + 1));
    if (meet != nullptr) MOTLEY_TRY(meet->barrier(deadline));
    const double began = monotonic_seconds();
    MOTLEY_TRY(exchange.start(++step, bucket, 32));
    MOTLEY_TRY(exchange.wait(bucket, deadline));
    seconds += monotonic_seconds() - began;
    if (values.front() != expected || values.back() != expected) {
      return fail(ErrorCode::kInternal, "the mean is {} and {}, not {}", values.front(), values.back(), expected);
    }
  }
  return seconds;
}

// Whole steps over all buckets: a server moves the weights, or each rank its own, in one pass over memory.
class Stepper {
 public:
  Stepper(const net::Membership& members, collective::Group& group, collective::Exchange& exchange,
          const collective::Layout& layout, const collective::ExchangeOptions& how)
      : members_(members),
        group_(group),
        exchange_(exchange),
        buckets_(static_cast<int>(layout.bucket_elements.size())),
        wire_(how.wire),
        update_(how.update) {
    update_.learning_rate = kLearningRate;
    for (const std::size_t elements : layout.bucket_elements) {
      if (exchange.updates_weights()) break;
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
      for (int bucket = 0; bucket < buckets_; ++bucket) MOTLEY_TRY(exchange_.start(step_, bucket, 32));
      for (int bucket = 0; bucket < buckets_; ++bucket) {
        MOTLEY_TRY(exchange_.wait(bucket, deadline));
        if (!exchange_.updates_weights()) update(bucket);
      }
      seconds += monotonic_seconds() - began;
      MOTLEY_TRY(group_.barrier(deadline));
    }
    MOTLEY_TRY(check());
    return seconds;
  }

 private:
  std::span<float> gradient(int bucket) {
    const auto bytes = exchange_.buffer(bucket);
    return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
  }
  std::span<const float> weights(int bucket) {
    return exchange_.updates_weights() ? exchange_.weights(bucket) : weights_[static_cast<std::size_t>(bucket)];
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
  collective::Exchange& exchange_;
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

Status work(const std::vector<std::string>& arguments) {
  if (arguments.size() < 5) return fail(ErrorCode::kInvalidInput, "bench-worker exchange: five arguments are needed");
  net::SessionOptions options;
  const char* name = std::getenv("MOTLEY_BENCH_JOB");
  options.job = name == nullptr ? "bench" : name;
  options.rank = std::stoi(arguments[0]);
  options.size = std::stoi(arguments[1]);
  MOTLEY_ASSIGN(options.rendezvous, net::parse_endpoint(arguments[2]));
  options.payload_checksum = false;  // the peer has none either
  if (arguments.size() > 5) {
    options.bind_host = arguments[5];
    options.given_secret = true;
  }
  options.publish = [](const net::Endpoint& endpoint) {
    std::printf("%s:%d\n", endpoint.host.c_str(), static_cast<int>(endpoint.port));
    std::fflush(stdout);
    return Status{};
  };
  MOTLEY_ASSIGN(const auto secret, net::Secret::from_environment("MOTLEY_BENCH_SECRET"));
  MOTLEY_ASSIGN(const auto session, net::Session::join(options, secret));
  MOTLEY_ASSIGN(const auto group, collective::make_group(*session));
  const std::string& method = arguments[3];
  const bool served = method.starts_with("ps-");
  const bool chooses = method.starts_with("auto");
  const bool whole_steps = served || chooses || method.ends_with("-step");
  collective::ExchangeOptions how;
  how.method = chooses                          ? collective::Method::kAuto
               : served                         ? collective::Method::kParameterServer
               : method.starts_with("tcp-ring") ? collective::Method::kTcpRing
                                                : collective::Method::kSharedMemory;
  const auto wire = [&](const char* name) { return method.find(name) != std::string::npos; };
  how.wire = wire("bfloat16") ? collective::WireType::kBfloat16
             : wire("int8")   ? collective::WireType::kInt8
             : wire("top-k")  ? collective::WireType::kTopK
                              : collective::WireType::kNative;
  how.update = {.rule = kernels::UpdateRule::kMomentum, .momentum = 0.9};
  if (how.wire == collective::WireType::kTopK) how.update = {.rule = kernels::UpdateRule::kSgd};  // what top-k is for
  collective::Group* const meet = method.ends_with("-meet") ? group.get() : nullptr;
  if (served || chooses) {
    how.servers_share_memory = !method.starts_with("ps-tcp");
    how.background_progress = false;  // there is nothing to compute meanwhile
    MOTLEY_ASSIGN(const auto token, net::Secret::from_environment("MOTLEY_SERVER_TOKEN"));
    std::istringstream servers(std::getenv("MOTLEY_SERVERS"));
    for (std::string server; std::getline(servers, server, ',');) {
      MOTLEY_ASSIGN(const auto endpoint, net::parse_endpoint(server));
      how.servers.push_back({endpoint, token});
    }
    if (const char* racks = std::getenv("MOTLEY_BENCH_RACKS")) {
      std::istringstream numbers(racks);
      for (std::string rack; std::getline(numbers, rack, ',');) how.rack_of_rank.push_back(std::stoi(rack));
    }
    if (const char* chunk = std::getenv("MOTLEY_BENCH_CHUNK")) how.chunk_bytes = std::stoull(chunk);
  }
  collective::Layout layout;
  std::istringstream sizes(arguments[4]);
  for (std::string size; std::getline(sizes, size, ',');) layout.bucket_elements.push_back(std::stoull(size) / 4);
  if (chooses) {
    MOTLEY_ASSIGN(const collective::MethodChoice choice,
                  collective::measure_and_choose(*session, *group, how, layout, Deadline::after(kSeconds)));
    how.method = choice.method;
  }
  MOTLEY_ASSIGN(const auto exchange, collective::make_exchange(*session, how));
  MOTLEY_TRY(exchange->prepare(layout, Deadline::after(kSeconds)));
  std::uint64_t step = 0;
  const int buckets = static_cast<int>(layout.bucket_elements.size());
  std::optional<Stepper> stepper;
  if (exchange->updates_weights()) {
    collective::ServerState zeros;
    for (const std::size_t elements : layout.bucket_elements) zeros.weights.emplace_back(elements);
    MOTLEY_TRY(exchange->load(zeros, Deadline::after(kSeconds)));
    exchange->set_learning_rate(kLearningRate);
  }
  if (whole_steps) {
    stepper.emplace(session->membership(), *group, *exchange, layout, how);
    MOTLEY_TRY(stepper->steps(2, 0));
  }
  for (int bucket = 0; bucket < buckets && !whole_steps; ++bucket) {
    MOTLEY_TRY(reduce(session->membership(), meet, *exchange, bucket, 2, step));
  }

  const int right_rank = (options.rank + 1) % options.size;
  const int left_rank = (options.rank + options.size - 1) % options.size;
  std::unique_ptr<net::Connection> right;
  std::unique_ptr<net::Connection> left;
  StreamBuffers buffers;
  if (options.rank == 0) std::cout << "ready " << exchange->name() << std::endl;
  for (;;) {
    Order order;
    if (options.rank == 0) order = read_order();
    MOTLEY_TRY(group->broadcast(std::as_writable_bytes(std::span(&order, 1)), 0, Deadline::after(kIdleSeconds)));
    if (order.command == Command::kEnd) break;
    if (order.command == Command::kStream) buffers.resize(static_cast<std::size_t>(order.second));
    if (order.command == Command::kStream && !right) {
      // In the order of pairs, as the ring does: the pair (0, size - 1) comes before all but (0, 1).
      const Deadline deadline = Deadline::after(kSeconds);
      for (int peer : {std::min(left_rank, right_rank), std::max(left_rank, right_rank)}) {
        auto& connection = peer == right_rank ? right : left;
        if (connection) continue;
        MOTLEY_ASSIGN(connection, session->connect(peer, kStreamPurpose, deadline));
      }
    }
    MOTLEY_TRY(group->barrier(Deadline::after(kSeconds)));
    double seconds = 0;
    if (order.command == Command::kRound) {
      const int bucket = static_cast<int>(order.first);
      if (stepper) {
        MOTLEY_ASSIGN(seconds, stepper->steps(order.second, static_cast<double>(order.third) * 1e-3));
      } else {
        MOTLEY_ASSIGN(seconds, reduce(session->membership(), meet, *exchange, bucket, order.second, step));
      }
      seconds /= static_cast<double>(order.second);
    } else {
      const double began = monotonic_seconds();
      MOTLEY_TRY(stream(*right, left ? *left : *right, buffers, static_cast<std::size_t>(order.first)));
      seconds = monotonic_seconds() - began;
    }
    MOTLEY_ASSIGN(const auto all, group->all_gather(std::span(&seconds, 1), Deadline::after(kSeconds)));
    if (options.rank == 0) std::cout << *std::ranges::max_element(all) << std::endl;
  }
  session->leave();
  return {};
}

}  // namespace

int exchange_worker_main(const std::vector<std::string>& arguments) {
  const Status done = work(arguments);
  if (!done) std::fprintf(stderr, "bench-worker exchange: %s\n", done.error().message.c_str());
  return done ? 0 : 1;
}

}  // namespace motley::bench
