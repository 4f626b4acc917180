#include "motley/cli/options.h"

#include "motley/cli/command_text.h"

namespace motley::cli {
namespace {

constexpr std::string_view kDefaultInWords = "; default: ";

// Type, bounds, default and help of the option. A default that could not be typed is said in words, or is none.
CLI::Option* describe(CLI::Option* flag, const OptionText& option, const OptionValue& fallback) {
  const std::string value = format_option(option, fallback);
  const std::size_t words = option.help.find(kDefaultInWords);
  if (words != std::string::npos) {
    flag->default_str(option.help.substr(words + kDefaultInWords.size()));
  } else if (!value.empty() && parse_option(option, value)) {
    flag->default_str(value);
  }
  const std::string bounds = option.bounds();
  flag->description(option.help.substr(0, words) + (bounds.empty() ? "" : fmt::format(" ({})", bounds)));
  return flag->type_name(option.type_name())->group(kOwnFlags);
}

}  // namespace

void add_option(CLI::App& command, OptionText option, const OptionValue& fallback,
                std::function<void(OptionValue)> set) {
  option.key = "--" + flag_name(option.key);
  const std::string name = option.key;
  if (option.kind == OptionKind::kBoolean) {
    command.add_flag_callback(name, [set] { set(true); }, option.help)->group(kOwnFlags);
    return;
  }
  const auto parsed = [option](const std::string& text) {
    Result<OptionValue> value = parse_option(option, text);
    if (!value) throw CLI::ValidationError(value.error().message);
    return std::move(*value);
  };
  if (option.kind != OptionKind::kTexts) {
    describe(command.add_option_function<std::string>(name, [=](const std::string& text) { set(parsed(text)); }),
             option, fallback);
    return;
  }
  const auto set_all = [=](const std::vector<std::string>& texts) {
    for (const std::string& text : texts) parsed(text);
    set(texts);
  };
  describe(command.add_option_function<std::vector<std::string>>(name, set_all), option, fallback)
      ->allow_extra_args(false);
}

CLI::Option* add_argument(CLI::App& command, const OptionText& option, std::string& value) {
  return describe(command.add_option(option.key, value), option, value);
}

void add_keys(CLI::App& command, const std::vector<std::pair<OptionText, OptionValue>>& options,
              std::vector<std::pair<std::string, std::string>>& given) {
  for (const auto& [option, fallback] : options) {
    CLI::Option* flag = command.add_option_function<std::string>(
        "--" + flag_name(option.key),
        [&given, key = option.key](const std::string& text) { given.emplace_back(key, text); });
    describe(flag, option, fallback)->group(option.is_common ? kCommonKeys : kOtherKeys);
  }
}

}  // namespace motley::cli
