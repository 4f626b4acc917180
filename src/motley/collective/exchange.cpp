// Chooses the method of exchange, and what one rank alone gets.
#include "motley/collective/exchange.h"

#include <algorithm>
#include <optional>

#include "motley/collective/server_exchange.h"
#include "motley/collective/shared_group.h"
#include "motley/collective/shared_memory_exchange.h"
#include "motley/collective/tcp_group.h"
#include "motley/collective/tcp_ring_exchange.h"

namespace motley::collective {
namespace {

constexpr double kGroupSeconds = 60;  // for making a group: the ranks have just met

// One rank: its gradient is the mean already.
class SingleExchange final : public Exchange {
 public:
  Status prepare(const Layout& layout, const Deadline&) override {
    for (std::size_t elements : layout.bucket_elements) {
      const std::size_t bytes = elements * bytes_of(layout.type);
      buckets_.push_back({std::vector<Line>((bytes + sizeof(Line) - 1) / sizeof(Line)), bytes});
    }
    return {};
  }
  std::span<std::byte> buffer(int bucket) override {
    return std::as_writable_bytes(std::span(buckets_[bucket].lines)).first(buckets_[bucket].bytes);
  }
  Status start(std::uint64_t step, int bucket, double weight) override {
    buckets_[bucket].outcome = {.total_weight = weight, .version = step};
    if (weight == 0) std::ranges::fill(buffer(bucket), std::byte{0});
    return {};
  }
  Result<Outcome> wait(int bucket, const Deadline&) override {
    if (broken_) return fail(*broken_);
    return buckets_[bucket].outcome;
  }
  void abort(const Error& error) override { broken_ = error; }
  std::string name() const override { return "single"; }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  struct Bucket {
    std::vector<Line> lines;
    std::size_t bytes;
    Outcome outcome;
  };
  std::vector<Bucket> buckets_;
  std::optional<Error> broken_;
};

}  // namespace

std::size_t bytes_of(DataType type) {
  return type == DataType::kFloat32 ? 4 : 8;
}

Result<std::unique_ptr<Exchange>> make_exchange(net::Session& session, const ExchangeOptions& options) {
  const net::Membership& membership = session.membership();
  if (options.method == Method::kParameterServer) {
    if (options.servers.empty()) {
      return fail(ErrorCode::kInvalidInput, "the exchange 'parameter-server' needs the address of a server");
    }
    return std::make_unique<ServerExchange>(session, options);
  }
  if (options.wire > WireType::kFloat16) {
    return fail(ErrorCode::kInvalidInput,
                "exchange.wire: int8, top-k and auto are for a parameter server (exchange.method ps); a ring accepts "
                "float32 and bfloat16");
  }
  if (membership.size() == 1) return std::make_unique<SingleExchange>();
  const bool shared = membership.on_one_host();
  if (options.method == Method::kSharedMemory && !shared) {
    std::string hosts;
    for (const auto& member : membership.members) hosts += fmt::format(" {} ({})", member.host_id, member.address);
    return fail(ErrorCode::kInvalidInput,
                "the exchange 'shared-memory' needs all ranks on one host, but they are on:{}; 'auto' and 'tcp-ring' "
                "are accepted",
                hosts);
  }
  if (shared && options.method != Method::kTcpRing) return std::make_unique<SharedMemoryExchange>(session, options);
  return std::make_unique<TcpRingExchange>(session, options);
}

Result<std::unique_ptr<Group>> make_group(net::Session& session) {
  if (session.membership().on_one_host()) {
    return SharedGroup::create(session, "group", Deadline::after(kGroupSeconds));
  }
  return TcpGroup::create(session, Deadline::after(kGroupSeconds));
}

}  // namespace motley::collective
