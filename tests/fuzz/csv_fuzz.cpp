// Any text given as a CSV file is refused with a sentence, or gives a full table; leaving out the first byte's column
// too.
#include <cmath>
#include <cstdint>
#include <string_view>

#include "motley/data/formats.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace motley;
  const std::string_view text(reinterpret_cast<const char*>(bytes), size);
  for (const std::vector<std::string>& leave_out :
       {std::vector<std::string>{}, std::vector<std::string>{std::string(text.substr(0, 1))}}) {
    const auto table = data::parse_csv(text, "fuzz.csv", leave_out);
    if (!table) {
      MOTLEY_INVARIANT(!table.error().message.empty(), "an error says nothing");
      continue;
    }
    MOTLEY_INVARIANT(table->cells.size() == table->rows() * table->columns.size(), "{} cells in {} rows",
                     table->cells.size(), table->rows());
    for (const double cell : table->cells) {
      MOTLEY_INVARIANT(std::isfinite(cell), "a cell of {}", cell);
    }
  }
  return 0;
}
