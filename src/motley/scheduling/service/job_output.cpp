#include "motley/scheduling/service/job_output.h"

#include <algorithm>
#include <fstream>

#include "motley/base/os/file.h"

namespace motley::scheduling {
namespace {

constexpr std::int64_t kMaxBytes = 1 << 20;  // of an answer
constexpr std::int64_t kTailBytes = 4096;    // in which the last lines are looked for
constexpr int kLastLines = 5;

}  // namespace

Result<OutputPart> read_output(const std::filesystem::path& file, std::int64_t offset) {
  std::error_code problem;
  if (!std::filesystem::exists(file, problem)) return OutputPart{.text = "", .next = 0};
  std::ifstream input(file, std::ios::binary);
  input.seekg(0, std::ios::end);
  const auto size = static_cast<std::int64_t>(input.tellg());
  if (!input) return fail(ErrorCode::kIo, "{}: {}", file.string(), errno_text());
  const std::int64_t from = std::clamp<std::int64_t>(offset, 0, size);
  std::string text(static_cast<std::size_t>(std::min(kMaxBytes, size - from)), '\0');
  input.seekg(from);
  if (!input.read(text.data(), std::ssize(text))) return fail(ErrorCode::kIo, "{}: {}", file.string(), errno_text());
  const std::size_t line = text.rfind('\n');
  if (from + std::ssize(text) < size && line != std::string::npos) text.resize(line + 1);
  return OutputPart{.text = text, .next = from + std::ssize(text)};
}

std::string last_lines(const std::filesystem::path& file) {
  std::error_code problem;
  const auto size = static_cast<std::int64_t>(std::filesystem::file_size(file, problem));
  if (problem) return "";
  Result<OutputPart> part = read_output(file, std::max<std::int64_t>(0, size - kTailBytes));
  if (!part) return "";
  std::string& text = part->text;
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::size_t begin = text.size();
  for (int line = 0; line < kLastLines && begin > 0 && begin != std::string::npos; ++line) {
    begin = text.rfind('\n', begin - 1);
  }
  return begin == std::string::npos ? text : text.substr(begin == 0 ? 0 : begin + 1);
}

}  // namespace motley::scheduling
