// Any text given as a file in Criteo's format is refused with a sentence, or gives full rows; and where malformed lines
// are left out, the rest is what the text without them gives.
#include <cmath>
#include <cstdint>
#include <string_view>

#include "motley/data/local/formats.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace motley;
  const std::string_view text(reinterpret_cast<const char*>(bytes), size);
  data::MalformedLines malformed;
  const auto lenient = data::parse_criteo(text, "fuzz.tsv", &malformed);
  MOTLEY_INVARIANT(lenient.has_value(), "malformed lines are an error where they may be left out");
  MOTLEY_INVARIANT(lenient->features.size() == lenient->rows() * data::kCriteoFeatures &&
                       lenient->ids.size() == lenient->rows() * data::kCriteoCategories,
                   "{} features and {} ids in {} rows", lenient->features.size(), lenient->ids.size(), lenient->rows());
  for (const float feature : lenient->features) {
    MOTLEY_INVARIANT(std::isfinite(feature) && feature >= 0, "a feature of {}", feature);
  }
  for (const std::int64_t value : lenient->classes) {
    MOTLEY_INVARIANT(value == 0 || value == 1, "a class of {}", value);
  }
  const auto strict = data::parse_criteo(text, "fuzz.tsv");
  MOTLEY_INVARIANT(strict.has_value() == (malformed.count == 0), "{} malformed lines", malformed.count);
  if (strict) {
    MOTLEY_INVARIANT(strict->features == lenient->features && strict->ids == lenient->ids, "a text reads in two ways");
  } else {
    MOTLEY_INVARIANT(!malformed.first.empty() && strict.error().message == malformed.first,
                     "the first malformed line is told in two ways");
  }
  return 0;
}
