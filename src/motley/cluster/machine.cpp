#include "motley/cluster/machine.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>
#ifdef MOTLEY_WITH_HWLOC
#include <hwloc.h>
#endif

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>

#include "motley/base/os/descriptor.h"
#include "motley/base/os/file.h"
#include "motley/base/os/process.h"
#include "motley/base/units.h"

namespace motley::cluster {
namespace {

namespace fs = std::filesystem;

// Files of /proc and /sys tell no size, so that they are read as streams.
std::string read_content(const fs::path& path) {
  std::ifstream file(path);
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

std::optional<double> leading_number(std::string_view text) {
  double number = 0;
  const auto [rest, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  return problem == std::errc() && rest != text.data() ? std::optional<double>(number) : std::nullopt;
}

void lower(std::optional<double>& limit, std::optional<double> other) {
  if (other && *other > 0 && (!limit || *other < *limit)) limit = other;
}

// The text after "name<blanks>: " or "name:" in a file of such lines.
std::string find_field(const std::string& content, std::string_view name) {
  std::istringstream lines(content);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(':');
    if (line.starts_with(name) && colon != std::string::npos) {
      const std::size_t start = line.find_first_not_of(" \t", colon + 1);
      return start == std::string::npos ? "" : line.substr(start);
    }
  }
  return "";
}

bool on_path(const std::string& program) {
  const char* variable = std::getenv("PATH");
  std::istringstream folders(variable == nullptr ? "" : variable);
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (::access((fs::path(folder) / program).c_str(), X_OK) == 0) return true;
  }
  return false;
}

// What a program prints; nothing where it is not there, fails, or takes longer than 5 s.
std::optional<std::string> read_output(std::vector<std::string> words) {
  const Descriptor nowhere(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  const auto output = run_program({.words = std::move(words), .errors = nowhere.get()}, Deadline::after(5));
  return output && output->is_good() ? std::optional(output->text) : std::nullopt;
}

std::vector<Gpu> detect_gpus() {
  std::vector<Gpu> gpus;
  const auto listed = read_output({"nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"});
  std::istringstream lines(listed.value_or(""));
  for (std::string line; std::getline(lines, line);) {
    const std::size_t comma = line.rfind(',');
    if (comma == std::string::npos) continue;
    const auto mebibytes = leading_number(std::string_view(line).substr(line.find_first_not_of(" ,", comma)));
    gpus.push_back({line.substr(0, comma), mebibytes.value_or(0) * 1048576});
  }
  return gpus;
}

std::string topology_text() {
#ifdef MOTLEY_WITH_HWLOC
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) return "";
  std::string text;
  if (hwloc_topology_load(topology) == 0) {
    const auto count = [&](hwloc_obj_type_t type) { return hwloc_get_nbobjs_by_type(topology, type); };
    text = fmt::format("{} ({}) in {}, {}", format_count(count(HWLOC_OBJ_CORE), "core"),
                       format_count(count(HWLOC_OBJ_PU), "thread"), format_count(count(HWLOC_OBJ_PACKAGE), "package"),
                       format_count(count(HWLOC_OBJ_NUMANODE), "memory node"));
  }
  hwloc_topology_destroy(topology);
  return text;
#else
  return "";
#endif
}

int cores_of_affinity() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) {
    return std::max(1, static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)));
  }
  return std::max(1, CPU_COUNT(&set));
}

// "NVIDIA H200" -> "nvidia-h200": a name that cluster.yaml accepts.
std::string device_name(const std::string& model) {
  std::string name;
  for (const char c : model.substr(0, 64)) {
    const auto letter = static_cast<unsigned char>(c);
    name.push_back(std::isalnum(letter) != 0 ? static_cast<char>(std::tolower(letter)) : '-');
  }
  return name.empty() ? "cuda" : name;
}

// Two sockets exchange a byte over 127.0.0.1. Every call returns at once: a connection to a listener on loopback is
// made by the kernel without anyone accepting, and the byte is waited for at most a second.
std::string loopback_problem() {
  const Descriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const Descriptor client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof address;
  if (!listener.valid() || !client.valid() || ::bind(listener.get(), generic, size) != 0 ||
      ::listen(listener.get(), 1) != 0 || ::getsockname(listener.get(), generic, &size) != 0 ||
      ::connect(client.get(), generic, size) != 0) {
    return errno_text();
  }
  const Descriptor server(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  char byte = 'm';
  if (!server.valid() || ::send(client.get(), &byte, 1, MSG_NOSIGNAL) != 1) return errno_text();
  pollfd waiting{server.get(), POLLIN, 0};
  if (::poll(&waiting, 1, 1000) != 1) return "a byte sent to 127.0.0.1 did not arrive within a second";
  return ::recv(server.get(), &byte, 1, 0) == 1 ? "" : errno_text();
}

// A file without a name is made there and mapped.
std::string shared_memory_problem() {
  const int fd = ::open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0) return errno_text();
  std::string problem;
  constexpr std::size_t kBytes = 4096;
  if (::posix_fallocate(fd, 0, kBytes) != 0) {
    problem = "no space left";
  } else if (void* memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0); memory == MAP_FAILED) {
    problem = errno_text();
  } else {
    ::munmap(memory, kBytes);
  }
  ::close(fd);
  return problem;
}

}  // namespace

