#include "motley/cli/output_files.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "motley/base/os/file.h"

namespace motley::cli {
namespace {

namespace fs = std::filesystem;

std::vector<const CLI::Option*> list_options(const CLI::App& command, const std::string& type) {
  return command.get_options([&](const CLI::Option* option) { return option->get_type_name() == type; });
}

bool is_same_file(const std::string& one, const std::string& other) {
  std::error_code ignored;
  return fs::weakly_canonical(fs::absolute(one), ignored) == fs::weakly_canonical(fs::absolute(other), ignored);
}

}  // namespace

bool writes_files(const CLI::App& command) {
  return !list_options(command, "FILE").empty();
}

Status check_output_files(const CLI::App& command, bool overwrite) {
  std::vector<std::pair<std::string, std::string>> taken;  // files, and which flags name them
  for (const CLI::Option* input : list_options(command, "PATH")) {
    if (!input->results().empty()) taken.emplace_back(input->get_name(), input->results().front());
  }
  for (const CLI::Option* output : list_options(command, "FILE")) {
    const std::string flag = output->get_name();
    const std::string file = output->results().empty() ? output->get_default_str() : output->results().front();
    if (file.empty()) continue;
    for (const auto& [owner, other] : taken) {
      if (!is_same_file(file, other)) continue;
      return fail(ErrorCode::kInvalidInput, "{}: '{}' is the file of {}; accepted: another file", flag, file, owner);
    }
    if (Status writable = check_writable(file); !writable) return fail(writable.error().within(flag));
    std::error_code ignored;
    if (!overwrite && fs::is_regular_file(file, ignored)) {
      return fail(ErrorCode::kInvalidInput, "{}: '{}' exists; accepted: another file, or --overwrite to replace it",
                  flag, file);
    }
    taken.emplace_back(flag, file);
  }
  return {};
}

}  // namespace motley::cli
