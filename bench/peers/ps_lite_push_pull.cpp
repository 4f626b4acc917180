// The parameter server of MXNet and BytePS (ps-lite) as a peer: workers push their gradients and pull what servers made
// of them over loopback, one timed batch per line.
//
//   ps_lite_push_pull WORKERS SERVERS BYTES
//
// As at its best: values go in keys of kKeyValues, spread evenly over the servers, each pushed and pulled by one
// request without copies (ZPushPull); a server answers when all workers have pushed a key, with the weights after a
// step of SGD with momentum. Each line "COUNT MILLISECONDS" on standard input runs COUNT rounds: a sleep of so many
// milliseconds, which stands for computation, then all keys. The answer is the seconds per round of the slowest worker.
// All workers begin a round at once. End of input ends the processes. Prints "ready" first.
#include <arpa/inet.h>
#include <ps/ps.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace {

constexpr std::size_t kKeyValues = 256 << 10;
constexpr float kLearningRate = 1e-4F;
constexpr float kMomentum = 0.9F;

struct Command {
  std::int64_t count = 0;
  std::int64_t milliseconds = 0;
};

template <class Value>
bool read_value(int from, Value& value) {
  return ::read(from, &value, sizeof(value)) == static_cast<ssize_t>(sizeof(value));
}
template <class Value>
void write_value(int to, const Value& value) {
  if (::write(to, &value, sizeof(value)) != static_cast<ssize_t>(sizeof(value))) std::_Exit(1);
}

struct Shard {
  std::vector<float> sum, momentum, weights;
  std::vector<ps::KVMeta> waiting;
};

void serve(int workers) {
  ps::Start(0);
  auto* const server = new ps::KVServer<float>(0);
  std::unordered_map<ps::Key, Shard> shards;
  server->set_request_handle([&](const ps::KVMeta& request, const ps::KVPairs<float>& data, ps::KVServer<float>*) {
    Shard& shard = shards[data.keys[0]];
    const float* const gradient = data.vals.data();
    const std::size_t count = data.vals.size();
    if (shard.weights.empty()) {
      shard.momentum.resize(count);
      shard.weights.resize(count);
    }
    if (shard.waiting.empty()) {
      shard.sum.assign(gradient, gradient + count);
    } else {
      for (std::size_t i = 0; i < count; ++i) shard.sum[i] += gradient[i];
    }
    shard.waiting.push_back(request);
    if (static_cast<int>(shard.waiting.size()) < workers) return;
    const float scale = 1.0F / static_cast<float>(workers);
    for (std::size_t i = 0; i < count; ++i) {
      shard.momentum[i] = kMomentum * shard.momentum[i] + scale * shard.sum[i];
      shard.weights[i] -= kLearningRate * shard.momentum[i];
    }
    ps::KVPairs<float> answer;
    answer.keys = data.keys;
    answer.lens = data.lens;
    answer.vals = ps::SArray<float>(shard.weights.data(), count);  // no copy: the next step needs this answer first
    for (const ps::KVMeta& of : shard.waiting) server->Response(of, answer);
    shard.waiting.clear();
  });
  ps::RegisterExitCallback([server] { delete server; });
  ps::Finalize(0, true);
}

// One worker; commands come in and seconds go out by pipes of the process that reads standard input.
class Worker {
 public:
  Worker(int workers, int servers, std::size_t bytes)
      : workers_(workers),
        gradients_(bytes / sizeof(float)),
        weights_(gradients_.size()),
        worker_(std::make_unique<ps::KVWorker<float>>(0, 0)) {
    const auto& ranges = ps::Postoffice::Get()->GetServerKeyRanges();
    for (std::size_t begin = 0; begin < gradients_.size(); begin += kKeyValues) {
      const std::size_t index = begin / kKeyValues, count = std::min(kKeyValues, gradients_.size() - begin);
      Part part;
      part.key = {ranges[index % static_cast<std::size_t>(servers)].begin() + index};
      part.length = {static_cast<int>(count)};
      part.gradient = ps::SArray<float>(gradients_.data() + begin, count);
      part.weights = ps::SArray<float>(weights_.data() + begin, count);
      parts_.push_back(std::move(part));
    }
    time_round(0);
  }

