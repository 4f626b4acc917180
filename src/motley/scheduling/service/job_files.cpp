#include "motley/scheduling/service/job_files.h"

#include <fstream>

#include "motley/base/os/file.h"

namespace motley::scheduling {

namespace fs = std::filesystem;

fs::path output_file(const Attempt& attempt) {
  return attempt.folder / "output";
}

fs::path report_file(const Attempt& attempt) {
  constexpr std::string_view kFlag = "--run-directory";
  for (std::size_t i = 0; i < attempt.command.size(); ++i) {
    const std::string_view word = attempt.command[i];
    if (!word.starts_with(kFlag)) continue;
    const std::string_view rest = word.substr(kFlag.size());
    if (rest.starts_with('=')) return fs::path(attempt.directory) / rest.substr(1) / "report.html";
    if (rest.empty() && i + 1 < attempt.command.size()) {
      return fs::path(attempt.directory) / attempt.command[i + 1] / "report.html";
    }
  }
  return {};
}

Result<std::string> read_end(const fs::path& file, std::size_t most) {
  std::ifstream stream(file, std::ios::binary | std::ios::ate);
  if (!stream) return fail(ErrorCode::kIo, "cannot read '{}': {}", file.string(), errno_text());
  const auto size = static_cast<std::size_t>(std::max<std::streamoff>(stream.tellg(), 0));
  const std::size_t begin = size > most ? size - most : 0;
  std::string text(size - begin, '\0');
  stream.seekg(static_cast<std::streamoff>(begin));
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(stream.gcount()));
  if (begin > 0) text.erase(0, text.find('\n') + 1);
  return text;
}

}  // namespace motley::scheduling
