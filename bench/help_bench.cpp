#include "bench/help_bench.h"

#include <fmt/ranges.h>

#include <regex>
#include <sstream>

#include "bench/row_list.h"
#include "motley/base/os/process.h"
#include "motley/base/text.h"

namespace motley::bench {
namespace {

constexpr double kSecondsPerHelp = 60;

// What the help of a command lists: its commands, and a text for each of its flags.
struct Listed {
  std::vector<std::string> commands;
  std::vector<std::string> flags;
};

Listed read_help(const std::string& help) {
  static const std::regex begins("^  (-[a-zA-Z], )?--?[a-zA-Z].*");
  Listed listed;
  bool is_in_commands = false;
  bool is_in_flag = false;
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) {
    const bool is_indented = line.starts_with("  ");
    const bool goes_on = line.starts_with("   ");
    if (std::regex_match(line, begins)) {
      listed.flags.push_back(line);
    } else if (is_in_flag && goes_on) {
      (listed.flags.back() += " ") += trimmed(line);
    } else if (is_in_commands && is_indented && !goes_on) {
      listed.commands.push_back(line.substr(2, line.find(' ', 2) - 2));
    }
    is_in_flag = std::regex_match(line, begins) || (is_in_flag && goes_on);
    is_in_commands = line == "Commands:" || (is_in_commands && is_indented);
  }
  return listed;
}

// A flag whose line has its type (or that it is a switch) and its default (or that it is required).
bool is_complete(const std::string& flag) {
  static const std::regex type(R"(^  (-[a-zA-Z], )?--[a-z.-]+(\[=| [A-Z{]| true\|false ).*)");
  static const std::regex note(R"(.*\[(required|(switch; )?default: .+)\]\s*)");
  return std::regex_match(flag, note) && (std::regex_match(flag, type) || flag.find("[switch; ") != std::string::npos);
}

struct Count {
  int commands = 0;
  int flags = 0;
  std::vector<std::string> incomplete;
};

Status walk(const BenchOptions& options, const std::vector<std::string>& command, Count& count) {
  std::vector<std::string> words = {options.motley.string()};
  words.insert(words.end(), command.begin(), command.end());
  words.emplace_back("--help=all");
  MOTLEY_ASSIGN(const Output output, run_program({.words = words}, Deadline::after(kSecondsPerHelp)));
  if (!output.is_good()) {
    return fail(ErrorCode::kInternal, "'{}' ended with {}", fmt::join(words, " "), output.exit_code);
  }
  const Listed listed = read_help(output.text);
  ++count.commands;
  count.flags += static_cast<int>(listed.flags.size());
  for (const std::string& flag : listed.flags) {
    if (!is_complete(flag)) count.incomplete.push_back(fmt::format("{}: {}", fmt::join(command, " "), flag));
  }
  for (const std::string& name : listed.commands) {
    std::vector<std::string> below = command;
    below.push_back(name);
    MOTLEY_TRY(walk(options, below, count));
  }
  return {};
}

}  // namespace

Result<std::vector<BenchRow>> help_bench(const BenchOptions& options) {
  RowList rows(options);
  Count count;
  MOTLEY_TRY(walk(options, {}, count));
  for (const std::string& flag : count.incomplete) rows.print(flag);
  if (count.flags == 0) return fail(ErrorCode::kInternal, "the help lists no flag");
  rows.add({.name = "all-commands",
            .metric = "flags_without_type_or_default",
            .value = static_cast<double>(count.incomplete.size()),
            .unit = "flags",
            .target = 0,
            .note = fmt::format("of {} flags in the help of {} commands", count.flags, count.commands)});
  return rows.take();
}

}  // namespace motley::bench
