// Any bytes given as a profile are read or refused with a sentence, and what is read can be written and read again
// alike; its cuts are numbers.
#include <cmath>
#include <cstdint>
#include <string_view>

#include "motley/model/profile.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace motley;
  const auto read = model::parse_profile({reinterpret_cast<const char*>(data), size}, "fuzz.json");
  if (!read) {
    MOTLEY_INVARIANT(!read.error().message.empty(), "an error says nothing");
    return 0;
  }
  const auto again = model::parse_profile(model::to_json(*read), "again.json");
  MOTLEY_INVARIANT(again.has_value(), "written but not read: {}", again.error().message);
  MOTLEY_INVARIANT(*again == *read, "not the same after writing and reading");
  for (const double bytes : model::cut_bytes(read->graph)) {
    MOTLEY_INVARIANT(bytes >= 0, "a cut carries {} bytes", bytes);
  }
  (void)model::coarsen(*read, 2);
  return 0;
}
