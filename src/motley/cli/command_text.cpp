#include "motley/cli/command_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace motley::cli {
namespace {

constexpr const char* kGeneralTopic = "general";
constexpr std::string_view kUsageMark = "Usage: ";
constexpr std::size_t kLongestType = 36;  // of longer ones the choices are said behind the help

FlagText describe(const CLI::Option& option) {
  FlagText text;
  text.name = option.get_positional() ? option.get_name(true) : "--" + option.get_lnames().front();
  if (!option.get_snames().empty()) text.letter = "-" + option.get_snames().front();
  text.type =
      option.get_items_expected_max() > 0 || option.get_type_name().starts_with('[') ? option.get_type_name() : "";
  const bool is_switch = !text.takes_value();
  text.fallback = option.get_default_str().empty() ? (is_switch ? "off" : "none") : option.get_default_str();
  text.help = option.get_description();
  text.group = option.get_group();
  text.is_required = option.get_required();
  text.is_repeated = option.get_expected_max() > 1;
  return text;
}

}  // namespace

std::vector<std::string> FlagText::choices() const {
  std::vector<std::string> words;
  if (!type.starts_with('{')) return words;
  for (std::size_t begin = 1; begin < type.size();) {
    const std::size_t end = std::min(type.find_first_of(",}", begin), type.size());
    words.push_back(type.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

std::string FlagText::topic() const {
  const std::size_t dot = name.find('.');
  return dot == std::string::npos ? kGeneralTopic : name.substr(2, dot - 2);
}

std::string FlagText::note() const {
  if (is_required) return "[required]";
  return fmt::format("[{}default: {}]", type.empty() ? "switch; " : "", fallback);
}

std::string FlagText::brief_type() const {
  return type.size() > kLongestType && !choices().empty() ? "WORD" : type;
}

std::string FlagText::whole_help() const {
  const bool has_choices = brief_type() != type;
  return fmt::format("{}{} {}", help, has_choices ? fmt::format("; one of {}", fmt::join(choices(), ", ")) : "",
                     note());
}

std::string CommandText::name(std::string_view between) const {
  return fmt::format("{}", fmt::join(path, between));
}

std::string CommandText::usage() const {
  if (!own_usage.empty()) return own_usage;
  std::string line = name();
  if (!commands.empty()) line += " COMMAND";
  for (const FlagText& argument : arguments) {
    const std::string shown = argument.name + (argument.is_repeated ? "..." : "");
    line += argument.is_required ? " " + shown : " [" + shown + "]";
  }
  for (const FlagText& flag : flags) {
    if (flag.is_required) line += fmt::format(" {} {}", flag.name, flag.type);
  }
  return line + " [FLAGS]";
}

std::vector<std::string> CommandText::groups() const {
  std::vector<std::string> groups;
  for (const FlagText& flag : flags) {
    if (flag.is_own() && std::ranges::find(groups, flag.group) == groups.end()) groups.push_back(flag.group);
  }
  return groups;
}

std::vector<std::string> CommandText::topics() const {
  std::vector<std::string> topics;
  for (const FlagText& flag : flags) {
    if (flag.is_key() && std::ranges::find(topics, flag.topic()) == topics.end()) topics.push_back(flag.topic());
  }
  return topics;
}

const FlagText* CommandText::find(std::string_view flag) const {
  const auto found = std::ranges::find(flags, flag, &FlagText::name);
  return found == flags.end() ? nullptr : &*found;
}

void set_usage(CLI::App& command, const std::string& usage) {
  command.footer(fmt::format("{}{}\n\n{}", kUsageMark, usage, command.get_footer()));
}

CommandText describe(const CLI::App& app) {
  CommandText text;
  for (const CLI::App* one = &app; one != nullptr; one = one->get_parent()) {
    text.path.insert(text.path.begin(), one->get_name());
  }
  text.about = app.get_description();
  text.examples = app.get_footer();
  if (text.examples.starts_with(kUsageMark)) {
    const std::size_t end = text.examples.find("\n\n");
    text.own_usage = text.examples.substr(kUsageMark.size(), end - kUsageMark.size());
    text.examples.erase(0, end == std::string::npos ? end : end + 2);
  }
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;
    (option->get_positional() ? text.arguments : text.flags).push_back(describe(*option));
  }
  for (const CLI::App* command : app.get_subcommands({})) {
    if (!command->get_group().empty()) text.commands.push_back(describe(*command));
  }
  return text;
}

const CLI::App& typed_command(const CLI::App& app) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  return *command;
}

}  // namespace motley::cli
