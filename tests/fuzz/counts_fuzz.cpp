// Any bytes given as saved use counts are refused with a sentence, or are written again to the same counts.
#include <algorithm>
#include <cstdint>
#include <string_view>

#include "motley/data/local/ledger.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace motley;
  const auto counts = data::UseCounts::parse({reinterpret_cast<const char*>(bytes), size});
  if (!counts) {
    MOTLEY_INVARIANT(!counts.error().message.empty(), "an error says nothing");
    return 0;
  }
  const auto again = data::UseCounts::parse(counts->serialise());
  MOTLEY_INVARIANT(again && std::ranges::equal(again->counts(), counts->counts()), "not the same after writing");
  return 0;
}
