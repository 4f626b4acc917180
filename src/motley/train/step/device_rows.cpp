#include "motley/train/step/device_rows.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include "motley/nn/runtime.h"
#include "motley/ps/embedding/row_optimizer.h"

namespace motley::train {
namespace {

using ps::hash_id;
using ps::RowIndex;
using ps::RowOptimizer;

// A view of numbers that are the caller's.
torch::Tensor as_view(std::span<const float> values, std::int64_t width) {
  return torch::from_blob(const_cast<float*>(values.data()), {std::ssize(values) / width, width});
}

void check_size(const char* what, std::size_t given, std::size_t ids, std::size_t width) {
  MOTLEY_INVARIANT(given == ids * width, "{} of {} floats for {} ids of {} each", what, given, ids, width);
}

}  // namespace

Result<std::unique_ptr<DeviceRows>> DeviceRows::create(torch::Device device, std::size_t dimension,
                                                       const RowOptimizer& optimizer, std::size_t capacity) {
  MOTLEY_INVARIANT(dimension > 0 && capacity > 0, "{} rows of {} weights", capacity, dimension);
  const auto width = static_cast<std::int64_t>(dimension + ps::state_floats(optimizer.kind, dimension));
  return nn::catch_torch(ErrorCode::kInternal, "taking memory for rows on " + device.str(), [&] {
    return std::unique_ptr<DeviceRows>(new DeviceRows(
        torch::zeros({static_cast<std::int64_t>(capacity), width}, torch::device(device)), dimension, optimizer));
  });
}

DeviceRows::DeviceRows(torch::Tensor rows, std::size_t dimension, const RowOptimizer& optimizer)
    : rows_(std::move(rows)),
      dimension_(static_cast<std::int64_t>(dimension)),
      optimizer_(optimizer),
      free_(static_cast<std::size_t>(rows_.size(0))) {
  std::iota(free_.rbegin(), free_.rend(), 0U);  // the first is taken first
}

bool DeviceRows::holds(std::uint64_t id) const {
  return index_.find(id, hash_id(id)) != RowIndex::kNone;
}

Result<std::vector<std::int64_t>> DeviceRows::find_slots(std::span<const std::uint64_t> ids) const {
  std::vector<std::int64_t> slots;
  slots.reserve(ids.size());
  for (const std::uint64_t id : ids) {
    const std::uint32_t slot = index_.find(id, hash_id(id));
    if (slot == RowIndex::kNone) {
      return fail(ErrorCode::kInvalidInput, "row {} is not among the {} on {}", id, size(), rows_.device().str());
    }
    slots.push_back(slot);
  }
  return slots;
}

torch::Tensor DeviceRows::on_device(const std::vector<std::int64_t>& slots) const {
  return torch::tensor(slots, torch::kInt64).to(rows_.device());
}

Status DeviceRows::insert(std::span<const std::uint64_t> ids, std::span<const float> records) {
  check_size("records", records.size(), ids.size(), record_floats());
  if (ids.size() > free_.size()) {
    return fail(ErrorCode::kUnavailable, "{} rows do not fit beside the {} of {} on {}", ids.size(), size(), capacity(),
                rows_.device().str());
  }
  std::unordered_set<std::uint64_t> seen;
  for (const std::uint64_t id : ids) {
    if (holds(id) || !seen.insert(id).second) {
      return fail(ErrorCode::kInvalidInput, "row {} is on {} already", id, rows_.device().str());
    }
  }
  const std::vector<std::int64_t> slots(free_.rbegin(), free_.rbegin() + std::ssize(ids));
  MOTLEY_TRY(nn::catch_torch(ErrorCode::kInternal, "bringing rows to the device", [&] {
    rows_.index_copy_(0, on_device(slots), as_view(records, rows_.size(1)).to(rows_.device()));
  }));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    index_.insert(ids[i], hash_id(ids[i]), static_cast<std::uint32_t>(slots[i]));
  }
  free_.resize(free_.size() - ids.size());
  return {};
}

