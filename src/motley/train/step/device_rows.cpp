#include "motley/train/step/device_rows.h"

#include <algorithm>

#include "motley/base/units.h"
#include "motley/nn/runtime.h"

namespace motley::train {
namespace {

using Numbers = std::vector<std::uint32_t>;

// The different ids of a batch, in its order, and for each position which of them is there.
struct Distinct {
  std::vector<std::uint64_t> ids;
  Numbers number;
};

Distinct find_distinct(std::span<const std::uint64_t> ids) {
  Distinct distinct;
  distinct.number.reserve(ids.size());
  ps::RowIndex index;
  for (const std::uint64_t id : ids) {
    const std::uint64_t hash = ps::hash_id(id);
    std::uint32_t at = index.find(id, hash);
    if (at == ps::RowIndex::kNone) {
      at = static_cast<std::uint32_t>(distinct.ids.size());
      index.insert(id, hash, at);
      distinct.ids.push_back(id);
    }
    distinct.number.push_back(at);
  }
  return distinct;
}

// One after the other, as int32: they are sent with half the bytes of int64.
Result<torch::Tensor> send_numbers(const nn::DeviceCopies& copies, const Numbers& first, const Numbers& second) {
  MOTLEY_ASSIGN(const torch::Tensor both, copies.host_memory({std::ssize(first) + std::ssize(second)}, torch::kInt32));
  auto* const values = both.data_ptr<std::int32_t>();
  std::ranges::copy(second, std::ranges::copy(first, values).out);
  return copies.send(both);
}

}  // namespace

Result<std::unique_ptr<DeviceRows>> DeviceRows::create(torch::Device device, std::size_t dimension,
                                                       std::size_t capacity, std::int64_t max_staleness) {
  MOTLEY_ASSIGN(nn::DeviceCopies copies, nn::DeviceCopies::create(device));
  std::unique_ptr<DeviceRows> rows(new DeviceRows(std::move(copies), dimension));
  if (capacity == 0) return rows;
  const double bytes = static_cast<double>(capacity) * static_cast<double>(dimension * sizeof(float));
  const double all = nn::device_memory_bytes(device);
  const auto refuse = [&](const std::string& why) {
    return fail(ErrorCode::kInvalidInput,
                "embedding.device_memory: {} for {} embeddings of {} values do not fit on {}, {}; accepted: less, or 0 "
                "for none",
                format_bytes(bytes), capacity, dimension, device.str(), why);
  };
  if (all > 0 && bytes > all) return refuse(fmt::format("which has {} in all", format_bytes(all)));
  const Status taken = nn::catch_torch(ErrorCode::kInternal, "taking memory for rows on " + device.str(), [&] {
    rows->table_ = torch::empty({static_cast<std::int64_t>(capacity), rows->dimension_}, torch::device(device));
  });
  if (!taken) return refuse(taken.error().message);
  rows->cache_.emplace(capacity, max_staleness);
  return rows;
}

Result<DeviceRows::Batch> DeviceRows::take(std::span<const std::uint64_t> ids, std::optional<std::int64_t> after) {
  Batch batch;
  const Distinct distinct = find_distinct(ids);
  Numbers slots;
  Numbers place(distinct.ids.size());  // of each different id among those found, or among those missing
  std::vector<bool> is_missing(distinct.ids.size());
  if (cache_ && after) cache_->begin_batch();
  for (std::size_t i = 0; i < distinct.ids.size(); ++i) {
    const std::uint32_t slot = cache_ && after ? cache_->find(distinct.ids[i], *after).slot : ps::CacheIndex::kNone;
    is_missing[i] = slot == ps::CacheIndex::kNone;
    place[i] = static_cast<std::uint32_t>(is_missing[i] ? batch.missing.size() : slots.size());
    if (is_missing[i]) {
      batch.missing.push_back(distinct.ids[i]);
    } else {
      slots.push_back(slot);
    }
  }
  batch.found = slots.size();
  Numbers places;
  places.reserve(ids.size());
  for (const std::uint32_t number : distinct.number) {
    places.push_back(place[number] + static_cast<std::uint32_t>(is_missing[number] ? batch.found : 0));
  }
  MOTLEY_ASSIGN(batch.places, send_numbers(copies_, slots, places));
  return batch;
}

Result<torch::Tensor> DeviceRows::memory_for(const Batch& batch) const {
  return copies_.host_memory({std::ssize(batch.missing), dimension_}, torch::kFloat32);
}

Status DeviceRows::send(Batch& batch, const torch::Tensor& rows, std::optional<std::int64_t> after) {
  MOTLEY_ASSIGN(batch.rows, copies_.send(rows));
  if (!cache_ || !after || batch.missing.empty()) return {};
  Numbers slots;
  for (const std::uint64_t id : batch.missing) slots.push_back(cache_->put(id, *after));
  // Where there are fewer slots than rows, later ones have taken those of earlier ones.
  Numbers kept, kept_slots;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] == ps::CacheIndex::kNone || cache_->find_slot(batch.missing[i]) != slots[i]) continue;
    kept.push_back(static_cast<std::uint32_t>(i));
    kept_slots.push_back(slots[i]);
  }
  if (kept.empty()) return {};
  MOTLEY_ASSIGN(batch.kept, send_numbers(copies_, kept, kept_slots));
  return {};
}

