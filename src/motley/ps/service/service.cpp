// The thread that talks on control connections. Everything it does is short: sums and updates are the cores' work.
#include "motley/ps/service/service.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ranges>
#include <thread>
#include <tuple>
#include <utility>

#include "motley/base/clock.h"
#include "motley/base/log.h"
#include "motley/base/os/signals.h"
#include "motley/base/units.h"
#include "motley/net/admission.h"
#include "motley/net/region.h"
#include "motley/net/socket.h"

namespace motley::ps {
namespace {

using net::Claim;
using net::Connection;

constexpr double kLastWordsSeconds = 2;
constexpr double kGraceSeconds = 1;  // for a rank whose channel has ended to say that it leaves
constexpr double kWatchSeconds = 0.25;
constexpr double kKeeperSeconds = 5;  // for another server to be reached that is to keep a job's state
constexpr double kLetGoSeconds = 10;  // for a core to come to the end of a segment
// A control connection's frames that are taken at a time, and its answers that may wait before more are.
constexpr int kMaxRequests = 64;
constexpr std::size_t kMaxAnswers = 16;
// Cutting a model looks at every core of all servers for every segment: so many looks take about a second.
constexpr double kMaxLooks = 1e9;

// Whoever waits for a connection's next frame is told of its end.
void say(Connection& connection, std::uint16_t type, std::uint64_t tag, std::vector<std::byte> payload) {
  connection.post_owned(type, tag, std::move(payload));
  static_cast<void>(connection.progress());
}

// `owed`: answers to what has come over it that are still to come from other servers.
bool takes_requests(const Connection& connection, std::size_t owed) {
  return connection.pending_sends() + owed <= kMaxAnswers;
}

// What would fill this machine's memory is refused before that.
Status check_memory(std::size_t bytes, const std::string& job) {
  const double needed = static_cast<double>(bytes);
  const double memory = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  if (needed > memory) {
    return fail(ErrorCode::kRefused, "job '{}' needs {} here; this machine has {}", job, format_bytes(needed),
                format_bytes(memory));
  }
  return {};
}

// What would keep everybody waiting while it is cut, likewise.
Status check_segments(const ServerJoin& join, const std::string& job) {
  const std::size_t segments = segment_count(join.bucket_elements, join.chunk_bytes, join.bins);
  if (static_cast<double>(segments) * join.bins > kMaxLooks) {
    return fail(ErrorCode::kRefused, "job '{}' has a model of {} segments for {} cores; accepted: a product of {}", job,
                segments, join.bins, kMaxLooks);
  }
  return {};
}

std::vector<int> own_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof(set), &set);
  std::vector<int> processors;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (CPU_ISSET(processor, &set)) processors.push_back(processor);
  }
  return processors;
}

// What differs between two ranks' view of a job, or nothing.
std::string difference(const ServerJoin& a, const ServerJoin& b) {
  const auto differ = [](const char* what, auto left, auto right) {
    return fmt::format("{} is {} and {}", what, left, right);
  };
  if (a.size != b.size) return differ("the number of ranks", a.size, b.size);
  if (a.racks != b.racks) {
    const auto text = [](const RackPlan& plan) {
      return fmt::format("[{}] of {}", fmt::join(plan.rank_racks, ", "), fmt::join(plan.servers, ", "));
    };
    return differ("the division into racks", text(a.racks), text(b.racks));
  }
  if (a.bins != b.bins || a.first_bin != b.first_bin) return differ("the number of servers' cores", a.bins, b.bins);
  if (a.bin_speeds != b.bin_speeds) return "the measured speed of servers differs";
  if (a.chunk_bytes != b.chunk_bytes) return differ("the size of chunks", a.chunk_bytes, b.chunk_bytes);
  if (a.is_async != b.is_async) return differ("whether ranks may be at different steps", a.is_async, b.is_async);
  if (a.is_reversible != b.is_reversible) {
    return differ("whether updates can be taken back", a.is_reversible, b.is_reversible);
  }
  if (a.wire != b.wire) return differ("the type on the wire", to_string(a.wire), to_string(b.wire));
  if (a.elastic != b.elastic) return differ("the number of updates", a.elastic.updates, b.elastic.updates);
  const auto& [left, right] = std::tie(a.bucket_elements, b.bucket_elements);
  if (left.size() != right.size()) return differ("the number of buckets", left.size(), right.size());
  if (const auto [x, y] = std::ranges::mismatch(left, right); x != left.end()) {
    return differ("the number of values in a bucket", *x, *y);
  }
  const kernels::UpdateOptions& x = a.update;
  const kernels::UpdateOptions& y = b.update;
  const bool same = x.rule == y.rule && x.momentum == y.momentum && x.dampening == y.dampening &&
                    x.weight_decay == y.weight_decay && x.beta1 == y.beta1 && x.beta2 == y.beta2 &&
                    x.epsilon == y.epsilon;
  return same ? "" : "the optimizer differs";
}

}  // namespace

