// Any bytes given as a plan are refused with a sentence, or are written again to the same plan.
#include <cstdint>
#include <string_view>

#include "motley/planning/plan/plan.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace motley;
  const auto plan = planning::parse_plan({reinterpret_cast<const char*>(bytes), size}, "plan.json");
  if (!plan) {
    MOTLEY_INVARIANT(!plan.error().message.empty(), "an error says nothing");
    return 0;
  }
  const auto again = planning::parse_plan(planning::to_json(*plan), "again.json");
  MOTLEY_INVARIANT(again && *again == *plan, "not the same after writing");
  return 0;
}
