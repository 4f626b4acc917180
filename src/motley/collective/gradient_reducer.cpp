// The arithmetic of the mean, the choice between shared memory and the ring, and what one rank alone gets.
#include "motley/collective/gradient_reducer.h"

#include <algorithm>
#include <optional>

#include "motley/base/guard.h"
#include "motley/base/os/memory.h"
#include "motley/kernels/sum.h"

namespace motley::collective {
namespace {

template <class T>
void sum_values(std::span<const std::byte* const> inputs, std::span<const double> coefficients, double scale,
                std::span<std::byte* const> outputs, std::size_t begin, std::size_t count) {
  std::vector<const T*> from;
  std::vector<T*> to;
  for (const std::byte* input : inputs) from.push_back(reinterpret_cast<const T*>(input + begin));
  for (std::byte* output : outputs) to.push_back(reinterpret_cast<T*>(output + begin));
  const std::vector<T> factors(coefficients.begin(), coefficients.end());
  kernels::weighted_sum(from, factors, static_cast<T>(scale), to, count);
}

// One rank: its gradient is the mean already.
class SingleReducer final : public GradientReducer {
 public:
  Status prepare(const Layout& layout, const Deadline&) override {
    for (std::size_t elements : layout.bucket_elements) {
      const std::size_t bytes = elements * byte_size(layout.type);
      MOTLEY_ASSIGN(Pages values, Pages::allocate(bytes, "gradients"));
      buckets_.push_back({std::move(values), bytes, {}});
    }
    return {};
  }
  std::span<std::byte> buffer(int bucket) override { return {buckets_[bucket].values.data(), buckets_[bucket].bytes}; }
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
  struct Bucket {
    Pages values;
    std::size_t bytes;
    Outcome outcome;
  };
  std::vector<Bucket> buckets_;
  std::optional<Error> broken_;
};

}  // namespace

const char* to_string(Method method) {
  constexpr const char* kNames[] = {"auto", "shared-memory", "tcp-ring", "parameter-server"};
  return kNames[static_cast<int>(method)];
}

std::vector<std::size_t> value_offsets(std::span<const std::size_t> bucket_elements, std::size_t bytes_per_element) {
  std::vector<std::size_t> offsets = {0};
  for (const std::size_t elements : bucket_elements) {
    offsets.push_back(offsets.back() + (elements * bytes_per_element + 63) / 64 * 64);
  }
  return offsets;
}

Mean weighted_mean(std::span<const double> weights) {
  Mean mean;
  for (std::size_t rank = 0; rank < weights.size(); ++rank) {
    if (!MOTLEY_GUARD("mean-no-weight", weights[rank] != 0)) continue;
    mean.total_weight += weights[rank];
    mean.ranks.push_back(static_cast<int>(rank));
    mean.coefficients.push_back(weights[rank]);
  }
  if (mean.ranks.empty()) return mean;
  if (std::ranges::all_of(mean.coefficients, [&](double weight) { return weight == mean.coefficients[0]; })) {
    std::ranges::fill(mean.coefficients, 1.0);
    mean.scale = 1.0 / static_cast<double>(mean.ranks.size());
  } else {
    mean.scale = 1.0 / mean.total_weight;
  }
  return mean;
}

void sum_as(DataType type, std::span<const std::byte* const> inputs, std::span<const double> coefficients, double scale,
            std::span<std::byte* const> outputs, std::size_t begin, std::size_t count) {
  const auto sum = type == DataType::kFloat32 ? sum_values<float> : sum_values<double>;
  sum(inputs, coefficients, scale, outputs, begin, count);
}

std::vector<std::span<std::byte>> list_buffers(GradientReducer& reducer, int count) {
  std::vector<std::span<std::byte>> buffers;
  for (int bucket = 0; bucket < count; ++bucket) buffers.push_back(reducer.buffer(bucket));
  return buffers;
}

Result<std::unique_ptr<GradientReducer>> make_reducer(net::Session& session, const ReducerOptions& options) {
  const net::Membership& membership = session.membership();
  MOTLEY_INVARIANT(options.method != Method::kParameterServer, "a parameter server is no exchange among the ranks");
  if (options.wire > WireType::kFloat16) {
    return fail(ErrorCode::kInvalidInput,
                "gradient_sync.comm_dtype: int8, top-k and auto are for a parameter server (gradient_sync.method "
                "parameter-server); a ring accepts float32 and bfloat16");
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

}  // namespace motley::collective
