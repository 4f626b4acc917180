// Where the tiers of a table of rows meet: a tier holds whole rows of some ids in a faster and smaller place than the
// tier below, as memory does before a disk, or a GPU before memory. It answers and moves the rows that it holds; which
// those are is decided above it, by whoever brings rows up and takes them down again. A row is in one tier at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "motley/base/result.h"

namespace motley::collective {

// A record is a row as a whole: its weights, then its optimizer's state (record_floats() floats; ps/row_optimizer.h
// says which). pull() and push() are for ids that are held: others are kInvalidInput, and nothing is changed. Not
// thread-safe.
class RowTier {
 public:
  virtual ~RowTier() = default;
  // Writes the weights of ids[i] to rows[i * dimension, (i + 1) * dimension). Ids may repeat.
  virtual Status pull(std::span<const std::uint64_t> ids, std::span<float> rows) = 0;
  // Gradients as rows above; those of one id are summed in their order, and its optimizer runs once.
  virtual Status push(std::span<const std::uint64_t> ids, std::span<const float> gradients) = 0;

  virtual std::size_t record_floats() const = 0;
  virtual std::size_t capacity() const = 0;  // rows, at most
  virtual std::size_t size() const = 0;      // rows, now
  virtual bool holds(std::uint64_t id) const = 0;

  // Brings rows up: distinct ids that are not held, with a record each. All or nothing; kUnavailable where they do not
  // fit.
  virtual Status insert(std::span<const std::uint64_t> ids, std::span<const float> records) = 0;
  // Takes rows down: distinct ids that are held, whose records as they are now are written to `records`. The tier
  // holds them no more.
  virtual Status evict(std::span<const std::uint64_t> ids, std::span<float> records) = 0;
};

}  // namespace motley::collective
