#include "motley/train/loop/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "motley/base/clock.h"
#include "motley/base/os/terminal.h"
#include "motley/base/units.h"

namespace motley::train {
namespace {

constexpr double kTerminalInterval = 0.1;  // seconds
constexpr double kPlainInterval = 10;
constexpr int kWidestBar = 30;
constexpr int kNarrowestBar = 8;
constexpr std::size_t kTextWidth = 78;  // of a step's text at its usual longest, so that it seldom grows

std::string percent(double done) {
  return fmt::format("{:3.0f} %", std::floor(100 * done));
}

std::string repeated(const char* piece, int times) {
  std::string text;
  for (int i = 0; i < times; ++i) text += piece;
  return text;
}

}  // namespace

void tell_workers(int count) {
  if (std::getenv("MOTLEY_PROGRESS") == nullptr) return;
  std::printf("%c%d\n", kWorkersMark, count);
  std::fflush(stdout);
}

std::string draw_progress(const Progress& progress, int columns, bool is_utf8, std::size_t text_width) {
  const int room = std::max(1, columns - 1);  // the cursor stands behind it
  const std::string text = progress.text.substr(0, static_cast<std::size_t>(room));
  if (progress.done < 0) return text;
  const double done = std::clamp(progress.done, 0.0, 1.0);
  const std::string figures = percent(done) + "  " + text;
  const std::size_t reserved = figures.size() - text.size() + std::max(text.size(), text_width);
  const int width = std::min(kWidestBar, room - 2 - static_cast<int>(reserved));
  if (width < kNarrowestBar) return figures.substr(0, static_cast<std::size_t>(room));
  const int full = static_cast<int>(std::floor(done * width));
  return repeated(is_utf8 ? "━" : "#", full) + repeated(is_utf8 ? "─" : "-", width - full) + "  " + figures;
}

ProgressLine::ProgressLine()
    : terminal_(is_terminal(STDOUT_FILENO)), marked_(std::getenv("MOTLEY_PROGRESS") != nullptr) {}

void ProgressLine::show(const Progress& progress, bool last) {
  const double now = monotonic_seconds();
  if (!last && now < next_) return;
  next_ = now + (terminal_ || marked_ ? kTerminalInterval : kPlainInterval);
  if (marked_) {
    std::printf("%c%.4f %d %s\n", kProgressMark, progress.done, last ? 1 : 0, progress.text.c_str());
  } else if (terminal_) {
    text_width_ = std::max({text_width_, progress.text.size(), kTextWidth});
    const int columns = terminal_columns(STDOUT_FILENO);
    std::printf("\r\x1b[K%s", draw_progress(progress, columns, shows_utf8(), text_width_).c_str());
    shown_ = true;
  } else {
    std::printf("%s\n", progress.text.c_str());
  }
  if (last && shown_) {  // stays
    std::printf("\n");
    shown_ = false;
  }
  std::fflush(stdout);
}

void ProgressLine::show_marked(const std::string& line) {
  double done = -1;
  int last = 0, text_begin = 0;
  if (std::sscanf(line.c_str(), "%lf %d %n", &done, &last, &text_begin) < 2) return;
  show({done, line.substr(static_cast<std::size_t>(text_begin))}, last != 0);
}

void ProgressLine::clear() {
  if (!shown_) return;
  std::printf("\r\x1b[K");
  std::fflush(stdout);
  shown_ = false;
}

}  // namespace motley::train
