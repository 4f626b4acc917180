// The simulated step in Chrome's trace format, laid out like the timeline of a measured run: a process a stage, a
// thread a replica, and a thread for what the stage sends either way.
#include <nlohmann/json.hpp>

#include "motley/planning/simulate/simulate.h"

namespace motley::planning {

using Json = nlohmann::ordered_json;

std::string to_chrome_trace(const Timeline& timeline, const Plan& plan) {
  Json events = Json::array();
  const auto add_name = [&](const char* what, int process, int thread, const std::string& name) {
    events.push_back({{"ph", "M"}, {"name", what}, {"pid", process}, {"tid", thread}, {"args", {{"name", name}}}});
  };
  std::vector<int> replicas(plan.stages.size());
  for (const Device& device : timeline.devices) {
    add_name("thread_name", device.stage, device.replica, fmt::format("{} {}", device.type, device.replica));
    ++replicas[index(device.stage)];
  }
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const Stage& stage = plan.stages[s];
    const auto process = static_cast<int>(s);
    add_name("process_name", process, 0,
             fmt::format("stage {}: {} to {}", s, plan.layers[index(stage.first_layer)],
                         plan.layers[index(stage.last_layer)]));
    events.push_back({{"ph", "M"},
                      {"name", "process_sort_index"},
                      {"pid", process},
                      {"tid", 0},
                      {"args", {{"sort_index", process}}}});
    if (s + 1 < plan.stages.size()) {
      add_name("thread_name", process, replicas[s], to_string(Work::kSendForward));
    }
    if (s > 0) add_name("thread_name", process, replicas[s] + 1, to_string(Work::kSendBackward));
  }
  for (const Event& event : timeline.events) {
    const int thread =
        event.replica >= 0 ? event.replica : replicas[index(event.stage)] + (event.work == Work::kSendBackward ? 1 : 0);
    Json arguments = Json::object();
    if (event.micro_batch >= 0) arguments["micro_batch"] = event.micro_batch;
    events.push_back({{"ph", "X"},
                      {"name", to_string(event.work)},
                      {"cat", event.replica >= 0 && event.work != Work::kGradientSync ? "compute" : "gradient-sync"},
                      {"pid", event.stage},
                      {"tid", thread},
                      {"ts", event.start * 1e6},
                      {"dur", (event.end - event.start) * 1e6},
                      {"args", std::move(arguments)}});
  }
  const Json trace = {{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
  return trace.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace motley::planning
