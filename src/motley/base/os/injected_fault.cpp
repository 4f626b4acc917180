#include "motley/base/os/injected_fault.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

namespace motley {

void inject_fault(int rank, const char* point) {
  static const char* const folder = std::getenv("MOTLEY_FAULTS");
  if (folder == nullptr) return;
  std::string name = point;
  std::ranges::replace(name, ' ', '-');
  const std::string path = std::string(folder) + "/" + std::to_string(rank) + "." + name;
  std::string how, whom;
  std::ifstream(path) >> how >> whom;
  while (how == "wait" && ::access(path.c_str(), F_OK) == 0) ::usleep(10'000);
  const pid_t process = whom.empty() ? ::getpid() : std::atoi(whom.c_str());
  if ((how != "kill" && how != "stop" && how != "hang") || process <= 0 || ::unlink(path.c_str()) != 0) return;
  while (how == "hang") ::pause();
  ::kill(process, how == "stop" ? SIGSTOP : SIGKILL);
}

}  // namespace motley
