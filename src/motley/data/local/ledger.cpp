#include "motley/data/local/ledger.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>

#include "motley/base/os/file.h"
#include "motley/base/random.h"

namespace motley::data {
namespace {

std::vector<std::uint32_t> compute_order(const LedgerState& state) {
  return permutation(state.size, mix({state.seed, state.epoch}));
}

// The header before the compressed counts, in the machine's byte order (checkpoints stay on one architecture).
struct CountsHeader {
  char magic[4] = {'M', 'U', 'C', '1'};
  std::uint32_t size = 0;
  std::uint64_t epoch = 0;
  std::uint32_t checksum = 0;  // CRC-32C of the uncompressed counts
  std::uint32_t reserved = 0;
};

std::string_view as_view(const std::vector<std::uint8_t>& counts) {
  return {reinterpret_cast<const char*>(counts.data()), counts.size()};
}

}  // namespace

Ledger::Ledger(const LedgerState& state) : state_(state), order_(compute_order(state)) {}

Result<Ledger> Ledger::open(const LedgerState& state) {
  if (state.size == 0) {
    return fail(ErrorCode::kInvalidInput, "the dataset is empty: at least one sample is needed");
  }
  if (state.cursor >= state.size) {
    return fail(ErrorCode::kCorrupt, "the ledger's cursor {} lies outside an epoch of {} samples", state.cursor,
                state.size);
  }
  return Ledger(state);
}

Range Ledger::next(std::uint32_t batch) const {
  MOTLEY_INVARIANT(batch > 0, "a step needs at least one sample");
  return {state_.cursor, state_.cursor + std::min(batch, state_.size - state_.cursor)};
}

Result<bool> Ledger::skip_short_window(std::uint32_t batch) {
  if (batch > state_.size) {
    return fail(ErrorCode::kInvalidInput,
                "the global batch of {} is larger than the dataset of {} samples, and short last batches are dropped: "
                "no step would be left",
                batch, state_.size);
  }
  if (state_.size - state_.cursor >= batch) return false;
  start_epoch();
  return true;
}

std::span<const std::uint32_t> Ledger::samples(Range positions) const {
  MOTLEY_INVARIANT(positions.begin <= positions.end && positions.end <= state_.size,
                   "positions {}..{} lie outside an epoch of {} samples", positions.begin, positions.end, state_.size);
  return std::span(order_).subspan(positions.begin, positions.size());
}

Status Ledger::commit(Range window) {
  if (window.begin != state_.cursor || window.end <= window.begin || window.end > state_.size) {
    return fail(ErrorCode::kInternal,
                "cannot commit positions {}..{} of epoch {}: the next window starts at {} and ends by {}", window.begin,
                window.end, state_.epoch, state_.cursor, state_.size);
  }
  state_.cursor = window.end;
  if (state_.cursor == state_.size) start_epoch();
  return {};
}

void Ledger::start_epoch() {
  ++state_.epoch;
  state_.cursor = 0;
  order_ = compute_order(state_);
}

Range rank_range(Range window, std::span<const std::uint32_t> shares, int rank) {
  std::uint64_t begin = window.begin;
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    begin += static_cast<int>(i) < rank ? shares[i] : 0;
    total += shares[i];
  }
  MOTLEY_INVARIANT(total == window.size(), "shares of {} samples do not add up to a window of {}", total,
                   window.size());
  return {static_cast<std::uint32_t>(begin),
          static_cast<std::uint32_t>(begin + shares[static_cast<std::size_t>(rank)])};
}

PullPlan::PullPlan(Range window, std::uint32_t shards)
    : window_(window), shards_(std::clamp(shards, 1U, std::max(1U, window.size()))) {}

Range PullPlan::shard(std::uint32_t index) const {
  MOTLEY_INVARIANT(index < shards_, "shard {} of a window of {} shards", index, shards_);
  const auto edge = [&](std::uint64_t k) {
    return window_.begin + static_cast<std::uint32_t>(k * window_.size() / shards_);
  };
  return {edge(index), edge(std::uint64_t{index} + 1)};
}

