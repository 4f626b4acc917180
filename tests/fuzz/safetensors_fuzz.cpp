// Feeds arbitrary bytes to the safetensors parser: it must refuse them, or return entries that lie within the data.
#include <cstddef>
#include <cstdint>

#include "motley/serial/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto file = motley::parse_safetensors(std::as_bytes(std::span(data, size)));
  if (file) {
    std::size_t covered = 0;
    for (const motley::SafetensorsEntry& entry : file->entries) {
      covered += file->bytes_of(entry).size();
    }
    MOTLEY_INVARIANT(covered == file->data.size(), "entries cover {} of {} bytes", covered, file->data.size());
  }
  return 0;
}