Result<std::unique_ptr<Service>> Service::start(const ServiceOptions& options, const Tenants& tenants) {
  if (!options.tables.empty()) {
    std::error_code problem;
    std::filesystem::create_directories(options.tables, problem);
    if (problem) {
      return fail(ErrorCode::kInvalidInput, "cannot make the folder '{}' for sparse tables: {}",
                  options.tables.string(), problem.message());
    }
  }
  MOTLEY_ASSIGN(Descriptor listener, net::listen_at(options.listen));
  return std::unique_ptr<Service>(new Service(options, tenants, std::move(listener)));
}

Service::Service(const ServiceOptions& options, const Tenants& tenants, Descriptor listener)
    : options_(options),
      tenants_(tenants),
      endpoint_(net::local_endpoint(listener)),
      host_id_(net::host_id()),
      acceptor_(
          std::move(listener), [this](const Claim& claim) { return tenants_.find(claim.identity.tenant).token; },
          Claim{},
          [this](const Claim& claim) -> Status {
            MOTLEY_TRY(take_place(claim));  // given back until the connection is here
            return {};
          },
          options.encryption),
      sparse_({.folder = options.tables, .quota_bytes = options.quota_bytes}, tenants_, memory_, use_) {
  const std::vector<int> processors = own_processors();
  const int count = options.cores > 0 ? options.cores : static_cast<int>(processors.size());
  metrics_ =
      std::make_unique<Metrics>(count, options.quota_bytes, tenants_, memory_, [this] { return sparse_.metrics(); });
  for (int core = 0; core < count; ++core) {
    const int processor = processors[static_cast<std::size_t>(core) % processors.size()];
    cores_.push_back(std::make_unique<AggregationThread>(options.pin_cores ? std::optional(processor) : std::nullopt,
                                                         spins_, metrics_->cores[static_cast<std::size_t>(core)]));
  }
  thread_ = start_thread([this] { run(); });
}

std::string Service::address() const {
  return net::to_string(endpoint_);
}

Service::~Service() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  waits_.wake();
  thread_.join();
}

void Service::run() {
  for (bool running = true; running;) {
    wait_for_events();
    for (auto& [number, job] : jobs_) {
      if (const Status status = receive_from_racks(*job); !status) end(*job, status.error());
      receive_from_keeper(*job);
      for (const auto& [rank, from] : job->ranks) {
        if (const Status status = receive_from(*job, rank); !status) {
          end(*job, status.error());
          break;
        }
      }
    }
    {
      const std::lock_guard lock(mutex_);
      std::ranges::move(lost_, std::back_inserter(suspected_));
      lost_.clear();
      running = !stop_;
    }
    judge_lost();
    watch_for_stalls();
    sparse_.reap();
    answer_probes();
    acceptor_.step([this](net::Acceptor::PendingConnection pending) { admit(std::move(pending)); });
    const std::size_t jobs_before = jobs_.size();
    std::erase_if(jobs_, [&](const auto& entry) {
      const bool over = is_over(*entry.second);
      if (over) forget(*entry.second);
      return over;
    });
    if (jobs_.size() != jobs_before) choose_spinning();
    leaving_.step();
    std::erase_if(ending_, [](const Ending& one) { return one.over(); });
  }
  for (auto& [number, job] : jobs_) {
    end(*job, Error{ErrorCode::kServerLost, "the server was told to stop", -1});
  }
  jobs_.clear();
  ending_.clear();  // their threads wake this one, and waits_ goes before them
  cores_.clear();
}

// Whether its ranks come and go.
bool Service::is_elastic(const Job& job) {
  const auto says_so = [](const Rank& rank) { return rank.join && rank.join->elastic.kept_seconds > 0; };
  return job.before || std::ranges::any_of(std::views::values(job.ranks), says_so);
}

bool Service::is_deserted(const Job& job) {
  return std::ranges::all_of(std::views::values(job.ranks),
                             [](const Rank& rank) { return rank.left || !rank.control; });
}

// Between two epochs of an elastic job there may be nobody for a moment. Who leaves it in order says that all is done.
// What a rack's server does for its workers has no state.
bool Service::is_over(Job& job) const {
  if (!is_deserted(job)) {
    job.deserted_at = 0;
    return false;
  }
  if (!is_elastic(job) || job.rack || std::ranges::any_of(std::views::values(job.ranks), &Rank::left)) return true;
  const double now = monotonic_seconds();
  if (job.deserted_at == 0) job.deserted_at = now;
  // Who has begun the epoch may have been lost before it joined.
  double kept = job.before ? job.before->kept_seconds() : 0;
  for (const Rank& rank : std::views::values(job.ranks)) {
    if (rank.join) kept = rank.join->elastic.kept_seconds;
  }
  return now >= job.deserted_at + kept;
}

// What still connects to other servers ends on its own thread, for which this one does not wait.
void Service::let_go(Job& job) {
  if (job.rack) job.rack->cancel();
  if (job.links) job.links->cancel();
  Ending ending{std::move(job.rack), std::move(job.links)};
  if (!ending.over()) ending_.push_back(std::move(ending));
}

