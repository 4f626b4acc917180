// Runs the ranks of a test as threads, or as processes that meet through a real session.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <exception>
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
      try {
        body(rank, session);
      } catch (const std::exception& problem) {  // which would end the whole program
        ADD_FAILURE() << "rank " << rank << ": " << problem.what();
      }
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

// Where forked ranks meet: at whichever port rank 0 has got, which it tells the others by memory that all have.
class RendezvousPort {
 public:
  RendezvousPort()
      : port_(static_cast<std::atomic<std::uint16_t>*>(
            ::mmap(nullptr, sizeof *port_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~RendezvousPort() { ::munmap(port_, sizeof *port_); }
  RendezvousPort(const RendezvousPort&) = delete;
  RendezvousPort& operator=(const RendezvousPort&) = delete;

  // For Session::join in a rank's process. The others wait for rank 0 here.
  void use_in(net::SessionOptions& options) const {
    const Deadline deadline = Deadline::after(options.join_seconds);
    if (options.rank == 0) {
      options.publish = [port = port_](const net::Endpoint& endpoint) -> Status {
        *port = endpoint.port;
        return {};
      };
    } else {
      while (*port_ == 0 && !deadline.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    options.rendezvous = {"127.0.0.1", *port_};
  }

 private:
  std::atomic<std::uint16_t>* port_;
};

// body(rank, session) in a process per rank, forked from here; it returns the process's exit code. A rank for which
// `joins` is false never comes. Returns how each process ended, as waitpid says.
inline std::vector<int> run_processes(int size, const std::function<int(int, net::Session&)>& body,
                                      net::Encryption encryption = net::Encryption::kAuto) {
  const auto secret = net::Secret::generate();
  const RendezvousPort port;
  std::vector<pid_t> processes;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t process = ::fork();
    if (process == 0) {
      net::SessionOptions options;
      options.rank = rank;
      options.size = size;
      options.join_seconds = 20;
      port.use_in(options);
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
