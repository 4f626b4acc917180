#include "motley/cli/help.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "motley/serial/options.h"

namespace motley::cli {
namespace {

constexpr std::size_t kWidth = 100;
constexpr std::size_t kColumn = 34;  // where what is said of a flag begins
constexpr const char* kAllTopics = "all";

// The words in lines that end before kWidth, each but the first behind so many blanks.
std::string wrapped(std::string_view text, std::size_t indent) {
  std::string lines;
  std::size_t column = indent;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    if (column > indent && column + 1 + word.size() > kWidth) {
      lines += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (column > indent) {
      lines += ' ';
      ++column;
    }
    lines += word;
    column += word.size();
    text.remove_prefix(std::min(text.size(), word.size() + 1));
  }
  return lines;
}

// "  name      what is said of it", below the name where that is long.
std::string entry(const std::string& name, const std::string& text) {
  const std::string begin = "  " + name;
  const std::string gap =
      begin.size() + 2 <= kColumn ? std::string(kColumn - begin.size(), ' ') : "\n" + std::string(kColumn, ' ');
  return begin + gap + wrapped(text, kColumn) + "\n";
}

std::string entry(const FlagText& flag) {
  const std::string type = flag.brief_type();
  std::string name = flag.letter.empty() ? flag.name : flag.letter + ", " + flag.name;
  if (!type.empty()) name += type.starts_with('[') ? type : " " + type;
  if (flag.is_repeated) name += " ...";
  return entry(name, flag.whole_help());
}

template <class Wanted>
std::string section(const std::string& title, const std::vector<FlagText>& flags, Wanted wanted) {
  std::string lines;
  for (const FlagText& flag : flags) {
    if (wanted(flag)) lines += entry(flag);
  }
  return lines.empty() ? "" : fmt::format("\n{}:\n{}", title, lines);
}

std::string section_of_group(const CommandText& command, const std::string& group) {
  return section(group, command.flags, [&](const FlagText& flag) { return flag.group == group; });
}

std::string sections_of_own(const CommandText& command) {
  std::string sections;
  for (const std::string& group : command.groups()) sections += section_of_group(command, group);
  return sections;
}

// The flags of every command by their names; they are explained where the help is that of the program, or of all.
std::string name_general_flags(const CommandText& command) {
  std::vector<std::string> names;
  for (const FlagText& flag : command.flags) {
    if (flag.is_general()) names.push_back(flag.name + (flag.type.starts_with('[') ? flag.type : ""));
  }
  if (names.empty()) return "";
  return "\n" +
         wrapped(fmt::format("{} ({} --help explains them): {}", kGeneralFlags, command.path.front(),
                             fmt::join(names, ", ")),
                 0) +
         "\n";
}

// What they do, without types and defaults: they are switches.
std::string explain_general_flags(const CommandText& command) {
  std::string lines;
  for (const FlagText& flag : command.flags) {
    if (!flag.is_general()) continue;
    lines +=
        entry(fmt::format("{}{}{}{}", flag.letter, flag.letter.empty() ? "" : ", ", flag.name, flag.type), flag.help);
  }
  return lines.empty() ? "" : fmt::format("\n{}:\n{}", kGeneralFlags, lines);
}

std::string section_of_topic(const CommandText& command, const std::string& topic) {
  return section("Keys of the job: " + topic, command.flags,
                 [&](const FlagText& flag) { return flag.is_key() && flag.topic() == topic; });
}

std::string heading(const CommandText& command) {
  return fmt::format("{}\n\nUsage: {}\n", wrapped(command.about, 0), command.usage());
}

std::string list_commands(const CommandText& command) {
  std::string lines;
  for (const CommandText& one : command.commands) lines += entry(one.path.back(), one.about);
  return lines.empty() ? "" : "\nCommands:\n" + lines;
}

std::string examples(const CommandText& command) {
  return command.examples.empty() ? "" : "\n" + command.examples + "\n";
}

std::string whole_help(const CommandText& command) {
  std::string text = heading(command) + list_commands(command) +
                     section("Arguments", command.arguments, [](const FlagText&) { return true; }) +
                     sections_of_own(command);
  for (const std::string& topic : command.topics()) text += section_of_topic(command, topic);
  return text + section_of_group(command, kGeneralFlags) + examples(command);
}

}  // namespace

std::string short_help(const CommandText& command) {
  const std::vector<std::string> topics = command.topics();
  const std::string list =
      fmt::format("\nKeys of the job file are flags. --help={} lists them all, --help=TOPIC those of a topic: {}",
                  kAllTopics, fmt::join(topics, ", "));
  const bool is_program = command.path.size() == 1;
  return heading(command) + list_commands(command) +
         section("Arguments", command.arguments, [](const FlagText&) { return true; }) + sections_of_own(command) +
         section_of_group(command, kCommonKeys) + (topics.empty() ? "" : wrapped(list, 0) + "\n") +
         (is_program ? explain_general_flags(command) : name_general_flags(command)) + examples(command);
}

Result<std::string> help_of_topic(const CommandText& command, const std::string& topic) {
  if (topic == kAllTopics) return whole_help(command);
  std::vector<std::string> topics = command.topics();
  const std::string word = flag_name(topic);
  if (std::ranges::find(topics, word) != topics.end()) {
    return fmt::format("{}, as flags\n{}", command.name(), section_of_topic(command, word));
  }
  topics.emplace_back(kAllTopics);
  const std::string near = nearest_key(word, topics);
  return fail(ErrorCode::kInvalidInput, "{}: --help: '{}' is no topic; {}accepted: {}", command.name(), topic,
              near.empty() ? "" : fmt::format("did you mean '{}'? ", near), fmt::join(topics, ", "));
}

}  // namespace motley::cli
