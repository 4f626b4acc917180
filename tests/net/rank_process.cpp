// One rank as a process: joins, then works until the session fails or it is killed. Prints what it then knows.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "motley/net/session.h"

int main(int argc, char** argv) {
  using namespace motley;
  using namespace motley::net;
  if (argc != 5) {
    return 2;
  }
  const auto secret = Secret::from_environment(kSecretVariable);
  SessionOptions options;
  options.rank = std::atoi(argv[1]);
  options.size = std::atoi(argv[2]);
  options.rendezvous.port = static_cast<std::uint16_t>(std::atoi(argv[3]));
  options.silence_seconds = std::atof(argv[4]);
  const auto session = secret ? Session::join(options, *secret) : fail(secret.error());
  if (!session) {
    std::printf("join: %s\n", session.error().message.c_str());
    return 1;
  }
  (*session)->set_phase(12, "backward");
  std::printf("joined\n");
  std::fflush(stdout);
  const Deadline deadline = Deadline::after(60);
  while ((*session)->health() && !deadline.passed()) {
    SteadyClock::instance().sleep_until(monotonic_seconds() + 0.01);
  }
  const Status health = (*session)->health();
  std::printf("%d %s\n", health ? -2 : health.error().rank, health ? "fine" : health.error().message.c_str());
  return 0;
}