void Service::forget(Job& job) {
  for (const auto& core : cores_) {
    core->remove(job.number);
    for (const std::uint64_t task : job.kept) core->remove(task);
  }
  metrics_->remove(job.metrics.get());
  if (job.rack && std::ranges::any_of(std::views::values(job.ranks), &Rank::left)) job.rack->leave();
  let_go(job);
  if (!job.ranks.empty()) metrics_->jobs_left.add(1);
  spdlog::info("job '{}' has ended", job.name);
}

// Nothing of the epoch before is worked on any more, nor read from its connections: its state waits for the ranks of
// the new one. They are still to come; who of them has not noticed yet is told.
void Service::begin_epoch(Job& job, const Claim& claim) {
  for (const auto& core : cores_) {
    for (const std::uint64_t task : job.kept) core->remove(task);
    MOTLEY_INVARIANT(core->remove_now(job.number, kLetGoSeconds),
                     "epoch {} of job '{}' cannot begin: one of the server's threads has made no progress for {:.3g} s",
                     claim.identity.epoch, job.name, core->stuck_seconds());
  }
  job.kept.clear();
  job.replicas.clear();
  metrics_->remove(job.metrics.get());
  job.metrics.reset();
  if (job.dense && job.dense->has_begun()) job.before = std::move(job.dense);
  job.dense.reset();
  let_go(job);
  for (Rank& rank : std::views::values(job.ranks)) {
    if (!rank.control || rank.left) continue;
    turn_away(
        std::move(rank.control),
        {ErrorCode::kPeerLost, fmt::format("epoch {} of job '{}' has begun", claim.identity.epoch, job.name), -1});
  }
  job.ranks.clear();
  job.shared.clear();
  job.watch = {};
  job.claim = claim;
  auto entry = jobs_.extract(job.number);  // what was noticed of the old channels is about another number
  entry.key() = job.number = next_job_++;
  jobs_.insert(std::move(entry));
}

void Service::judge_lost() {
  std::erase_if(suspected_, [&](const Lost& lost) {
    const auto found = jobs_.find(lost.job);
    if (found == jobs_.end() || found->second->ranks.empty()) return true;  // over already
    Job& job = *found->second;
    const auto rank = job.ranks.find(lost.error.rank);
    if (rank != job.ranks.end() && rank->second.left) return true;
    if (is_elastic(job) && lost.error.code == ErrorCode::kPeerLost) return true;  // ranks find out themselves
    if (monotonic_seconds() < lost.settle_at) return false;
    end(job, is_between_racks(job) ? Error{lost.error.code, "racks: " + lost.error.message, -1} : lost.error);
    return true;
  });
}

// Ends connections to machines that are gone and jobs that wait for a rank that has left, and tells of those that
// stand still, each time once.
void Service::watch_for_stalls() {
  const double now = monotonic_seconds();
  if (now < watched_at_ + kWatchSeconds) return;
  watched_at_ = now;
  for (auto& [number, job] : jobs_) {
    for (const Rank& rank : std::views::values(job->ranks)) {
      if (rank.control) rank.control->end_if_unanswered();
    }
    if (!job->dense || job->ranks.empty()) continue;
    const DenseJob::Standing standing = job->dense->standing();
    JobMetrics& metrics = *job->metrics;
    const double seconds = job->watch.look(standing.progress, standing.waits, now);
    metrics.waiting.set(standing.waiting);
    metrics.stalled.set(seconds);
    for (std::size_t rank = 0; rank < metrics.missing.size(); ++rank) {
      metrics.missing[rank].set(std::ranges::binary_search(standing.missing, static_cast<int>(rank)));
    }
    const auto gone = std::ranges::find_if(standing.missing, [&](int rank) { return job->ranks.at(rank).left; });
    if (gone != standing.missing.end()) {
      end(*job, Error{ErrorCode::kPeerLost,
                      fmt::format("rank {} has left the job '{}', and others wait for it", *gone, job->name), *gone});
      continue;
    }
    if (options_.stall_seconds > 0 && job->watch.is_due(seconds, options_.stall_seconds)) {
      spdlog::warn("job '{}' has stood still for {} at step {}, bucket {}: {}", job->name, format_seconds(seconds),
                   standing.step, standing.bucket,
                   standing.missing.empty() ? "all ranks have come, and the server is late"
                                            : fmt::format("nothing comes from {}", format_ranks(standing.missing)));
    }
  }
}

// Spinning pays where every thread has a processor: the cores' and those of all ranks that share this host.
void Service::choose_spinning() {
  std::size_t threads = cores_.size();
  for (const auto& [number, job] : jobs_) {
    for (const Rank& rank : std::views::values(job->ranks))
      threads += rank.join && rank.join->host_id == host_id_ ? 1 : 0;
  }
  spins_ = threads <= own_processors().size();
}

