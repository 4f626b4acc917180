// Any bytes given as a npy file are refused with a sentence, or all their values can be read.
#include <cstdint>
#include <string_view>

#include "motley/data/local/formats.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace motley;
  const auto array = data::parse_npy({reinterpret_cast<const char*>(bytes), size}, "fuzz.npy");
  if (!array) {
    MOTLEY_INVARIANT(!array.error().message.empty(), "an error says nothing");
    return 0;
  }
  double sum = 0;
  for (std::uint64_t i = 0; i < array->count(); ++i) {
    sum += array->at(i);
  }
  MOTLEY_INVARIANT(array->count() <= size, "{} values in {} bytes (sum {})", array->count(), size, sum);
  return 0;
}
