// Threads of a library's own, which take no signals: those are for the threads that the program made itself.
#pragma once

#include <csignal>
#include <thread>
#include <utility>

namespace motley {

// Runs `work` in a thread in which all signals are blocked.
template <class Work>
std::thread start_thread(Work work) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(work));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace motley
