// What there is to say of a command, taken from the command line as it is parsed: help, man pages, completion, the
// reference and messages all say it from here, so that they name what is accepted.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace motley::cli {

// Groups of flags.
inline constexpr const char* kOwnFlags = "Flags";
inline constexpr const char* kCommonKeys = "Common keys of the job";
inline constexpr const char* kOtherKeys = "Other keys of the job";
inline constexpr const char* kGeneralFlags = "Flags of every command";

// The type of a flag whose value may be left out, such as "[=auto]".
inline std::string optional_value(std::string_view value) {
  return "[=" + std::string(value) + "]";
}

// A flag, or an argument without one.
struct FlagText {
  std::string name;      // "--output"; of an argument "JOB"
  std::string letter;    // "-h"; "": none
  std::string type;      // "PATH", "{sum,mean}", "[=auto]"; "": a switch
  std::string fallback;  // "plan.json", or in words what holds where it is not given
  std::string help;
  std::string group;
  bool is_required = false;
  bool is_repeated = false;

  bool is_general() const { return group == kGeneralFlags; }
  bool is_own() const { return !is_key() && !is_general(); }  // of the command alone
  bool is_key() const { return group == kCommonKeys || group == kOtherKeys; }
  bool takes_value() const { return !type.empty() && !type.starts_with('['); }
  bool takes_file() const { return type == "PATH" || type == "FILE"; }
  std::vector<std::string> choices() const;  // of a value; empty: others than those are accepted
  std::string topic() const;                 // of a key: "optimizer"; "general" for those without a group
  std::string note() const;                  // "[default: plan.json]", "[switch; default: off]", "[required]"
  std::string brief_type() const;            // "WORD" in place of many choices
  std::string whole_help() const;            // with many choices, and the note
};

struct CommandText {
  std::vector<std::string> path;  // "motley", "schedule", "list"
  std::string about;
  std::string own_usage;  // in place of what its arguments and required flags make of it
  std::string examples;   // the help's last part
  std::vector<FlagText> arguments;
  std::vector<FlagText> flags;
  std::vector<CommandText> commands;

  std::string name(std::string_view between = " ") const;
  std::string usage() const;                // "motley simulate PLAN --cluster PATH [FLAGS]"
  std::vector<std::string> groups() const;  // of the flags that are its own, in their order
  std::vector<std::string> topics() const;  // of the job's keys, in their order; empty where it has none
  const FlagText* find(std::string_view flag) const;
};

// Says how the command is used, in place of what its arguments and required flags make of it. It must have its
// examples.
void set_usage(CLI::App& command, const std::string& usage);

// Commands and flags that are hidden are left out.
CommandText describe(const CLI::App& app);

// The command that was typed, as far as the line was understood.
const CLI::App& typed_command(const CLI::App& app);

}  // namespace motley::cli
