// iproute2's ip and tc, one command at a time.
#include "bench/network_namespaces.h"

#include <unistd.h>

#include <array>
#include <cstdio>
#include <tuple>

namespace motley::bench {
namespace {

// Runs a shell command; its output is the error's message.
Status run(const std::string& command) {
  std::FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return fail(ErrorCode::kUnavailable, "cannot run a shell");
  std::string output;
  std::array<char, 256> bytes;
  while (std::fgets(bytes.data(), bytes.size(), pipe) != nullptr) output += bytes.data();
  if (::pclose(pipe) == 0) return {};
  while (!output.empty() && output.back() == '\n') output.pop_back();
  return fail(ErrorCode::kUnavailable, "'{}' failed: {}", command, output);
}

}  // namespace

// The bridge stands in a namespace of its own, so that the machine's own network is not touched.
Result<std::unique_ptr<NetworkNamespaces>> NetworkNamespaces::create(int count, double bytes_per_second, int unshaped) {
  if (::geteuid() != 0) return fail(ErrorCode::kUnavailable, "network namespaces need root");
  const std::string name = fmt::format("motley-{}", ::getpid());
  std::unique_ptr<NetworkNamespaces> network(new NetworkNamespaces(name, count + unshaped));
  const std::string hub = name + "-hub";
  MOTLEY_TRY(run("ip netns add " + hub));
  MOTLEY_TRY(run(fmt::format("ip -n {} link add name bridge type bridge", hub)));
  MOTLEY_TRY(run(fmt::format("ip -n {} link set bridge up", hub)));
  const std::string shape = fmt::format("root tbf rate {:.0f}bit burst 64kb latency 50ms", bytes_per_second * 8);
  for (int index = 0; index < count + unshaped; ++index) {
    const std::string space = fmt::format("{}-{}", name, index);
    MOTLEY_TRY(run("ip netns add " + space));
    MOTLEY_TRY(run(fmt::format("ip -n {} link add name eth0 type veth peer name port{} netns {}", space, index, hub)));
    MOTLEY_TRY(run(fmt::format("ip -n {} address add {}/24 dev eth0", space, network->address(index))));
    MOTLEY_TRY(run(fmt::format("ip -n {} link set lo up", space)));
    // Two segments fit into the shaper's burst: one as large as the burst lets tokens go to waste while it waits, which
    // halved the rate of the link.
    MOTLEY_TRY(run(fmt::format("ip -n {} link set eth0 gso_max_size 32768", space)));
    MOTLEY_TRY(run(fmt::format("ip -n {} link set eth0 up", space)));
    MOTLEY_TRY(run(fmt::format("ip -n {} link set port{} master bridge up", hub, index)));
    if (index >= count) continue;
    MOTLEY_TRY(run(fmt::format("tc -n {} qdisc add dev eth0 {}", space, shape)));
    MOTLEY_TRY(run(fmt::format("tc -n {} qdisc add dev port{} {}", hub, index, shape)));
  }
  return network;
}

NetworkNamespaces::~NetworkNamespaces() {
  for (int index = 0; index < count_; ++index) std::ignore = run(fmt::format("ip netns delete {}-{}", name_, index));
  std::ignore = run(fmt::format("ip netns delete {}-hub", name_));
}

std::vector<std::string> NetworkNamespaces::prefix(int index) const {
  return {"ip", "netns", "exec", fmt::format("{}-{}", name_, index)};
}

std::vector<std::string> NetworkNamespaces::host_prefix(int index) const {
  std::vector<std::string> words = prefix(index);
  for (const char* word : {"unshare", "--pid", "--fork", "--kill-child"}) words.emplace_back(word);
  return words;
}

std::string NetworkNamespaces::address(int index) const {
  return fmt::format("10.77.0.{}", index + 1);
}

}  // namespace motley::bench
