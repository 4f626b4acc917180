// The messages' fields, and where things stand in the shared region.
#include "motley/ps/protocol/server_protocol.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "motley/net/message_fields.h"

namespace motley::net {

// Found by argument-dependent lookup, so not in the anonymous namespace.
template <class Archive>
static void fields(Archive& archive, RegionAddress& address) {
  archive.required("process", address.process, NumberIs::between(0, std::numeric_limits<std::int32_t>::max()));
  archive.required("descriptor", address.descriptor, NumberIs::between(-1, std::numeric_limits<std::int32_t>::max()));
  archive.required("file", address.file);
}

}  // namespace motley::net

namespace motley::ps {
namespace {

constexpr double kMaxReasonBytes = 16384;
constexpr int kMaxBins = 65536;
constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 40;
constexpr double kSmallestChunkBytes = 64;
constexpr double kMaxRendezvousSeconds = 4e6;
constexpr std::size_t kPage = 4096;

struct Failure {
  ErrorCode code = ErrorCode::kInternal;
  int rank = -1;
  std::string message;
};

template <class Archive>
void fields(Archive& archive, Failure& failure) {
  net::error_code(archive, failure.code);
  archive.required("rank", failure.rank, NumberIs::between(-1, kMaxRanks - 1));
  archive.required("message", failure.message, NumberIs::between(0, kMaxReasonBytes));
}

// Whether the fields fit each other; each by itself is within its bounds.
bool is_sensible(const ServerJoin& join) {
  const RackPlan& racks = join.racks;
  const bool is_elastic = join.elastic.kept_seconds > 0;
  const bool is_plan =
      make_rack_plan(racks.servers, racks.rank_racks, static_cast<int>(racks.rank_racks.size()), is_elastic)
          .has_value();
  const std::size_t racked = racks.between_servers ? racks.list_racks().size() : racks.rank_racks.size();
  const bool racks_fit = is_plan && ((racks.empty() && !racks.between_servers && racks.servers.empty()) ||
                                     racked == static_cast<std::size_t>(join.size));
  const bool speeds_fit = join.bin_speeds.empty() || std::ssize(join.bin_speeds) == join.bins;
  const bool density_fits = join.wire.type == collective::WireType::kTopK
                                ? join.wire.density > 0 && join.wire.density <= collective::kLargestDensity
                                : std::bit_cast<std::uint64_t>(join.wire.density) == 0;
  const bool is_plain = !join.is_async && racks.empty() && !racks.between_servers;
  const bool wire_fits = !join.wire.lossy() || (is_plain && !is_elastic);
  const ElasticJoin& elastic = join.elastic;
  const bool is_replicated = elastic.kept.count > 0 || elastic.adopted.count > 0 || !elastic.keeper.empty();
  const bool elastic_fits = !is_elastic || is_plain || (!join.is_async && !is_replicated);
  const bool is_reversible = join.is_reversible && join.update.rule != kernels::UpdateRule::kSum;
  const bool reversible_fits = !join.is_reversible || (is_reversible && is_plain && !is_elastic);
  const bool is_native = join.wire.type == collective::WireType::kNative;
  const bool region_fits = !join.values_in_region || (join.region.valid() && is_native && is_plain && !is_elastic);
  const auto& buckets = join.bucket_elements;
  const std::uint64_t elements = std::accumulate(buckets.begin(), buckets.end(), std::uint64_t{0});
  return racks_fit && speeds_fit && density_fits && wire_fits && elastic_fits && reversible_fits && region_fits &&
         join.first_bin < join.bins && !buckets.empty() && elements <= kMaxElements &&
         (!join.is_async || join.update.rule != kernels::UpdateRule::kSum);
}

}  // namespace

std::vector<int> RackPlan::list_ranks(int rack) const {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < rank_racks.size(); ++rank) {
    if (rank_racks[rank] == rack) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

std::vector<int> RackPlan::list_racks() const {
  std::vector<int> racks;
  for (const int rack : rank_racks) {
    if (std::ranges::find(racks, rack) == racks.end()) racks.push_back(rack);
  }
  return racks;
}

Result<RackPlan> make_rack_plan(std::span<const std::string> servers, std::span<const int> rank_racks, int size,
                                bool may_be_empty) {
  if (static_cast<int>(rank_racks.size()) != size) {
    return fail(ErrorCode::kInvalidInput, "racks: {} numbers are given for {} workers; accepted: one for each",
                rank_racks.size(), size);
  }
  for (std::size_t rank = 0; rank < rank_racks.size(); ++rank) {
    const int server = rank_racks[rank];
    if (server < 0 || server >= static_cast<int>(servers.size())) {
      return fail(ErrorCode::kInvalidInput,
                  "racks: worker {} is given server {}; accepted: 0 to {}, in the order of gradient_sync.servers", rank,
                  server, static_cast<int>(servers.size()) - 1);
    }
  }
  RackPlan plan = {.rank_racks = {rank_racks.begin(), rank_racks.end()}, .servers = {servers.begin(), servers.end()}};
  for (int rack = 0; rack < plan.racks() && !may_be_empty; ++rack) {
    if (std::ranges::find(rank_racks, rack) != rank_racks.end()) continue;
    return fail(ErrorCode::kInvalidInput, "racks: no worker is given the server {}; accepted: one or more for each",
                plan.servers[static_cast<std::size_t>(rack)]);
  }
  return plan;
}

template <class Archive>
void fields(Archive& archive, ServerInfo& info) {
  archive.required("host_id", info.host_id);
  archive.required("cores", info.cores, NumberIs::between(1, kMaxBins));
}

template <class Archive>
void fields(Archive& archive, RackPlan& plan) {
  archive.required("rank_racks", plan.rank_racks, NumberIs::between(0, kMaxRanks));
  archive.required("servers", plan.servers);
  archive.required("between_servers", plan.between_servers);
  archive.required("seconds", plan.seconds, NumberIs::between(0, kMaxRendezvousSeconds));
}

template <class Archive>
void fields(Archive& archive, BinRange& range) {
  archive.required("first", range.first, NumberIs::between(0, kMaxBins));
  archive.required("count", range.count, NumberIs::between(0, kMaxBins));
}

template <class Archive>
void fields(Archive& archive, ElasticJoin& elastic) {
  archive.required("kept_seconds", elastic.kept_seconds, NumberIs::between(0, kMaxRendezvousSeconds));
  archive.required("updates", elastic.updates);
  archive.required("kept", elastic.kept);
  archive.required("keeper", elastic.keeper);
  archive.required("adopted", elastic.adopted);
}

template <class Archive>
void fields(Archive& archive, ServerJoin& join) {
  archive.required("size", join.size, NumberIs::between(1, kMaxRanks));
  archive.required("bins", join.bins, NumberIs::between(1, kMaxBins));
  archive.required("first_bin", join.first_bin, NumberIs::between(0, kMaxBins));
  archive.required("cores", join.cores, NumberIs::between(0, kMaxBins));
  archive.required("chunk_bytes", join.chunk_bytes, NumberIs::between(kSmallestChunkBytes, kMaxElements));
  archive.required("is_async", join.is_async);
  archive.required("is_reversible", join.is_reversible);
  archive.required("wire", join.wire.type, NumberIs::between(0, static_cast<int>(collective::WireType::kTopK)));
  archive.required("density", join.wire.density, NumberIs::kFraction);
  archive.required("rule", join.update.rule, NumberIs::between(0, static_cast<int>(kernels::UpdateRule::kAdamW)));
  archive.required("momentum", join.update.momentum, NumberIs::kFinite);
  archive.required("dampening", join.update.dampening, NumberIs::kFinite);
  archive.required("weight_decay", join.update.weight_decay, NumberIs::kFinite);
  archive.required("beta1", join.update.beta1, NumberIs::kFinite);
  archive.required("beta2", join.update.beta2, NumberIs::kFinite);
  archive.required("epsilon", join.update.epsilon, NumberIs::kFinite);
  archive.required("host_id", join.host_id);
  archive.required("region", join.region);
  archive.required("values_in_region", join.values_in_region);
  archive.required("bucket_elements", join.bucket_elements, NumberIs::between(0, kMaxElements));
  archive.required("bin_speeds", join.bin_speeds, NumberIs::kPositive);
  archive.required("racks", join.racks);
  archive.required("elastic", join.elastic);
}

template <class Archive>
void fields(Archive& archive, ServerJoined& joined) {
  archive.required("region", joined.region);
  archive.required("region_bytes", joined.region_bytes);
  archive.required("may_spin", joined.may_spin);
  archive.required("bins", joined.bins, NumberIs::between(0, kMaxBins));
  archive.required("cores", joined.cores, NumberIs::between(0, kMaxBins));
  archive.required("has_state", joined.has_state);
  archive.required("racks_without_state", joined.racks_without_state, NumberIs::between(0, kMaxRanks));
}

std::vector<std::byte> encode(const ServerInfo& info) {
  return net::encode_message(info);
}

std::vector<std::byte> encode(ServerJoin join) {
  join.racks.seconds = std::clamp(join.racks.seconds, 0.0, kMaxRendezvousSeconds);
  return net::encode_message(std::move(join));
}

std::vector<std::byte> encode(const ServerJoined& joined) {
  return net::encode_message(joined);
}

std::vector<std::byte> encode(const Error& error) {
  return net::encode_message(Failure{error.code, error.rank, error.message});
}

Result<ServerInfo> decode_server_info(std::span<const std::byte> bytes) {
  return net::decode_message<ServerInfo>(bytes, "server");
}

Result<ServerJoin> decode_server_join(std::span<const std::byte> bytes) {
  MOTLEY_ASSIGN(auto join, net::decode_message<ServerJoin>(bytes, "join"));
  if (is_sensible(join)) return join;
  return fail(ErrorCode::kCorrupt, "a malformed join message of {} bytes: its fields do not fit each other",
              bytes.size());
}

Result<ServerJoined> decode_server_joined(std::span<const std::byte> bytes) {
  MOTLEY_ASSIGN(auto joined, net::decode_message<ServerJoined>(bytes, "joined"));
  if (joined.cores <= joined.bins) return joined;
  return fail(ErrorCode::kCorrupt, "a malformed joined message: {} cores of {}", joined.cores, joined.bins);
}

Result<Error> decode_server_failed(std::span<const std::byte> bytes) {
  MOTLEY_ASSIGN(auto failure, net::decode_message<Failure>(bytes, "failure"));
  return Error{failure.code, std::move(failure.message), failure.rank};
}

std::vector<int> decode_missing_ranks(std::span<const std::byte> bytes, int size) {
  std::vector<int> ranks(bytes.size() / sizeof(int));
  if (!ranks.empty()) std::memcpy(ranks.data(), bytes.data(), ranks.size() * sizeof(int));
  std::erase_if(ranks, [&](int rank) { return rank < 0 || rank >= size; });
  return ranks;
}

std::vector<std::byte> encode_server_progress(double stuck_seconds) {
  return copy_bytes(std::span(&stuck_seconds, 1));
}

Result<double> decode_server_progress(std::span<const std::byte> bytes) {
  double seconds = 0;
  if (bytes.size() != sizeof seconds) {
    return fail(ErrorCode::kCorrupt, "{} bytes are no word about a server's progress", bytes.size());
  }
  std::memcpy(&seconds, bytes.data(), sizeof seconds);
  return seconds;
}

ServerRegion::ServerRegion(std::byte* data, std::span<const std::uint64_t> bucket_elements, int cores, int size,
                           bool is_async, std::size_t reversible_segments)
    : data_(data), size_(static_cast<std::size_t>(size)) {
  const std::size_t announced = bucket_elements.size() * size_;
  buckets_at_ = cores * sizeof(ThreadState);
  announced_at_ = buckets_at_ + bucket_elements.size() * sizeof(BucketState);
  answered_at_ = announced_at_ + announced * sizeof(Announced);
  rounds_at_ = answered_at_ + (is_async ? announced * sizeof(Answered) : 0);
  const std::size_t rounds = is_async ? announced * size_ * sizeof(std::uint32_t) : 0;
  squares_at_ = rounds_at_ + (rounds + 63) / 64 * 64;
  values_at_ = (squares_at_ + reversible_segments * sizeof(double) + kPage - 1) / kPage * kPage;
  value_bytes_ = collective::value_offsets(bucket_elements, sizeof(float)).back();
  if (reversible_segments > 0) value_bytes_ = (value_bytes_ + kPage - 1) / kPage * kPage;
}

std::size_t ServerRegion::bytes(std::span<const std::uint64_t> bucket_elements, int cores, int size, bool is_async,
                                std::size_t reversible_segments) {
  const ServerRegion region(nullptr, bucket_elements, cores, size, is_async, reversible_segments);
  const std::size_t copies = is_async ? static_cast<std::size_t>(size) : reversible_segments > 0 ? 2 : 1;
  return region.values_at_ + copies * region.value_bytes_;
}

}  // namespace motley::ps
