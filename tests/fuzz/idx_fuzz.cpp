// Any bytes given as an IDX file, packed or not, are refused with a sentence, or give as many values as their sizes
// say.
#include <cstdint>
#include <string>

#include "motley/data/local/formats.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace motley;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const auto bytes =
      data::is_gzip(input) ? data::gunzip(input, "fuzz.gz", 1 << 20) : Result<std::string>(std::string(input));
  if (!bytes) {
    MOTLEY_INVARIANT(!bytes.error().message.empty(), "an error says nothing");
    return 0;
  }
  const auto array = data::parse_idx(*bytes, "fuzz.idx");
  if (!array) {
    MOTLEY_INVARIANT(!array.error().message.empty(), "an error says nothing");
    return 0;
  }
  std::uint64_t count = 1;
  for (const std::uint32_t extent : array->sizes) {
    count *= extent;
  }
  MOTLEY_INVARIANT(count == array->values.size(), "{} values where {} were promised", array->values.size(), count);
  return 0;
}
