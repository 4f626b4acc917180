#include "motley/train/launch/role.h"

#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>
#include <thread>

#include "motley/base/os/file.h"
#include "motley/base/text.h"
#include "motley/serial/json_fields.h"

namespace motley::train {
namespace {

using net::Secret;

constexpr std::size_t kRendezvousBytes = 4096;  // that rendezvous.json has at most

std::optional<std::string> environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? std::optional<std::string>(value) : std::nullopt;
}

Result<int> environment_integer(const char* name, int min, int max) {
  const auto text = environment(name);
  char* end = nullptr;
  const long value = text ? std::strtol(text->c_str(), &end, 10) : 0;
  if (!text || *end != '\0' || value < min || value > max) {
    return fail(ErrorCode::kInvalidInput, "environment variable {} is '{}'; accepted: an integer from {} to {}", name,
                text.value_or(""), min, max);
  }
  return static_cast<int>(value);
}

// Reads RANK- and SIZE-like variables into a role.
Result<Role> read_role(const char* launcher, const char* rank, const char* size, const char* local_rank,
                       const std::string& job_id) {
  if (!is_plain(job_id)) {
    return fail(ErrorCode::kInvalidInput,
                "{} gives the job the id '{}'; accepted: text without control characters, in UTF-8", launcher,
                escaped(job_id));
  }
  Role role{.launcher = launcher, .job_id = job_id, .secret_file = {}};
  MOTLEY_ASSIGN(role.size, environment_integer(size, 1, 1 << 20));
  MOTLEY_ASSIGN(role.rank, environment_integer(rank, 0, role.size - 1));
  if (environment(local_rank)) {
    MOTLEY_ASSIGN(role.local_rank, environment_integer(local_rank, 0, 1 << 20));
  }
  return role;
}

// The secret that the user configured, if any.
Result<std::optional<Secret>> configured_secret(const Role& role) {
  if (role.secret_file.empty() && !environment(net::kSecretFileVariable)) return std::optional<Secret>();
  MOTLEY_ASSIGN(Secret secret, Secret::from_file(role.secret_file, net::kSecretFileVariable));
  return std::optional<Secret>(std::move(secret));
}

// Our launcher, and mpirun and srun on one machine: rank 0 writes its address and the generated secret into a file that
// only this user may read; the others wait for the file of this start.
Result<Secret> rendezvous_through_file(const Role& role, const std::filesystem::path& folder,
                                       net::SessionOptions& options) {
  const std::filesystem::path file = folder / "rendezvous.json";
  if (role.rank == 0 && !role.is_newcomer) {
    Secret secret = Secret::generate();
    options.publish = [file, hex = secret.hex(), id = role.job_id](const net::Endpoint& bound) {
      return write_rendezvous(file, {bound.host, bound.port, id, hex});
    };
    return secret;
  }
  const Deadline deadline = Deadline::after(options.join_seconds);
  std::string found = "nothing";
  while (!deadline.passed()) {
    if (role.is_newcomer && !std::filesystem::exists(file)) {
      return fail(ErrorCode::kUnavailable, "the run in '{}' is over", folder.string());
    }
    if (const Result<std::string> text = read_file(file, kRendezvousBytes)) {
      const auto point = parse_rendezvous(*text);
      if (point && point->job == role.job_id) {
        options.rendezvous = {point->host, point->port};
        return Secret::from_text(point->secret, "rank 0's secret");
      }
      found = point ? fmt::format("that of job '{}'", point->job) : point.error().message;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return fail(ErrorCode::kTimeout,
              "rank {} waited {:.0f} s for rank 0 to write '{}' (both need the same run folder; give it with "
              "--run-directory), and found {}",
              role.rank, options.join_seconds, file.string(), found);
}

// torchrun's agent owns MASTER_PORT with its key-value store, which anybody who reaches it may read and write. Rank 0
// publishes its address there and, where all are on its machine, which process shares the secret with this user.
Result<Secret> rendezvous_through_torchrun(const Role& role, const std::optional<Secret>& configured,
                                           const OpenStore& open_store, net::SessionOptions& options) {
  MOTLEY_ASSIGN(const int port, environment_integer("MASTER_PORT", 1, 65535));
  const net::Endpoint endpoint{environment("MASTER_ADDR").value_or("127.0.0.1"), static_cast<std::uint16_t>(port)};
  const std::string key = "motley/" + role.job_id;
  const auto unreachable = [&](const Error& error) {
    return fail(ErrorCode::kTimeout, "rank {} cannot meet rank 0 through torchrun's store at {}:{}: {}", role.rank,
                endpoint.host, port, error.message);
  };
  const bool agent_serves = environment("TORCHELASTIC_USE_AGENT_STORE").value_or("True") == "True";
  auto opened = open_store({endpoint, !agent_serves && role.rank == 0, options.join_seconds});
  if (!opened) return unreachable(opened.error());
  const std::shared_ptr<KeyValueStore> store = std::move(*opened);
  if (role.rank == 0) {
    Secret secret = configured ? *configured : Secret::generate();
    auto shared = std::make_shared<Descriptor>();
    if (!configured) {
      MOTLEY_ASSIGN(*shared, secret.share());
    }
    options.publish = [store, key, shared, id = role.job_id](const net::Endpoint& bound) -> Status {
      const RendezvousPoint point = {
          .host = bound.host, .port = bound.port, .job = id, .process = ::getpid(), .descriptor = shared->get()};
      const Status set = store->set(key, write_json_line(point));
      if (set) return {};
      return fail(ErrorCode::kIo, "cannot publish rank 0's address in torchrun's store: {}", set.error().message);
    };
    return secret;
  }
  const Result<std::string> text = store->get(key);
  if (!text) return unreachable(text.error());
  const auto point = parse_rendezvous(*text);
  if (!point || point->job != role.job_id) {
    return fail(ErrorCode::kCorrupt, "rank 0 published an address that cannot be read in torchrun's store at {}:{}: {}",
                endpoint.host, port, point ? fmt::format("it is of job '{}'", point->job) : point.error().message);
  }
  options.rendezvous = {point->host, point->port};
  return configured ? *configured : Secret::from_process(point->process, point->descriptor);
}

// The address file: an endpoint a rank, in rank order.
Result<std::vector<net::Endpoint>> read_hosts(const std::filesystem::path& hosts) {
  MOTLEY_ASSIGN(const std::string text, read_file(hosts, 1 << 20));
  std::vector<net::Endpoint> endpoints;
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    std::istringstream words(line.substr(0, line.find('#')));
    std::string word;
    if (!(words >> word)) continue;
    const bool bracketed = word.front() == '[' && word.back() == ']';
    const bool has_port = !bracketed && word.find(':') != std::string::npos;
    Result<net::Endpoint> endpoint = net::parse_endpoint(has_port ? word : word + ":29400");
    if (!endpoint) return fail(endpoint.error().within(fmt::format("{}:{}", hosts.string(), number)));
    endpoints.push_back(std::move(*endpoint));
  }
  if (endpoints.empty()) {
    return fail(ErrorCode::kInvalidInput,
                "{}: no host is named; accepted: one 'host' or 'host:port' a line, a line a rank", hosts.string());
  }
  return endpoints;
}

Error secret_needed(const std::string& where) {
  return {ErrorCode::kInvalidInput,
          where +
              " spans several hosts, so the ranks need a shared secret: name by --secret-file or MOTLEY_SECRET_FILE a "
              "file of mode 0600 with at least 16 random bytes, the same on all hosts (head -c 32 /dev/urandom | "
              "base64 > FILE)",
          -1};
}

}  // namespace

Result<RendezvousPoint> parse_rendezvous(std::string_view text) {
  return parse_json<RendezvousPoint>(text, "rendezvous.json");
}

Result<Role> detect_role() {
  if (environment("MOTLEY_RANK")) {
    MOTLEY_ASSIGN(Role role, read_role("motley", "MOTLEY_RANK", "MOTLEY_SIZE", "MOTLEY_RANK",
                                       environment("MOTLEY_JOB_ID").value_or("job")));
    role.is_newcomer = environment("MOTLEY_NEWCOMER").has_value();
    return role;
  }
  if (environment("TORCHELASTIC_RUN_ID")) {
    return read_role(
        "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK",
        *environment("TORCHELASTIC_RUN_ID") + "-" + environment("TORCHELASTIC_RESTART_COUNT").value_or("0"));
  }
  if (environment("OMPI_COMM_WORLD_RANK")) {
    return read_role("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                     environment("PMIX_NAMESPACE").value_or(environment("OMPI_MCA_ess_base_jobid").value_or("mpirun")));
  }
  if (environment("SLURM_PROCID") && environment("SLURM_STEP_ID") && environment("SLURM_STEP_NUM_TASKS")) {
    return read_role("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID",
                     environment("SLURM_JOB_ID").value_or("0") + "." + *environment("SLURM_STEP_ID") + "." +
                         environment("SLURM_RESTART_COUNT").value_or("0"));
  }
  return Role{};
}

Result<Role> role_from_hosts(const std::filesystem::path& hosts, int rank) {
  MOTLEY_ASSIGN(const auto endpoints, read_hosts(hosts));
  const auto size = static_cast<int>(endpoints.size());
  if (rank < 0 || rank >= size) {
    return fail(ErrorCode::kInvalidInput, "--rank: {} is not a line of '{}', which names ranks 0 to {}", rank,
                hosts.string(), size - 1);
  }
  return Role{.launcher = "hosts", .rank = rank, .size = size, .job_id = "hosts", .secret_file = {}};
}

Status write_rendezvous(const std::filesystem::path& file, const RendezvousPoint& point) {
  const mode_t before = ::umask(0077);
  Status written = write_file(file, write_json_line(point));
  ::umask(before);
  return written;
}

void remove_rendezvous(const std::filesystem::path& file, const std::string& job) {
  const Result<std::string> text = read_file(file, kRendezvousBytes);
  const auto point = text ? parse_rendezvous(*text) : fail(text.error());
  std::error_code ignored;
  if (point && point->job == job) std::filesystem::remove(file, ignored);
}

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

Status pin_to_cores(const cluster::Worker& worker) {
  if (worker.cores.empty()) return {};
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const std::int64_t core : worker.cores) CPU_SET(static_cast<std::size_t>(core), &set);
  if (::sched_setaffinity(0, sizeof(set), &set) != 0) {
    return fail(ErrorCode::kInvalidInput, "worker '{}' cannot be pinned to cores [{}]: {}", worker.name,
                fmt::join(worker.cores, ", "), errno_text());
  }
  return {};
}

Result<Secret> find_rendezvous(const Role& role, const std::filesystem::path& folder,
                               const std::filesystem::path& hosts, const OpenStore& open_store,
                               net::SessionOptions& options) {
  options.rank = role.rank;
  options.size = role.size;
  MOTLEY_ASSIGN(const std::optional<Secret> configured, configured_secret(role));
  options.given_secret = configured.has_value();
  options.is_newcomer = role.is_newcomer;
  if (role.launcher == "none") return Secret::generate();
  if (role.launcher == "hosts") {
    MOTLEY_ASSIGN(const auto endpoints, read_hosts(hosts));
    options.rendezvous = endpoints.front();
    if (role.is_newcomer) {
      MOTLEY_ASSIGN(options.rendezvous, net::parse_endpoint(role.join_at));
    }
    const net::Endpoint& own = endpoints[static_cast<std::size_t>(role.rank)];
    options.bind_host = own.host;
    if (configured) return *configured;
    const bool loopback = own.host == "localhost" || own.host == "::1" || own.host.starts_with("127.");
    if (!loopback) return fail(secret_needed("'" + hosts.string() + "'"));
    return fail(ErrorCode::kInvalidInput,
                "ranks started by hand need a shared secret: name by --secret-file or MOTLEY_SECRET_FILE a file of "
                "mode 0600 with at least 16 random bytes");
  }
  if (role.launcher == "torchrun") {
    MOTLEY_ASSIGN(const int local_size, environment_integer("LOCAL_WORLD_SIZE", 1, 1 << 20));
    if (local_size != role.size) {
      if (!configured) return fail(secret_needed("torchrun"));
      options.bind_host = "0.0.0.0";
      options.rendezvous.host = environment("MASTER_ADDR").value_or("127.0.0.1");
    }
    return rendezvous_through_torchrun(role, configured, open_store, options);
  }
  const bool slurm_hosts = role.launcher == "srun" && environment("SLURM_STEP_NUM_NODES").value_or("1") != "1";
  const bool mpi_hosts = role.launcher == "mpirun" && environment("OMPI_COMM_WORLD_LOCAL_SIZE").value_or("") !=
                                                          environment("OMPI_COMM_WORLD_SIZE").value_or("");
  if (slurm_hosts || mpi_hosts) {
    if (!configured) return fail(secret_needed(role.launcher));
    if (const auto head = environment("MOTLEY_RENDEZVOUS")) {
      MOTLEY_ASSIGN(options.rendezvous, net::parse_endpoint(*head));
    } else if (const auto address = environment("SLURM_LAUNCH_NODE_IPADDR"); slurm_hosts && address) {
      // The port follows from the job id, so that all ranks know it and two jobs on one node differ.
      const unsigned long id = std::strtoul(environment("SLURM_JOB_ID").value_or("0").c_str(), nullptr, 10);
      options.rendezvous = {*address, static_cast<std::uint16_t>(20000 + id % 20000)};
    } else {
      return fail(ErrorCode::kInvalidInput, "set MOTLEY_RENDEZVOUS to rank 0's host:port, the same on all ranks");
    }
    options.bind_host = "0.0.0.0";
    return *configured;
  }
  return rendezvous_through_file(role, folder, options);
}

}  // namespace motley::train