void Service::wait_for_events() {
  acceptor_.add_to(waits_);
  const auto add = [&](const Connection& connection, std::size_t owed = 0) {
    waits_.add(connection, takes_requests(connection, owed));
  };
  for (const auto& [number, job] : jobs_) {
    const bool takes = !job->rack || !job->rack->congested();
    for (const auto& [rank, from] : job->ranks) {
      if (takes && from.control && !from.left) add(*from.control, job->rack ? job->rack->owed(rank) : 0);
    }
    if (!job->rack || !job->rack->ready()) continue;
    for (const auto& control : job->rack->controls()) add(*control);
  }
  leaving_.add_to(waits_);
  for (const auto& probe : probes_) add(*probe);
  if (std::exchange(has_more_, false)) waits_.end_at(0);
  waits_.wait();
}

void Service::admit(net::Acceptor::PendingConnection pending) {
  if (!pending.accepted) {
    metrics_->refused_in_handshake.add(1);
    return;
  }
  const bool checksum = options_.payload_checksum && !pending.address.starts_with("127.");
  auto connection = std::make_unique<Connection>(std::move(pending.channel), pending.claim.identity, checksum);
  auto place = take_place(pending.claim);
  if (!place) return refuse(std::move(connection), place.error().message);
  connection->keep(std::move(*place));
  if (pending.claim.identity.purpose == kSparseConnection) {
    const Status admitted = sparse_.admit(pending.claim, connection);
    if (!admitted) refuse(std::move(connection), admitted.error().message, admitted.error().code);
  } else if (pending.claim.identity.purpose == kServerControl) {
    admit_control(pending.claim, std::move(connection));
  } else if (pending.claim.identity.purpose >= kServerReplica) {
    admit_replica(pending.claim, std::move(connection));
  } else if (pending.claim.identity.purpose == kServerProbe) {
    probes_.push_back(std::move(connection));
  } else {
    admit_channel(pending.claim, std::move(connection));
  }
}

Result<std::shared_ptr<void>> Service::take_place(const Claim& claim) {
  TenantUse::Amounts amounts = {{&TenantCounts::connections, 1}};
  if (claim.identity.purpose == kServerProbe) amounts.emplace_back(&TenantCounts::probes, 1);
  if (claim.identity.purpose == kSparseConnection) amounts.emplace_back(&TenantCounts::threads, 1);
  return use_.take(claim.identity.tenant, amounts);
}

// How long the core has not gone on that has not for the longest.
double Service::stuck_seconds() const {
  double longest = 0;
  for (const auto& core : cores_) longest = std::max(longest, core->stuck_seconds());
  return longest;
}

// What comes on a probe goes back, as long as the worker takes it, but for the question whether cores go on. It is not
// enough that this thread does.
void Service::answer_probes() {
  std::erase_if(probes_, [this](const auto& probe) {
    for (std::size_t frame = 0; frame < kProbeFrames && probe->pending_sends() < kProbeFrames; ++frame) {
      auto message = probe->try_receive();
      if (!message || (*message && (*message)->payload.size() > kProbeFrameBytes)) return true;
      if (!*message) break;
      if ((*message)->header.type == kServerProgress) (*message)->payload = encode_server_progress(stuck_seconds());
      probe->post_owned((*message)->header.type, (*message)->header.tag, std::move((*message)->payload));
      if (!probe->progress()) return true;
    }
    return !probe->progress();
  });
}

void Service::turn_away(std::unique_ptr<Connection> connection, const Error& error) {
  say(*connection, kServerFailed, 0, encode(error));
  leaving_.add(std::move(connection), kLastWordsSeconds);
}

void Service::refuse(std::unique_ptr<Connection> connection, const std::string& why, ErrorCode code) {
  metrics_->refused_after_it.add(1);
  turn_away(std::move(connection), {code, why, -1});
}

Service::Job* Service::find_job(const std::string& tenant, const std::string& name) const {
  const auto found = std::ranges::find_if(jobs_, [&](const auto& entry) {
    const net::Identity& identity = entry.second->claim.identity;
    return identity.tenant == tenant && identity.job == name;
  });
  return found == jobs_.end() ? nullptr : found->second.get();
}

