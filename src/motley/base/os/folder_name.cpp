#include "motley/base/os/folder_name.h"

#include <algorithm>
#include <cctype>

namespace motley {

Status check_folder_name(std::string_view name) {
  const auto is_plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || c >= 0x80 ||
           std::string_view("._- ").find(static_cast<char>(c)) != std::string_view::npos;
  };
  if (name.empty() || name.size() > 200 || name.front() == '.' || !std::ranges::all_of(name, is_plain)) {
    return fail(ErrorCode::kInvalidInput,
                "'{}' is not the name of a folder; accepted: up to 200 letters, digits, spaces, '.', '_' and '-', "
                "not beginning with '.'",
                name);
  }
  return {};
}

}  // namespace motley
