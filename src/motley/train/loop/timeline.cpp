#include "motley/train/loop/timeline.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "motley/base/os/file.h"
#include "motley/serial/json_problem.h"

namespace motley::train {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::array<const char*, 9> kPhases = {"load",      "forward",  "backward", "gradient_sync", "wait",
                                                "optimizer", "emulated", "evaluate", "checkpoint"};

const char* to_string(Phase phase) {
  return kPhases[static_cast<std::size_t>(phase)];
}

// Work that may run beside other work of the same rank is drawn on threads of its own.
std::string thread_name(Phase phase) {
  switch (phase) {
    case Phase::kLoad:
      return "load";
    case Phase::kGradientSync:
    case Phase::kWait:
      return "gradient_sync";
    default:
      return "compute";
  }
}

constexpr std::size_t kMaxMarks = 1000;

struct Part {
  int rank = 0;
  std::string name;
  std::vector<Span> spans;
  std::vector<Mark> marks;
};

Result<Part> read_part(const std::filesystem::path& path) {
  MOTLEY_ASSIGN(const std::string text, read_file(path));
  try {
    const auto json = nlohmann::json::parse(text);
    Part part{json.at("rank").get<int>(), json.at("name").get<std::string>(), {}, {}};
    for (const auto& span : json.at("spans")) {
      const auto [name, step, begin, end] = span.get<std::tuple<std::string, std::int64_t, double, double>>();
      const auto phase = std::ranges::find(kPhases, name);
      if (phase == kPhases.end()) {
        return fail(ErrorCode::kCorrupt, "'{}': unknown phase '{}'", path.string(), name);
      }
      part.spans.push_back({step, begin, end, static_cast<Phase>(phase - kPhases.begin())});
    }
    for (const auto& mark : json.at("marks")) {
      const auto [step, time, text] = mark.get<std::tuple<std::int64_t, double, std::string>>();
      part.marks.push_back({step, time, text});
    }
    return part;
  } catch (const nlohmann::json::exception& error) {
    return fail(ErrorCode::kCorrupt, "'{}' is not a rank's timeline: {}", path.string(), explain(error));
  }
}

// Adds a rank's events, with times from `zero` on. Spans of one thread may not overlap, so each goes to the first
// thread of its kind that is free when it begins.
void add_events(OrderedJson& events, Part part, double zero) {
  const auto describe = [&](const char* what, std::size_t thread, OrderedJson args) {
    events.push_back({{"ph", "M"}, {"name", what}, {"pid", part.rank}, {"tid", thread}, {"args", std::move(args)}});
  };
  const std::string rank = fmt::format("rank {}", part.rank);
  describe("process_name", 0, {{"name", part.name.empty() ? rank : rank + ": " + part.name}});
  describe("process_sort_index", 0, {{"sort_index", part.rank}});
  std::ranges::stable_sort(part.spans, {}, &Span::begin);
  struct Thread {
    std::string kind;
    double free_at;
  };
  std::vector<Thread> threads;
  for (const Span& span : part.spans) {
    const std::string kind = thread_name(span.phase);
    auto thread =
        std::ranges::find_if(threads, [&](const Thread& one) { return one.kind == kind && one.free_at <= span.begin; });
    const auto number = static_cast<std::size_t>(thread - threads.begin());
    if (thread == threads.end()) {
      const auto before = std::ranges::count(threads, kind, &Thread::kind);
      describe("thread_name", number, {{"name", before == 0 ? kind : fmt::format("{} {}", kind, before + 1)}});
      thread = threads.insert(thread, Thread{kind, 0});
    }
    thread->free_at = span.end;
    events.push_back({{"ph", "X"},
                      {"name", to_string(span.phase)},
                      {"cat", kind},
                      {"pid", part.rank},
                      {"tid", number},
                      {"ts", (span.begin - zero) * 1e6},
                      {"dur", std::max(0.0, span.end - span.begin) * 1e6},
                      {"args", {{"step", span.step}}}});
  }
}

void add_marks(OrderedJson& events, const std::vector<Part>& parts, double zero) {
  std::set<std::pair<std::int64_t, std::string>> known;
  for (const Part& part : parts) {
    for (const Mark& mark : part.marks) {
      if (!known.emplace(mark.step, mark.text).second) continue;
      events.push_back({{"ph", "i"},
                        {"s", "g"},
                        {"name", mark.text},
                        {"pid", part.rank},
                        {"tid", 0},
                        {"ts", (mark.time - zero) * 1e6},
                        {"args", {{"step", mark.step}}}});
    }
  }
}

Status write_trace(const std::filesystem::path& path, const OrderedJson& json) {
  return write_file(path, json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n");
}

}  // namespace

TimelineRecorder::TimelineRecorder(int rank, std::string name, TimelineOptions options)
    : rank_(rank), name_(std::move(name)), options_(options), every_(std::max<std::int64_t>(1, options.every)) {}

void TimelineRecorder::record(Phase phase, std::int64_t step, double begin, double end) {
  const std::lock_guard lock(mutex_);
  if (!wanted(step)) {
    return;
  }
  // Thinning keeps an even sample of the whole run: each time, half of the later steps go and half as many come.
  if (spans_.size() >= options_.max_spans && every_ < std::numeric_limits<std::int64_t>::max() / 2) {
    every_ *= 2;
    std::erase_if(spans_, [this](const Span& span) { return !wanted(span.step); });
  }
  if (spans_.size() < options_.max_spans && wanted(step)) {
    spans_.push_back({step, begin, end, phase});
  }
}

void TimelineRecorder::mark(std::int64_t step, double time, std::string text) {
  const std::lock_guard lock(mutex_);
  if (marks_.size() < kMaxMarks) marks_.push_back({step, time, std::move(text)});
}

std::vector<Span> TimelineRecorder::spans() const {
  const std::lock_guard lock(mutex_);
  return spans_;
}

std::filesystem::path timeline_part(const std::filesystem::path& folder, int rank) {
  return folder / fmt::format("timeline-rank-{}.json", rank);
}

Status TimelineRecorder::write_part(const std::filesystem::path& folder) const {
  OrderedJson list = OrderedJson::array();
  for (const Span& span : spans()) {
    list.push_back({to_string(span.phase), span.step, span.begin, span.end});
  }
  OrderedJson marks = OrderedJson::array();
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [step, time, text] : marks_) marks.push_back({step, time, text});
  }
  return write_trace(
      timeline_part(folder, rank_),
      {{"version", 1}, {"rank", rank_}, {"name", name_}, {"spans", std::move(list)}, {"marks", std::move(marks)}});
}

