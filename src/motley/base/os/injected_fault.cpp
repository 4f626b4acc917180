#include "motley/base/os/injected_fault.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <string>

namespace motley {
namespace {

const char* faults_folder() {
  static const char* const folder = std::getenv("MOTLEY_FAULTS");
  return folder;
}

}  // namespace

bool has_injected_faults() {
  return faults_folder() != nullptr;
}

void inject_fault(int rank, const char* point) {
  if (!has_injected_faults()) return;
  std::string name = point;
  std::ranges::replace(name, ' ', '-');
  const std::string path = std::string(faults_folder()) + "/" + std::to_string(rank) + "." + name;
  std::string how, whom;
  std::ifstream(path) >> how >> whom;
  while (how == "wait" && ::access(path.c_str(), F_OK) == 0) ::usleep(10'000);
  const pid_t process = whom.empty() ? ::getpid() : std::atoi(whom.c_str());
  constexpr std::array kKnown = {"kill", "stop", "hang", "continue"};
  if (std::ranges::find(kKnown, how) == kKnown.end() || process <= 0 || ::unlink(path.c_str()) != 0) return;
  while (how == "hang") ::pause();
  ::kill(process, how == "stop" ? SIGSTOP : how == "continue" ? SIGCONT : SIGKILL);
}

}  // namespace motley
