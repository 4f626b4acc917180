// HTML that is safe by construction: escaping, and a document that opens offline because all it needs is inside it.
// Functions that take `text` escape it; those that take `html` put it in as it is.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace motley::report {

// The text for an element's content or a quoted attribute: & < > " ' are escaped, bytes that are not UTF-8 and control
// characters that HTML forbids become U+FFFD.
std::string escape(std::string_view text);

// JSON for a <script> element: no "<", so that no text in it can end the element or open a comment.
std::string json_for_script(const nlohmann::ordered_json& value);

// A titled box. `hint_html` is a line of explanation under the title; `wide` takes the whole row.
std::string card(std::string_view title, std::string_view hint_html, std::string_view body_html, bool wide = false);

enum class Tone { kPlain, kGood, kBad };

// A large figure with a label above and a remark below. A tone other than kPlain also says "met" or "missed" in words.
std::string tile(std::string_view label, std::string_view value, std::string_view remark, Tone tone);

// A strip of text across the page with a bold first word, such as "Emulated".
std::string notice(std::string_view heading, std::string_view body_html, Tone tone = Tone::kPlain);

// A table with a header row; cells are HTML. Columns named in `numeric` are aligned to the right.
std::string table(const std::vector<std::string>& headings, const std::vector<std::vector<std::string>>& rows_html,
                  const std::vector<std::size_t>& numeric = {});

// A whole page: style, charts' library and script are inside, nothing is loaded from elsewhere (a content security
// policy forbids it), light and dark follow the reader's system, and it prints.
std::string document(std::string_view title, std::string_view body_html);

}  // namespace motley::report
