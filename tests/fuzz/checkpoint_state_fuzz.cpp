// Any bytes given as a checkpoint's state.json are refused with a sentence, or are a state that a run can go on from
// and that is written again to the same.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "motley/train/checkpoint/checkpoint.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace motley;
  const auto state = train::parse_state({reinterpret_cast<const char*>(bytes), size});
  if (!state) {
    MOTLEY_INVARIANT(state.error().message.find("state.json") != std::string::npos, "an error does not name the file");
    return 0;
  }
  // A ledger of so many samples takes as much memory.
  MOTLEY_INVARIANT(state->ledger.size > 1000 || data::Ledger::open(state->ledger), "the ledger refuses it");
  const std::string text = train::format_state(*state);
  const auto again = train::parse_state(text);
  MOTLEY_INVARIANT(again && train::format_state(*again) == text, "not the same after writing");
  return 0;
}
