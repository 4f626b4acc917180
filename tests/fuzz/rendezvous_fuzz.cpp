// Any bytes given as rendezvous.json are refused with a sentence, or are an address that is written again to the same.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "motley/serial/json_fields.h"
#include "motley/train/launch/role.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace motley;
  const auto point = train::parse_rendezvous({reinterpret_cast<const char*>(bytes), size});
  if (!point) {
    MOTLEY_INVARIANT(point.error().message.starts_with("rendezvous.json"), "an error does not name the file");
    return 0;
  }
  const auto again = train::parse_rendezvous(write_json_line(*point));
  MOTLEY_INVARIANT(again && *again == *point, "not the same after writing");
  return 0;
}
