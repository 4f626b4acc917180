// Whether output goes to a person at a terminal, and whether it may have colour there.
#pragma once

namespace motley {

bool is_terminal(int descriptor);

// A terminal that shows colour, where nobody has asked for none: the variable NO_COLOR has a value (no-color.org), or
// TERM is "dumb".
bool use_color(int descriptor);

// No colour in this process and those that it starts. Call before threads start.
void forbid_color();

}  // namespace motley