  void work(int commands, int answers) {
    write_value(answers, 0.0);
    for (Command command; read_value(commands, command) && command.count > 0;) {
      double seconds = 0;
      for (std::int64_t round = 0; round < command.count; ++round) seconds += time_round(command.milliseconds);
      write_value(answers, seconds / static_cast<double>(command.count));
    }
  }

 private:
  struct Part {
    ps::SArray<ps::Key> key;
    ps::SArray<int> length;
    ps::SArray<float> gradient, weights;
  };

  double time_round(std::int64_t milliseconds) {
    std::ranges::fill(gradients_, static_cast<float>(ps::MyRank() + 1));  // as in training, just written; not counted
    ps::Postoffice::Get()->Barrier(0, ps::kWorkerGroup);
    const auto began = std::chrono::steady_clock::now();
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    std::vector<int> requests;
    for (Part& part : parts_) {
      requests.push_back(worker_->ZPushPull(part.key, part.gradient, &part.weights, &part.length));
    }
    for (const int request : requests) worker_->Wait(request);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    momentum_ = kMomentum * momentum_ + static_cast<float>(workers_ + 1) / 2;
    weight_ -= kLearningRate * momentum_;
    for (const float value : {weights_.front(), weights_.back()}) {
      if (std::abs(value - weight_) <= 0.01F * std::abs(weight_)) continue;
      std::fprintf(stderr, "ps_lite_push_pull: a weight is %g, not %g\n", value, weight_);
      std::_Exit(1);
    }
    return seconds;
  }

  const int workers_;
  std::vector<float> gradients_, weights_;
  std::vector<Part> parts_;
  std::unique_ptr<ps::KVWorker<float>> worker_;
  float momentum_ = 0, weight_ = 0;  // that every value should have
};

// A port of loopback that is free now.
int free_port() {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  ::bind(listener, reinterpret_cast<sockaddr*>(&address), length);
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
  ::close(listener);
  return ntohs(address.sin_port);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 4) {
    std::fprintf(stderr, "ps_lite_push_pull WORKERS SERVERS BYTES\n");
    return 2;
  }
  const int workers = std::atoi(arguments[1]), servers = std::atoi(arguments[2]);
  const std::size_t bytes = std::strtoul(arguments[3], nullptr, 10);
  ::setenv("DMLC_NUM_WORKER", arguments[1], 1);
  ::setenv("DMLC_NUM_SERVER", arguments[2], 1);
  ::setenv("DMLC_PS_ROOT_URI", "127.0.0.1", 1);
  ::setenv("DMLC_INTERFACE", "lo", 1);
  ::setenv("DMLC_NODE_HOST", "127.0.0.1", 1);
  ::setenv("DMLC_PS_ROOT_PORT", std::to_string(free_port()).c_str(), 1);
  const auto start = [](const char* role, const auto& run) {
    if (::fork() != 0) return;
    ::setenv("DMLC_ROLE", role, 1);
    run();
    std::_Exit(0);
  };
  start("scheduler", [] {
    ps::Start(0);
    ps::Finalize(0, true);
  });
  for (int server = 0; server < servers; ++server) start("server", [&] { serve(workers); });
  std::vector<std::array<int, 2>> commands(static_cast<std::size_t>(workers)), answers(commands.size());
  for (std::size_t worker = 0; worker < commands.size(); ++worker) {
    if (::pipe(commands[worker].data()) != 0 || ::pipe(answers[worker].data()) != 0) return 1;
    start("worker", [&] {
      for (std::size_t other = 0; other <= worker; ++other) ::close(commands[other][1]);  // so that its end is seen
      ps::Start(0);
      Worker(workers, servers, bytes).work(commands[worker][0], answers[worker][1]);
      ps::Finalize(0, true);
    });
    ::close(answers[worker][1]);
  }
  const auto slowest = [&] {
    double most = 0;
    for (const auto& of : answers) {
      double seconds = 0;
      if (!read_value(of[0], seconds)) std::_Exit(1);
      most = std::max(most, seconds);
    }
    return most;
  };
  slowest();
  std::cout << "ready" << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    Command command;
    std::istringstream(line) >> command.count >> command.milliseconds;
    for (const auto& of : commands) write_value(of[1], command);
    if (command.count == 0) break;
    std::cout << slowest() << std::endl;
  }
  for (const auto& of : commands) ::close(of[1]);
  while (::wait(nullptr) > 0) {
  }
}
