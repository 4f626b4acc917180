// Runs the ranks of a test as threads, or as processes that meet through a real session.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <barrier>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <thread>

#include "tests/collective/thread_session.h"

namespace motley::collective {

inline std::uint64_t unique_session() {
  static std::atomic<std::uint64_t> count = 0;
  return (static_cast<std::uint64_t>(::getpid()) << 20) + ++count;
}

// body(rank, session) on a thread per rank.
inline void run_threads(int size, bool one_host, const std::function<void(int, ThreadSession&)>& body) {
  Hub hub(unique_session());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadSession session(hub, rank, size, one_host);
      body(rank, session);
    });
  }
  for (auto& thread : threads) thread.join();
}

// Where a rank waits at its end for all the others, however it ends, so that what it holds is there while they ask for
// it.
class LeaveTogether {
 public:
  explicit LeaveTogether(std::barrier<>& all) : all_(all) {}
  ~LeaveTogether() { all_.arrive_and_wait(); }
  LeaveTogether(const LeaveTogether&) = delete;
  LeaveTogether& operator=(const LeaveTogether&) = delete;

 private:
  std::barrier<>& all_;
};

// body(rank, session) in a process per rank, forked from here; it returns the process's exit code. A rank for which
// `joins` is false never comes. Returns how each process ended, as waitpid says.
inline std::vector<int> run_processes(int size, const std::function<int(int, net::Session&)>& body,
                                      net::Encryption encryption = net::Encryption::kAuto) {
  const auto secret = net::Secret::generate();
  std::uint16_t port = 0;
  {
    const auto listener = net::listen_at({"127.0.0.1", 0});
    port = net::local_endpoint(*listener).port;
  }
  std::vector<pid_t> processes;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t process = ::fork();
    if (process == 0) {
      net::SessionOptions options;
      options.rank = rank;
      options.size = size;
      options.rendezvous = {"127.0.0.1", port};
      options.join_seconds = 20;
      options.encryption = encryption;
      auto session = net::Session::join(options, secret);
      if (!session) {
        std::fprintf(stderr, "rank %d cannot join: %s\n", rank, session.error().message.c_str());
        std::_Exit(99);
      }
      const int code = body(rank, **session);
      session->reset();
      std::fflush(nullptr);
      std::_Exit(code);
    }
    processes.push_back(process);
  }
  std::vector<int> ends(processes.size(), -1);
  for (std::size_t rank = 0; rank < processes.size(); ++rank) ::waitpid(processes[rank], &ends[rank], 0);
  return ends;
}

}  // namespace motley::collective