void TimelineRecorder::keep_in(const std::filesystem::path& folder, bool goes_on) {
  folder_ = folder;
  if (!goes_on) return;
  Result<Part> before = read_part(timeline_part(folder, rank_));
  if (!before) return;
  spans_ = std::move(before->spans);
  marks_ = std::move(before->marks);
}

void TimelineRecorder::keep() const {
  if (!folder_.empty()) (void)write_part(folder_);
}

Status merge_timelines(const std::vector<TimelinePart>& files, const std::filesystem::path& out) {
  std::vector<Part> parts;
  double zero = std::numeric_limits<double>::infinity();
  for (const auto& [file, ahead] : files) {
    MOTLEY_ASSIGN(parts.emplace_back(), read_part(file));
    for (Span& span : parts.back().spans) {
      span.begin -= ahead;
      span.end -= ahead;
      zero = std::min(zero, span.begin);
    }
    for (Mark& mark : parts.back().marks) mark.time -= ahead;
  }
  if (zero == std::numeric_limits<double>::infinity()) return {};  // no step was recorded: what is there stays
  OrderedJson events = OrderedJson::array();
  add_marks(events, parts, zero);
  for (Part& part : parts) add_events(events, std::move(part), zero);
  return write_trace(out, {{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}});
}

}  // namespace motley::train
