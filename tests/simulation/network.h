// TCP among simulated processes: each direction of a connection is a queue of bytes that arrive later, in order;
// between connections there is none. Links between two processes can be slow, silent (one way or both), or reset.
#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "tests/simulation/simulator.h"

namespace motley::simulation {

class Network;

class Socket final : public File, public std::enable_shared_from_this<Socket> {
 public:
  Socket(Network& network, Process& process) : network_(network), process_(process.id), host_(process.host) {}
  short ready() const override;
  void close() override;

  // As the system's calls: -1 and errno where they fail.
  int bind(const sockaddr_in& address);
  int listen();
  int connect(const sockaddr_in& address);
  std::shared_ptr<Socket> accept();
  ssize_t send(const char* bytes, std::size_t count);
  ssize_t receive(char* bytes, std::size_t count);
  void finish_sending();
  int take_error() { return std::exchange(error_, 0); }
  const sockaddr_in& local() const { return local_; }
  const sockaddr_in& remote() const { return remote_; }
  bool is_connected() const { return state_ == State::kConnected; }
  int process() const { return process_; }

 private:
  friend class Network;
  enum class State { kNew, kListening, kConnecting, kConnected, kFailed, kClosed };
  struct Segment {
    double at = 0;
    std::string bytes;
    bool is_end = false;
  };
  struct Incoming {  // what comes from the peer
    std::deque<Segment> under_way;
    std::size_t bytes_under_way = 0;
    std::string bytes;
    std::size_t taken = 0;
    bool has_ended = false;
    std::size_t waiting() const { return bytes.size() - taken; }
  };
  void try_to_connect();
  void fail_with(int error);
  void enqueue(Segment segment);
  void deliver();
  void reset_peer();

  Network& network_;
  const int process_, host_;
  State state_ = State::kNew;
  sockaddr_in local_{}, remote_{};
  int error_ = 0;
  bool ends_sending_ = false;
  std::shared_ptr<Socket> peer_;
  Incoming incoming_;
  std::deque<std::shared_ptr<Socket>> backlog_;  // of one that listens
};

class Network {
 public:
  explicit Network(Simulator& simulator) : simulator_(simulator) {}
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  static constexpr int kLoopbackHost = -1;
  static sockaddr_in address(int host, int port);  // 10.0.0.1 and so on

  // Seconds that bytes take; drawn anew each time.
  double delay(int from, int to);
  // Nothing goes from one process to the other one until then; what was sent comes later.
  void silence(int from, int to, double until) { silent_until_[{from, to}] = until; }
  void slow_down(int from, int to, double seconds, double until) { slow_[{from, to}] = {seconds, until}; }
  // What is so of one process's links is so of the other's, which takes its place.
  void hand_links_over(int from, int to);
  // All connections between them end, each way with an error.
  void reset(int one, int other);
  double silent_until(int from, int to) const;

  // As of a system whose buffers have room for them; else any call may move a part of what it could.
  bool sends_small_messages_whole = false;

 private:
  friend class Socket;
  struct Slow {
    double seconds = 0;
    double until = 0;
  };
  Simulator& simulator_;
  std::map<std::pair<int, int>, std::shared_ptr<Socket>> listeners_;  // by host and port
  std::deque<std::weak_ptr<Socket>> connected_;
  std::map<std::pair<int, int>, double> silent_until_;
  std::map<std::pair<int, int>, Slow> slow_;
  int next_port_ = 40000;
};

}  // namespace motley::simulation
