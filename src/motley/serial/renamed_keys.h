// Names that a file format gave up when its version went up: a file of an old version is refused with the names of now.
#pragma once

#include <fmt/format.h>

#include <span>
#include <string>
#include <string_view>

namespace motley {

struct RenamedKey {
  std::string_view before;
  std::string_view now;
};

// "batch is now global_batch_size, money is now cost"
inline std::string to_string(std::span<const RenamedKey> keys) {
  std::string text;
  for (const RenamedKey& key : keys) {
    text += fmt::format("{}{} is now {}", text.empty() ? "" : ", ", key.before, key.now);
  }
  return text;
}

}  // namespace motley
