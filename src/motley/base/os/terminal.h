// What a process's output is shown on: whether that is a terminal, how wide it is, and words whose colour says what
// they mean. On anything else, and where the variable NO_COLOR is set or forbid_color() was called, text stays as it
// is.
#pragma once

#include <string>
#include <string_view>

namespace motley {

enum class TextColor { kGood, kBad, kWarning, kFaint };

// One that can rewrite a line: not where TERM is dumb.
bool is_terminal(int descriptor);
// 80 where it is not known.
int terminal_columns(int descriptor);
// Whether the variables of the locale say UTF-8.
bool shows_utf8();

// For all of this process's output, and that of the processes that it starts.
void forbid_color();
bool shows_color(int descriptor);
// The text in this colour where the descriptor shows colours, else as it is.
std::string colored(std::string_view text, TextColor color, int descriptor);

}  // namespace motley
