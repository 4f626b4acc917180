// The picture of a simulated step: a bar a device, and what each stage sends.
#include <algorithm>
#include <cmath>

#include "motley/base/units.h"
#include "motley/report/page/chart.h"
#include "motley/report/page/html.h"
#include "motley/report/plan_view.h"

namespace motley::report {
namespace {

using planning::Device;
using planning::Event;
using planning::Timeline;
using planning::Work;

// More replicas of one stage than this are like those that are shown.
constexpr int kMaxReplicas = 8;
// A page with more rectangles than this is slow to open.
constexpr std::size_t kMaxSegments = 20'000;

std::string percent(double share) {
  return format_percent(share, 0);
}

// What a kind of work is called, and the class of its segments in the page's style.
struct WorkLook {
  const char* name;
  const char* kind;
  bool is_transfer = false;
};

WorkLook look(Work work) {
  switch (work) {
    case Work::kForward:
      return {"forward", "forward"};
    case Work::kBackward:
      return {"backward", "backward"};
    case Work::kSendForward:
      return {"sends activations", "transfer", true};
    case Work::kSendBackward:
      return {"sends gradients", "transfer", true};
    case Work::kGradientSync:
      return {"gradient synchronisation", "gradient_sync"};
    case Work::kUpdate:
      return {"optimizer", "optimizer"};
  }
  return {"", ""};
}

// The segments of one bar. Those that are narrower than can be seen are joined with the one before.
class Bar {
 public:
  Bar(double extent, double narrow) : extent_(extent), narrow_(narrow) {}

  void add(const Event& event) {
    if (event.end <= event.start) return;
    const auto [name, kind, is_transfer] = look(event.work);
    const int track = event.work == Work::kSendBackward ? 1 : 0;
    Segment* before = last_[track] < 0 ? nullptr : &segments_[static_cast<std::size_t>(last_[track])];
    if (before != nullptr && event.end - before->begin < narrow_) {
      *before = {before->begin, event.end, is_transfer ? "transfer" : "compute", "many micro-batches", track};
      return;
    }
    last_[track] = static_cast<int>(segments_.size());
    const std::string number = event.micro_batch < 0 ? "" : fmt::format("{}", event.micro_batch);
    segments_.push_back({event.start, event.end, kind,
                         fmt::format("{}{}{}: {}, from {}", name, number.empty() ? "" : " ", number,
                                     format_seconds(event.end - event.start), format_seconds(event.start)),
                         track, is_transfer ? "" : number});
  }

  bool empty() const { return segments_.empty(); }
  std::string draw(const std::string& label, int tracks) const {
    return segment_bar(segments_, extent_, label, tracks);
  }