Result<torch::Tensor> DeviceRows::complete(const Batch& batch) {
  nn::Tensors sent = {batch.places, batch.rows};
  if (batch.kept.defined()) sent.push_back(batch.kept);
  MOTLEY_TRY(copies_.await_sent(sent));
  return nn::catch_torch(ErrorCode::kInternal, "looking up rows on the device", [&] {
    const torch::NoGradGuard no_grad;
    const auto found = static_cast<std::int64_t>(batch.found);
    torch::Tensor rows = batch.rows;
    if (found > 0) {
      const torch::Tensor hot = table_.index_select(0, batch.places.narrow(0, 0, found));
      rows = batch.missing.empty() ? hot : torch::cat({hot, batch.rows});
    }
    torch::Tensor looked_up = rows.index_select(0, batch.places.narrow(0, found, batch.places.size(0) - found));
    if (batch.kept.defined()) {
      const torch::Tensor both = batch.kept.to(torch::kInt64).view({2, -1});
      table_.index_copy_(0, both[1], batch.rows.index_select(0, both[0]));
    }
    return looked_up;
  });
}

// The rows of each id are a bag, whose sum no two threads add to at once: the same bits on any device that adds in
// order.
Result<DeviceRows::Sums> DeviceRows::sum(std::span<const std::uint64_t> ids, const torch::Tensor& gradients) const {
  Distinct distinct = find_distinct(ids);
  Numbers begin(distinct.ids.size() + 1, 0);
  for (const std::uint32_t number : distinct.number) ++begin[number + 1];
  for (std::size_t i = 0; i < distinct.ids.size(); ++i) begin[i + 1] += begin[i];
  begin.pop_back();
  Numbers order(ids.size()), next = begin;
  for (std::size_t i = 0; i < ids.size(); ++i) order[next[distinct.number[i]]++] = static_cast<std::uint32_t>(i);
  MOTLEY_ASSIGN(const torch::Tensor both, send_numbers(copies_, order, begin));
  MOTLEY_TRY(copies_.await_sent({both}));
  Sums sums;
  const auto count = std::ssize(order);
  MOTLEY_ASSIGN(
      const torch::Tensor values, nn::catch_torch(ErrorCode::kInternal, "summing gradients of rows on the device", [&] {
        const torch::NoGradGuard no_grad;
        return std::get<0>(at::_embedding_bag_forward_only(gradients.to(torch::kFloat32).reshape({-1, dimension_}),
                                                           both.narrow(0, 0, count),
                                                           both.narrow(0, count, std::ssize(begin))));
      }));
  MOTLEY_ASSIGN(sums.values, copies_.to_host(values));
  sums.ids = std::move(distinct.ids);
  return sums;
}

}  // namespace motley::train
