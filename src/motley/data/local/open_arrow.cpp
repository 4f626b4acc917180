// Parquet and Arrow files, which pyarrow reads: a Python that has it writes them as CSV into a pipe. So no version of
// Arrow's libraries is built into the program, and tables in these formats are read as others are.
#include <cstdlib>

#include "motley/base/os/process.h"
#include "motley/data/local/openers.h"

namespace motley::data {

extern const std::string_view arrow_to_csv;  // arrow_to_csv.py, embedded

namespace {

constexpr double kReadSeconds = 3600;
constexpr int kUnreadable = 2;  // exit code of arrow_to_csv.py where the file is at fault, and not the Python

}  // namespace

Result<std::unique_ptr<Dataset>> open_arrow(const DatasetSource& source) {
  const std::string name = source.features.string();
  const char* const named = std::getenv("MOTLEY_PYTHON");
  std::vector<std::string> pythons = {MOTLEY_PYTHON, "python3"};
  if (named != nullptr && *named != '\0') pythons = {named};
  std::string reason;
  for (const std::string& python : pythons) {
    auto output =
        run_program({.words = {python, "-c", std::string(arrow_to_csv), name}}, Deadline::after(kReadSeconds));
    if (output && output->is_good()) return read_table(output->text, source);
    reason =
        output ? output->text.substr(output->text.rfind('\n', output->text.size() - 2) + 1) : output.error().message;
    while (reason.ends_with('\n')) reason.pop_back();
    if (output && output->exit_code >= 128) {
      return fail(ErrorCode::kUnavailable, "{}: {} was ended by signal {} while it read it", name, python,
                  output->exit_code - 128);
    }
    if (output && output->exit_code == kUnreadable) {
      return fail(ErrorCode::kInvalidInput, "{}: pyarrow cannot read it: {}", name, reason);
    }
  }
  return fail(ErrorCode::kInvalidInput,
              "{}: it is read by pyarrow, which {} not have ({}); accepted: MOTLEY_PYTHON=a Python in which `import "
              "pyarrow` works (pip install pyarrow)",
              name, pythons.size() == 1 ? pythons[0] + " does" : fmt::format("{} do", fmt::join(pythons, " and ")),
              reason);
}

}  // namespace motley::data
