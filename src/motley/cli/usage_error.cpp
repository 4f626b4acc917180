#include "motley/cli/usage_error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "motley/serial/nearest_keys.h"
#include "motley/serial/options.h"

namespace motley::cli {
namespace {

constexpr std::size_t kMaxListed = 12;  // flags; of more it is said where they are listed

std::string did_you_mean(const std::string& near, std::string_view dashes = "") {
  return near.empty() ? "" : fmt::format("did you mean '{}{}'? ", dashes, near);
}

// The name of now of a flag or command that has an old one; "" of others.
std::string find_name_of_now(const CommandText& command, std::string_view word, const OldNames& old) {
  for (const RenamedFlag& flag : old.flags) {
    if (flag.command == command.name() && flag.before == word) return std::string(flag.now);
  }
  for (const RenamedKey& key : old.keys) {
    std::string now = "--" + flag_name(key.now);
    if ("--" + flag_name(key.before) == word && command.find(now) != nullptr) return now;
  }
  return "";
}

// Says the problem, and the commands that there are.
std::string with_commands(const CommandText& command, const std::string& problem) {
  std::vector<std::string> names;
  for (const CommandText& one : command.commands) names.push_back(one.path.back());
  return fmt::format("{}: {}accepted: {}", command.name(), problem, fmt::join(names, ", "));
}

std::string list_flags(const CommandText& command) {
  std::vector<std::string> names;
  for (const FlagText& flag : command.flags) {
    if (flag.is_own()) names.push_back(flag.name);
  }
  const bool has_more = !command.topics().empty() || names.size() > kMaxListed;
  return has_more ? fmt::format("those that {} --help=all lists", command.name())
                  : fmt::format("{}", fmt::join(names.empty() ? std::vector<std::string>{"none"} : names, ", "));
}

// The flags that begin with the name and a dot, which is then that of a group: "--optimizer".
std::string list_group(const CommandText& command, const std::string& name) {
  std::vector<std::string> names;
  for (const FlagText& flag : command.flags) {
    if (flag.name.starts_with(fmt::format("--{}.", name))) names.push_back(flag.name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string explain_flag(const CommandText& command, const std::string& word, const OldNames& old) {
  const std::string dashed = word.substr(0, word.find('='));
  const std::string name = dashed.substr(std::min(dashed.find_first_not_of('-'), dashed.size()));
  if (const std::string now = find_name_of_now(command, dashed, old); !now.empty()) {
    return fmt::format("{}: unknown flag '{}'; it is now '{}'", command.name(), dashed, now);
  }
  if (const std::string group = list_group(command, name); !group.empty()) {
    return fmt::format("{}: '{}' is a group of flags; accepted: {}", command.name(), dashed, group);
  }
  std::vector<std::string> names;  // the commonest first
  for (const bool is_rare : {false, true}) {
    for (const FlagText& flag : command.flags) {
      if ((flag.group == kOtherKeys) == is_rare) names.push_back(flag.name.substr(2));
    }
  }
  const std::string near = fmt::format("{}", fmt::join(nearest_keys(name, names), "' or '--"));
  return fmt::format("{}: unknown flag '{}'; {}accepted: {}", command.name(), dashed, did_you_mean(near, "--"),
                     list_flags(command));
}

// CLI11's words for what was given too few or too many values.
std::string explain_mismatch(const CommandText& command, const std::string& what) {
  const std::string name = what.substr(0, what.find(':'));
  const FlagText* flag = command.find(name);
  if (flag != nullptr && what.find("At Most") != std::string::npos) {
    return fmt::format("{}: {}: is given more than once; accepted: once ({})", command.name(), name, flag->help);
  }
  return flag == nullptr
             ? fmt::format("{}: {}", command.name(), what)
             : fmt::format("{}: {}: has no value; accepted: {} ({})", command.name(), name, flag->type, flag->help);
}

std::string explain_argument(const CommandText& command, const std::string& word) {
  std::vector<std::string> names;
  for (const FlagText& argument : command.arguments) names.push_back(argument.name);
  return fmt::format("{}: unexpected argument '{}'; accepted: {}", command.name(), word,
                     names.empty() ? "flags alone" : fmt::format("{}, and flags", fmt::join(names, " ")));
}

// The first word that is a flag; those behind "--" are none.
std::string find_flag(const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    if (word == "--") break;
    if (word.size() > 1 && word[0] == '-') return word;
  }
  return "";
}

bool is_about_a_value(const CLI::ParseError& problem) {
  return problem.get_name() == "ValidationError" || problem.get_name() == "ConversionError";
}

}  // namespace

std::string explain_unknown_command(const CommandText& command, const std::string& word, const OldNames& old) {
  std::vector<std::string> names;
  for (const CommandText& one : command.commands) names.push_back(one.path.back());
  const std::string now = find_name_of_now(command, word, old);
  return with_commands(command,
                       now.empty() ? fmt::format("'{}' is no command; {}", word, did_you_mean(nearest_key(word, names)))
                                   : fmt::format("'{}' is no command; it is now '{}'; ", word, now));
}

std::string explain_usage_error(const CLI::App& app, const CLI::ParseError& problem, const OldNames& old) {
  const CLI::App& typed = typed_command(app);
  const CommandText command = describe(typed);
  const std::vector<std::string> left = typed.remaining();
  if (is_about_a_value(problem)) return fmt::format("{}: {}", command.name(), problem.what());
  if (const std::string early = find_flag(app.remaining()); !early.empty() && &typed != &app) {
    return fmt::format("'{}' stands before the command; accepted: behind it, {} {}", early, command.name(), early);
  }
  if (const std::string flag = find_flag(left); !flag.empty()) return explain_flag(command, flag, old);
  if (typed.get_require_subcommand_min() > 0) {
    return left.empty() ? with_commands(command, "needs a command; ")
                        : explain_unknown_command(command, left.front(), old);
  }
  if (problem.get_name() == "ArgumentMismatch") return explain_mismatch(command, problem.what());
  const bool has_extras = problem.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError);
  if (!left.empty() && has_extras) return explain_argument(command, left.front());
  if (problem.get_name() == "RequiredError") {
    for (const std::vector<FlagText>& texts : {command.arguments, command.flags}) {
      for (const FlagText& text : texts) {
        if (!text.is_required || std::string(problem.what()).find(text.name) == std::string::npos) continue;
        return fmt::format("{}: {} is missing; accepted: {}", command.name(), text.name, text.help);
      }
    }
  }
  return fmt::format("{}: {}", command.name(), problem.what());
}

}  // namespace motley::cli