void Service::admit_control(const Claim& claim, std::unique_ptr<Connection> connection) {
  const std::string name = claim.identity.tenant + "/" + claim.identity.job;
  Job* job = find_job(claim.identity.tenant, claim.identity.job);
  if (job != nullptr && job->claim.identity.session != claim.identity.session &&
      (is_elastic(*job) ? is_deserted(*job) : is_over(*job))) {
    forget(*job);
    jobs_.erase(job->number);
    job = nullptr;
  }
  if (job != nullptr && job->claim.identity.session != claim.identity.session) {
    return refuse(std::move(connection),
                  fmt::format("a job '{}' is running here already; give this one another name", name));
  }
  if (job != nullptr && claim.identity.epoch < job->claim.identity.epoch) {
    return turn_away(std::move(connection), {ErrorCode::kPeerLost,
                                             fmt::format("epoch {} of job '{}' has begun; this is epoch {}",
                                                         job->claim.identity.epoch, name, claim.identity.epoch),
                                             -1});
  }
  if (job != nullptr && claim.identity.epoch > job->claim.identity.epoch &&
      (is_elastic(*job) || !announced_size(*job))) {
    begin_epoch(*job, claim);
  }
  const int rank = claim.identity.rank;
  if (rank < 0 || rank >= kMaxRanks) {
    return refuse(std::move(connection), fmt::format("rank {} is not one from 0 to {}", rank, kMaxRanks - 1));
  }
  if (job == nullptr) {
    auto place = use_.take(claim.identity.tenant, {{&TenantCounts::jobs, 1}});
    if (!place) return refuse(std::move(connection), place.error().message);
    auto created = std::make_unique<Job>();
    created->place = std::move(*place);
    created->number = next_job_++;
    created->name = name;
    created->claim = claim;
    job = created.get();
    jobs_.emplace(job->number, std::move(created));
  }
  if (job->ranks.contains(rank)) {
    return refuse(std::move(connection), fmt::format("rank {} of job '{}' is here already", rank, name));
  }
  if (const auto size = announced_size(*job); size && rank >= *size) {
    return refuse(std::move(connection),
                  fmt::format("job '{}' has {} ranks; rank {} is none of them", name, *size, rank));
  }
  say(*connection, kServerInfo, 0, encode(ServerInfo{host_id_, cores()}));
  job->ranks[rank].control = std::move(connection);
}

// How many ranks the job has, as soon as one of them has said so.
std::optional<int> Service::announced_size(const Job& job) {
  for (const Rank& rank : std::views::values(job.ranks)) {
    if (rank.join) return rank.join->size;
  }
  return {};
}

void Service::admit_channel(const Claim& claim, std::unique_ptr<Connection> connection) {
  const auto core = static_cast<std::size_t>(claim.identity.purpose - kServerChannel);
  const int rank = claim.identity.rank;
  Job* job = find_job(claim.identity.tenant, claim.identity.job);
  const bool awaited = job != nullptr && job->claim.identity.session == claim.identity.session &&
                       job->claim.identity.epoch == claim.identity.epoch &&
                       (job->dense || (job->rack && job->rack->ready())) && job->ranks.contains(rank) &&
                       job->ranks[rank].join &&
                       std::cmp_less(core, job->dense ? job->dense->cores() : job->rack->cores()) &&
                       core < cores_.size() && !job->shared[core] && !job->ranks[rank].channels[core];
  if (!awaited) return refuse(std::move(connection), "there is no such channel");
  job->ranks[rank].channels[core] = std::move(connection);
  share_if_complete(*job, core);
}

// Once all channels of this core are there, and the one to the keeper where there is to be one.
void Service::share_if_complete(Job& job, std::size_t core) {
  const auto is_complete = [&](const Rank& other) { return !other.join || other.channels[core] != nullptr; };
  if (job.links || !std::ranges::all_of(std::views::values(job.ranks), is_complete)) return;
  job.shared[core] = true;
  const std::string& tenant = job.claim.identity.tenant;
  cores_[core]->add(job.number, make_shard_task(job, core), tenant, tenants_.find(tenant).share);
}

// Of an elastic job, whose state another server is to keep.
Status Service::find_keeper(Job& job, const ServerJoin& join) {
  if (join.elastic.keeper.empty()) return {};
  MOTLEY_ASSIGN(const net::Endpoint keeper, net::parse_endpoint(join.elastic.keeper));
  ReplicaLinks::Options options{.keeper = keeper,
                                .token = tenants_.find(job.claim.identity.tenant).token,
                                .claim = job.claim,
                                .cores = used_cores(join),
                                .seconds = std::min(join.elastic.kept_seconds, kKeeperSeconds),
                                .payload_checksum = options_.payload_checksum,
                                .encryption = options_.encryption};
  job.links = std::make_unique<ReplicaLinks>(std::move(options), [this] { waits_.wake(); });
  return {};
}

void Service::receive_from_keeper(Job& job) {
  if (!job.links || !job.links->over()) return;
  auto links = job.links->take();
  job.links.reset();
  if (links) {
    job.replicas = std::move(*links);
  } else {
    spdlog::warn("job '{}': no other server keeps its state: {}", job.name, links.error().message);
  }
  for (std::size_t core = 0; core < job.shared.size(); ++core) {
    if (!job.shared[core] && !job.ranks.empty()) share_if_complete(job, core);
  }
}

// Another server of an elastic job, whose state this one keeps. It asks again where it comes too early.
void Service::admit_replica(const Claim& claim, std::unique_ptr<Connection> connection) {
  const std::uint32_t core = claim.identity.purpose - kServerReplica;
  Job* job = find_job(claim.identity.tenant, claim.identity.job);
  const bool is_awaited = job != nullptr && job->claim.identity.session == claim.identity.session &&
                          job->claim.identity.epoch == claim.identity.epoch && job->dense && job->dense->keeps() &&
                          !job->ranks.empty() &&
                          std::cmp_less(core, job->ranks.begin()->second.join->elastic.kept.count);
  if (!is_awaited) return turn_away(std::move(connection), {ErrorCode::kRefused, "there is no such replica", -1});
  const std::uint64_t task = next_job_++;
  job->kept.push_back(task);
  const std::string& tenant = job->claim.identity.tenant;
  cores_[core % cores_.size()]->add(
      task, make_replica_task(job->dense, static_cast<int>(core), std::move(connection), tell_lost(job->number)),
      tenant, tenants_.find(tenant).share);
}