GroupLimits read_group_limits(const fs::path& root, std::string_view membership) {
  GroupLimits limits;
  std::istringstream lines{std::string(membership)};
  for (std::string line; std::getline(lines, line);) {
    // "0::/a/b" in version 2; "4:cpu,cpuacct:/a/b" in version 1, whose controllers have folders of their own.
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const fs::path top = controllers.empty() ? root : root / controllers;
    fs::path group = top;
    for (const fs::path& part : fs::path(line.substr(second + 1)).relative_path()) group /= part;
    for (;; group = group.parent_path()) {
      const auto number = [&](const char* file) { return leading_number(read_content(group / file)); };
      const auto lower_processors = [&](std::optional<double> allowed, std::optional<double> period) {
        if (allowed && period && *period > 0) lower(limits.processors, *allowed / *period);
      };
      const std::string quota = read_content(group / "cpu.max");  // "max 100000" or "150000 100000"
      if (const std::size_t blank = quota.find(' '); blank != std::string::npos) {
        lower_processors(leading_number(quota), leading_number(std::string_view(quota).substr(blank + 1)));
      }
      lower_processors(number("cpu.cfs_quota_us"), number("cpu.cfs_period_us"));  // -1: no limit
      lower(limits.memory_bytes, number("memory.max"));
      lower(limits.memory_bytes, number("memory.limit_in_bytes"));
      if (group == top || !group.has_relative_path()) break;
    }
  }
  return limits;
}

std::vector<NetworkCard> network_cards(const fs::path& root) {
  std::vector<NetworkCard> cards;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(root, ignored)) {
    if (!fs::exists(entry.path() / "device", ignored)) continue;
    const auto megabits = leading_number(read_content(entry.path() / "speed"));  // -1, or not readable: no link
    if (megabits && *megabits > 0) {
      cards.push_back({entry.path().filename().string(), *megabits * 1e6 / 8});
    }
  }
  std::ranges::sort(cards, {}, &NetworkCard::name);
  return cards;
}

Machine detect_machine() {
  Machine machine;
  machine.processor = find_field(read_content("/proc/cpuinfo"), "model name");
  machine.topology = topology_text();
  const GroupLimits limits = read_group_limits("/sys/fs/cgroup", read_content("/proc/self/cgroup"));
  machine.cores = cores_of_affinity();
  if (limits.processors) machine.cores = std::clamp(static_cast<int>(std::ceil(*limits.processors)), 1, machine.cores);
  machine.memory_bytes = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  if (limits.memory_bytes) machine.memory_bytes = std::min(machine.memory_bytes, *limits.memory_bytes);
  struct statvfs shared{};
  if (::statvfs("/dev/shm", &shared) == 0) {
    machine.shared_memory_free = static_cast<double>(shared.f_bavail) * static_cast<double>(shared.f_frsize);
  }
  machine.gpus = detect_gpus();
  return machine;
}

Cluster default_cluster(const Machine& machine) {
  Cluster cluster;
  Node node{"here", "127.0.0.1", {{"cpu", 1}}};
  cluster.device_types.push_back({"cpu", DeviceKind::kCpu, 1, machine.memory_bytes, 0});
  for (const Gpu& gpu : machine.gpus) {
    const std::string name = device_name(gpu.name);
    const auto same = std::ranges::find(cluster.device_types, name, &DeviceType::name);
    if (same == cluster.device_types.end()) {
      cluster.device_types.push_back({name, DeviceKind::kCuda, 1, gpu.memory_bytes, 0});
      node.devices.push_back({name, 1});
    } else {
      ++same->count;
      ++std::ranges::find(node.devices, name, &NodeDevices::type)->count;
    }
    cluster.workers.push_back(
        {.name = fmt::format("gpu{}", cluster.workers.size()), .device = name, .node = node.name});
  }
  if (cluster.workers.empty()) {
    cluster.workers.push_back({.name = "cpu0", .device = "cpu", .node = node.name, .threads = machine.cores});
  }
  cluster.nodes.push_back(node);
  return cluster;
}