void UseCounts::record(std::span<const std::uint32_t> samples) {
  for (const std::uint32_t sample : samples) {
    MOTLEY_INVARIANT(sample < counts_.size(), "sample {} of a dataset of {}", sample, counts_.size());
    counts_[sample] = static_cast<std::uint8_t>(std::min(255, counts_[sample] + 1));
  }
}

Status UseCounts::merge(const UseCounts& other) {
  if (other.epoch_ != epoch_ || other.counts_.size() != counts_.size()) {
    return fail(ErrorCode::kInternal,
                "cannot add the use counts of {} samples in epoch {} to those of {} samples in epoch {}",
                other.counts_.size(), other.epoch_, counts_.size(), epoch_);
  }
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    counts_[i] = static_cast<std::uint8_t>(std::min(255, counts_[i] + other.counts_[i]));
  }
  return {};
}

Result<std::uint32_t> UseCounts::not_used_exactly_once(const LedgerState& ledger) const {
  const bool whole = ledger.epoch == epoch_ + 1 && ledger.cursor == 0;
  if (ledger.size != counts_.size() || (!whole && ledger.epoch != epoch_)) {
    return fail(ErrorCode::kInternal,
                "use counts of {} samples in epoch {} say nothing of a ledger of {} samples in epoch {}",
                counts_.size(), epoch_, ledger.size, ledger.epoch);
  }
  LedgerState counted = ledger;
  counted.epoch = epoch_;
  const std::vector<std::uint32_t> order = compute_order(counted);
  const std::uint32_t committed = whole ? ledger.size : ledger.cursor;
  std::uint32_t wrong = 0;
  for (std::uint32_t position = 0; position < ledger.size; ++position) {
    wrong += counts_[order[position]] != (position < committed ? 1 : 0);
  }
  return wrong;
}

void UseCounts::start(std::uint64_t epoch) {
  epoch_ = epoch;
  std::ranges::fill(counts_, std::uint8_t{0});
}

std::string UseCounts::serialise() const {
  CountsHeader header;
  header.size = static_cast<std::uint32_t>(counts_.size());
  header.epoch = epoch_;
  header.checksum = crc32c(as_view(counts_));
  uLongf length = compressBound(static_cast<uLong>(counts_.size()));
  std::string bytes(sizeof header + length, '\0');
  std::memcpy(bytes.data(), &header, sizeof header);
  const int code = compress2(reinterpret_cast<Bytef*>(bytes.data() + sizeof header), &length, counts_.data(),
                             static_cast<uLong>(counts_.size()), Z_BEST_SPEED);
  MOTLEY_INVARIANT(code == Z_OK, "zlib cannot compress {} bytes (code {})", counts_.size(), code);
  bytes.resize(sizeof header + length);
  return bytes;
}

Result<UseCounts> UseCounts::parse(std::string_view bytes) {
  CountsHeader header;
  const CountsHeader expected;
  if (bytes.size() >= sizeof header) {
    std::memcpy(&header, bytes.data(), sizeof header);
  }
  if (bytes.size() < sizeof header || std::memcmp(header.magic, expected.magic, sizeof header.magic) != 0) {
    return fail(ErrorCode::kCorrupt, "these {} bytes are no use counts: they do not start with 'MUC1'", bytes.size());
  }
  // zlib's best ratio is about 1:1032, so that a damaged length is refused before memory is taken.
  if (header.size / 1100 > bytes.size()) {
    return fail(ErrorCode::kCorrupt, "use counts of {} samples cannot stand in {} bytes", header.size, bytes.size());
  }
  UseCounts result(header.size, header.epoch);
  uLongf length = header.size;
  const int code =
      uncompress(result.counts_.data(), &length, reinterpret_cast<const Bytef*>(bytes.data()) + sizeof header,
                 static_cast<uLong>(bytes.size() - sizeof header));
  if ((code != Z_OK && header.size > 0) || length != header.size ||
      crc32c(as_view(result.counts_)) != header.checksum) {
    return fail(ErrorCode::kCorrupt, "use counts of {} samples are damaged: length or checksum does not match",
                header.size);
  }
  return result;
}

}  // namespace motley::data
