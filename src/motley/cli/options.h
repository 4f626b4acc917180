// Flags from tables of options: names, units, bounds, choices, defaults and help are those of the options that a
// command passes on.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "motley/serial/options.h"

namespace motley::cli {

// "--optimizer.learning-rate NUMBER=0.1", with the option's help; the default is left out where it could not be typed.
CLI::Option* describe(CLI::Option* flag, const OptionText& option, const OptionValue& fallback);

// A flag whose value, checked, is given to `set`.
void add_option(CLI::App& command, OptionText option, const OptionValue& fallback,
                std::function<void(OptionValue)> set);

// A flag for each of the config's options; its fields are set when the command line is parsed, so it must live until
// then.
template <class Config>
void add_options(CLI::App& command, Config& config) {
  for (const auto& entry : Config::options().entries()) {
    add_option(command, entry.text, entry.get(config),
               [&config, &entry](OptionValue value) { entry.set(config, std::move(value)); });
  }
}

}  // namespace motley::cli
