#include "motley/train/loop/json_lines.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "motley/base/os/file.h"

namespace motley::train {

Result<std::unique_ptr<JsonLines>> JsonLines::open(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (descriptor < 0) {
    return fail(ErrorCode::kIo, "cannot open '{}': {}", path.string(), errno_text());
  }
  return std::unique_ptr<JsonLines>(new JsonLines(path, descriptor));
}

JsonLines::~JsonLines() {
  ::close(descriptor_);
}

Status JsonLines::write(std::string text) {
  text += "\n";
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t written = ::write(descriptor_, text.data() + done, text.size() - done);
    if (written < 0 && errno != EINTR) {
      return fail(ErrorCode::kIo, "cannot write '{}': {}", path_.string(), errno_text());
    }
    done += written > 0 ? static_cast<std::size_t>(written) : 0;
  }
  return {};
}

}  // namespace motley::train
