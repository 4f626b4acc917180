#include "motley/train/loop/timeline.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "motley/base/os/file.h"

namespace motley::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array kPhases = {"load",      "forward",  "backward", "exchange",  "wait",
                                "optimizer", "emulated", "evaluate", "checkpoint"};

std::optional<Phase> parse_phase(const std::string& name) {
  const auto found = std::find(kPhases.begin(), kPhases.end(), name);
  return found == kPhases.end() ? std::nullopt : std::optional(static_cast<Phase>(found - kPhases.begin()));
}

// Work that may run beside other work of the same rank is drawn on threads of its own.
struct Lane {
  const char* name;
  double free_at = -std::numeric_limits<double>::infinity();
  int thread = 0;
};

const char* lane_name(Phase phase) {
  switch (phase) {
    case Phase::kLoad:
      return "load";
    case Phase::kExchange:
    case Phase::kWait:
      return "exchange";
    default:
      return "compute";
  }
}

struct Part {
  int rank = 0;
  std::string name;
  std::vector<Span> spans;
};

Result<Part> read_part(const std::filesystem::path& path) {
  MOTLEY_ASSIGN(const std::string text, read_file(path));
  try {
    const auto json = nlohmann::json::parse(text);
    Part part{json.at("rank").get<int>(), json.at("name").get<std::string>(), {}};
    for (const auto& span : json.at("spans")) {
      const auto phase = parse_phase(span.at(0).get<std::string>());
      if (!phase) {
        return fail(ErrorCode::kCorrupt, "'{}': unknown phase '{}'", path.string(), span.at(0).get<std::string>());
      }
      part.spans.push_back(
          {span.at(1).get<std::int64_t>(), span.at(2).get<double>(), span.at(3).get<double>(), *phase});
    }
    return part;
  } catch (const nlohmann::json::exception& error) {
    return fail(ErrorCode::kCorrupt, "'{}' is not a rank's timeline: {}", path.string(), error.what());
  }
}

}  // namespace

const char* to_string(Phase phase) {
  return kPhases[static_cast<std::size_t>(phase)];
}

TimelineRecorder::TimelineRecorder(int rank, std::string name, TimelineOptions options)
    : rank_(rank), name_(std::move(name)), options_(options), every_(std::max<std::int64_t>(1, options.every)) {}

void TimelineRecorder::record(Phase phase, std::int64_t step, double begin, double end) {
  const std::lock_guard lock(mutex_);
  if (!wanted(step)) {
    return;
  }
  // Thinning keeps an even sample of the whole run: each time, half of the later steps go and half as many come.
  if (spans_.size() >= options_.most_spans && every_ < std::numeric_limits<std::int64_t>::max() / 2) {
    every_ *= 2;
    std::erase_if(spans_, [this](const Span& span) { return !wanted(span.step); });
  }
  if (spans_.size() < options_.most_spans && wanted(step)) {
    spans_.push_back({step, begin, end, phase});
  }
}

std::vector<Span> TimelineRecorder::spans() const {
  const std::lock_guard lock(mutex_);
  return spans_;
}

std::filesystem::path timeline_part(const std::filesystem::path& folder, int rank) {
  return folder / fmt::format("timeline-rank-{}.json", rank);
}

Status TimelineRecorder::write_part(const std::filesystem::path& folder) const {
  Json list = Json::array();
  for (const Span& span : spans()) {
    list.push_back({to_string(span.phase), span.step, span.begin, span.end});
  }
  const Json part = {{"version", 1}, {"rank", rank_}, {"name", name_}, {"spans", std::move(list)}};
  return write_file(timeline_part(folder, rank_), part.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

Status merge_timelines(const std::vector<std::filesystem::path>& paths, const std::filesystem::path& out) {
  std::vector<Part> parts;
  double zero = std::numeric_limits<double>::infinity();
  for (const std::filesystem::path& path : paths) {
    MOTLEY_ASSIGN(Part part, read_part(path));
    for (const Span& span : part.spans) {
      zero = std::min(zero, span.begin);
    }
    parts.push_back(std::move(part));
  }

  Json events = Json::array();
  const auto name_of = [&](const char* what, int process, int thread, const std::string& name) {
    events.push_back({{"ph", "M"}, {"name", what}, {"pid", process}, {"tid", thread}, {"args", {{"name", name}}}});
  };
  for (Part& part : parts) {
    name_of("process_name", part.rank, 0,
            part.name.empty() ? fmt::format("rank {}", part.rank) : fmt::format("rank {}: {}", part.rank, part.name));
    events.push_back({{"ph", "M"},
                      {"name", "process_sort_index"},
                      {"pid", part.rank},
                      {"tid", 0},
                      {"args", {{"sort_index", part.rank}}}});
    // Spans of one thread may not overlap, so each goes to the first thread of its kind that is free when it begins.
    std::stable_sort(part.spans.begin(), part.spans.end(),
                     [](const Span& a, const Span& b) { return a.begin < b.begin; });
    std::vector<Lane> lanes;
    for (const Span& span : part.spans) {
      const std::string name = lane_name(span.phase);
      auto lane = std::find_if(lanes.begin(), lanes.end(),
                               [&](const Lane& l) { return l.name == name && l.free_at <= span.begin; });
      if (lane == lanes.end()) {
        const auto before = std::count_if(lanes.begin(), lanes.end(), [&](const Lane& l) { return l.name == name; });
        lanes.push_back({lane_name(span.phase), 0, static_cast<int>(lanes.size())});
        lane = lanes.end() - 1;
        name_of("thread_name", part.rank, lane->thread, before == 0 ? name : fmt::format("{} {}", name, before + 1));
      }
      lane->free_at = span.end;
      events.push_back({{"ph", "X"},
                        {"name", to_string(span.phase)},
                        {"cat", name},
                        {"pid", part.rank},
                        {"tid", lane->thread},
                        {"ts", (span.begin - zero) * 1e6},
                        {"dur", std::max(0.0, span.end - span.begin) * 1e6},
                        {"args", {{"step", span.step}}}});
    }
  }
  const Json trace = {{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
  return write_file(out, trace.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace motley::train
