// Which of the known names was meant by a mistyped one: by the letters that differ, or as it is often cut short.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace motley {

// The first is what nearest_key (motley/serial/options.h) gives: of several that are as near, the one that is listed
// first. After it those whose last part is the same, in other groups: "optimizer.learning_rate" and
// "embedding.learning_rate". Empty where none is near.
//
// Where no name is near by its letters, it is one that begins with the key, or with a word that does ("mem": memory),
// or one with words that begin with its letters ("lr": optimizer.learning_rate).
std::vector<std::string> nearest_keys(std::string_view key, const std::vector<std::string>& keys);

}  // namespace motley