 private:
  double extent_, narrow_;
  std::vector<Segment> segments_;
  int last_[2] = {-1, -1};
};

// Round places, and what stands at them.
std::vector<std::pair<double, std::string>> make_ticks(double extent) {
  std::vector<std::pair<double, std::string>> ticks;
  for (const double place : round_ticks(extent)) ticks.emplace_back(place, place == 0 ? "0" : format_seconds(place));
  return ticks;
}

std::string make_remark(const planning::Plan& plan, const planning::Stage& stage) {
  const std::string& first = plan.layers[static_cast<std::size_t>(stage.first_layer)];
  const std::string& last = plan.layers[static_cast<std::size_t>(stage.last_layer)];
  std::vector<std::string> devices;
  std::int64_t count = 0;
  for (const planning::Replicas& replicas : stage.replicas) {
    devices.push_back(fmt::format("{} × {}", replicas.count, replicas.type));
    count += replicas.count;
  }
  return fmt::format("{} on {}{}{}", first == last ? first : fmt::format("{} to {}", first, last),
                     fmt::join(devices, " and "),
                     count > 1 ? fmt::format(", gradient synchronisation by {}", to_string(stage.gradient_sync)) : "",
                     stage.recompute ? ", recomputes activations" : "");
}

std::string critical_path(const Timeline& timeline) {
  std::vector<Segment> segments;
  double end = 0;
  std::vector<std::string> parts;
  const planning::Path& path = timeline.critical;
  for (const auto& [seconds, kind, name] :
       {std::tuple(path.forward, "forward", "forward"), std::tuple(path.backward, "backward", "backward"),
        std::tuple(path.transfer, "transfer", "transfers"),
        std::tuple(path.gradient_sync, "gradient_sync", "gradient synchronisation"),
        std::tuple(path.update, "optimizer", "optimizer")}) {
    if (seconds <= 0) continue;
    parts.push_back(fmt::format("{} {} ({})", name, format_seconds(seconds), percent(seconds / timeline.step_seconds)));
    segments.push_back({end, end + seconds, kind, parts.back()});
    end += seconds;
  }
  return bar_group("Where the step's time goes", fmt::format("along its critical path: {}", fmt::join(parts, ", ")),
                   {{"", segment_bar(segments, timeline.step_seconds, "critical path"), ""}});
}

// Neighbouring devices of one stage and type that have the same bubble fraction are printed on one line.
std::string device_lines(const Timeline& timeline) {
  std::string text;
  const auto& devices = timeline.devices;
  const auto alike = [](const planning::Device& a, const planning::Device& b) {
    return a.stage == b.stage && a.type == b.type && std::abs(a.bubble_fraction - b.bubble_fraction) < 5e-4;
  };
  for (std::size_t first = 0; first < devices.size();) {
    std::size_t next = first + 1;
    while (next < devices.size() && alike(devices[first], devices[next])) ++next;
    const planning::Device& device = devices[first];
    const std::string replicas = next - first == 1 ? fmt::format("{}", device.replica)
                                                   : fmt::format("{} to {}", device.replica, devices[next - 1].replica);
    text +=
        fmt::format("  stage {:<3} {:<24} computes {:<12} bubble {:.1f} %\n", device.stage,
                    device.type + " " + replicas, format_seconds(device.busy_seconds), 100 * device.bubble_fraction);
    first = next;
  }
  return text;
}

}  // namespace

std::string plan_timeline(const Timeline& timeline, const planning::Plan& plan) {
  if (timeline.step_seconds <= 0) return "";
  const std::size_t stages = plan.stages.size();
  std::vector<std::vector<const Device*>> devices(stages);
  std::size_t bars = 0;
  for (const Device& device : timeline.devices) {
    devices[static_cast<std::size_t>(device.stage)].push_back(&device);
    bars += device.replica < kMaxReplicas ? 1 : 0;
  }
  const double extent = timeline.step_seconds;
  const double narrow =
      extent / static_cast<double>(std::clamp<std::size_t>(kMaxSegments / (bars + 2 * stages), 40, 1000));

  std::vector<std::vector<Bar>> computing(stages);
  std::vector<Bar> sending(stages, Bar(extent, narrow));
  for (std::size_t s = 0; s < stages; ++s) {
    computing[s].assign(std::min<std::size_t>(devices[s].size(), kMaxReplicas), Bar(extent, narrow));
  }
  for (const Event& event : timeline.events) {
    const auto stage = static_cast<std::size_t>(event.stage);
    if (event.replica < 0) {
      sending[stage].add(event);
    } else if (event.replica < kMaxReplicas) {
      computing[stage][static_cast<std::size_t>(event.replica)].add(event);
    }
  }

  std::string html;
  bool transfers = false, gradient_syncs = timeline.critical.gradient_sync > 0;
  for (std::size_t s = 0; s < stages; ++s) {
    std::vector<BarRow> rows;
    for (std::size_t r = 0; r < computing[s].size(); ++r) {
      const Device& device = *devices[s][r];
      const std::string name = fmt::format("{} {}", device.type, device.replica);
      rows.push_back({name, computing[s][r].draw(fmt::format("stage {}, {}", s, name), 1),
                      fmt::format("bubble {}", percent(device.bubble_fraction))});
    }
    if (devices[s].size() > computing[s].size()) {
      double idle = 0;
      for (std::size_t r = computing[s].size(); r < devices[s].size(); ++r) {
        idle += devices[s][r]->bubble_fraction / static_cast<double>(devices[s].size() - computing[s].size());
      }
      rows.push_back({fmt::format("{} more", devices[s].size() - computing[s].size()), "<span></span>",
                      fmt::format("bubble {}", percent(idle))});
    }
    if (!sending[s].empty()) {
      transfers = true;
      rows.push_back({"sends", sending[s].draw(fmt::format("what stage {} sends", s), 2), ""});
    }
    gradient_syncs = gradient_syncs || devices[s].size() > 1;
    if (s + 1 == stages) {
      rows.push_back({"", bar_axis(make_ticks(extent), extent), ""});
    }
    html += bar_group(fmt::format("Stage {}", s), make_remark(plan, plan.stages[s]), rows);
  }
  std::vector<std::pair<std::string, std::string>> kinds = {{"forward", "forward"}, {"backward", "backward"}};
  if (transfers) kinds.emplace_back("transfer", "transfer (upper: activations, lower: gradients)");
  if (gradient_syncs) kinds.emplace_back("gradient_sync", "gradient synchronisation");
  if (timeline.critical.update > 0) kinds.emplace_back("optimizer", "optimizer");
  html += legend(kinds) + critical_path(timeline);
  return card("One step as predicted",
              "Numbers in the bars are micro-batches. What is narrower than can be seen is drawn as one.", html, true);
}

std::string simulation_text(const Timeline& timeline, const planning::Plan& plan) {
  const double step = timeline.step_seconds;
  std::string text = fmt::format("{}: {} in {} through {}, {}\n", plan.model, format_count(plan.batch, "sample"),
                                 format_count(plan.micro_batches, "micro-batch", "es"),
                                 format_count(std::ssize(plan.stages), "stage"), planning::to_string(plan.schedule));
  text += fmt::format("step        {}", format_seconds(step));
  if (plan.predicted.step_seconds > 0) {
    text += fmt::format("  (the plan predicts {})", format_seconds(plan.predicted.step_seconds));
  }
  text += fmt::format("\nthroughput  {} samples/s\n", format_number(static_cast<double>(plan.batch) / step));
  text += "time along the critical path\n";
  const planning::Path& path = timeline.critical;
  for (const auto& [name, seconds] :
       {std::pair{"forward", path.forward}, std::pair{"backward", path.backward}, std::pair{"transfers", path.transfer},
        std::pair{"gradient synchronisation", path.gradient_sync}, std::pair{"optimizer", path.update}}) {
    if (seconds > 0) {
      text += fmt::format("  {:<25} {:<12} {:.1f} %\n", name, format_seconds(seconds), 100 * seconds / step);
    }
  }
  return text + "devices\n" + device_lines(timeline);
}

std::string simulation_page(const Timeline& timeline, const planning::Plan& plan) {
  double busy = 0;
  const Device* idlest = nullptr;
  for (const Device& device : timeline.devices) {
    busy += (1 - device.bubble_fraction) / static_cast<double>(timeline.devices.size());
    idlest = idlest == nullptr || device.bubble_fraction > idlest->bubble_fraction ? &device : idlest;
  }
  return document(
      {.title = fmt::format("Plan for {}", plan.model),
       .facts = {format_count(std::ssize(plan.stages), "stage"),
                 fmt::format("{} a step in {}", format_count(plan.batch, "sample"),
                             format_count(plan.micro_batches, "micro-batch", "es")),
                 to_string(plan.schedule)},
       .tiles_html = tile("Step", format_seconds(timeline.step_seconds), "replayed event by event") +
                     tile("Throughput", format_number(static_cast<double>(plan.batch) / timeline.step_seconds),
                          "samples a second") +
                     tile("Devices compute", percent(busy),
                          fmt::format("of the step in the mean; most idle: stage {}, {} {}", idlest->stage,
                                      idlest->type, idlest->replica)) +
                     tile("Communication", percent(timeline.communication_fraction), "of the step's critical path"),
       .cards_html = plan_timeline(timeline, plan)});
}

}  // namespace motley::report
