#include "motley/cli/json_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "motley/base/os/file.h"

namespace motley::cli {

OptionText json_option() {
  return {"json", OptionKind::kBoolean, "print JSON on standard output, and nothing else there (docs/schema)"};
}

JsonOutput::JsonOutput(bool is_asked) {
  if (!is_asked) return;
  std::fflush(stdout);
  output_ = ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  if (output_ >= 0) ::dup2(STDERR_FILENO, STDOUT_FILENO);
}

JsonOutput::~JsonOutput() {
  if (output_ < 0) return;
  std::fflush(stdout);
  ::dup2(output_, STDOUT_FILENO);
  ::close(output_);
}

Status JsonOutput::print(const std::string& json) const {
  for (std::size_t written = 0; is_asked() && written < json.size();) {
    const ssize_t count = ::write(output_, json.data() + written, json.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return fail(ErrorCode::kIo, "standard output cannot be written: {}", errno_text());
    written += static_cast<std::size_t>(count);
  }
  return {};
}

}  // namespace motley::cli
