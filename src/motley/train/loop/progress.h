// How a run is doing: a bar that is rewritten in place on a terminal, a plain line every ten seconds elsewhere.
#pragma once

#include <cstddef>
#include <string>

namespace motley::train {

// A worker under our launcher writes progress as lines that begin with this mark, for the launcher to show.
inline constexpr char kProgressMark = '\x01';
// And a line with this mark, of how many workers there are, when a step was done for the first time since they changed.
inline constexpr char kWorkersMark = '\x03';
void tell_workers(int count);  // nothing without our launcher

struct Progress {
  double done = -1;  // the fraction from 0 to 1; below 0: not known
  std::string text;
};

// "━━━━━━━━────────  42 %  TEXT", cut to the width; without a bar where that leaves no room for one. The bar leaves the
// text at least `text_width` columns, so that texts of different lengths do not move it.
std::string draw_progress(const Progress& progress, int columns, bool is_utf8, std::size_t text_width = 0);

// Shows progress on this process's standard output. One thread.
class ProgressLine {
 public:
  ProgressLine();
  // Shows it if it is time to; `last` always.
  void show(const Progress& progress, bool last = false);
  // The same of the line, behind its mark, that another process's ProgressLine wrote.
  void show_marked(const std::string& line);
  // Takes away what was drawn in place, before something else is printed.
  void clear();

 private:
  const bool terminal_;
  const bool marked_;  // under our launcher
  bool shown_ = false;
  std::size_t text_width_ = 0;  // of the longest so far
  double next_ = 0;
};

}  // namespace motley::train