TellLost Service::tell_lost(std::uint64_t job) {
  return [this, job](Error error) {
    const std::lock_guard lock(mutex_);
    lost_.push_back({job, std::move(error), monotonic_seconds() + kGraceSeconds});
    waits_.wake();
  };
}

// All channels of this core are there.
std::unique_ptr<AggregationTask> Service::make_shard_task(Job& job, std::size_t core) {
  Channels channels;
  for (Rank& rank : std::views::values(job.ranks)) {
    if (rank.join) channels.push_back(std::move(rank.channels[core]));
  }
  const TellLost lost = tell_lost(job.number);
  if (job.rack) return make_rack_task(job.rack, static_cast<int>(core), std::move(channels), lost);
  std::unique_ptr<Connection> replica;
  if (core < job.replicas.size()) replica = std::move(job.replicas[core]);
  return ps::make_shard_task(job.dense, static_cast<int>(core), std::move(channels), std::move(replica), lost);
}

// What the server is called that is this rank of a job between racks: by its address, which those that have joined
// know.
std::string Service::rack_server(const Job& job, int rank) {
  for (const Rank& other : std::views::values(job.ranks)) {
    if (!other.join || rank >= other.join->size) continue;
    return server_name(other.join->racks, other.join->racks.list_racks()[static_cast<std::size_t>(rank)]);
  }
  return fmt::format("server of rack {}", rank);
}

Status Service::receive_from(Job& job, int rank) {
  Rank& from = job.ranks.at(rank);
  for (int taken = 0; from.control && !from.left && !(job.rack && job.rack->congested()); ++taken) {
    if (taken == kMaxRequests) {
      has_more_ = true;
      break;
    }
    const std::size_t owed = job.rack ? job.rack->owed(rank) : 0;
    const auto message = takes_requests(*from.control, owed) ? from.control->try_receive() : std::nullopt;
    const auto moved = message ? from.control->progress() : Result<bool>(true);
    if (!message || !moved) {
      const Error& error = message ? moved.error() : message.error();
      if (is_elastic(job)) {  // the others begin another epoch
        from.control.reset();
        break;
      }
      if (is_between_racks(job)) {
        return fail(ErrorCode::kServerLost, "the {} was lost: {}", rack_server(job, rank), error.message);
      }
      return fail(
          Error{ErrorCode::kPeerLost, fmt::format("rank {} of job '{}': {}", rank, job.name, error.message), rank});
    }
    if (!*message) break;
    MOTLEY_TRY(handle(job, rank, **message));
  }
  return {};
}

Status Service::handle(Job& job, int rank, const net::Message& message) {
  Rank& from = job.ranks.at(rank);
  const auto wrong = [&](const char* why) {
    return fail(Error{ErrorCode::kCorrupt,
                      fmt::format("rank {} of job '{}' sent a frame of type {:#x} with tag {:#x} and {} bytes: {}",
                                  rank, job.name, message.header.type, message.header.tag, message.header.length, why),
                      rank});
  };
  if (job.rack && job.rack->ready() && message.header.type != kServerLeave) {
    MOTLEY_ASSIGN(const bool known, job.rack->take(rank, message));
    return known ? Status{} : wrong("it is not its turn for this");
  }
  switch (message.header.type) {
    case kServerJoin: {
      if (from.join) return wrong("it has joined already");
      MOTLEY_ASSIGN(from.join, decode_server_join(message.payload));
      return join(job, rank);
    }
    case kServerLoad: {
      if (!job.dense || from.loaded || rank != 0) return wrong("it is not its turn to load");
      const std::span<float> part = job.dense->part(StatePart::of(message.header.tag));
      if (part.empty() || part.size_bytes() != message.payload.size()) return wrong("there is no such part");
      std::memcpy(part.data(), message.payload.data(), message.payload.size());
      job.dense->mark_given(StatePart::of(message.header.tag));
      return {};
    }
    case kServerLoaded: {
      if (!job.dense || from.loaded) return wrong("it is not its turn to load");
      from.loaded = true;
      if (rank == 0) job.dense->begin(message.header.tag);
      if (std::ranges::all_of(std::views::values(job.ranks), &Rank::loaded)) {
        for (Rank& other : std::views::values(job.ranks)) {
          if (other.control) say(*other.control, kServerLoaded, 0, {});
        }
      }
      return {};
    }
    case kServerSave: {
      if (!job.dense) return wrong("there is no state yet");
      const std::span<float> part = job.dense->part(StatePart::of(message.header.tag));
      if (part.empty()) return wrong("there is no such part");
      say(*from.control, kServerSave, message.header.tag, copy_bytes(part));
      return {};
    }
    case kServerMissing:
      if (!job.dense) return wrong("it has not joined yet");
      say(*from.control, kServerMissing, 0, copy_bytes(job.dense->standing().missing));
      return {};
    case kServerReceived:
      say(*from.control, kServerReceived, 0, copy_bytes(received_in_rack(job)));
      return {};
    case kServerFailed: {
      if (!is_between_racks(job)) return wrong("workers fail without a word");
      if (is_elastic(job)) {
        from.control.reset();
        return {};
      }
      MOTLEY_ASSIGN(Error error, decode_server_failed(message.payload));
      return fail(std::move(error));
    }
    case kServerLeave:
      from.left = true;
      return {};
    default:
      return wrong("no such frame is known");
  }
}

