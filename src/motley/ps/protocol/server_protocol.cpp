// Encodings, and where things stand in the shared region.
#include "motley/ps/protocol/server_protocol.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "motley/net/bytes.h"

namespace motley::ps {
namespace {

using net::ByteReader;
using net::ByteWriter;

constexpr std::size_t kMaxTextBytes = 255;
constexpr std::size_t kMaxReasonBytes = 16384;
constexpr int kMaxRanks = 4096;
constexpr int kMaxBins = 65536;
constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 40;
constexpr std::size_t kSmallestChunkBytes = 64;

void put_double(ByteWriter& writer, double value) {
  writer.put(std::bit_cast<std::uint64_t>(value));
}
double get_double(ByteReader& reader) {
  return std::bit_cast<double>(reader.get<std::uint64_t>());
}

tl::unexpected<Error> malformed(const char* what, std::span<const std::byte> bytes) {
  return fail(ErrorCode::kCorrupt, "a malformed {} message of {} bytes", what, bytes.size());
}

}  // namespace

std::vector<std::byte> encode(const ServerInfo& info) {
  ByteWriter writer;
  writer.put_text(info.host_id, kMaxTextBytes);
  writer.put(static_cast<std::uint32_t>(info.cores));
  return writer.take();
}

Result<ServerInfo> decode_server_info(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  ServerInfo info;
  info.host_id = reader.get_text(kMaxTextBytes);
  info.cores = static_cast<int>(reader.get<std::uint32_t>());
  if (!reader.complete() || info.cores < 1 || info.cores > kMaxBins) {
    return malformed("server", bytes);
  }
  return info;
}

std::vector<std::byte> encode(const ServerJoin& join) {
  ByteWriter writer;
  for (const int value : {join.size, join.bins, join.first_bin, join.cores}) {
    writer.put(static_cast<std::uint32_t>(value));
  }
  writer.put(join.chunk_bytes);
  writer.put(static_cast<std::uint8_t>(join.is_async ? 1 : 0));
  writer.put(static_cast<std::uint8_t>(join.wire.type));
  put_double(writer, join.wire.density);
  const kernels::UpdateOptions& update = join.update;
  writer.put(static_cast<std::uint8_t>(update.rule));
  for (const double value :
       {update.momentum, update.dampening, update.weight_decay, update.beta1, update.beta2, update.epsilon}) {
    put_double(writer, value);
  }
  writer.put_text(join.host_id, kMaxTextBytes);
  writer.put_text(join.region, kMaxTextBytes);
  writer.put(static_cast<std::uint32_t>(join.bucket_elements.size()));
  for (const std::uint64_t elements : join.bucket_elements) {
    writer.put(elements);
  }
  writer.put(static_cast<std::uint32_t>(join.bin_speeds.size()));
  for (const double speed : join.bin_speeds) put_double(writer, speed);
  encode(writer, join.racks);
  return writer.take();
}

Result<ServerJoin> decode_server_join(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  ServerJoin join;
  for (int* value : {&join.size, &join.bins, &join.first_bin, &join.cores}) {
    *value = static_cast<int>(reader.get<std::uint32_t>());
  }
  join.chunk_bytes = reader.get<std::uint64_t>();
  const auto is_async = reader.get<std::uint8_t>();
  join.is_async = is_async != 0;
  const auto wire = reader.get<std::uint8_t>();
  join.wire = {static_cast<collective::WireType>(wire), get_double(reader)};
  const auto rule = reader.get<std::uint8_t>();
  join.update.rule = static_cast<kernels::UpdateRule>(rule);
  kernels::UpdateOptions& update = join.update;
  for (double* value :
       {&update.momentum, &update.dampening, &update.weight_decay, &update.beta1, &update.beta2, &update.epsilon}) {
    *value = get_double(reader);
  }
  join.host_id = reader.get_text(kMaxTextBytes);
  join.region = reader.get_text(kMaxTextBytes);
  const auto buckets = reader.get<std::uint32_t>();
  std::uint64_t elements = 0;
  for (std::uint32_t i = 0; i < buckets && reader.ok() && elements <= kMaxElements; ++i) {
    join.bucket_elements.push_back(reader.get<std::uint64_t>());
    elements += std::min(join.bucket_elements.back(), kMaxElements + 1);
  }
  const auto speeds = reader.get<std::uint32_t>();
  for (std::uint32_t i = 0; i < speeds && reader.ok(); ++i) {
    join.bin_speeds.push_back(get_double(reader));
  }
  MOTLEY_ASSIGN(join.racks, decode_rack_plan(reader));
  const bool speeds_fit =
      speeds == 0 || (static_cast<int>(speeds) == join.bins && std::ranges::all_of(join.bin_speeds, [](double speed) {
                        return speed > 0 && std::isfinite(speed);
                      }));
  const RackPlan& racks = join.racks;
  const std::size_t racked = racks.between_servers ? racks.servers.size() : racks.rank_racks.size();
  const bool racks_fit = (racks.empty() && !racks.between_servers) || racked == static_cast<std::size_t>(join.size);
  const bool density_fits = join.wire.type == collective::WireType::kTopK
                                ? join.wire.density > 0 && join.wire.density <= collective::kLargestDensity
                                : std::bit_cast<std::uint64_t>(join.wire.density) == 0;
  const bool may_lose = is_async == 0 && racks.empty() && !racks.between_servers;
  const bool wire_fits = wire <= 4 && density_fits && (may_lose || !join.wire.lossy());
  const bool sensible = join.size >= 1 && join.size <= kMaxRanks && join.bins >= 1 && join.bins <= kMaxBins &&
                        join.first_bin >= 0 && join.first_bin < join.bins && join.cores >= 0 &&
                        join.cores <= kMaxBins && racks_fit && speeds_fit && wire_fits && rule <= 5 && buckets > 0 &&
                        elements <= kMaxElements && join.chunk_bytes >= kSmallestChunkBytes &&
                        join.chunk_bytes <= kMaxElements && is_async <= 1 &&
                        (is_async == 0 || join.update.rule != kernels::UpdateRule::kSum);
  if (!reader.complete() || !sensible) {
    return malformed("join", bytes);
  }
  return join;
}

std::vector<std::byte> encode(const ServerJoined& joined) {
  ByteWriter writer;
  writer.put_text(joined.region, kMaxTextBytes);
  writer.put(joined.region_bytes);
  writer.put(static_cast<std::uint8_t>(joined.may_spin ? 1 : 0));
  writer.put(static_cast<std::uint32_t>(joined.bins));
  writer.put(static_cast<std::uint32_t>(joined.cores));
  return writer.take();
}

Result<ServerJoined> decode_server_joined(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  ServerJoined joined;
  joined.region = reader.get_text(kMaxTextBytes);
  joined.region_bytes = reader.get<std::uint64_t>();
  const auto may_spin = reader.get<std::uint8_t>();
  joined.may_spin = may_spin != 0;
  joined.bins = static_cast<int>(reader.get<std::uint32_t>());
  joined.cores = static_cast<int>(reader.get<std::uint32_t>());
  if (!reader.complete() || may_spin > 1 || joined.bins < 0 || joined.bins > kMaxBins || joined.cores < 0 ||
      joined.cores > joined.bins) {
    return malformed("joined", bytes);
  }
  return joined;
}

std::vector<std::byte> encode(const Error& error) {
  ByteWriter writer;
  writer.put(static_cast<std::uint16_t>(error.code));
  writer.put(static_cast<std::uint32_t>(error.rank));
  writer.put_text(error.message, kMaxReasonBytes);
  return writer.take();
}

Result<Error> decode_server_failed(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  Error error;
  const auto code = reader.get<std::uint16_t>();
  error.code = static_cast<ErrorCode>(code);
  error.rank = static_cast<int>(reader.get<std::uint32_t>());
  error.message = reader.get_text(kMaxReasonBytes);
  if (!reader.complete() || code > static_cast<std::uint16_t>(ErrorCode::kInternal) || error.rank < -1 ||
      error.rank >= kMaxRanks) {
    return malformed("failure", bytes);
  }
  return error;
}

ServerRegion::ServerRegion(std::byte* data, std::span<const std::uint64_t> bucket_elements, int cores, int size,
                           bool is_async)
    : data_(data), size_(size) {
  const std::size_t announced = bucket_elements.size() * static_cast<std::size_t>(size);
  buckets_at_ = static_cast<std::size_t>(cores) * sizeof(ThreadState);
  announced_at_ = buckets_at_ + bucket_elements.size() * sizeof(BucketState);
  answered_at_ = announced_at_ + announced * sizeof(Announced);
  rounds_at_ = answered_at_ + (is_async ? announced * sizeof(Answered) : 0);
  const std::size_t rounds = is_async ? announced * static_cast<std::size_t>(size) * sizeof(std::uint32_t) : 0;
  values_at_ = rounds_at_ + (rounds + 63) / 64 * 64;
  value_bytes_ = value_offsets(bucket_elements).back();
}

std::size_t ServerRegion::bytes(std::span<const std::uint64_t> bucket_elements, int cores, int size, bool is_async) {
  const ServerRegion region(nullptr, bucket_elements, cores, size, is_async);
  return region.values_at_ + static_cast<std::size_t>(is_async ? size : 1) * region.value_bytes_;
}

std::vector<std::size_t> ServerRegion::value_offsets(std::span<const std::uint64_t> bucket_elements) {
  std::vector<std::size_t> offsets = {0};
  for (const std::uint64_t elements : bucket_elements) {
    offsets.push_back(offsets.back() + (elements * sizeof(float) + 63) / 64 * 64);
  }
  return offsets;
}

}  // namespace motley::ps
