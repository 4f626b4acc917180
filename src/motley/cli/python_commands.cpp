// motley launch, run and export: the Python package's commands of these names, in a Python that has the package.
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "motley/base/os/process.h"
#include "motley/cli/command_text.h"
#include "motley/cli/commands.h"
#include "motley/cli/help.h"

namespace motley::cli {
namespace {

constexpr double kSecondsToStart = 60;  // of a Python that looks for the package

bool has_package(const std::string& python) {
  const auto found =
      run_program({.words = {python, "-c",
                             "import importlib.util, sys; sys.exit(importlib.util.find_spec('motley') is None or "
                             "importlib.util.find_spec('motley._launch') is None)"},
                   .environment = environment_with({"PYTHONWARNINGS=ignore"})},
                  Deadline::after(kSecondsToStart));
  return found && found->is_good();
}

// The one that MOTLEY_PYTHON names, the one that the program was built with, or the one in PATH.
std::vector<std::string> list_pythons() {
  const char* named = std::getenv("MOTLEY_PYTHON");
  if (named != nullptr && *named != '\0') return {named};
  return {MOTLEY_PYTHON, "python3"};
}

// In this process's place; returns where it could not be started.
Status become(const std::string& python, const std::string& name, const std::vector<std::string>& words) {
  std::vector<std::string> command = {python, "-m", "motley", name};
  command.insert(command.end(), words.begin(), words.end());
  std::vector<char*> arguments;
  for (std::string& word : command) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  std::fflush(stdout);
  ::execvp(arguments.front(), arguments.data());
  return fail(ErrorCode::kUnavailable, "{}: '{}' cannot be started: {}", name, python, std::strerror(errno));
}

// Help, where no Python can give it.
Status print_own_help(const CLI::App& command) {
  std::printf("%s", short_help(describe(command)).c_str());
  return {};
}

void add_python_command(CLI::App& app, CommandLine& line, const std::string& name, const std::string& about,
                        const std::string& usage, const std::string& example) {
  CLI::App* command = app.add_subcommand(name, about);
  command
      ->footer(
          fmt::format("It is done by the Python package, which tools/build or 'pip install' puts beside this program "
                      "(docs/reference/python.md):\nin the Python that MOTLEY_PYTHON names, else the one that this "
                      "program was built with, else python3. That Python\nexplains all flags: python -m motley {} "
                      "--help\n\nExample:\n  {}",
                      name, example))
      ->prefix_command();
  set_usage(*command, usage);
  command->set_help_flag();  // which is the package's
  command->callback([&line, command, name] {
    line.action = [command, name, words = command->remaining()] { return run_python_command(*command, words); };
  });
}

}  // namespace

Status run_python_command(const CLI::App& command, std::vector<std::string> words) {
  const std::string name = command.get_name();
  const bool asks_for_help =
      !words.empty() && (words.front() == "-h" || words.front() == "--help" || words.front().starts_with("--help="));
  if (asks_for_help) words = {"--help"};
  const std::vector<std::string> pythons = list_pythons();
  for (const std::string& python : pythons) {
    if (has_package(python)) return become(python, name, words);
  }
  if (asks_for_help) return print_own_help(command);
  return fail(ErrorCode::kInvalidInput,
              "{}: no Python with the package motley: {} {} it; accepted: MOTLEY_PYTHON=a Python in which "
              "`import motley` works (docs/reference/python.md)",
              name, fmt::join(pythons, " and "), pythons.size() == 1 ? "does not have" : "do not have");
}

void add_python_commands(CLI::App& app, CommandLine& line) {
  add_python_command(app, line, "launch", "Start the ranks of a Python script on this machine",
                     "motley launch [--workers INT] [--emulated-speeds NUMBER,... [--strict] | --sbatch TEXT... "
                     "[--certificates]] SCRIPT [ARGUMENTS...]",
                     "motley launch --workers 2 train.py --epochs 3");
  add_python_command(
      app, line, "run", "Start the ranks of a Python script, and go on where some of them are killed",
      "motley run --elastic MIN:MAX [--workers INT] [--replacements INT] [--join-timeout DURATION] SCRIPT "
      "[ARGUMENTS...]",
      "motley run --elastic 2:4 train.py --epochs 3");
  add_python_command(app, line, "export", "Write a PyTorch module as a .pt2 file that motley train reads",
                     "motley export FILE.py:NAME [--input SIZES[:TYPE[:BOUND]]]... [--arguments JSON] "
                     "[--output FILE] [--job FILE] [--overwrite]",
                     "motley export examples/custom/model.py:Net --input 1,28,28 --output build/custom/model.pt2");
}

}  // namespace motley::cli
