// How a segment's values stand in a frame between a worker and a parameter server, and the lossy forms' one rule: what
// a frame leaves out is kept by its sender and added to the next one (error feedback), so that it is late, not lost.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "motley/collective/chunk_map.h"
#include "motley/collective/exchange.h"
#include "motley/kernels/update.h"

namespace motley::collective {

// Frames of int8 are scales (float32, one a block of 256 values), then values; those of top-k are indices in the
// segment (u32, ascending), then their values (float32). All others are the values themselves. A frame's length follows
// from the number of values.
struct WireForm {
  WireType type = WireType::kNative;
  double density = 0;  // kTopK: the share of a segment's values that is in its frame, one at least

  bool lossy() const { return type == WireType::kInt8 || type == WireType::kTopK; }
  std::size_t frame_bytes(std::size_t count) const;
  // Of the forms that are not lossy.
  kernels::WireFormat format() const;

  // The rest is for the lossy forms. Writes a frame of the values; what it leaves out stays in `values`: what was there
  // is bitwise the frame's values plus what stays.
  void compress(std::span<float> values, std::byte* frame) const;
  // values += coefficient * the frame's values. False, and nothing is changed, for an index outside.
  [[nodiscard]] bool add(const std::byte* frame, float coefficient, std::span<float> values) const;
  // kInt8: the frame's values from `begin` on, a multiple of kernels::kInt8Block.
  kernels::WireInput input(const std::byte* frame, std::size_t count, std::size_t begin) const;

  // How servers that take this step answer pushes of this form by so many ranks. Where nothing changes but what was
  // pushed, the answer to top-k is as much denser as there are ranks, and says it all. It is int8 where that is
  // smaller, or where momentum, moments or weight decay change all weights in every step.
  WireForm answer(int ranks, const kernels::UpdateOptions& update) const;

  bool operator==(const WireForm&) const = default;

 private:
  std::size_t kept(std::size_t count) const;
};

inline constexpr double kLargestDensity = 0.5;  // of top-k: as large as float32 then

// "int8", "top-k of 0.01"
std::string to_string(const WireForm& form);

// Where each segment's frame begins in a memory of all frames, 64-byte aligned; one more entry for the end.
std::vector<std::size_t> frame_offsets(const ChunkMap& map, const WireForm& form);

}  // namespace motley::collective
