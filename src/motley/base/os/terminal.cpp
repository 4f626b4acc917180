#include "motley/base/os/terminal.h"

#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace motley {
namespace {

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

bool is_terminal(int descriptor) {
  return ::isatty(descriptor) == 1;
}

bool use_color(int descriptor) {
  return is_terminal(descriptor) && variable("NO_COLOR").empty() && variable("TERM") != "dumb";
}

void forbid_color() {
  ::setenv("NO_COLOR", "1", 1);
}

}  // namespace motley
