// Gloo's own collectives as a peer: all-reduce of float32 values among processes over loopback, one timed batch per
// line.
//
//   gloo_collectives RANKS BYTES ring-chunked|halving-doubling|allreduce
//
// The first two are Gloo's older classes, with -polling behind the name over pairs that poll in the calling thread
// instead of waiting for Gloo's own; the last is the function that PyTorch calls, a ring in segments.
//
// Each line "COUNT MILLISECONDS" on standard input runs COUNT rounds: a sleep of so many milliseconds, which stands for
// computation, then an all-reduce. The answer is the seconds per round of the slowest rank. All ranks begin a round at
// once. End of input ends the processes. Prints "ready" first.
#include <gloo/algorithm.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/transport/tcp/device.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr std::chrono::hours kIdle(1);  // between two commands
constexpr std::chrono::minutes kRound(2);

struct Command {
  std::int64_t count = 0;
  std::int64_t milliseconds = 0;
};

class Rank {
 public:
  Rank(int rank, int ranks, std::size_t bytes, const std::string& algorithm, const std::string& folder)
      : rank_(rank),
        context_(std::make_shared<gloo::rendezvous::Context>(rank, ranks)),
        values_(bytes / sizeof(float)) {
    gloo::transport::tcp::attr loopback;
    loopback.iface = "lo";
    gloo::rendezvous::FileStore store(folder);
    auto device = gloo::transport::tcp::CreateDevice(loopback);
    context_->setTimeout(kRound);
    context_->connectFullMesh(store, device);
    const std::vector<float*> pointers = {values_.data()};
    const int count = static_cast<int>(values_.size());
    auto pairs = context_;
    if (algorithm.ends_with("-polling")) {  // of its own: barriers and broadcasts go by Gloo's thread
      pairs = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
      gloo::rendezvous::PrefixStore apart("polling", store);
      pairs->setTimeout(kRound);
      pairs->connectFullMesh(apart, device);
      for (int peer = 0; peer < ranks; ++peer) {
        if (peer != rank) pairs->getPair(peer)->setSync(true, true);
      }
    }
    if (algorithm.starts_with("ring-chunked")) {
      algorithm_ = std::make_unique<gloo::AllreduceRingChunked<float>>(pairs, pointers, count);
    } else if (algorithm.starts_with("halving-doubling")) {
      algorithm_ = std::make_unique<gloo::AllreduceHalvingDoubling<float>>(pairs, pointers, count);
    }
    time_round(0);
  }

  void serve() {
    if (rank_ == 0) std::cout << "ready" << std::endl;
    for (;;) {
      const Command command = receive_command();
      if (command.count == 0) return;
      double total = 0;
      for (std::int64_t round = 0; round < command.count; ++round) total += time_round(command.milliseconds);
      const double seconds = slowest(total) / static_cast<double>(command.count);
      if (rank_ == 0) std::cout << seconds << std::endl;
    }
  }

 private:
  Command receive_command() {
    Command command;
    if (rank_ == 0) {
      std::string line;
      std::getline(std::cin, line);
      std::istringstream(line) >> command.count >> command.milliseconds;
    }
    gloo::BroadcastOptions options(context_);
    options.setOutput(reinterpret_cast<char*>(&command), sizeof(command));
    options.setRoot(0);
    options.setTimeout(kIdle);
    gloo::broadcast(options);
    return command;
  }

  double time_round(std::int64_t milliseconds) {
    std::ranges::fill(values_, static_cast<float>(rank_ + 1));  // as in training, just written; not counted
    gloo::BarrierOptions together(context_);
    gloo::barrier(together);
    const auto began = std::chrono::steady_clock::now();
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    if (algorithm_) {
      algorithm_->run();
    } else {
      gloo::AllreduceOptions options(context_);
      options.setOutput(values_.data(), values_.size());
      options.setReduceFunction(static_cast<void (*)(void*, const void*, const void*, std::size_t)>(&gloo::sum<float>));
      gloo::allreduce(options);
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  }

  double slowest(double seconds) {
    gloo::AllreduceOptions options(context_);
    options.setOutput(&seconds, 1);
    options.setReduceFunction(static_cast<void (*)(void*, const void*, const void*, std::size_t)>(&gloo::max<double>));
    gloo::allreduce(options);
    return seconds;
  }

  const int rank_;
  std::shared_ptr<gloo::rendezvous::Context> context_;
  std::vector<float> values_;
  std::unique_ptr<gloo::Algorithm> algorithm_;  // none: the function
};

}  // namespace

int main(int count, char** arguments) {
  if (count != 4) {
    std::fprintf(stderr, "gloo_collectives RANKS BYTES (ring-chunked|halving-doubling)[-polling]|allreduce\n");
    return 2;
  }
  const int ranks = std::atoi(arguments[1]);
  std::string folder = (std::filesystem::temp_directory_path() / "gloo-collectives-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) return 1;
  int rank = 0;
  for (int other = 1; other < ranks && rank == 0; ++other) {
    if (::fork() == 0) rank = other;
  }
  Rank(rank, ranks, std::strtoul(arguments[2], nullptr, 10), arguments[3], folder).serve();
  if (rank == 0) {
    while (::wait(nullptr) > 0) {
    }
    std::filesystem::remove_all(folder);
  }
}
