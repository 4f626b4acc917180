// Chooses between shared memory and the ring, and what one rank alone gets.
#include "motley/collective/gradient_reducer.h"

#include <algorithm>
#include <optional>

#include "motley/collective/methods.h"
#include "motley/collective/shared_group.h"

namespace motley::collective {
namespace {

constexpr double kGroupSeconds = 60;  // for making a group: the ranks have just met

// One rank: its gradient is the mean already.
class SingleReducer final : public GradientReducer {
 public:
  Status prepare(const Layout& layout, const Deadline&) override {
    for (std::size_t elements : layout.bucket_elements) {
      const std::size_t bytes = elements * byte_size(layout.type);
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

const char* to_string(Method method) {
  switch (method) {
    case Method::kAuto:
      return "auto";
    case Method::kSharedMemory:
      return "shared-memory";
    case Method::kTcpRing:
      return "tcp-ring";
    case Method::kParameterServer:
      return "parameter-server";
  }
  return "?";
}

std::size_t byte_size(DataType type) {
  return type == DataType::kFloat32 ? 4 : 8;
}

Result<std::unique_ptr<GradientReducer>> make_reducer(net::Session& session, const ReducerOptions& options) {
  const net::Membership& membership = session.membership();
  MOTLEY_INVARIANT(options.method != Method::kParameterServer, "a parameter server is no exchange among the ranks");
  if (options.wire > WireType::kFloat16) {
    return fail(ErrorCode::kInvalidInput,
                "gradient_sync.comm_dtype: int8, top-k and auto are for a parameter server (gradient_sync.method "
                "parameter-server); a ring accepts "
                "float32 and bfloat16");
  }
  if (membership.size() == 1) return std::make_unique<SingleReducer>();
  const bool shared = membership.on_one_host();
  if (options.method == Method::kSharedMemory && !shared) {
    std::string hosts;
    for (const auto& member : membership.members) hosts += fmt::format(" {} ({})", member.host_id, member.address);
    return fail(ErrorCode::kInvalidInput,
                "the exchange 'shared-memory' needs all ranks on one host, but they are on:{}; 'auto' and 'tcp-ring' "
                "are accepted",
                hosts);
  }
  if (shared && options.method != Method::kTcpRing) return make_shared_memory_reducer(session, options);
  return make_tcp_ring_reducer(session, options);
}

Result<std::unique_ptr<Group>> make_group(net::Session& session) {
  if (session.membership().on_one_host()) {
    return SharedGroup::create(session, "group", Deadline::after(kGroupSeconds));
  }
  return make_tcp_group(session, Deadline::after(kGroupSeconds));
}

}  // namespace motley::collective
