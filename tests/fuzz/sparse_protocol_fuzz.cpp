// Whatever bytes a rank or a server sends about sparse tables: decoded or refused, and what was decoded is what was
// sent, or lies within it.
#include <algorithm>
#include <cstdlib>
#include <vector>

#include "motley/collective/sparse_protocol.h"

namespace {

using motley::collective::SparseTableOptions;

void expect(bool holds) {
  if (!holds) std::abort();
}

template <class T>
void expect_within(std::span<const T> part, std::span<const std::byte> bytes) {
  const auto inner = std::as_bytes(part);
  expect(inner.data() >= bytes.data() && inner.data() + inner.size() <= bytes.data() + bytes.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  const std::vector<std::byte> bytes(begin + 1, begin + size);  // aligned, as a frame's payload is
  static const std::vector<SparseTableOptions> tables = {
      {.name = "a", .dimension = 1},
      {.name = "b", .dimension = 7, .wire = motley::collective::WireType::kBfloat16},
      {.name = "c", .dimension = 5, .wire = motley::collective::WireType::kInt8}};
  switch (data[0] % 4) {
    case 0:
      if (const auto open = motley::collective::decode_sparse_open(bytes)) {
        const auto again = motley::collective::encode(*open);
        expect(std::ranges::equal(again, bytes));
      }
      break;
    case 1:
      if (const auto saved = motley::collective::decode_sparse_saved(bytes)) {
        expect(std::ranges::equal(motley::collective::encode(saved), bytes));
      }
      break;
    case 2:
      if (const auto frame = motley::collective::read_pull(bytes, tables)) expect_within(frame->ids, bytes);
      break;
    default:
      if (const auto frame = motley::collective::read_push(bytes, tables)) {
        expect_within(frame->ids, bytes);
        expect_within(frame->gradients, bytes);
        expect(frame->gradients.size() == frame->ids.size() * tables[frame->head.table].form().row_bytes());
      }
  }
  return 0;
}
