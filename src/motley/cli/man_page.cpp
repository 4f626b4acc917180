#include "motley/cli/man_page.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "motley/cli/exit_codes.h"

namespace motley::cli {
namespace {

// Text as roff shows it: dashes stay dashes, and no line is taken for a request.
std::string roff(std::string_view text) {
  std::string result;
  bool begins_line = true;
  for (const char letter : text) {
    if (begins_line && (letter == '.' || letter == '\'')) result += "\\&";
    result += letter == '\\' ? "\\e" : letter == '-' ? "\\-" : letter == '\'' ? "\\(aq" : std::string(1, letter);
    begins_line = letter == '\n';
  }
  return result;
}

std::string write_flag(const FlagText& flag) {
  std::string name = flag.letter.empty() ? "" : fmt::format("\\fB{}\\fR, ", roff(flag.letter));
  name += fmt::format("\\fB{}\\fR", roff(flag.name));
  if (!flag.type.empty()) name += (flag.takes_value() ? " " : "") + fmt::format("\\fI{}\\fR", roff(flag.brief_type()));
  return fmt::format(".TP\n{}\n{}\n", name, roff(flag.whole_help()));
}

template <class Wanted>
std::string write_section(const std::string& heading, const std::vector<FlagText>& flags, Wanted wanted) {
  std::string entries;
  for (const FlagText& flag : flags) {
    if (wanted(flag)) entries += write_flag(flag);
  }
  return entries.empty() ? "" : heading + entries;
}

std::string write_keys(const CommandText& command) {
  std::string text;
  for (const std::string& topic : command.topics()) {
    text += write_section(fmt::format(".SS {}\n", topic), command.flags,
                          [&](const FlagText& flag) { return flag.is_key() && flag.topic() == topic; });
  }
  return text.empty() ? "" : ".SH KEYS OF THE JOB\nEvery key of the job file is a flag.\n" + text;
}

std::string write_commands(const CommandText& command) {
  std::string text;
  for (const CommandText& one : command.commands) {
    text += fmt::format(".TP\n\\fB{}\\fR(1)\n{}\n", roff(one.name("-")), roff(one.about));
  }
  return text.empty() ? "" : ".SH COMMANDS\n" + text;
}

std::string write_exit_codes() {
  std::string text = ".SH EXIT STATUS\n";
  for (const ExitCode& one : kExitCodes) text += fmt::format(".TP\n.B {}\n{}\n", one.code, roff(one.meaning));
  return text;
}

std::string write_related(const CommandText& command, const CommandText& program) {
  std::vector<std::string> pages;
  for (const CommandText& one : program.commands) {
    if (one.path != command.path) pages.push_back(fmt::format("\\fB{}\\fR(1)", roff(one.name("-"))));
  }
  if (command.path != program.path) pages.insert(pages.begin(), fmt::format("\\fB{}\\fR(1)", program.path.front()));
  return fmt::format(".SH SEE ALSO\n{}\n", fmt::join(pages, ",\n"));
}

}  // namespace

std::string man_page(const CommandText& command, const CommandText& program, const std::string& version) {
  const auto in_group = [](const char* group) { return [group](const FlagText& flag) { return flag.group == group; }; };
  const std::string page = command.name("-");
  std::string title = page;
  for (char& letter : title) letter = letter >= 'a' && letter <= 'z' ? static_cast<char>(letter - 'a' + 'A') : letter;
  std::string text = fmt::format(".TH {} 1 \"\" \"motley {}\" \"Motley\"\n", roff(title), version);
  text += fmt::format(".SH NAME\n{} \\- {}\n.SH SYNOPSIS\n.nf\n{}\n.fi\n", roff(page), roff(command.about),
                      roff(command.usage()));
  text += write_commands(command);
  text += write_section(".SH ARGUMENTS\n", command.arguments, [](const FlagText&) { return true; });
  text += write_section(".SH FLAGS\n", command.flags, [](const FlagText& flag) { return flag.is_own(); });
  text += write_keys(command);
  text += write_section(".SH FLAGS OF EVERY COMMAND\n", command.flags, in_group(kGeneralFlags));
  if (!command.examples.empty()) text += fmt::format(".SH EXAMPLES\n.nf\n{}\n.fi\n", roff(command.examples));
  return text + write_exit_codes() + write_related(command, program);
}

}  // namespace motley::cli