void divide_cpu(const Machine& machine, std::int64_t threads, Cluster& cluster) {
  const std::int64_t count = std::max<std::int64_t>(1, machine.cores / threads);
  for (DeviceType& type : cluster.device_types) {
    if (type.kind != DeviceKind::kCpu) continue;
    type.count = count;
    type.memory_bytes /= static_cast<double>(count);
    for (NodeDevices& devices : cluster.nodes.front().devices) {
      if (devices.type == type.name) devices.count = count;
    }
  }
}

std::vector<CheckItem> check_machine(const Machine& machine, const std::string& torch_version) {
  std::vector<CheckItem> items;
  items.push_back({"processor", true, true,
                   fmt::format("{}; {}{}{}", format_count(machine.cores, "usable core"),
                               machine.processor.empty() ? "model unknown" : machine.processor,
                               machine.topology.empty() ? "" : "; ", machine.topology),
                   ""});
  constexpr double kMinMemory = 1e9;
  items.push_back({"memory", machine.memory_bytes >= kMinMemory, true, format_bytes(machine.memory_bytes),
                   "a job needs 1 GB at least: raise the limit of the container or control group"});
  items.push_back({"libtorch", !torch_version.empty(), true, torch_version.empty() ? "not built in" : torch_version,
                   "run tools/setup, then tools/build"});
#ifdef MOTLEY_HAS_ROCKSDB
  constexpr bool kRocksDb = true;
#else
  constexpr bool kRocksDb = false;
#endif
  items.push_back({"RocksDB", kRocksDb, false, kRocksDb ? "built in" : "not built in",
                   "sparse tables of the parameter server must fit in memory without it: apt-get install "
                   "librocksdb-dev, then tools/build"});

  const std::string shared = shared_memory_problem();
  constexpr double kMinShared = 256e6;
  const bool room = machine.shared_memory_free >= kMinShared;
  items.push_back({"shared memory", shared.empty() && room, false,
                   shared.empty() ? format_bytes(machine.shared_memory_free) + " free in /dev/shm" : shared,
                   "workers of one machine exchange over it, and over slower TCP without it; 256 MB are enough for "
                   "small networks: docker run --shm-size=1g, or mount -o remount,size=1G /dev/shm"});
  const std::string loopback = loopback_problem();
  items.push_back({"TCP on loopback", loopback.empty(), true, loopback.empty() ? "works" : loopback,
                   "workers meet on 127.0.0.1: bring it up with 'ip link set lo up', or allow it in the firewall"});
  if (const auto text = read_file("/proc/sys/net/ipv4/tcp_congestion_control")) {
    const std::string control = text->substr(0, text->find('\n'));
    items.push_back(
        {"TCP congestion", true, false,
         control + (control != "bbr" ? ""
                                     : ": empties a link for 200 ms every ten seconds, in which workers wait; "
                                       "between hosts of one building cubic and reno are better: 'sysctl -w "
                                       "net.ipv4.tcp_congestion_control=cubic'"),
         ""});
  }

  std::string gpus;
  for (const Gpu& gpu : machine.gpus) {
    gpus += fmt::format("{}{} ({})", gpus.empty() ? "" : ", ", gpu.name, format_bytes(gpu.memory_bytes));
  }
  items.push_back({"GPU", !gpus.empty(), false, gpus.empty() ? "none that nvidia-smi lists" : gpus,
                   "jobs run on cpu; for cuda: NVIDIA's driver, and MOTLEY_PYTHON set to a Python with a CUDA build of "
                   "PyTorch before tools/build"});
  const bool namespaces = read_output({"unshare", "--net", "true"}).has_value();
  items.push_back({"network namespaces", namespaces, false, namespaces ? "allowed" : "not allowed",
                   "shaped links in benchmarks are left out; run them as root, in a container with --privileged"});
  const struct {
    const char* program;
    const char* use;
    const char* package;
  } programs[] = {
      {"tc", "shaped links in benchmarks", "apt-get install iproute2"},
      {"mpirun", "starting jobs under MPI", "apt-get install openmpi-bin"},
      {"torchrun", "starting jobs under torchrun by its name alone",
       "tools/setup makes .venv/bin/torchrun; add .venv/bin to PATH"},
  };
  for (const auto& [program, use, package] : programs) {
    const bool there = on_path(program);
    items.push_back(
        {program, there, false, there ? "installed" : "not on PATH", fmt::format("only for {}: {}", use, package)});
  }
  return items;
}

std::string to_text(const std::vector<CheckItem>& items) {
  std::size_t width = 0;
  for (const CheckItem& item : items) width = std::max(width, item.name.size());
  std::string text;
  for (const CheckItem& item : items) {
    const char* state = item.works ? "ok" : item.needed ? "MISSING" : "missing";
    text += fmt::format("{:<{}}  {:<7}  {}\n", item.name, width, state, item.found);
    if (!item.works) text += fmt::format("{:<{}}           {}\n", "", width, item.advice);
  }
  return text;
}

}  // namespace motley::cluster
