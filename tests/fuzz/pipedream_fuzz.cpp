// Any text given as PipeDream's profile is refused with a sentence, or gives a profile that can be written and read
// again alike.
#include <cstdint>
#include <string_view>

#include "motley/model/profile.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace motley;
  const auto read = model::parse_pipedream({reinterpret_cast<const char*>(data), size}, "fuzz.txt", 0, "gpu");
  if (!read) {
    MOTLEY_INVARIANT(!read.error().message.empty(), "an error says nothing");
    return 0;
  }
  const auto again = model::parse_profile(model::to_json(*read), "again.json");
  MOTLEY_INVARIANT(again.has_value(), "written but not read: {}", again.error().message);
  MOTLEY_INVARIANT(*again == *read, "not the same after writing and reading");
  return 0;
}
