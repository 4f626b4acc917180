// The files that the build puts into the binary for every page: Chart.js, and the page's own script and style.
#pragma once

#include <string_view>

namespace motley::report {

extern const std::string_view chart_library;  // Chart.js 3.9, MIT licence
extern const std::string_view page_script;    // page.js
extern const std::string_view page_style;     // page.css

}  // namespace motley::report
