#include "motley/base/text.h"

#include <fmt/format.h>

#include <algorithm>

namespace motley {

// By the table of RFC 3629 of what the first two bytes may be; all after them are from 80 to BF.
std::size_t utf8_length(std::string_view text) {
  struct Form {
    unsigned first, last, second_least, second_most;
    std::size_t length;
  };
  static constexpr Form kForms[] = {{0xC2, 0xDF, 0x80, 0xBF, 2}, {0xE0, 0xE0, 0xA0, 0xBF, 3},
                                    {0xE1, 0xEC, 0x80, 0xBF, 3}, {0xED, 0xED, 0x80, 0x9F, 3},
                                    {0xEE, 0xEF, 0x80, 0xBF, 3}, {0xF0, 0xF0, 0x90, 0xBF, 4},
                                    {0xF1, 0xF3, 0x80, 0xBF, 4}, {0xF4, 0xF4, 0x80, 0x8F, 4}};
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  if (byte(0) < 0x80) return 1;
  for (const Form& form : kForms) {
    if (byte(0) < form.first || byte(0) > form.last) continue;
    bool holds = byte(1) >= form.second_least && byte(1) <= form.second_most;
    for (std::size_t i = 2; i < form.length; ++i) holds = holds && (byte(i) & 0xC0u) == 0x80u;
    return holds ? form.length : 0;
  }
  return 0;
}

std::string escaped(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const bool is_control = (length == 1 && (static_cast<unsigned char>(text[0]) < 0x20 || text[0] == 0x7f)) ||
                            (length == 2 && text[0] == '\xc2' && static_cast<unsigned char>(text[1]) < 0xa0);
    const std::string_view part = text.substr(0, std::max<std::size_t>(length, 1));
    if (length > 0 && !is_control) {
      shown += part;
    } else {
      for (const char c : part) shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
    text.remove_prefix(part.size());
  }
  return shown;
}

bool is_plain(std::string_view text) {
  return escaped(text) == text;
}

}  // namespace motley
