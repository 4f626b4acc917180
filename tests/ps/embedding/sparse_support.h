// What the tests of sparse tables share: a table as a plain map with the optimizers written out in double, a cold store
// in a map that fails on demand, and folders for files.
#pragma once

#include <sys/mount.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "motley/base/random.h"
#include "motley/ps/embedding/sparse_table.h"
#include "tests/temporary_folder.h"

namespace motley::ps {

using Ids = std::vector<std::uint64_t>;
using Floats = std::vector<float>;

// Pushes are applied to a plain map; weights and state are doubles.
class ReferenceTable {
 public:
  explicit ReferenceTable(const SparseTableSpec& spec) : spec_(spec) {}

  std::vector<double> row(std::uint64_t id) const {
    const auto found = rows_.find(id);
    return found == rows_.end() ? fresh(id).weights : found->second.weights;
  }
  std::size_t rows() const { return rows_.size(); }

  void push(const Ids& ids, const Floats& gradients) {
    const std::size_t d = spec_.dimension;
    std::map<std::uint64_t, std::vector<double>> sums;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      auto& sum = sums.try_emplace(ids[i], d, 0.0).first->second;
      for (std::size_t e = 0; e < d; ++e) sum[e] += gradients[i * d + e];
    }
    for (const auto& [id, g] : sums) {
      State& row = rows_.try_emplace(id, fresh(id)).first->second;
      const RowOptimizer& o = spec_.optimizer;
      if (o.kind == RowOptimizer::Kind::kAdagrad) {
        double squares = 0;
        for (const double value : g) squares += value * value;
        row.second[0] += squares / static_cast<double>(d);
      }
      row.updates += 1;
      for (std::size_t e = 0; e < d; ++e) {
        if (o.kind == RowOptimizer::Kind::kSgd) {
          row.weights[e] -= o.learning_rate * g[e];
        } else if (o.kind == RowOptimizer::Kind::kAdagrad) {
          row.weights[e] -= o.learning_rate * g[e] / (std::sqrt(row.second[0]) + o.epsilon);
        } else {
          row.first[e] = o.beta1 * row.first[e] + (1 - o.beta1) * g[e];
          row.second[e] = o.beta2 * row.second[e] + (1 - o.beta2) * g[e] * g[e];
          const double first = row.first[e] / (1 - std::pow(o.beta1, row.updates));
          const double second = row.second[e] / (1 - std::pow(o.beta2, row.updates));
          row.weights[e] -= o.learning_rate * first / (std::sqrt(second) + o.epsilon);
        }
      }
    }
  }

 private:
  struct State {
    std::vector<double> weights, first, second;
    double updates = 0;
  };
  State fresh(std::uint64_t id) const {
    Floats weights(spec_.dimension);
    initialize_row(spec_.initializer, id, spec_.dimension, weights);
    return {
        {weights.begin(), weights.end()}, std::vector<double>(spec_.dimension), std::vector<double>(spec_.dimension)};
  }

  const SparseTableSpec spec_;
  std::unordered_map<std::uint64_t, State> rows_;
};

// What a test sees and sets of a MapStore that a table owns.
struct MapStoreControl {
  std::mutex mutex;
  std::map<std::uint64_t, std::vector<std::byte>> records;
  std::atomic<bool> refuse_writes = false;
  std::atomic<bool> refuse_reads = false;
  std::atomic<std::uint64_t> written = 0;
};

class MapStore final : public ColdStore {
 public:
  MapStore(std::shared_ptr<MapStoreControl> control, std::size_t record_bytes)
      : control_(std::move(control)), record_bytes_(record_bytes) {}

  Status read(std::span<const std::uint64_t> ids, std::byte* records, std::uint8_t* found) override {
    if (control_->refuse_reads) return fail(ErrorCode::kCorrupt, "the store cannot be read");
    const std::lock_guard lock(control_->mutex);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto record = control_->records.find(ids[i]);
      found[i] = record != control_->records.end();
      if (found[i]) std::memcpy(records + i * record_bytes_, record->second.data(), record_bytes_);
    }
    return {};
  }
  Status write(std::span<const std::uint64_t> ids, std::span<const std::byte* const> records) override {
    if (control_->refuse_writes) return fail(ErrorCode::kIo, "no space left in the store");
    const std::lock_guard lock(control_->mutex);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      control_->records[ids[i]].assign(records[i], records[i] + record_bytes_);
    }
    control_->written += ids.size();
    return {};
  }
  ColdSnapshot snapshot() override {
    const std::lock_guard lock(control_->mutex);
    return [records = control_->records](const VisitRecord& visit) -> Status {
      for (const auto& [id, record] : records) MOTLEY_TRY(visit(id, record));
      return {};
    };
  }

 private:
  std::shared_ptr<MapStoreControl> control_;
  std::size_t record_bytes_;
};

// A spec whose budget has room for about `hot_rows` rows.
inline SparseTableSpec small_spec(RowOptimizer::Kind optimizer, std::size_t dimension, std::size_t hot_rows = 0) {
  SparseTableSpec spec;
  spec.name = "test";
  spec.dimension = dimension;
  spec.initializer = {RowInitializer::Kind::kUniform, 0.5F, 7};
  spec.optimizer.kind = optimizer;
  spec.optimizer.learning_rate = 0.1F;
  spec.memory_bytes = hot_rows * RowShape{dimension, dimension + state_floats(optimizer, dimension)}.resident_bytes();
  return spec;
}

// `count` ids below `range`, the small ones far more often.
inline Ids random_ids(Random& random, std::size_t count, std::uint64_t range) {
  Ids ids(count);
  for (auto& id : ids) {
    id = static_cast<std::uint64_t>(std::pow(random.uniform(), 3) * static_cast<double>(range)) * 0x10001;
  }
  return ids;
}

inline Floats random_floats(Random& random, std::size_t count) {
  Floats values(count);
  for (float& value : values) value = static_cast<float>(random.normal());
  return values;
}

inline Floats pull_all(SparseTable& table, const Ids& ids) {
  Floats rows(ids.size() * table.spec().dimension);
  const Status pulled = table.pull(ids, rows);
  if (!pulled) throw std::runtime_error(pulled.error().message);
  return rows;
}

}  // namespace motley::ps
