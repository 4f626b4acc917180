#include "motley/train/loop/progress.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "motley/base/clock.h"

namespace motley::train {

static constexpr double kTerminalInterval = 0.25;  // seconds
static constexpr double kPlainInterval = 10;

void tell_workers(int count) {
  if (std::getenv("MOTLEY_PROGRESS") == nullptr) return;
  std::printf("%c%d\n", kWorkersMark, count);
  std::fflush(stdout);
}

ProgressLine::ProgressLine()
    : terminal_(::isatty(STDOUT_FILENO) == 1), marked_(std::getenv("MOTLEY_PROGRESS") != nullptr) {}

void ProgressLine::show(const std::string& text, bool last) {
  const double now = monotonic_seconds();
  if (!last && now < next_) {
    return;
  }
  next_ = now + (terminal_ || marked_ ? kTerminalInterval : kPlainInterval);
  if (marked_) {
    std::printf("%c%s\n", kProgressMark, text.c_str());
  } else if (terminal_) {
    std::printf("\r\x1b[K%s", text.c_str());
    shown_ = true;
  } else {
    std::printf("%s\n", text.c_str());
  }
  if (last) {
    clear();
  }
  std::fflush(stdout);
}

void ProgressLine::clear() {
  if (shown_) {
    std::printf("\n");
    shown_ = false;
  }
}

}  // namespace motley::train