// Once all ranks have joined, their job gets its memory.
Status Service::join(Job& job, int newest) {
  const auto ranks = std::views::values(job.ranks);
  const auto first = std::ranges::find_if(job.ranks, [](const auto& entry) { return entry.second.join.has_value(); });
  const ServerJoin& join = *first->second.join;
  for (const auto& [rank, other] : job.ranks) {
    if (!other.join) continue;
    if (const std::string what = difference(join, *other.join); !what.empty()) {
      const bool racks = is_between_racks(job);
      return fail(Error{
          ErrorCode::kInvalidInput,
          fmt::format("job '{}': {} of {} {} and {}", job.name, what, racks ? "racks" : "ranks", first->first, rank),
          racks ? -1 : rank});
    }
  }
  if (const int last = job.ranks.rbegin()->first; last >= join.size) {
    return fail(ErrorCode::kInvalidInput, "job '{}' has {} ranks, but rank {} is here", job.name, join.size, last);
  }
  if (!join.racks.empty() && !join.racks.between_servers) return join_rack(job, newest);
  const bool all = static_cast<int>(job.ranks.size()) == join.size &&
                   std::ranges::all_of(ranks, [](const Rank& rank) { return rank.join.has_value(); });
  if (!all) return {};

  const auto is_here = [&](const Rank& rank) { return rank.join->region.valid() && rank.join->host_id == host_id_; };
  const bool in_memory =
      std::ranges::all_of(ranks, [&](const Rank& rank) { return is_here(rank) && !rank.join->values_in_region; });
  MOTLEY_TRY(check_segments(join, job.name));
  const std::size_t bytes = DenseJob::bytes_needed(join, used_cores(join), in_memory);
  MOTLEY_TRY(take_memory(job, bytes));
  MOTLEY_TRY(check_memory(bytes, job.name));
  std::vector<std::unique_ptr<net::Region>> regions(ranks.size());
  const DividedModel model(join.bucket_elements);
  for (std::size_t number = 0; const Rank& rank : ranks) {
    auto& place = regions[number++];
    const bool has_weights = rank.join->values_in_region;
    if (!in_memory && !has_weights) continue;
    if (!is_here(rank)) {
      return fail(ErrorCode::kInvalidInput, "job '{}': rank {} shares memory with a server of another host", job.name,
                  number - 1);
    }
    auto region = net::Region::map(rank.join->region, (has_weights ? model.weights_at() : 0) + model.bytes());
    if (!region && region.error().code == ErrorCode::kIo && is_elastic(job)) {  // it is lost: the others find out
      spdlog::warn("job '{}': {}", job.name, region.error().message);
      return {};
    }
    MOTLEY_ASSIGN(place, std::move(region));
  }
  MOTLEY_ASSIGN(job.dense, DenseJob::create(join, used_cores(join), std::move(regions), in_memory));
  if (job.before && job.dense->take_over(*job.before, join.elastic.updates)) {
    for (Rank& rank : std::views::values(job.ranks)) rank.loaded = true;
  }
  job.before.reset();
  MOTLEY_TRY(find_keeper(job, join));
  count_in(job, job.dense->metrics(), bytes);
  announce_joined(job, {.region = job.dense->region_address(),
                        .region_bytes = job.dense->region_bytes(),
                        .has_state = job.dense->has_begun()});
  spdlog::info("job '{}': {} ranks, {} in {} buckets, {}", job.name, join.size,
               format_bytes(static_cast<double>(model.bytes())), join.bucket_elements.size(),
               in_memory ? "in shared memory" : "over TCP");
  return {};
}

int Service::used_cores(const ServerJoin& join) const {
  return join.cores > 0 ? std::min(join.cores, cores()) : cores();
}

// Within the job's quota, and that of its tenant over all its jobs.
Status Service::take_memory(Job& job, std::size_t bytes) {
  if (options_.quota_bytes > 0 && bytes > options_.quota_bytes) {
    return fail(ErrorCode::kRefused, "job '{}' needs {} here; its quota is {}", job.name,
                format_bytes(static_cast<double>(bytes)), format_bytes(static_cast<double>(options_.quota_bytes)));
  }
  job.memory = std::make_unique<MemoryQuota::Lease>(memory_, job.claim.identity.tenant, job.name);
  return job.memory->take(bytes);
}

