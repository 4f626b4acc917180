#include "motley/scheduling/service/job_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "motley/base/os/descriptor.h"
#include "motley/base/os/file.h"

namespace motley::scheduling {

namespace fs = std::filesystem;

namespace {

constexpr std::int64_t kMaxPartBytes = 1 << 20;
constexpr std::int64_t kTailBytes = 4096;  // in which the last lines are looked for
constexpr int kLastLines = 5;

struct OpenFile {
  Descriptor descriptor;
  std::int64_t size = 0;
};

Result<OpenFile> open_file(const fs::path& file) {
  OpenFile open{.descriptor = Descriptor(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK))};
  struct stat status{};
  if (!open.descriptor.valid() || ::fstat(open.descriptor.get(), &status) != 0) {
    return fail(ErrorCode::kIo, "cannot read '{}': {}", file.string(), errno_text());
  }
  if (!S_ISREG(status.st_mode)) return fail(ErrorCode::kIo, "cannot read '{}': it is no file", file.string());
  open.size = status.st_size;
  return open;
}

// Fewer bytes where the file has become shorter meanwhile.
Result<std::string> read_part(const OpenFile& open, std::int64_t from, std::int64_t count, const fs::path& file) {
  std::string text(static_cast<std::size_t>(count), '\0');
  std::size_t filled = 0;
  while (filled < text.size()) {
    const ssize_t got = ::pread(open.descriptor.get(), text.data() + filled, text.size() - filled,
                                static_cast<off_t>(from + static_cast<std::int64_t>(filled)));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail(ErrorCode::kIo, "cannot read '{}': {}", file.string(), errno_text());
    if (got == 0) break;
    filled += static_cast<std::size_t>(got);
  }
  text.resize(filled);
  return text;
}

// How many bytes at the end are the begin of a character (UTF-8) whose rest is missing.
std::size_t count_unfinished(std::string_view text) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if (byte >= 0x80 && byte < 0xC0) continue;  // what follows a character's first byte
    const std::size_t whole = byte < 0xC2 || byte > 0xF4 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
    return back < whole ? back : 0;
  }
  return 0;
}

}  // namespace

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

Result<OutputPart> read_output(const fs::path& file, std::int64_t offset, bool has_ended) {
  std::error_code problem;
  if (!fs::exists(file, problem)) return OutputPart{};
  MOTLEY_ASSIGN(const OpenFile open, open_file(file));
  const std::int64_t from = std::clamp<std::int64_t>(offset, 0, open.size);
  MOTLEY_ASSIGN(std::string text, read_part(open, from, std::min(kMaxPartBytes, open.size - from), file));
  const std::size_t line = text.rfind('\n');
  const bool has_more = from + std::ssize(text) < open.size;
  if (has_more && line != std::string::npos) text.resize(line + 1);
  if (has_more || !has_ended) text.resize(text.size() - count_unfinished(text));
  const std::int64_t next = from + std::ssize(text);
  return OutputPart{std::move(text), next};
}

Result<std::string> read_whole(const fs::path& file, std::int64_t most) {
  MOTLEY_ASSIGN(const OpenFile open, open_file(file));
  if (open.size > most) {
    return fail(ErrorCode::kIo, "cannot read '{}': it has {} bytes; accepted: {}", file.string(), open.size, most);
  }
  return read_part(open, 0, open.size, file);
}

Result<std::string> read_end(const fs::path& file, std::int64_t most) {
  MOTLEY_ASSIGN(const OpenFile open, open_file(file));
  const std::int64_t from = std::max<std::int64_t>(0, open.size - most);
  MOTLEY_ASSIGN(std::string text, read_part(open, from, open.size - from, file));
  if (from > 0) text.erase(0, text.find('\n') + 1);
  return text;
}

std::string last_lines(const fs::path& file) {
  std::string text = read_end(file, kTailBytes).value_or("");
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::size_t begin = text.size();
  for (int line = 0; line < kLastLines && begin > 0 && begin != std::string::npos; ++line) {
    begin = text.rfind('\n', begin - 1);
  }
  return begin == std::string::npos ? text : text.substr(begin == 0 ? 0 : begin + 1);
}

}  // namespace motley::scheduling
