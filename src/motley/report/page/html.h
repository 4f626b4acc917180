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
std::string tile(std::string_view label, std::string_view value, std::string_view remark, Tone tone = Tone::kPlain);

// A strip of text across the page with a bold first word, such as "Emulated".
std::string notice(std::string_view heading, std::string_view body_html, Tone tone = Tone::kPlain);

// A table with a header row; cells are HTML. Columns named in `numeric` are aligned to the right.
std::string table(const std::vector<std::string>& headings, const std::vector<std::vector<std::string>>& rows_html,
                  const std::vector<std::size_t>& numeric = {});
// The same of rows of text, of which the first is the header.
std::string text_table(std::vector<std::vector<std::string>> rows, const std::vector<std::size_t>& numeric = {});

// A cell of a table that is the best one of its column or row.
std::string best_cell(std::string_view text);

// A relative path as the address of a link: what is not plain in it is percent-encoded.
std::string to_link(std::string_view path);

// A whole page: style, script and, where it has charts, their library are inside, nothing is loaded from elsewhere (a
// content security policy forbids it), light and dark follow the reader's system, and it prints.
std::string document(std::string_view title, std::string_view body_html);

// What most pages consist of, from top to bottom. A field that is empty leaves its part out.
struct Page {
  std::string title;
  std::string heading = title;  // text, as are the badge beside it and the facts in the line below
  std::string badge = {};
  Tone badge_tone = Tone::kPlain;
  std::vector<std::string> facts = {};
  std::string notices_html = {}, tiles_html = {}, cards_html = {};
  std::string footer = {};
  bool is_live = false;  // of a service, which it asks for itself anew every few seconds
};
std::string document(const Page& page);

}  // namespace motley::report