void Service::count_in(Job& job, std::shared_ptr<JobMetrics> metrics, std::size_t bytes) {
  job.metrics = std::move(metrics);
  job.metrics->tenant = job.claim.identity.tenant;
  job.metrics->job = job.claim.identity.job;
  job.metrics->bytes = bytes;
  metrics_->add(job.metrics);
}

void Service::announce_joined(Job& job, ServerJoined joined) {
  job.shared.assign(cores_.size(), false);
  choose_spinning();
  joined.may_spin = spins_;
  for (Rank& rank : std::views::values(job.ranks)) {
    if (!rank.join) continue;
    rank.channels.resize(cores_.size());
    if (rank.control) say(*rank.control, kServerJoined, 0, encode(joined));
  }
}

// Once all ranks of the rack have joined, its server meets the other racks'.
Status Service::join_rack(Job& job, int newest) {
  const ServerJoin& join = *job.ranks.at(newest).join;
  const int rack = join.racks.rank_racks[static_cast<std::size_t>(newest)];
  const std::vector<int> racks = join.racks.list_racks();
  const std::vector<int> ranks = join.racks.list_ranks(rack);
  const auto here = [&](int rank) {
    const auto found = job.ranks.find(rank);
    return found != job.ranks.end() && found->second.join;
  };
  for (int rank = 0; rank < join.size; ++rank) {
    if (here(rank) && join.racks.rank_racks[static_cast<std::size_t>(rank)] != rack) {
      return fail(Error{
          ErrorCode::kInvalidInput,
          fmt::format("job '{}': ranks {} and {} are in different racks, but both are here", job.name, rank, newest),
          newest});
    }
  }
  if (!std::ranges::all_of(ranks, here)) return {};
  const std::size_t bytes = RackJob::bytes_needed(join, rack);
  MOTLEY_TRY(take_memory(job, bytes));
  MOTLEY_TRY(check_memory(bytes, job.name));
  MOTLEY_TRY(check_segments(join, job.name));
  Claim claim = job.claim;
  claim.identity.job += kBetweenRacks;
  claim.identity.rank = static_cast<int>(std::ranges::find(racks, rack) - racks.begin());
  if (claim.identity.job.size() > net::kMaxNameBytes) {
    return fail(ErrorCode::kInvalidInput, "the job's name '{}' is too long for a job with racks", job.name);
  }
  const net::Secret& token = tenants_.find(job.claim.identity.tenant).token;
  job.rack = std::make_shared<RackJob>(join, std::move(claim), token, options_.payload_checksum, options_.encryption,
                                       [this] { waits_.wake(); });
  count_in(job, std::make_shared<JobMetrics>(static_cast<int>(ranks.size()), 0), bytes);
  return {};
}

// What the other racks' servers say to the one of this rack.
Status Service::receive_from_racks(Job& job) {
  if (!job.rack || job.ranks.empty()) return {};
  MOTLEY_ASSIGN(const bool connected, job.rack->connected());
  if (connected) {
    const std::vector<int> without_state = job.rack->racks_without_state();
    announce_joined(job, {.bins = job.rack->bins(),
                          .cores = job.rack->cores(),
                          .has_state = without_state.empty(),
                          .racks_without_state = without_state});
    spdlog::info("job '{}': ranks {} of a rack; {} racks have met", job.name, fmt::join(job.rack->ranks(), ", "),
                 job.rack->controls().size());
  }
  if (!job.rack->ready()) return {};
  MOTLEY_ASSIGN(const auto answers, job.rack->receive());
  for (const RackJob::Answer& answer : answers) {
    for (const auto& [rank, to] : job.ranks) {
      if (!to.control || to.left || (answer.rank >= 0 && answer.rank != rank)) continue;
      say(*to.control, answer.type, answer.tag, answer.payload);
    }
  }
  return {};
}

// What has come from the ranks of this server's rack, for the job between the racks.
std::vector<ReceivedFrom> Service::received_in_rack(const Job& between) const {
  const auto& [name, tenant] = std::tie(between.claim.identity.job, between.claim.identity.tenant);
  if (!name.ends_with(kBetweenRacks)) return {};
  const Job* job = find_job(tenant, name.substr(0, name.size() - std::string_view(kBetweenRacks).size()));
  return job != nullptr && job->rack && job->rack->ready() ? job->rack->received() : std::vector<ReceivedFrom>();
}

void Service::end(Job& job, const Error& error) {
  if (!is_elastic(job) || error.code != ErrorCode::kPeerLost) {  // else its ranks begin another epoch
    spdlog::warn("job '{}' has failed: {}", job.name, error.message);
    metrics_->jobs_failed.add(1);
  }
  for (const auto& core : cores_) {
    core->remove(job.number);
    for (const std::uint64_t task : job.kept) core->remove(task);
  }
  if (job.rack) {
    for (auto& control : job.rack->take_controls()) turn_away(std::move(control), error);
  }
  for (Rank& rank : std::views::values(job.ranks)) {
    if (rank.control && !rank.left) turn_away(std::move(rank.control), error);
  }
  job.ranks.clear();
}

}  // namespace motley::ps
