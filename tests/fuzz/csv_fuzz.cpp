// Any text given as a CSV file is refused with a sentence, or gives a full table; also where the column named by the
// first byte is left out or holds categories, and where malformed rows are left out.
#include <cmath>
#include <cstdint>
#include <string_view>

#include "motley/data/local/formats.h"

namespace {

using namespace motley;

void check(const Result<data::Table>& table, std::size_t categories) {
  if (!table) {
    MOTLEY_INVARIANT(!table.error().message.empty(), "an error says nothing");
    return;
  }
  MOTLEY_INVARIANT(table->cells.size() == table->rows() * table->columns.size(), "{} cells in {} rows",
                   table->cells.size(), table->rows());
  MOTLEY_INVARIANT(table->ids.size() == table->rows() * categories, "{} ids in {} rows", table->ids.size(),
                   table->rows());
  for (const double cell : table->cells) {
    MOTLEY_INVARIANT(std::isfinite(cell), "a cell of {}", cell);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(bytes), size);
  const std::vector<std::string> none, first = {std::string(text.substr(0, 1))};
  for (const bool drops : {false, true}) {
    for (const bool has_categories : {false, true}) {
      const auto& drop_columns = drops ? first : none;
      const auto& categories = has_categories ? first : none;
      const auto strict = data::parse_csv(text, "fuzz.csv", drop_columns, categories);
      check(strict, categories.size());
      data::MalformedLines malformed;
      const auto lenient = data::parse_csv(text, "fuzz.csv", drop_columns, categories, &malformed);
      check(lenient, categories.size());
      MOTLEY_INVARIANT(!strict || (lenient && malformed.count == 0 && lenient->rows() == strict->rows()),
                       "a good table has {} malformed lines", malformed.count);
      MOTLEY_INVARIANT(strict || !lenient || strict.error().message == malformed.first,
                       "the first malformed line is told in two ways");
    }
  }
  return 0;
}
