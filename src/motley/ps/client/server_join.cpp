// How a rank joins its job at the servers: connections are made and messages exchanged, one server after the other.

#include <poll.h>

#include <algorithm>
#include <set>

#include "motley/base/log.h"
#include "motley/base/os/injected_fault.h"
#include "motley/net/admission.h"
#include "motley/net/socket.h"
#include "motley/ps/client/server_path.h"

namespace motley::ps {
namespace {

constexpr double kAnswerSeconds = 1;      // for a server to say whom it waits for
constexpr double kShareOfDeadline = 0.9;  // for servers to meet, so that they can still say whom they wait for

Status check_options(const ServerOptions& options, const collective::Layout& layout) {
  const collective::WireForm wire = options.wire_form();
  if (layout.type != collective::DataType::kFloat32) {
    return fail(
        ErrorCode::kInvalidInput,
        "a parameter server works on float32 weights; these are float64: gradient_sync.method ring or shared-memory "
        "is accepted");
  }
  if (options.staleness && options.update.rule == kernels::UpdateRule::kSum) {
    return fail(
        ErrorCode::kInvalidInput,
        "bounded staleness needs the parameter server to take the optimizer's step; this job's servers only add up");
  }
  if ((options.staleness || !options.rank_racks.empty()) && wire.lossy()) {
    return fail(
        ErrorCode::kInvalidInput,
        "gradient_sync.comm_dtype: {} needs all ranks at the same step, and no servers of racks in between; accepted: "
        "float32, bfloat16 and float16",
        to_string(wire));
  }
  if (options.elastic && (options.staleness || wire.lossy())) {
    return fail(ErrorCode::kInvalidInput,
                "ranks that come and go need all ranks at the same step, and float32, bfloat16 or float16 on the wire");
  }
  if (wire.type == collective::WireType::kTopK && !(wire.density > 0 && wire.density <= collective::kLargestDensity)) {
    return fail(ErrorCode::kInvalidInput, "gradient_sync.top_k: {}; accepted: above 0, at most {}", wire.density,
                collective::kLargestDensity);
  }
  MOTLEY_INVARIANT(wire.type != collective::WireType::kAuto, "nobody has chosen the type on the wire");
  MOTLEY_INVARIANT(options.server_speeds.empty() || options.server_speeds.size() == options.servers.size(),
                   "{} speeds are given for {} servers", options.server_speeds.size(), options.servers.size());
  return {};
}

// Empty where racks are not told apart; else a rank knows its own rack's server only.
Result<RackPlan> plan_racks(const ServerOptions& options, int size) {
  if (options.rank_racks.empty() || options.servers.size() < 2) return RackPlan();
  if (options.staleness) {
    return fail(ErrorCode::kInvalidInput,
                "a server in each rack adds up what its ranks push together; bounded staleness needs servers without "
                "racks");
  }
  std::vector<std::string> names;
  for (const ServerAddress& address : options.servers) names.push_back(net::to_string(address.endpoint));
  return make_rack_plan(names, options.rank_racks, size, options.elastic.has_value());
}

}  // namespace

// A server that another one could stand in for is not waited for as long as one that has to come back.
Result<std::unique_ptr<net::Connection>> ControlConnections::open(const ServerAddress& address, std::size_t number,
                                                                  std::uint32_t purpose, const Deadline& deadline) {
  const net::SessionOptions& own = session_.options();
  const net::Membership& membership = session_.membership();
  const std::uint64_t session = elastic_ ? elastic_->session : membership.session;
  const std::uint64_t epoch = elastic_ ? elastic_->epoch : membership.epoch;
  const net::Claim claim = {.identity = {own.job + job_suffix_, own.tenant, membership.rank, session, epoch, purpose},
                            .fingerprint = own.fingerprint};
  const bool may_be_lost = elastic_ && elastic_->has_replicas && !elastic_->lost_server;
  const Deadline let_in =
      may_be_lost ? Deadline::after(std::min(deadline.remaining(), own.silence_seconds / 2)) : deadline;
  auto connection = net::connect_to_host(address.endpoint, address.token, claim, let_in, own.payload_checksum,
                                         own.encryption, [&] { return !session_.health(); });
  if (connection) return connection;
  if (elastic_) MOTLEY_TRY(session_.health());
  if (!may_be_lost || connection.error().code != ErrorCode::kTimeout) return connection;
  unreachable_ = static_cast<int>(number);
  return fail(ErrorCode::kServerLost, "the {} was lost: it let nobody in within {:.3g} s", describe_server(address),
              let_in.allowed());
}

Status ControlConnections::connect(const std::vector<ServerAddress>& addresses, const Deadline& deadline) {
  for (std::size_t number = 0; number < addresses.size(); ++number) {
    if (elastic_ && elastic_->lost_server == static_cast<int>(number)) continue;
    const ServerAddress& address = addresses[number];
    MOTLEY_ASSIGN(auto control, open(address, number, kServerControl, deadline));
    Server& server = servers_.emplace_back(Server{address, describe_server(address), std::move(control), number});
    watch_.add(address);
    MOTLEY_ASSIGN(const auto message, receive_from(server, kServerInfo, deadline, "what it is"));
    MOTLEY_ASSIGN(const ServerInfo info, decode_server_info(message.payload));
    server.cores = info.cores;
    server.host_id = info.host_id;
  }
  return {};
}

Result<Channels> ControlConnections::open_channels(const Deadline& deadline) {
  Channels channels;
  for (const Server& server : servers_) {
    for (int core = 0; core < server.cores; ++core) {
      MOTLEY_ASSIGN(auto channel,
                    open(server.address, server.number, kServerChannel + static_cast<std::uint32_t>(core), deadline));
      channels.push_back(std::move(channel));
    }
  }
  return channels;
}

// Where the connection to a server breaks although all ranks are there, the server is lost.
Error ControlConnections::judge(Server& server, const Error& error) const {
  const bool is_lost = elastic_ && error.code == ErrorCode::kPeerLost && session_.health();
  server.is_lost = server.is_lost || is_lost;
  return is_lost ? Error{ErrorCode::kServerLost, fmt::format("the {} was lost: {}", server.name, error.message), -1}
                 : error.within(server.name);
}

Status ControlConnections::send(Server& server, std::uint16_t type, std::uint64_t tag,
                                std::span<const std::byte> payload, const Deadline& deadline, const char* what) {
  Status others;  // whether ranks and servers are there while this one does not take it
  const auto is_in_vain = [&] {
    others = session_.health();
    if (others) others = note_lost(watch_.check());
    return !others;
  };
  const Status sent = server.control->send(type, tag, payload, deadline, what, is_in_vain);
  if (!others) return others;
  return sent ? Status() : fail(judge(server, sent.error()));
}

Result<net::Message> ControlConnections::receive_from(Server& server, std::uint16_t type, const Deadline& deadline,
                                                      const char* what) {
  for (;;) {
    auto message = server.control->try_receive();
    if (!message) return fail(judge(server, message.error()));
    if (*message && (*message)->header.type == kServerFailed) {
      MOTLEY_ASSIGN(const Error error, decode_server_failed((*message)->payload));
      server.is_lost = error.code == ErrorCode::kServerLost;
      verdict_ = error.within(server.name);
      return fail(*verdict_);
    }
    if (*message && (*message)->header.type == type) return std::move(**message);
    if (*message) {
      return fail(ErrorCode::kCorrupt, "{}: an unexpected frame of type {:#x}", server.name, (*message)->header.type);
    }
    if (const auto moved = server.control->progress(); !moved) return fail(judge(server, moved.error()));
    if (const Status health = session_.health(); !health) return fail(health.error());
    if (deadline.passed()) {
      return fail(ErrorCode::kTimeout, "{}: timeout after {:.3g} s of waiting for {}", server.name, deadline.allowed(),
                  what);
    }
    MOTLEY_TRY(note_lost(watch_.check()));
    net::wait_for(server.control->descriptor(), POLLIN, std::min(50, deadline.remaining_milliseconds()));
  }
}

Status ControlConnections::check() {
  const std::lock_guard lock(mutex_);
  for (Server& server : servers_) {
    if (verdict_) break;
    const auto message = server.control->try_receive();
    if (!message) {
      server.is_lost = true;
      verdict_ = Error{ErrorCode::kServerLost,
                       fmt::format("the {} was lost: it has ended, or a link is down", server.name), -1};
    } else if (*message && (*message)->header.type == kServerFailed) {
      const auto error = decode_server_failed((*message)->payload);
      server.is_lost = error && error->code == ErrorCode::kServerLost;
      verdict_ = (error ? *error : error.error()).within(server.name);
    }
  }
  if (verdict_) return fail(*verdict_);
  return note_lost(watch_.check());
}

Status ControlConnections::ask_whether_there() {
  const std::lock_guard lock(mutex_);
  return note_lost(watch_.ask());
}

Status ControlConnections::note_lost(Status asked) {
  if (!asked && watch_.lost() && *watch_.lost() < servers_.size()) servers_[*watch_.lost()].is_lost = true;
  return asked;
}

std::vector<int> ControlConnections::ask_for_missing() {
  const std::lock_guard lock(mutex_);
  const Deadline deadline = Deadline::after(kAnswerSeconds);
  std::set<int> missing;
  silent_servers_.clear();
  for (Server& server : servers_) {
    const Status asked = server.control->send(kServerMissing, 0, {}, deadline, "a question");
    const Result<net::Message> answer = asked ? receive_from(server, kServerMissing, deadline, "whom it waits for")
                                              : Result<net::Message>(fail(asked.error()));
    if (!answer) {
      silent_servers_.push_back(server.name);
      continue;
    }
    for (const int rank : decode_missing_ranks(answer->payload, session_.membership().size())) missing.insert(rank);
  }
  return {missing.begin(), missing.end()};
}

void ControlConnections::leave() {
  if (failed_ || (elastic_ && !session_.health())) return;
  const std::lock_guard lock(mutex_);
  for (Server& server : servers_) {
    server.control->post_owned(kServerLeave, 0, {});
    static_cast<void>(server.control->progress());
  }
  servers_.clear();
}

namespace {

// The cores of each server, counted over all of them, lost ones too.
std::vector<BinRange> number_bins(const std::vector<ControlConnections::Server>& servers,
                                  const ServerOptions& options) {
  std::vector<BinRange> ranges(servers.size() + (options.elastic && options.elastic->lost_server ? 1 : 0));
  for (const auto& server : servers) ranges[server.number].count = server.cores;
  if (ranges.size() > servers.size()) {
    const auto lost = static_cast<std::size_t>(*options.elastic->lost_server);
    ranges[lost].count = options.elastic->server_cores[lost];
  }
  for (std::size_t number = 1; number < ranges.size(); ++number) {
    ranges[number].first = ranges[number - 1].first + ranges[number - 1].count;
  }
  return ranges;
}

// The next server has the segments of a lost one. Those that are there are counted without it.
void give_bins(std::vector<ControlConnections::Server>& servers, const std::vector<BinRange>& ranges,
               const ServerOptions& options, DividedModel& model) {
  if (ranges.size() > servers.size()) {
    const auto lost = static_cast<std::size_t>(*options.elastic->lost_server);
    const BinRange& next = ranges[(lost + 1) % ranges.size()];
    model.move_bins(ranges[lost].first, ranges[lost].count, next.first, next.count);
  }
  int first = 0;
  for (auto& server : servers) {
    model.move_bins(ranges[server.number].first, server.cores, first, server.cores);
    server.first_bin = first;
    first += server.cores;
  }
}

// Also servers that share memory with some ranks only, or are several, take what goes between them and these there.
void share_values(const ServerOptions& options, const std::string& host,
                  std::vector<ControlConnections::Server>& servers, Joined& joined) {
  if (options.elastic || options.staleness || options.wire != collective::WireType::kNative) return;
  const auto is_here = [&](const auto& server) { return server.host_id == host; };
  if (std::ranges::none_of(servers, is_here)) return;
  auto region = net::Region::create(joined.model.weights_at() + std::max<std::size_t>(joined.model.bytes(), 64));
  if (!region) {
    spdlog::warn("gradients go to the servers of this host over TCP, too: {}", region.error().message);
    return;
  }
  joined.gradients = std::move(*region);
  for (auto& server : servers) server.in_region = is_here(server);
}

// The region that a server has made for the job.
Status map_region(net::Session& session, const ServerOptions& options, const ServerJoin& join,
                  const ControlConnections::Server& server, const ServerJoined& answer, Joined& joined) {
  const std::size_t segments = join.is_reversible ? joined.model.segments().size() : 0;
  if (answer.region_bytes !=
      ServerRegion::bytes(join.bucket_elements, server.cores, join.size, join.is_async, segments)) {
    return fail(ErrorCode::kCorrupt, "{}: its region has {} bytes", server.name, answer.region_bytes);
  }
  auto region = net::Region::map(answer.region, answer.region_bytes);
  if (!region && region.error().code == ErrorCode::kIo && options.elastic) {  // with the process that made it
    MOTLEY_TRY(session.health());
    return fail(ErrorCode::kServerLost, "the {} was lost: {}", server.name, region.error().message);
  }
  MOTLEY_ASSIGN(joined.of_server, std::move(region));
  joined.region =
      ServerRegion(joined.of_server->data(), join.bucket_elements, server.cores, join.size, join.is_async, segments);
  return {};
}

}  // namespace

Result<Joined> join_servers(net::Session& session, const ServerOptions& options, const collective::Layout& layout,
                            ControlConnections& controls, const Deadline& deadline) {
  const net::Membership& membership = session.membership();
  const std::string& host = membership.members[membership.rank].host_id;
  MOTLEY_TRY(check_options(options, layout));
  MOTLEY_ASSIGN(const RackPlan racks, plan_racks(options, membership.size()));
  inject_fault(session.job_rank(membership.rank), "joining servers");
  MOTLEY_TRY(controls.connect(
      racks.empty() ? options.servers : std::vector{options.servers[options.rank_racks[membership.rank]]}, deadline));

  Joined joined{.model = DividedModel(layout.bucket_elements)};
  auto& servers = controls.servers();
  const std::vector<BinRange> ranges = number_bins(servers, options);
  const int bins = ranges.back().first + ranges.back().count;
  std::vector<double> bin_speeds;
  for (std::size_t number = 0; number < ranges.size() && !options.server_speeds.empty() && racks.empty(); ++number) {
    const int cores = ranges[number].count;
    bin_speeds.insert(bin_speeds.end(), cores, options.server_speeds[number] / cores);
  }
  joined.model.divide(options.chunk_bytes, bins, bin_speeds);
  give_bins(servers, ranges, options, joined.model);

  ServerJoin join = {.size = membership.size(),
                     .bins = bins,
                     .chunk_bytes = options.chunk_bytes,
                     .is_async = options.staleness.has_value(),
                     .wire = options.wire_form(),
                     .update = options.update,
                     .bucket_elements = joined.model.bucket_elements(),
                     .bin_speeds = bin_speeds,
                     .host_id = host,
                     .racks = racks,
                     .elastic = {}};
  const bool in_memory = options.servers_share_memory && ranges.size() == 1 && racks.empty() &&
                         servers[0].host_id == host && membership.on_one_host();
  if (in_memory) {
    MOTLEY_ASSIGN(joined.gradients, net::Region::create(std::max<std::size_t>(joined.model.bytes(), 64)));
  } else if (options.servers_share_memory && racks.empty()) {
    share_values(options, host, servers, joined);
  }
  join.is_reversible = in_memory && options.reversible;
  const bool is_one_host = membership.on_one_host() &&
                           std::ranges::all_of(servers, [&](const auto& server) { return server.host_id == host; });
  const bool replicates = options.elastic && options.elastic->replicates.value_or(!is_one_host) && servers.size() > 1 &&
                          !options.elastic->lost_server && options.update.rule != kernels::UpdateRule::kSum;
  for (auto& server : servers) {
    const std::size_t before = (server.number + ranges.size() - 1) % ranges.size();
    join.first_bin = ranges[server.number].first;
    join.region = in_memory || server.in_region ? joined.gradients->address() : net::RegionAddress();
    join.values_in_region = server.in_region;
    if (options.elastic) {
      join.elastic = {.kept_seconds = options.elastic->kept_seconds, .updates = options.elastic->updates};
      if (options.elastic->lost_server == static_cast<int>(before)) join.elastic.adopted = ranges[before];
    }
    if (replicates) {
      join.elastic.kept = server.kept = ranges[before];
      join.elastic.keeper = net::to_string(servers[(server.number + 1) % servers.size()].address.endpoint);
    }
    join.racks.seconds = kShareOfDeadline * deadline.remaining();
    MOTLEY_TRY(controls.send(server, kServerJoin, 0, encode(join), deadline, "joining"));
  }
  for (auto& server : servers) {
    MOTLEY_ASSIGN(const auto message, controls.receive_from(server, kServerJoined, deadline, "all ranks to join"));
    MOTLEY_ASSIGN(const ServerJoined answer, decode_server_joined(message.payload));
    joined.may_spin = answer.may_spin;
    server.has_state = answer.has_state;
    if (racks.empty() && !server.has_state) joined.without_state.push_back(server.name);
    for (const int rack : answer.racks_without_state) {
      if (rack < racks.racks()) joined.without_state.push_back(describe_server(options.servers[rack]));
    }
    if (!racks.empty()) {  // then the server knows better which cores there are
      if (answer.cores < 1 || answer.cores > server.cores) {
        return fail(ErrorCode::kCorrupt, "{}: it uses {} of its {} cores", server.name, answer.cores, server.cores);
      }
      server.cores = answer.cores;
      joined.model.divide(options.chunk_bytes, answer.bins, bin_speeds);
      joined.model.fold_bins(answer.cores);
    }
    if (in_memory) MOTLEY_TRY(map_region(session, options, join, server, answer, joined));
  }
  // Until here the rack's server has waited for them itself.
  for (int rack = 0; rack < racks.racks(); ++rack) {
    if (racks.list_ranks(rack).empty()) controls.watch(options.servers[rack]);
  }
  if (in_memory && join.wire.type != collective::WireType::kNative && membership.rank == 0) {
    spdlog::info(
        "gradient_sync.comm_dtype: {} is not used: the server and all ranks share memory, where nothing is sent",
        to_string(join.wire));
  }
  return joined;
}

}  // namespace motley::ps
