// Tables for a terminal.
#pragma once

#include <string>
#include <vector>

namespace motley::report {

// Rows of cells as aligned columns, two blanks in front of each line; the first row is the heading, and all have as
// many cells as it. A last cell longer than a terminal bears is cut short.
std::string text_columns(const std::vector<std::vector<std::string>>& rows);

}  // namespace motley::report
