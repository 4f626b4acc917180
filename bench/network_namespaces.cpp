// iproute2's ip and tc, one command at a time.
#include "bench/network_namespaces.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <tuple>

#include "motley/base/os/descriptor.h"
#include "motley/base/os/file.h"
#include "motley/base/os/process.h"

namespace motley::bench {
namespace {

constexpr double kSeconds = 60;         // that a command may take
constexpr double kQueueSeconds = 0.05;  // what waits before a link at most, at its rate
constexpr double kMinQueueBytes = 1e6;  // and so much before a slow one, since a packet may have 64 KB
// Not the machine's own, of whose choice a measurement would speak: BBR empties a link for 200 ms every ten seconds.
// Reno is the one that every kernel has and lets every namespace use.
constexpr const char* kCongestionControl = "reno";

// Runs a shell command; its output is the error's message.
Status run(const std::string& command) {
  MOTLEY_ASSIGN(Output output, run_program({.words = {"sh", "-c", command + " 2>&1"}}, Deadline::after(kSeconds)));
  if (output.is_good()) return {};
  while (output.text.ends_with('\n')) output.text.pop_back();
  return fail(ErrorCode::kUnavailable, "'{}' failed: {}", command, output.text);
}

// Emulates a link of this rate, one way. htb lets a packet go while it has any tokens left and makes the next one wait
// for them, so that packets of up to 64 KB pass a burst that is smaller; tbf would need a burst of more than two of
// them, or small packets, which cost half as much processor time again. The queue is a switch's.
Status shape(const std::string& space, const std::string& device, double bytes_per_second) {
  MOTLEY_TRY(run(fmt::format("tc -n {} qdisc add dev {} root handle 1: htb default 1", space, device)));
  MOTLEY_TRY(
      run(fmt::format("tc -n {} class add dev {} parent 1: classid 1:1 htb rate {:.0f}bit burst 32kb cburst 32kb "
                      "quantum 65536",
                      space, device, bytes_per_second * 8)));
  return run(fmt::format("tc -n {} qdisc add dev {} parent 1:1 bfifo limit {:.0f}", space, device,
                         std::max(bytes_per_second * kQueueSeconds, kMinQueueBytes)));
}

}  // namespace

NetworkNamespaces::NetworkNamespaces() : name_(fmt::format("motley-{}", ::getpid())) {}

Status NetworkNamespaces::add_space(const std::string& space) {
  MOTLEY_TRY(run("ip netns add " + space));
  spaces_.push_back(space);
  return run(fmt::format("ip netns exec {} sh -c 'echo {} > /proc/sys/net/ipv4/tcp_congestion_control'", space,
                         kCongestionControl));
}

// A bridge stands in a namespace of its own, so that the machine's own network is not touched.
Status NetworkNamespaces::add_hub(const std::string& hub) {
  MOTLEY_TRY(add_space(hub));
  MOTLEY_TRY(run(fmt::format("ip -n {} link add name bridge type bridge", hub)));
  return run(fmt::format("ip -n {} link set bridge up", hub));
}

Status NetworkNamespaces::add_host(int index, const std::string& hub, double bytes_per_second) {
  const std::string space = fmt::format("{}-{}", name_, index);
  MOTLEY_TRY(add_space(space));
  MOTLEY_TRY(run(fmt::format("ip -n {} link add name eth0 type veth peer name port{} netns {}", space, index, hub)));
  MOTLEY_TRY(run(fmt::format("ip -n {} address add {}/24 dev eth0", space, address(index))));
  MOTLEY_TRY(run(fmt::format("ip -n {} link set lo up", space)));
  MOTLEY_TRY(run(fmt::format("ip -n {} link set eth0 up", space)));
  MOTLEY_TRY(run(fmt::format("ip -n {} link set port{} master bridge up", hub, index)));
  if (bytes_per_second == 0) return {};
  MOTLEY_TRY(shape(space, "eth0", bytes_per_second));
  return shape(hub, fmt::format("port{}", index), bytes_per_second);
}

Result<std::unique_ptr<NetworkNamespaces>> NetworkNamespaces::create(int count, double bytes_per_second, int unshaped) {
  std::vector<double> rates(static_cast<std::size_t>(count), bytes_per_second);
  rates.resize(static_cast<std::size_t>(count + unshaped), 0);
  return create(rates);
}

Result<std::unique_ptr<NetworkNamespaces>> NetworkNamespaces::create(const std::vector<double>& bytes_per_second) {
  if (::geteuid() != 0) return fail(ErrorCode::kUnavailable, "network namespaces need root");
  std::unique_ptr<NetworkNamespaces> network(new NetworkNamespaces);
  const std::string hub = network->name_ + "-hub";
  MOTLEY_TRY(network->add_hub(hub));
  for (std::size_t index = 0; index < bytes_per_second.size(); ++index) {
    MOTLEY_TRY(network->add_host(static_cast<int>(index), hub, bytes_per_second[index]));
  }
  return network;
}

Result<std::unique_ptr<NetworkNamespaces>> NetworkNamespaces::create_racks(int racks, int count_of_each,
                                                                           double bytes_per_second,
                                                                           double uplink_bytes_per_second) {
  if (::geteuid() != 0) return fail(ErrorCode::kUnavailable, "network namespaces need root");
  std::unique_ptr<NetworkNamespaces> network(new NetworkNamespaces);
  const std::string core = network->name_ + "-core";
  MOTLEY_TRY(network->add_hub(core));
  for (int rack = 0; rack < racks; ++rack) {
    const std::string hub = fmt::format("{}-hub{}", network->name_, rack);
    MOTLEY_TRY(network->add_hub(hub));
    MOTLEY_TRY(run(fmt::format("ip -n {} link add name uplink type veth peer name rack{} netns {}", hub, rack, core)));
    MOTLEY_TRY(run(fmt::format("ip -n {} link set uplink master bridge up", hub)));
    MOTLEY_TRY(run(fmt::format("ip -n {} link set rack{} master bridge up", core, rack)));
    MOTLEY_TRY(shape(hub, "uplink", uplink_bytes_per_second));
    MOTLEY_TRY(shape(core, fmt::format("rack{}", rack), uplink_bytes_per_second));
    for (int worker = 0; worker < count_of_each; ++worker) {
      MOTLEY_TRY(network->add_host(rack * count_of_each + worker, hub, bytes_per_second));
    }
    MOTLEY_TRY(network->add_host(racks * count_of_each + rack, hub, 0));
  }
  return network;
}

NetworkNamespaces::~NetworkNamespaces() {
  for (const std::string& space : spaces_) std::ignore = run("ip netns delete " + space);
}

std::vector<std::string> NetworkNamespaces::prefix(int index) const {
  return {"ip", "netns", "exec", fmt::format("{}-{}", name_, index)};
}

std::vector<std::string> NetworkNamespaces::host_prefix(int index) const {
  std::vector<std::string> words = prefix(index);
  for (const char* word : {"unshare", "--pid", "--fork", "--kill-child"}) words.emplace_back(word);
  return words;
}

Status NetworkNamespaces::enter(int index) const {
  const std::string path = "/var/run/netns/" + prefix(index).back();
  const Descriptor space(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!space.valid() || ::setns(space.get(), CLONE_NEWNET) != 0) {
    return fail(ErrorCode::kUnavailable, "cannot enter '{}': {}", path, errno_text());
  }
  return {};
}

std::string NetworkNamespaces::address(int index) const {
  return fmt::format("10.77.0.{}", index + 1);
}

}  // namespace motley::bench
