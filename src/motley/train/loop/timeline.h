// Records what a rank was doing when, cheaply and in bounded memory, and joins the ranks' records into one Chrome trace
// that Perfetto and chrome://tracing open.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "motley/base/result.h"

namespace motley::train {

enum class Phase : std::uint8_t {
  kLoad,
  kForward,
  kBackward,
  kGradientSync,
  kWait,
  kOptimizer,
  kEmulated,
  kEvaluate,
  kCheckpoint,
};

struct Span {
  std::int64_t step = 0;
  double begin = 0, end = 0;  // monotonic seconds, on the clock that the processes of one machine share
  Phase phase = Phase::kLoad;
};

// Something that happened to the run, drawn across all ranks.
struct Mark {
  std::int64_t step = 0;
  double time = 0;  // as in Span
  std::string text;
};

struct TimelineOptions {
  std::int64_t first_steps = 50;  // these steps are recorded as long as there is room
  std::int64_t every = 1;         // and of the others each whose number divides by this
  // 4 MB; when it is reached, `every` doubles and the steps now skipped are forgotten.
  std::size_t max_spans = 1u << 17;
};

// Spans of one rank. Thread-safe: the exchange and the loader may record from their own threads.
class TimelineRecorder {
 public:
  explicit TimelineRecorder(int rank, std::string name = "", TimelineOptions options = {});

  void record(Phase phase, std::int64_t step, double begin, double end);

  // The first thousand are kept. What several ranks mark alike, of one step and in the same words, is drawn once.
  void mark(std::int64_t step, double time, std::string text);

  std::vector<Span> spans() const;

  // Writes timeline-rank-<rank>.json into the folder.
  Status write_part(const std::filesystem::path& folder) const;

  // Of a rank that may be lost: from now on keep() writes its part there, as far as that can be done. One that takes
  // the place of another process goes on with what that has left.
  void keep_in(const std::filesystem::path& folder, bool goes_on);
  void keep() const;

 private:
  bool wanted(std::int64_t step) const { return step < options_.first_steps || step % every_ == 0; }

  const int rank_;
  const std::string name_;
  const TimelineOptions options_;
  mutable std::mutex mutex_;
  std::int64_t every_;
  std::vector<Span> spans_;
  std::vector<Mark> marks_;
  std::filesystem::path folder_;  // where keep() writes; empty: nowhere
};

// The path of a rank's part in a run directory.
std::filesystem::path timeline_part(const std::filesystem::path& folder, int rank);

struct TimelinePart {
  std::filesystem::path file;
  double ahead = 0;  // seconds: the clock of its machine, of the one by which the trace is drawn
};

// Joins parts into a Chrome trace: a process a rank, a thread a kind of work (spans that overlap get threads of their
// own), microseconds from the first span of all.
Status merge_timelines(const std::vector<TimelinePart>& parts, const std::filesystem::path& out);

}  // namespace motley::train
