#include "motley/base/os/terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>

namespace motley {
namespace {

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

const char* find_code(TextColor color) {
  switch (color) {
    case TextColor::kGood:
      return "32";
    case TextColor::kBad:
      return "1;31";
    case TextColor::kWarning:
      return "33";
    case TextColor::kFaint:
      return "2";
  }
  return "0";
}

}  // namespace

bool is_terminal(int descriptor) {
  return ::isatty(descriptor) == 1 && variable("TERM") != "dumb";
}

int terminal_columns(int descriptor) {
  winsize size{};
  const bool is_known = ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return is_known ? size.ws_col : 80;
}

bool shows_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {  // the first that is set decides
    const std::string_view locale = variable(name);
    if (!locale.empty()) return locale.find("UTF-8") != locale.npos || locale.find("utf8") != locale.npos;
  }
  return false;
}

void forbid_color() {
  ::setenv("NO_COLOR", "1", 1);
}

bool shows_color(int descriptor) {
  return is_terminal(descriptor) && variable("NO_COLOR").empty();
}

std::string colored(std::string_view text, TextColor color, int descriptor) {
  return shows_color(descriptor) ? fmt::format("\x1b[{}m{}\x1b[0m", find_code(color), text) : std::string(text);
}

}  // namespace motley
