// Any text given as a CSV file is refused with a sentence, or gives a full table; also where the column named by the
// first byte has a role of its own, where numbers may be missing, and where malformed rows are left out.
#include <cmath>
#include <cstdint>
#include <string_view>

#include "motley/data/local/formats.h"

namespace {

using namespace motley;

void check(const Result<data::Table>& table, const data::TableRoles& roles) {
  if (!table) {
    MOTLEY_INVARIANT(!table.error().message.empty(), "an error says nothing");
    return;
  }
  MOTLEY_INVARIANT(table->cells.size() == table->rows() * table->columns.size(), "{} cells in {} rows",
                   table->cells.size(), table->rows());
  MOTLEY_INVARIANT(table->one_hot.size() == table->rows() * roles.one_hot.size(), "{} one-hot cells in {} rows",
                   table->one_hot.size(), table->rows());
  MOTLEY_INVARIANT(table->targets.size() == (roles.target.empty() ? 0 : table->rows()), "{} targets in {} rows",
                   table->targets.size(), table->rows());
  MOTLEY_INVARIANT(table->ids.size() == table->rows() * roles.categories.size(), "{} ids in {} rows", table->ids.size(),
                   table->rows());
  for (const double cell : table->cells) {
    MOTLEY_INVARIANT(std::isfinite(cell) || (roles.may_miss && std::isnan(cell)), "a cell of {}", cell);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(bytes), size);
  const std::vector<std::string> first = {std::string(text.substr(0, 1))};
  for (const data::TableRoles& roles :
       {data::TableRoles{}, data::TableRoles{.dropped = first}, data::TableRoles{.categories = first},
        data::TableRoles{.one_hot = first, .may_miss = true},
        data::TableRoles{.target = first.front(), .may_miss = true}}) {
    const auto strict = data::parse_csv(text, "fuzz.csv", roles);
    check(strict, roles);
    data::MalformedLines malformed;
    const auto lenient = data::parse_csv(text, "fuzz.csv", roles, &malformed);
    check(lenient, roles);
    MOTLEY_INVARIANT(!strict || (lenient && malformed.count == 0 && lenient->rows() == strict->rows()),
                     "a good table has {} malformed lines", malformed.count);
    MOTLEY_INVARIANT(strict || !lenient || strict.error().message == malformed.first,
                     "the first malformed line is told in two ways");
  }
  return 0;
}
