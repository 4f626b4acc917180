// Any bytes given as a checkpoint's manifest.json are refused with a sentence, or are written again to the same
// manifest, which names no file outside the checkpoint.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "motley/train/checkpoint/checkpoint.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace motley;
  const auto manifest = train::parse_manifest({reinterpret_cast<const char*>(bytes), size});
  if (!manifest) {
    MOTLEY_INVARIANT(manifest.error().message.find("manifest.json") != std::string::npos,
                     "an error does not name the file");
    return 0;
  }
  MOTLEY_INVARIANT(
      std::ranges::none_of(manifest->files, [](const auto& file) { return file.first.find('/') != std::string::npos; }),
      "a file lies outside");
  const auto again = train::parse_manifest(train::format_manifest(*manifest));
  MOTLEY_INVARIANT(again && *again == *manifest, "not the same after writing");
  return 0;
}
