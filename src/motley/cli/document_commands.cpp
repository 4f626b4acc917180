// motley help and motley completion, and what the documents are made by, which users need not type: motley man-pages,
// schemas and reference.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>

#include "motley/cli/command_text.h"
#include "motley/cli/commands.h"
#include "motley/cli/completion.h"
#include "motley/cli/help.h"
#include "motley/cli/man_page.h"
#include "motley/cli/reference.h"
#include "motley/cli/results.h"
#include "motley/cli/usage_error.h"

namespace motley::cli {
namespace {

OptionText shell_option() {
  return choice("SHELL", "the shell that the script is for", {"bash", "zsh", "fish"});
}

Status print_completion(const CommandText& program, const std::string& shell) {
  MOTLEY_TRY(parse_option(shell_option(), shell));
  const std::string script = shell == "bash"  ? bash_completion(program)
                             : shell == "zsh" ? zsh_completion(program)
                                              : fish_completion(program);
  std::printf("%s", script.c_str());
  return {};
}

// Of the command that the words name, as its --help prints it, or of a topic of it, the last word.
Status print_command_help(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* command = &app;
  for (const std::string& word : words) {
    if (command->get_help_ptr() == nullptr) break;  // of the Python package, which has no topics
    const std::vector<const CLI::App*> commands = command->get_subcommands([](const CLI::App*) { return true; });
    const auto found = std::ranges::find(commands, word, &CLI::App::get_name);
    if (found == commands.end() && commands.empty()) {
      MOTLEY_ASSIGN(const std::string help, help_of_topic(describe(*command), word));
      std::printf("%s", help.c_str());
      return {};
    }
    if (found == commands.end()) {
      return fail(ErrorCode::kInvalidInput, "{}", explain_unknown_command(describe(*command), word));
    }
    command = *found;
  }
  if (command->get_help_ptr() == nullptr) return run_python_command(*command, {"--help"});
  std::printf("%s", short_help(describe(*command)).c_str());
  return {};
}

Status write_man_pages(const CommandText& command, const CommandText& program, const std::filesystem::path& folder) {
  MOTLEY_TRY(make_folders(folder));
  MOTLEY_TRY(write_file(folder / (command.name("-") + ".1"), man_page(command, program, MOTLEY_VERSION)));
  for (const CommandText& one : command.commands) MOTLEY_TRY(write_man_pages(one, program, folder));
  return {};
}

Status write_schemas(const std::filesystem::path& folder) {
  MOTLEY_TRY(make_folders(folder));
  for (const auto& [name, schema] : result_schemas()) {
    MOTLEY_TRY(write_file(folder / (name + ".schema.json"), schema));
  }
  return {};
}

// A command that users do not see.
void add_hidden(CLI::App& app, CommandLine& line, const std::string& name, const std::string& about,
                std::function<Status(const std::string&)> run, bool has_folder = true) {
  const auto [command, folder] = add_command<std::string>(app, line, name, about, "", std::move(run));
  command.group("");
  if (has_folder) add_argument(command, {"FOLDER", OptionKind::kPath, "where they are written"}, folder)->required();
}

}  // namespace

void add_completion(CLI::App& app, CommandLine& line) {
  const auto [command, shell] = add_command<std::string>(
      app, line, "completion", "Print a script that completes command lines in a shell",
      "Examples:\n"
      "  source <(motley completion bash)                                    in this shell\n"
      "  motley completion bash > ~/.local/share/bash-completion/completions/motley\n"
      "  motley completion zsh > ~/.zfunc/_motley                            a folder of fpath\n"
      "  motley completion fish > ~/.config/fish/completions/motley.fish",
      [&app](const std::string& name) { return print_completion(describe(app), name); });
  add_argument(command, shell_option(), shell)->required();
}

void add_help(CLI::App& app, CommandLine& line) {
  const auto [command, words] = add_command<std::vector<std::string>>(
      app, line, "help", "Print the help of a command, as its --help does",
      "Examples:\n  motley help schedule submit\n  motley help train optimizer",
      [&app](const std::vector<std::string>& given) { return print_command_help(app, given); });
  command.add_option("COMMAND", words, "the command, and a topic of its help; default: motley itself")
      ->type_name(OptionText{}.type_name());
}

void add_documents(CLI::App& app, CommandLine& line) {
  add_hidden(app, line, "man-pages", "Write the manual pages of all commands", [&app](const std::string& folder) {
    const CommandText program = describe(app);
    return write_man_pages(program, program, folder);
  });
  add_hidden(app, line, "schemas", "Write the JSON Schemas of what --json prints",
             [](const std::string& folder) { return write_schemas(folder); });
  add_hidden(
      app, line, "reference", "Print the page of all commands",
      [&app](const std::string&) -> Status {
        std::printf("%s", command_reference(describe(app)).c_str());
        return {};
      },
      false);
}

}  // namespace motley::cli
