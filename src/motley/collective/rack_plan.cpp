// Numbering racks, and the plan's bytes.
#include "motley/collective/rack_plan.h"

#include <algorithm>
#include <cmath>

namespace motley::collective {
namespace {

constexpr std::size_t kMaxRanks = 4096;
constexpr std::size_t kMaxServerBytes = 255;
constexpr double kMaxMilliseconds = 4e9;

}  // namespace

std::vector<int> RackPlan::ranks_of(int rack) const {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < rack_of_rank.size(); ++rank) {
    if (rack_of_rank[rank] == rack) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

Result<RackPlan> make_rack_plan(std::span<const std::string> servers, std::span<const int> rack_of_rank, int size) {
  if (static_cast<int>(rack_of_rank.size()) != size) {
    return fail(ErrorCode::kInvalidInput, "racks: {} numbers are given for {} workers; accepted: one for each",
                rack_of_rank.size(), size);
  }
  RackPlan plan;
  std::vector<int> number(servers.size(), -1);
  for (std::size_t rank = 0; rank < rack_of_rank.size(); ++rank) {
    const int server = rack_of_rank[rank];
    if (server < 0 || server >= static_cast<int>(servers.size())) {
      return fail(ErrorCode::kInvalidInput,
                  "racks: worker {} is given server {}; accepted: 0 to {}, in the order of exchange.servers", rank,
                  server, static_cast<int>(servers.size()) - 1);
    }
    int& rack = number[static_cast<std::size_t>(server)];
    if (rack < 0) {
      rack = plan.racks();
      plan.servers.push_back(servers[static_cast<std::size_t>(server)]);
    }
    plan.rack_of_rank.push_back(rack);
  }
  if (const auto unused = std::ranges::find(number, -1); unused != number.end()) {
    return fail(ErrorCode::kInvalidInput, "racks: no worker is given the server {}; accepted: one or more for each",
                servers[static_cast<std::size_t>(unused - number.begin())]);
  }
  return plan;
}

void encode(net::ByteWriter& writer, const RackPlan& plan) {
  writer.put(static_cast<std::uint16_t>(plan.rack_of_rank.size()));
  for (const int rack : plan.rack_of_rank) writer.put(static_cast<std::uint16_t>(rack));
  writer.put(static_cast<std::uint16_t>(plan.servers.size()));
  for (const std::string& server : plan.servers) writer.put_text(server, kMaxServerBytes);
  writer.put(static_cast<std::uint8_t>(plan.between_servers ? 1 : 0));
  writer.put(static_cast<std::uint32_t>(std::llround(std::clamp(plan.seconds * 1000, 0.0, kMaxMilliseconds))));
}

Result<RackPlan> decode_rack_plan(net::ByteReader& reader) {
  RackPlan plan;
  std::vector<int> racks;
  const std::size_t ranks = reader.get<std::uint16_t>();
  for (std::size_t rank = 0; rank < std::min(ranks, kMaxRanks) && reader.ok(); ++rank) {
    racks.push_back(reader.get<std::uint16_t>());
  }
  const std::size_t servers = reader.get<std::uint16_t>();
  for (std::size_t rack = 0; rack < std::min(servers, kMaxRanks) && reader.ok(); ++rack) {
    plan.servers.push_back(reader.get_text(kMaxServerBytes));
  }
  const auto between = reader.get<std::uint8_t>();
  plan.between_servers = between != 0;
  const auto milliseconds = reader.get<std::uint32_t>();
  plan.seconds = milliseconds / 1000.0;
  const auto numbered = make_rack_plan(plan.servers, racks, static_cast<int>(ranks));
  if (!reader.ok() || between > 1 || milliseconds > kMaxMilliseconds || !numbered || numbered->rack_of_rank != racks) {
    return fail(ErrorCode::kCorrupt, "a malformed plan of {} racks for {} ranks", servers, ranks);
  }
  plan.rack_of_rank = std::move(racks);
  return plan;
}

}  // namespace motley::collective
