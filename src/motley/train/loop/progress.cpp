#include "motley/train/loop/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "motley/base/clock.h"
#include "motley/base/units.h"

namespace motley::train {
namespace {

constexpr double kTerminalInterval = 0.25;  // seconds
constexpr double kPlainInterval = 10;

}  // namespace

std::string format_progress(const ProgressState& state) {
  std::string text =
      fmt::format("step {}/{}  epoch {:.2f}  loss {:.4g}", state.step, state.steps, state.epoch, state.loss);
  if (state.accuracy >= 0) {
    text += fmt::format("  accuracy {:.3f}", state.accuracy);
  }
  return text +
         fmt::format("  {:.0f} samples/s  {} left", state.samples_per_second, format_seconds(state.seconds_left));
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
