#include "motley/ps/client/server_join.h"

#include "motley/base/log.h"

namespace motley::ps {
namespace {

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
  return make_rack_plan(names, options.rank_racks, size);
}

// What the server has answered a join that was all of the job's. In racks, the server knows better which cores there
// are.
Result<ServerJoined> receive_joined(ControlConnections& controls, ControlConnections::Server& server, bool racks,
                                    const Deadline& deadline) {
  MOTLEY_ASSIGN(const auto message, controls.receive_from(server, kServerJoined, deadline, "all ranks to join"));
  MOTLEY_ASSIGN(ServerJoined joined, decode_server_joined(message.payload));
  if (racks && (joined.cores < 1 || joined.cores > server.cores)) {
    return fail(ErrorCode::kCorrupt, "{}: it uses {} of its {} cores", server.name, joined.cores, server.cores);
  }
  return joined;
}

Status map_region(SharedMemory& memory, const ControlConnections::Server& server, const ServerJoined& joined,
                  const DividedModel& model, int size, bool is_async) {
  if (joined.region_bytes != ServerRegion::bytes(model.bucket_elements(), server.cores, size, is_async)) {
    return fail(ErrorCode::kCorrupt, "{}: its region has {} bytes", server.name, joined.region_bytes);
  }
  MOTLEY_ASSIGN(memory.of_server, net::Region::map(joined.region, joined.region_bytes));
  memory.region = ServerRegion(memory.of_server->data(), model.bucket_elements(), server.cores, size, is_async);
  memory.gradients->unlink();
  return {};
}

}  // namespace

Result<Joined> join_servers(net::Session& session, const ServerOptions& options, const collective::Layout& layout,
                            ControlConnections& controls, const Deadline& deadline) {
  const net::Membership& membership = session.membership();
  const std::string& host = membership.members[static_cast<std::size_t>(membership.rank)].host_id;
  MOTLEY_TRY(check_options(options, layout));
  MOTLEY_ASSIGN(const RackPlan racks, plan_racks(options, membership.size()));
  const auto own_rack = [&] {
    return static_cast<std::size_t>(options.rank_racks[static_cast<std::size_t>(membership.rank)]);
  };
  MOTLEY_TRY(controls.connect(racks.empty() ? options.servers : std::vector{options.servers[own_rack()]}, deadline));

  Joined joined{.model = DividedModel(layout.bucket_elements)};
  auto& servers = controls.servers();
  int bins = 0;
  std::vector<double> bin_speeds;
  for (std::size_t index = 0; index < servers.size(); ++index) {
    servers[index].first_bin = bins;
    bins += servers[index].cores;
    if (!options.server_speeds.empty() && racks.empty()) {
      bin_speeds.insert(bin_speeds.end(), static_cast<std::size_t>(servers[index].cores),
                        options.server_speeds[index] / servers[index].cores);
    }
  }
  joined.model.divide(options.chunk_bytes, bins, bin_speeds);

  ServerJoin join = {.size = membership.size(),
                     .bins = bins,
                     .chunk_bytes = options.chunk_bytes,
                     .is_async = options.staleness.has_value(),
                     .wire = options.wire_form(),
                     .update = options.update,
                     .bucket_elements = joined.model.bucket_elements(),
                     .bin_speeds = bin_speeds,
                     .host_id = host,
                     .racks = racks};
  const bool in_memory = options.servers_share_memory && servers.size() == 1 && racks.empty() &&
                         servers[0].host_id == host && membership.on_one_host();
  if (in_memory) {
    join.region = fmt::format("{:x}-{}-pushes-r{}", membership.session, membership.epoch, membership.rank);
    MOTLEY_ASSIGN(joined.memory.gradients,
                  net::Region::create(join.region, std::max<std::size_t>(joined.model.bytes(), 64)));
  }
  for (auto& server : servers) {
    join.first_bin = server.first_bin;
    join.racks.seconds = kShareOfDeadline * deadline.remaining();
    MOTLEY_TRY(server.control->send(kServerJoin, 0, encode(join), deadline, "joining"));
  }
  for (auto& server : servers) {
    MOTLEY_ASSIGN(const ServerJoined answer, receive_joined(controls, server, !racks.empty(), deadline));
    joined.may_spin = answer.may_spin;
    if (!racks.empty()) {
      server.cores = answer.cores;
      joined.model.divide(options.chunk_bytes, answer.bins, bin_speeds);
      joined.model.fold_bins(answer.cores);
    }
    if (in_memory) {
      MOTLEY_TRY(map_region(joined.memory, server, answer, joined.model, join.size, join.is_async));
    }
  }
  if (in_memory && join.wire.type != collective::WireType::kNative && membership.rank == 0) {
    spdlog::info(
        "gradient_sync.comm_dtype: {} is not used: the server and all ranks share memory, where nothing is sent",
        to_string(join.wire));
  }
  return joined;
}

}  // namespace motley::ps
