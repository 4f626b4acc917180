#include "bench/python_bench.h"

#include <unistd.h>

#include <utility>

#include "motley/base/os/process.h"

namespace motley::bench {
namespace {

constexpr double kMaxSeconds = 3 * 3600;  // training to an accuracy takes an hour

Result<std::vector<BenchRow>> run_script(const BenchOptions& options, const std::string& name,
                                         const std::vector<std::string>& arguments) {
  Program script{.words = {options.python.string(), (options.source_folder / "bench/python" / name).string()},
                 .environment = environment_with({"PYTHONPATH=" + (options.program.parent_path() / "python").string(),
                                                  "MOTLEY_BINARY=" + options.motley.string()}),
                 .errors = STDERR_FILENO};
  script.words.insert(script.words.end(), arguments.begin(), arguments.end());
  if (options.quick) script.words.emplace_back("--quick");
  MOTLEY_ASSIGN(const Output output, run_program(std::move(script), Deadline::after(kMaxSeconds)));
  if (!output.is_good()) return fail(ErrorCode::kInternal, "bench/python/{} ended with {}", name, output.exit_code);
  return read_rows(output.text);
}

}  // namespace

Bench python_bench(const std::string& script, std::vector<std::string> arguments) {
  return [script, arguments = std::move(arguments)](const BenchOptions& options) {
    return run_script(options, script, arguments);
  };
}

}  // namespace motley::bench
