// Names that become one folder below another: of runs, of tenants, of submitted jobs.
#pragma once

#include <string_view>

#include "motley/base/result.h"

namespace motley {

// kInvalidInput with the name and what is accepted, where the name leads elsewhere ("..", "a/b"), is empty, too long or
// hidden, or holds what a path or a terminal could misread. The caller says whose name it is.
Status check_folder_name(std::string_view name);

}  // namespace motley
