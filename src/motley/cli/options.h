// Flags from tables of options: names, units, bounds, choices, defaults and help are those of the options that a
// command passes on.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "motley/serial/options.h"

namespace motley::cli {

// A flag whose value, checked, is given to `set`.
void add_option(CLI::App& command, OptionText option, const OptionValue& fallback,
                std::function<void(OptionValue)> set);

// An argument without a flag, named by the option's key.
CLI::Option* add_argument(CLI::App& command, const OptionText& option, std::string& value);

// A flag for each of the config's options; its fields are set when the command line is parsed, so it must live until
// then.
template <class Config>
void add_options(CLI::App& command, Config& config) {
  for (const auto& entry : Config::options().entries()) {
    add_option(command, entry.text, entry.get(config),
               [&config, &entry](OptionValue value) { entry.set(config, std::move(value)); });
  }
}

// Flags for the keys of a job, of which each has this default; those that are given go to `given` as key and text,
// unchecked.
void add_keys(CLI::App& command, const std::vector<std::pair<OptionText, OptionValue>>& options,
              std::vector<std::pair<std::string, std::string>>& given);

}  // namespace motley::cli
