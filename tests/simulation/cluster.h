// The simulated cluster that the calls of the system go to while one of its threads runs.
#pragma once

#include <dlfcn.h>
#include <sys/types.h>

#include <cerrno>
#include <cstdlib>
#include <map>
#include <memory>

#include "tests/simulation/disk.h"
#include "tests/simulation/network.h"
#include "tests/simulation/simulator.h"

namespace motley::simulation {

class Cluster {
 public:
  explicit Cluster(std::uint64_t seed) : simulator(seed), network(simulator), disk(simulator) {
    instance_ = this;
    ++count_;
  }
  ~Cluster() { instance_ = nullptr; }
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  static Cluster& instance() { return *instance_; }
  // Whether a simulated thread runs, so that its calls of the system are the cluster's.
  static bool is_calling() { return Simulator::running() != nullptr; }
  static Process& caller() { return *Simulator::running()->process; }

  // A device's number that no process of this or another cluster has: a library that remembers files by it, and locks,
  // would have those of processes that were killed.
  static dev_t device() { return static_cast<dev_t>(count_) << 20 | static_cast<dev_t>(caller().id); }

  // The host's monotonic clock; no two hosts' have the same zero.
  static double clock_zero(int host) { return 1000.0 * (1 + host); }

  Simulator simulator;
  Network network;
  Disk disk;
  std::multimap<const void*, std::shared_ptr<SharedMemory>> mapped;

 private:
  static inline Cluster* instance_ = nullptr;
  static inline int count_ = 0;  // that there were
};

// The system's own function that this program's one of the same name hides.
template <class Function>
Function* find_real(Function*, const char* name) {
  auto* const found = reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
  if (found == nullptr) std::abort();
  return found;
}

// For the functions that take the system's place.
inline Cluster& cluster() {
  return Cluster::instance();
}
inline Simulator& simulator() {
  return Simulator::instance();
}
inline int fail_call(int error) {
  errno = error;
  return -1;
}

}  // namespace motley::simulation

// In a function of the system's name: what it does outside of the simulation.
#define MOTLEY_REAL(name, ...)                                                        \
  do {                                                                                \
    if (!motley::simulation::Cluster::is_calling()) {                                 \
      static auto* const motley_real = motley::simulation::find_real(&::name, #name); \
      return motley_real(__VA_ARGS__);                                                \
    }                                                                                 \
  } while (false)
