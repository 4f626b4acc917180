#include "motley/cli/completion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>

namespace motley::cli {
namespace {

void visit(const CommandText& command, const std::function<void(const CommandText&)>& function) {
  function(command);
  for (const CommandText& one : command.commands) visit(one, function);
}

bool takes_file(const CommandText& command) {
  return std::ranges::any_of(command.arguments, &FlagText::takes_file);
}

std::vector<std::string> names_of_commands(const CommandText& command) {
  std::vector<std::string> names;
  for (const CommandText& one : command.commands) names.push_back(one.path.back());
  return names;
}

std::vector<std::string> every_subcommand(const CommandText& program) {
  std::vector<std::string> names;
  visit(program, [&](const CommandText& command) {
    if (command.path.size() > 1) names.push_back("'" + command.name() + "'");
  });
  return names;
}

// The text between these quotes, so that a shell takes it as it is; a single quote is written as `quote`.
std::string quoted(std::string_view text, std::string_view quote) {
  std::string result = "'";
  for (const char letter : text) result += letter == '\'' ? std::string(quote) : std::string(1, letter);
  return result + "'";
}

// --- bash

// What follows a flag, as lines of a `case` over "COMMAND FLAG": flags with the same choices are one line.
std::string bash_values(const CommandText& program) {
  std::map<std::string, std::vector<std::string>> flags_by_choices;
  std::vector<std::string> files, others;
  visit(program, [&](const CommandText& command) {
    for (const FlagText& flag : command.flags) {
      if (!flag.takes_value()) continue;
      const std::string pattern = fmt::format("'{} {}'", command.name(), flag.name);
      if (const auto choices = flag.choices(); !choices.empty()) {
        flags_by_choices[fmt::format("{}", fmt::join(choices, " "))].push_back(pattern);
      } else {
        (flag.takes_file() ? files : others).push_back(pattern);
      }
    }
  });
  std::string lines;
  for (const auto& [choices, flags] : flags_by_choices) {
    lines += fmt::format("    {}) words='{}' ;;\n", fmt::join(flags, " | "), choices);
  }
  if (!files.empty()) lines += fmt::format("    {}) files=yes ;;\n", fmt::join(files, " | "));
  if (!others.empty()) lines += fmt::format("    {}) ;;\n", fmt::join(others, " | "));
  return lines;
}

// What may come where no flag waits for its value.
std::string bash_words(const CommandText& program) {
  std::string lines;
  visit(program, [&](const CommandText& command) {
    std::vector<std::string> words = names_of_commands(command);
    for (const FlagText& argument : command.arguments) {
      for (const std::string& choice : argument.choices()) words.push_back(choice);
    }
    for (const FlagText& flag : command.flags) words.push_back(flag.name);
    lines += fmt::format("        '{}') words='{}'{} ;;\n", command.name(), fmt::join(words, " "),
                         takes_file(command) ? " files=yes" : "");
  });
  return lines;
}

// --- zsh

// "[help]" of a flag.
std::string zsh_help(const std::string& help) {
  std::string text;
  for (const char letter : help) {
    if (letter == '[' || letter == ']' || letter == ':' || letter == '\\') text += '\\';
    text += letter;
  }
  return text;
}

std::string zsh_value(const FlagText& flag) {
  const std::vector<std::string> choices = flag.choices();
  const std::string action = !choices.empty()    ? fmt::format("({})", fmt::join(choices, " "))
                             : flag.takes_file() ? "_files"
                                                 : " ";
  return fmt::format(":{}:{}", choices.empty() ? zsh_help(flag.type) : "word", action);
}

std::string zsh_arguments(const CommandText& command) {
  std::string lines;
  for (const FlagText& flag : command.flags) {
    const std::string name = flag.takes_value() ? flag.name + "=" : flag.name;
    const std::string text = fmt::format("{}{}[{}]{}", flag.is_repeated ? "*" : "", name, zsh_help(flag.help),
                                         flag.takes_value() ? zsh_value(flag) : "");
    lines += fmt::format("    {} \\\n", quoted(text, "'\\''"));
  }
  for (const FlagText& argument : command.arguments) {
    const std::string place = argument.is_repeated ? "*" : "1";
    lines += fmt::format("    {} \\\n", quoted(place + zsh_value(argument), "'\\''"));
  }
  return lines;
}

std::string zsh_function(const CommandText& command) {
  std::string text = fmt::format("_{}() {{\n", command.name("_"));
  if (command.commands.empty()) return text + "  _arguments -s \\\n" + zsh_arguments(command) + "    && return\n}\n\n";
  text += "  local state line\n  local -a commands=(\n";
  for (const CommandText& one : command.commands) {
    text += fmt::format("    {}\n", quoted(one.path.back() + ":" + zsh_help(one.about), "'\\''"));
  }
  text += "  )\n  _arguments -C \\\n" + zsh_arguments(command) +
          "    '1:command:->command' \\\n    '*::argument:->argument' && return\n  case $state in\n"
          "    command) _describe command commands ;;\n    argument)\n      case $words[1] in\n";
  for (const CommandText& one : command.commands) {
    text += fmt::format("        {}) _{} ;;\n", one.path.back(), one.name("_"));
  }
  return text + "      esac ;;\n  esac\n}\n\n";
}

// --- fish

std::string fish_lines(const CommandText& command) {
  const std::string when = fmt::format("complete -c motley -n 'test (__motley_command) = \"{}\"'", command.name());
  std::string lines;
  for (const CommandText& one : command.commands) {
    lines += fmt::format("{} -a {} -d {}\n", when, one.path.back(), quoted(one.about, "\\'"));
  }
  for (const FlagText& argument : command.arguments) {
    if (argument.takes_file()) lines += when + " -F\n";
    for (const std::string& choice : argument.choices()) lines += fmt::format("{} -a {}\n", when, choice);
  }
  for (const FlagText& flag : command.flags) {
    const std::string letter = flag.letter.empty() ? "" : " -s " + flag.letter.substr(1);
    const std::vector<std::string> choices = flag.choices();
    const std::string value = !flag.takes_value() ? ""
                              : flag.takes_file() ? " -r -F"
                              : choices.empty()   ? " -x"
                                                  : fmt::format(" -x -a '{}'", fmt::join(choices, " "));
    lines += fmt::format("{}{} -l {}{} -d {}\n", when, letter, flag.name.substr(2), value, quoted(flag.help, "\\'"));
  }
  return lines;
}

}  // namespace

std::string bash_completion(const CommandText& program) {
  return fmt::format(
      R"(# Completion of bash for motley: what `motley completion bash` prints.
_motley() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} command=motley words= files= i
  # bash takes --flag=value for three words.
  if [[ $word == = ]]; then
    word=
  elif [[ $before == = ]]; then
    before=${{COMP_WORDS[COMP_CWORD-2]}}
  fi
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case "$command ${{COMP_WORDS[i]}}" in
      {}) command+=" ${{COMP_WORDS[i]}}" ;;
    esac
  done
  case "$command $before" in
{}    *)
      case "$command" in
{}      esac
      # Flags are shown once a dash is typed, where something else may come.
      [[ $word == -* ]] && files=
      ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$word"))
  if [[ $files ]]; then
    compopt -o filenames 2>/dev/null
    [[ $word ]] || COMPREPLY=($(compgen -W "${{words//--*/}}" -- "$word"))
    local file
    while IFS= read -r file; do COMPREPLY+=("$file"); done < <(compgen -f -- "$word")
  fi
}}
complete -F _motley motley
)",
      fmt::join(every_subcommand(program), " | "), bash_values(program), bash_words(program));
}

std::string zsh_completion(const CommandText& program) {
  std::string text = "#compdef motley\n# Completion of zsh for motley: what `motley completion zsh` prints.\n\n";
  visit(program, [&](const CommandText& command) { text += zsh_function(command); });
  return text +
         "# Read as a file of fpath it completes; sourced it says that it can.\n"
         "if [[ $funcstack[1] = _motley ]]; then\n  _motley \"$@\"\nelse\n  compdef _motley motley\nfi\n";
}

std::string fish_completion(const CommandText& program) {
  std::string text = fmt::format(
      R"(# Completion of fish for motley: what `motley completion fish` prints.
function __motley_command
    set -l command motley
    for word in (commandline -opc)[2..-1]
        if contains -- "$command $word" {}
            set command "$command $word"
        end
    end
    echo $command
end
complete -c motley -f
)",
      fmt::join(every_subcommand(program), " "));
  visit(program, [&](const CommandText& command) { text += fish_lines(command); });
  return text;
}

}  // namespace motley::cli
