#include "motley/report/page/html.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "motley/report/page/assets.h"

namespace motley::report {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// The length of the well-formed UTF-8 sequence at the front of the text (RFC 3629), 0 where there is none.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const auto follows = [&](std::size_t i) { return (byte(i) & 0xC0u) == 0x80u; };
  const unsigned first = byte(0);
  if (first < 0x80) {
    return 1;
  }
  if (first >= 0xC2 && first <= 0xDF) {
    return follows(1) ? 2 : 0;
  }
  if (first >= 0xE0 && first <= 0xEF) {
    const bool overlong = first == 0xE0 && byte(1) < 0xA0;
    const bool surrogate = first == 0xED && byte(1) > 0x9F;
    return follows(1) && follows(2) && !overlong && !surrogate ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const bool overlong = first == 0xF0 && byte(1) < 0x90;
    const bool too_large = first == 0xF4 && byte(1) > 0x8F;
    return follows(1) && follows(2) && follows(3) && !overlong && !too_large ? 4 : 0;
  }
  return 0;
}

std::string_view tone_class(Tone tone) {
  return tone == Tone::kGood ? " good" : tone == Tone::kBad ? " bad" : "";
}

// The licence under which the charts' library is passed on.
constexpr std::string_view kLibraryLicence = R"(/*
Chart.js, copyright 2014-2022 Chart.js Contributors; @kurkle/color, copyright Jukka Kurkela. MIT License:
Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
persons to whom the Software is furnished to do so, subject to the following conditions:
The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.
THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
*/
)";

}  // namespace

std::string escape(std::string_view text) {
  std::string escaped;
  escaped.reserve(text.size() + text.size() / 8);
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const unsigned char first = static_cast<unsigned char>(text[0]);
    const bool forbidden = (first < 0x20 && first != '\n' && first != '\t') || first == 0x7F;
    if (length == 0 || forbidden) {
      escaped += kReplacement;
    } else if (first == '&') {
      escaped += "&amp;";
    } else if (first == '<') {
      escaped += "&lt;";
    } else if (first == '>') {
      escaped += "&gt;";
    } else if (first == '"') {
      escaped += "&quot;";
    } else if (first == '\'') {
      escaped += "&#39;";
    } else {
      escaped += text.substr(0, length);
    }
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return escaped;
}

std::string json_for_script(const nlohmann::ordered_json& value) {
  const std::string plain = value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  std::string safe;
  safe.reserve(plain.size());
  for (const char c : plain) {
    if (c == '<') {
      safe += "\\u003c";  // "<" can stand only inside a JSON string, where this means the same
    } else {
      safe += c;
    }
  }
  return safe;
}

std::string card(std::string_view title, std::string_view hint_html, std::string_view body_html, bool wide) {
  return fmt::format("<section class=\"card{}\">\n<h2>{}</h2>\n{}{}</section>\n", wide ? " wide" : "", escape(title),
                     hint_html.empty() ? "" : fmt::format("<p class=\"hint\">{}</p>\n", hint_html), body_html);
}

std::string tile(std::string_view label, std::string_view value, std::string_view remark, Tone tone) {
  const std::string_view verdict = tone == Tone::kGood  ? "<span class=\"verdict\">✓ met</span>"
                                   : tone == Tone::kBad ? "<span class=\"verdict\">✗ missed</span>"
                                                        : "";
  return fmt::format(
      "<div class=\"tile{}\"><div class=\"label\">{}{}</div><div class=\"value\">{}</div>"
      "<div class=\"remark\">{}</div></div>\n",
      tone_class(tone), escape(label), verdict, escape(value), escape(remark));
}

std::string notice(std::string_view heading, std::string_view body_html, Tone tone) {
  return fmt::format("<div class=\"notice{}\" role=\"note\"><strong>{}</strong> {}</div>\n", tone_class(tone),
                     escape(heading), body_html);
}

std::string table(const std::vector<std::string>& headings, const std::vector<std::vector<std::string>>& rows_html,
                  const std::vector<std::size_t>& numeric) {
  const auto align = [&](std::size_t column) {
    return std::find(numeric.begin(), numeric.end(), column) != numeric.end() ? " class=\"number\"" : "";
  };
  std::string html = "<div class=\"scroll\"><table><thead><tr>";
  for (std::size_t column = 0; column < headings.size(); ++column) {
    html += fmt::format("<th scope=\"col\"{}>{}</th>", align(column), escape(headings[column]));
  }
  html += "</tr></thead><tbody>\n";
  for (const std::vector<std::string>& row : rows_html) {
    html += "<tr>";
    for (std::size_t column = 0; column < row.size(); ++column) {
      html += fmt::format("<td{}>{}</td>", align(column), row[column]);
    }
    html += "</tr>\n";
  }
  return html + "</tbody></table></div>\n";
}

std::string document(std::string_view title, std::string_view body_html) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src &#39;none&#39;; "
      "style-src &#39;unsafe-inline&#39;; script-src &#39;unsafe-inline&#39;; img-src data:\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n<title>{}</title>\n<style>\n{}</style>\n</head>\n"
      "<body>\n{}<script>\n{}{}</script>\n<script>\n{}</script>\n</body>\n</html>\n",
      escape(title), page_style, body_html, kLibraryLicence, chart_library, page_script);
}

}  // namespace motley::report