Status DeviceRows::evict(std::span<const std::uint64_t> ids, std::span<float> records) {
  check_size("records", records.size(), ids.size(), record_floats());
  MOTLEY_ASSIGN(const std::vector<std::int64_t> slots, find_slots(ids));
  MOTLEY_TRY(nn::catch_torch(ErrorCode::kInternal, "taking rows from the device",
                             [&] { as_view(records, rows_.size(1)).copy_(rows_.index_select(0, on_device(slots))); }));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    index_.erase(ids[i], hash_id(ids[i]));
    free_.push_back(static_cast<std::uint32_t>(slots[i]));
  }
  return {};
}

Result<torch::Tensor> DeviceRows::gather(std::span<const std::uint64_t> ids) const {
  MOTLEY_ASSIGN(const std::vector<std::int64_t> slots, find_slots(ids));
  return nn::catch_torch(ErrorCode::kInternal, "gathering rows on the device",
                         [&] { return rows_.narrow(1, 0, dimension_).index_select(0, on_device(slots)); });
}

Status DeviceRows::pull(std::span<const std::uint64_t> ids, std::span<float> rows) {
  check_size("rows", rows.size(), ids.size(), static_cast<std::size_t>(dimension_));
  MOTLEY_ASSIGN(const torch::Tensor gathered, gather(ids));
  return nn::catch_torch(ErrorCode::kInternal, "pulling rows from the device",
                         [&] { as_view(rows, dimension_).copy_(gathered); });
}

Status DeviceRows::push(std::span<const std::uint64_t> ids, std::span<const float> gradients) {
  check_size("gradients", gradients.size(), ids.size(), static_cast<std::size_t>(dimension_));
  return apply(ids, as_view(gradients, dimension_));
}

Status DeviceRows::apply(std::span<const std::uint64_t> ids, const torch::Tensor& gradients) {
  MOTLEY_ASSIGN(const std::vector<std::int64_t> slots, find_slots(ids));
  // Each row once, and which of them every gradient is for.
  std::vector<std::int64_t> distinct, position;
  std::unordered_map<std::int64_t, std::int64_t> place;
  for (const std::int64_t slot : slots) {
    const auto [found, is_new] = place.try_emplace(slot, std::ssize(distinct));
    if (is_new) distinct.push_back(slot);
    position.push_back(found->second);
  }
  return nn::catch_torch(ErrorCode::kInternal, "moving rows on the device", [&] {
    const torch::NoGradGuard no_grad;
    torch::Tensor sums = torch::zeros({std::ssize(distinct), dimension_}, rows_.options());
    sums.index_add_(0, on_device(position), gradients.to(rows_.options()));
    const torch::Tensor where = on_device(distinct);
    torch::Tensor records = rows_.index_select(0, where);
    update(records, sums);
    rows_.index_copy_(0, where, records);
  });
}

// What ps::update_row does to one row, to each of these.
void DeviceRows::update(torch::Tensor& records, const torch::Tensor& gradients) const {
  torch::Tensor weights = records.narrow(1, 0, dimension_);
  const double rate = optimizer_.learning_rate;
  if (optimizer_.kind == RowOptimizer::Kind::kSgd) {
    weights.sub_(gradients, rate);
  } else if (optimizer_.kind == RowOptimizer::Kind::kAdagrad) {
    torch::Tensor sum = records.narrow(1, dimension_, 1);
    sum.add_(gradients.square().mean(1, true));
    weights.sub_(gradients / (sum.sqrt() + optimizer_.epsilon), rate);
  } else {
    torch::Tensor first = records.narrow(1, dimension_, dimension_);
    torch::Tensor second = records.narrow(1, 2 * dimension_, dimension_);
    torch::Tensor updates = records.narrow(1, 3 * dimension_, 1);
    updates.add_(1);
    first.lerp_(gradients, 1 - static_cast<double>(optimizer_.beta1));
    second.lerp_(gradients.square(), 1 - static_cast<double>(optimizer_.beta2));
    const auto unbiased = [&](float beta) { return 1 - torch::pow(static_cast<double>(beta), updates); };
    weights.sub_(
        first / unbiased(optimizer_.beta1) / ((second / unbiased(optimizer_.beta2)).sqrt() + optimizer_.epsilon), rate);
  }
}

}  // namespace motley::train
