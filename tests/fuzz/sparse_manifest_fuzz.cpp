// Feeds arbitrary text to the reader of sparse tables' manifests: it must refuse it, or give what it can write and read
// again to the same.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "motley/ps/sparse_checkpoint.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto manifest = motley::ps::parse_sparse_manifest({reinterpret_cast<const char*>(data), size});
  if (manifest) {
    const std::string text = to_json(*manifest);
    const auto again = motley::ps::parse_sparse_manifest(text);
    MOTLEY_INVARIANT(again && to_json(*again) == text, "a manifest changed when it was written and read");
  }
  return 0;
}
