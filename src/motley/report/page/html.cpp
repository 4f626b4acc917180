#include "motley/report/page/html.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "motley/base/text.h"

namespace motley::report {

// The files that the build puts into the binary for every page.
extern const std::string_view chart_library;  // Chart.js 3.9, MIT licence
extern const std::string_view page_script;    // page.js
extern const std::string_view live_script;    // live.js
extern const std::string_view page_style;     // page.css

namespace {

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

// What users wrote is escaped, so that this is ours.
bool has_charts(std::string_view body_html) {
  return body_html.find("<canvas") != std::string_view::npos;
}

std::string document(std::string_view title, std::string_view body_html, bool is_live) {
  std::string scripts;
  if (has_charts(body_html)) scripts = fmt::format("<script>\n{}{}</script>\n", kLibraryLicence, chart_library);
  scripts += fmt::format("<script>\n{}</script>\n", page_script);
  if (is_live) scripts += fmt::format("<script>\n{}</script>\n", live_script);
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src &#39;none&#39;; "
      "style-src &#39;unsafe-inline&#39;; script-src &#39;unsafe-inline&#39;; img-src data:{}\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n{}"
      "<meta name=\"color-scheme\" content=\"light dark\">\n<title>{}</title>\n<style>\n{}</style>\n</head>\n"
      "<body>\n{}{}</body>\n</html>\n",
      is_live ? "; connect-src &#39;self&#39;" : "",
      is_live ? "<noscript><meta http-equiv=\"refresh\" content=\"5\"></noscript>\n" : "", escape(title), page_style,
      body_html, scripts);
}

}  // namespace

std::string escape(std::string_view text) {
  std::string escaped;
  escaped.reserve(text.size() + text.size() / 8);
  for (std::size_t length = 0; !text.empty(); text.remove_prefix(std::max<std::size_t>(length, 1))) {
    length = utf8_length(text);
    const char first = text[0];
    const bool is_forbidden = length == 1 && ((first < 0x20 && first != '\n' && first != '\t') || first == 0x7F);
    escaped += length == 0 || is_forbidden ? "\xEF\xBF\xBD"
               : first == '&'              ? "&amp;"
               : first == '<'              ? "&lt;"
               : first == '>'              ? "&gt;"
               : first == '"'              ? "&quot;"
               : first == '\''             ? "&#39;"
                                           : text.substr(0, length);
  }
  return escaped;
}

std::string json_for_script(const nlohmann::ordered_json& value) {
  std::string safe;
  for (const char c : value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)) {
    // It can stand only inside a JSON string, where this means the same.
    safe += c == '<' ? std::string_view("\\u003c") : std::string_view(&c, 1);
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

std::string text_table(std::vector<std::vector<std::string>> rows, const std::vector<std::size_t>& numeric) {
  const std::vector<std::string> headings = std::move(rows.front());
  rows.erase(rows.begin());
  for (std::vector<std::string>& row : rows) {
    for (std::string& cell : row) cell = escape(cell);
  }
  return table(headings, rows, numeric);
}

std::string best_cell(std::string_view text) {
  return fmt::format("<span class=\"best\">{}</span>", escape(text));
}

std::string to_link(std::string_view path) {
  constexpr std::string_view kPlain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/";
  std::string link;
  for (const char c : path) {
    link += kPlain.find(c) != std::string_view::npos ? std::string(1, c)
                                                     : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return link;
}

std::string document(std::string_view title, std::string_view body_html) {
  return document(title, body_html, false);
}

std::string document(const Page& page) {
  std::string body = fmt::format("<header><h1>{}", escape(page.heading));
  if (!page.badge.empty()) {
    body += fmt::format("<span class=\"badge{}\">{}</span>", tone_class(page.badge_tone), escape(page.badge));
  }
  body += "</h1>\n<div class=\"facts\">";
  for (const std::string& fact : page.facts) body += fmt::format("<span>{}</span>", escape(fact));
  body += "</div></header>\n";
  if (page.is_live)
    body += "<div class=\"notice bad stale\" role=\"status\" hidden><strong>Stale</strong> <span></span></div>\n";
  body += "<main>\n" + page.notices_html;
  if (!page.tiles_html.empty()) body += fmt::format("<div class=\"tiles\">\n{}</div>\n", page.tiles_html);
  body += fmt::format("<div class=\"cards\">\n{}</div></main>\n", page.cards_html);
  if (has_charts(body)) {
    body +=
        "<p class=\"chart-help\">To look closer at a chart, drag over a part of it; a double click shows all again. "
        "With the keyboard: + and −, ← and →, Esc.</p>\n";
  }
  if (!page.footer.empty()) body += fmt::format("<footer>{}</footer>\n", escape(page.footer));
  return document(page.title, body, page.is_live);
}

}  // namespace motley::report
