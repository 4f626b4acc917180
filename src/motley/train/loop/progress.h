// The line that says how a run is doing: rewritten in place on a terminal, a plain line every ten seconds elsewhere.
#pragma once

#include <string>

namespace motley::train {

// A worker under our launcher writes progress as lines that begin with this mark, for the launcher to show.
inline constexpr char kProgressMark = '\x01';
// And a line with this mark, of how many workers there are, when a step was done for the first time since they changed.
inline constexpr char kWorkersMark = '\x03';
void tell_workers(int count);  // nothing without our launcher

// Shows progress on this process's standard output. One thread.
class ProgressLine {
 public:
  ProgressLine();
  // Shows the text if it is time to; `last` always.
  void show(const std::string& text, bool last = false);
  // Ends a line that was rewritten in place, before something else is printed.
  void clear();

 private:
  bool terminal_;
  bool marked_;  // under our launcher
  bool shown_ = false;
  double next_ = 0;
};

}  // namespace motley::train
