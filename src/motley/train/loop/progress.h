// The line that says how a run is doing: rewritten in place on a terminal, a plain line every ten seconds elsewhere.
#pragma once

#include <cstdint>
#include <string>

namespace motley::train {

struct ProgressState {
  std::int64_t step = 0;
  std::int64_t steps = 0;
  double epoch = 0;
  double loss = 0;
  double accuracy = -1;  // < 0: none
  double samples_per_second = 0;
  double seconds_left = 0;
};

// "step 120/705  epoch 0.51  loss 0.412  accuracy 0.853  1830 samples/s  1 min 5 s left"
std::string format_progress(const ProgressState& state);

// A worker under our launcher writes progress as lines that begin with this mark, for the launcher to show.
inline constexpr char kProgressMark = '\x01';

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
