#include "motley/cli/run.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <span>

#include "motley/base/log.h"
#include "motley/base/os/terminal.h"
#include "motley/cli/command_text.h"
#include "motley/cli/commands.h"
#include "motley/cli/help.h"
#include "motley/cli/renamed_flags.h"
#include "motley/cli/usage_error.h"
#include "motley/train/job/renamed_keys.h"

namespace motley::cli {
namespace {

int exit_code(const Error& error) {
  if (error.code == ErrorCode::kInvalidInput) return 2;
  return error.code == ErrorCode::kInterrupted ? 130 : 1;
}

int report_failure(const Error& error) {
  std::fflush(stdout);
  const bool is_interrupted = error.code == ErrorCode::kInterrupted;
  const std::string word = is_interrupted ? "" : colored("error:", TextColor::kBad, STDERR_FILENO) + " ";
  // There is none where it has been told to somebody else.
  if (!error.message.empty()) std::fprintf(stderr, "motley: %s%s\n", word.c_str(), error.message.c_str());
  return exit_code(error);
}

// False where the standard output is a file that has not taken all of it, as on a full disk.
bool writes_all() {
  struct stat output{};
  if (::fstat(STDOUT_FILENO, &output) != 0 || !S_ISREG(output.st_mode)) return true;
  return std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
}

// The help that was asked for with --help or --help=TOPIC; `next` is the word after --help, which may be a topic, too.
int print_help(const CLI::App& app, const std::string& next) {
  const CLI::App& command = typed_command(app);
  const std::vector<std::string> given = command.get_help_ptr()->results();
  const CommandText text = describe(command);
  const std::vector<std::string> topics = text.topics();
  const bool has_topic = !given.empty() && given.front() != "true";
  const std::string topic = has_topic                                                    ? given.front()
                            : std::ranges::find(topics, flag_name(next)) != topics.end() ? next
                                                                                         : "";
  const Result<std::string> help = topic.empty() ? short_help(text) : help_of_topic(text, topic);
  if (!help) return report_failure(help.error());
  std::printf("%s", help->c_str());
  return 0;
}

// A command of commands by itself is answered with its help, besides the error.
void print_help_of_incomplete(const CLI::App& app) {
  const CLI::App& command = typed_command(app);
  if (command.get_require_subcommand_min() == 0 || !command.remaining().empty()) return;
  std::printf("%s\n", short_help(describe(command)).c_str());
  std::fflush(stdout);
}

// Settings of the whole process, and of those that it starts.
void follow(const GeneralFlags& flags) {
  if (flags.no_color) forbid_color();
  start_logging(flags.quiet ? "warning" : flags.verbose ? "debug" : "info");
}

}  // namespace

const OptionTable<GeneralFlags>& GeneralFlags::options() {
  using enum OptionKind;
  static const OptionTable<GeneralFlags> options = {
      {{"quiet", kBoolean, "print results, warnings and errors only"}, &GeneralFlags::quiet},
      {{"verbose", kBoolean, "also print what helps to find a fault"}, &GeneralFlags::verbose},
      {{"no_color", kBoolean, "print without colours, as where the variable NO_COLOR is set"}, &GeneralFlags::no_color},
  };
  return options;
}

void add_general_flags(CLI::App& command, CommandLine& line) {
  add_options(command, line.general);
  for (const std::string& key : GeneralFlags::options().keys()) {
    command.get_option("--" + flag_name(key))->group(kGeneralFlags);
  }
  command.get_option("--quiet")->excludes("--verbose");
  command.set_help_flag("-h,--help", "print help: in short, of a topic, or --help=all")
      ->type_name(optional_value("TOPIC"))
      ->group(kGeneralFlags);
  command.set_version_flag("--version", "motley " MOTLEY_VERSION, "print the version of the program")
      ->group(kGeneralFlags);
}

int run(int argc, const char* const* argv) {
  start_logging("info");
  CLI::App app("Trains deep networks on mixed hardware, so that heterogeneous workers finish together.", "motley");
  app.require_subcommand(1);
  CommandLine line;
  add_general_flags(app, line);
  for (const auto add : {add_check, add_profile, add_plan, add_simulate, add_train, add_python_commands, add_schedule,
                         add_server, add_data_server, add_report, add_completion, add_documents, add_help}) {
    add(app, line);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    const auto words = std::span(argv, static_cast<std::size_t>(argc));
    const auto help =
        std::ranges::find_if(words, [](std::string_view word) { return word == "--help" || word == "-h"; });
    return print_help(app, std::ranges::distance(help, words.end()) > 1 ? *std::next(help) : "");
  } catch (const CLI::CallForVersion& version) {
    std::printf("%s\n", version.what());
    return 0;
  } catch (const CLI::ParseError& problem) {
    std::string text = explain_usage_error(app, problem, {kRenamedFlags, train::kRenamedKeys});
    if (text.starts_with("motley: ")) text.erase(0, text.find(' ') + 1);  // which is said already
    print_help_of_incomplete(app);
    std::fprintf(stderr, "motley: %s %s (--help explains the flags)\n",
                 colored("error:", TextColor::kBad, STDERR_FILENO).c_str(), text.c_str());
    return 2;
  }
  follow(line.general);
  try {
    const Status status = line.action();
    if (!status) return report_failure(status.error());
    if (writes_all()) return 0;
    return report_failure({ErrorCode::kIo, "the file of the standard output cannot be written, and lacks a part", -1});
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "motley: error: %s\n", problem.what());
    return 1;
  }
}

}  // namespace motley::cli
