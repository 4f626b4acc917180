// motley export: the Python package's command of that name, in a Python that has the package.
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "motley/base/os/process.h"
#include "motley/cli/commands.h"

namespace motley::cli {
namespace {

constexpr double kSecondsToStart = 60;  // of a Python that looks for the package

bool has_package(const std::string& python) {
  const auto found =
      run_program({.words = {python, "-c",
                             "import importlib.util, sys; sys.exit(importlib.util.find_spec('motley') is None or "
                             "importlib.util.find_spec('motley._export') is None)"},
                   .environment = environment_with({"PYTHONWARNINGS=ignore"})},
                  Deadline::after(kSecondsToStart));
  return found && found->is_good();
}

// The one that MOTLEY_PYTHON names, the one that the program was built with, or the one in PATH.
Status run_export(const std::vector<std::string>& words) {
  const char* named = std::getenv("MOTLEY_PYTHON");
  std::vector<std::string> pythons = {MOTLEY_PYTHON, "python3"};
  if (named != nullptr && *named != '\0') pythons = {named};
  for (const std::string& python : pythons) {
    if (!has_package(python)) continue;
    std::vector<std::string> command = {python, "-m", "motley", "export"};
    command.insert(command.end(), words.begin(), words.end());
    std::vector<char*> arguments;
    for (std::string& word : command) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    std::fflush(stdout);
    ::execvp(arguments.front(), arguments.data());
    return fail(ErrorCode::kUnavailable, "export: '{}' cannot be started: {}", python, std::strerror(errno));
  }
  return fail(ErrorCode::kInvalidInput,
              "export: no Python with the package motley: {} {} it; accepted: MOTLEY_PYTHON=a Python in which "
              "`import motley` works (docs/reference/python.md)",
              fmt::join(pythons, " and "), pythons.size() == 1 ? "does not have" : "do not have");
}

}  // namespace

void add_export(CLI::App& app, CommandLine& line) {
  CLI::App* command = app.add_subcommand("export", "Write a PyTorch module as a .pt2 file that motley train reads");
  command
      ->footer(
          "Usage: motley export FILE.py:NAME [--input SIZES[:TYPE[:BOUND]]]... [--arguments JSON] [--output FILE.pt2]\n"
          "                     [--overwrite]\n\n"
          "It is done by the Python package: in the Python that MOTLEY_PYTHON names, else the one that this program "
          "was\n"
          "built with, else python3. All of its flags: python -m motley export --help\n\n"
          "Example:\n"
          "  motley export examples/custom/model.py:Net --input 1,28,28 --output build/custom/model.pt2")
      ->prefix_command();
  command->callback([&line, command] { line.action = [words = command->remaining()] { return run_export(words); }; });
}

}  // namespace motley::cli
