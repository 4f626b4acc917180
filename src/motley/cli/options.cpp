#include "motley/cli/options.h"

namespace motley::cli {
namespace {

// "--optimizer.learning-rate NUMBER=0.1", with the option's help; the default is left out where it could not be typed.
CLI::Option* describe(CLI::Option* flag, const OptionText& option, const OptionValue& fallback) {
  const std::string text = format_option(option, fallback);
  flag->description(option.help);
  flag->type_name(option.type_name());
  if (!text.empty() && parse_option(option, text)) flag->default_str(text);
  return flag;
}

}  // namespace

void add_option(CLI::App& command, OptionText option, const OptionValue& fallback,
                std::function<void(OptionValue)> set) {
  option.key = "--" + flag_name(option.key);
  const std::string name = option.key;
  if (option.kind == OptionKind::kBoolean) {
    command.add_flag_callback(name, [set] { set(true); }, option.help);
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

void add_texts(CLI::App& command, const std::string& group,
               const std::vector<std::pair<OptionText, OptionValue>>& options,
               std::vector<std::pair<std::string, std::string>>& given) {
  for (const auto& [option, fallback] : options) {
    CLI::Option* flag = command.add_option_function<std::string>(
        "--" + flag_name(option.key),
        [&given, key = option.key](const std::string& text) { given.emplace_back(key, text); });
    describe(flag, option, fallback)->group(group);
  }
}

}  // namespace motley::cli
