#include "motley/cli/reference.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace motley::cli {
namespace {

// A cell of a table: angle brackets and bars are text.
std::string table_cell(std::string_view text) {
  std::string result;
  for (const char letter : text) {
    result += letter == '|' ? "\\|" : letter == '<' ? "&lt;" : letter == '>' ? "&gt;" : std::string(1, letter);
  }
  return result;
}

std::string table_row(const FlagText& flag) {
  const std::string type = flag.type.empty() ? "switch" : "`" + flag.type + "`";
  const std::string fallback = flag.is_required ? "required" : flag.fallback;
  return fmt::format("| `{}` | {} | {} | {} |\n", flag.name, table_cell(type), table_cell(fallback),
                     table_cell(flag.help));
}

std::string describe_command(const CommandText& command) {
  std::string text = fmt::format("## {}\n\n{}.\n\n    {}\n", command.name(), command.about, command.usage());
  std::string rows;
  for (const FlagText& argument : command.arguments) rows += table_row(argument);
  for (const FlagText& flag : command.flags) {
    if (flag.is_own()) rows += table_row(flag);
  }
  if (!rows.empty()) text += "\n| | type | default | what it says |\n|---|---|---|---|\n" + rows;
  if (const std::vector<std::string> topics = command.topics(); !topics.empty()) {
    text += fmt::format(
        "\nKeys of the [job file](job.md) are also flags, of these topics: {} (`--help=TOPIC` lists them).\n",
        fmt::join(topics, ", "));
  }
  for (const CommandText& one : command.commands) text += "\n" + describe_command(one);
  return text;
}

}  // namespace

std::string command_reference(const CommandText& program) {
  std::string text =
      "# Commands\n\nEvery command with its arguments and flags, as `--help` has them; this page is what `motley "
      "reference` prints. What holds for all of them is on [the command line](command-line.md).\n\n"
      "| flag of every command | what it says |\n|---|---|\n";
  for (const FlagText& flag : program.flags) text += fmt::format("| `{}` | {} |\n", flag.name, table_cell(flag.help));
  for (const CommandText& command : program.commands) text += "\n" + describe_command(command);
  return text;
}

}  // namespace motley::cli
