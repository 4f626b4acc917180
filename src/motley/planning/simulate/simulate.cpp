// Replays a step of a plan. Devices and links are resources that do one thing at a time. The order of a device's work
// is fixed by the schedule and that of a link's by when transfers become ready, so that only one event a resource is
// ever pending: the queue of events stays as small as the plan is wide, however many micro-batches there are.
//
// Whatever begins, begins at the instant at which the last thing that it needs ends. Each event can therefore carry the
// times of the chain of events that led to it, and the chain of the step's last event is a critical path.
#include "motley/planning/simulate/simulate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <functional>
#include <map>
#include <queue>

#include "motley/base/random.h"
#include "motley/base/units.h"

namespace motley::planning {
namespace {

struct DeviceState : Device {
  double forward_seconds = 0;  // of a micro-batch
  double backward_seconds = 0;
  double update_seconds = 0;
  std::int64_t position = 0;
  bool computing = false;
  Path path = {};  // to the end of what it does or did last
};

struct StageState {
  int first_device = 0;
  int device_count = 0;
  std::int64_t warm_up = 0;
  std::int64_t activations = 0;      // micro-batches whose activations have come
  std::int64_t gradients = 0;        // and whose gradients have
  double gradient_sync_seconds = 0;  // that are left after the last backward pass
  double update_seconds = 0;         // after that, of the slowest replica
  // Of one micro-batch, either way between this stage and the next.
  double transfer_seconds = 0;
  int link_to_next = 0;
  int link_from_next = 0;
};

struct Transfer {
  int sender = 0;
  Task task;
};

struct LinkState {
  std::deque<Transfer> queue = {};  // the front is under way
  Path path = {};
};

struct Setup {
  std::int64_t micro_batches = 1;
  std::vector<DeviceState> devices;
  std::vector<StageState> stages;
  int link_count = 0;
};

// The devices of a stage as the problem knows them.
struct TypedStage {
  std::vector<int> types;  // of each group of replicas
  std::int64_t count = 0;  // replicas in all
};

Status check_layers(const Problem& problem, const Plan& plan) {
  if (plan.model != problem.model) {
    return fail(ErrorCode::kInvalidInput, "model is '{}', but the profile is of '{}'", plan.model, problem.model);
  }
  if (plan.layers.size() != problem.layers.size()) {
    return fail(ErrorCode::kInvalidInput, "layers has {} names, but the profile has {}", plan.layers.size(),
                format_count(problem.layers.size(), "layer"));
  }
  for (std::size_t i = 0; i < plan.layers.size(); ++i) {
    if (plan.layers[i] != problem.layers[i].name) {
      return fail(ErrorCode::kInvalidInput, "layers[{}] is '{}', but the profile has '{}' there", i, plan.layers[i],
                  problem.layers[i].name);
    }
  }
  return {};
}

Result<int> type_index(const Problem& problem, const std::string& name, const std::string& field) {
  std::string known;
  for (std::size_t type = 0; type < problem.types.size(); ++type) {
    if (problem.types[type].name == name) return static_cast<int>(type);
    known += (type == 0 ? "'" : ", '") + problem.types[type].name + "'";
  }
  return fail(ErrorCode::kInvalidInput, "{} is '{}'; accepted are the cluster's types: {}", field, name, known);
}

Result<std::vector<TypedStage>> typed_stages(const Problem& problem, const Plan& plan) {
  const double samples = static_cast<double>(plan.batch) / static_cast<double>(plan.micro_batches);
  std::vector<TypedStage> stages;
  double events = 0;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    TypedStage stage;
    double count = 0;
    for (const Replicas& group : plan.stages[s].replicas) {
      MOTLEY_ASSIGN(const int type, type_index(problem, group.type,
                                               fmt::format("stages[{}].replicas[{}].type", s, stage.types.size())));
      stage.types.push_back(type);
      count += static_cast<double>(group.count);
    }
    if (count > samples) {
      return fail(ErrorCode::kInvalidInput,
                  "stages[{}] has {}, but a micro-batch has {} ({} in {}); accepted are "
                  "at most as many replicas as samples",
                  s, format_count(count, "replica"), format_count(samples, "sample"), plan.batch,
                  format_count(plan.micro_batches, "micro-batch", "es"));
    }
    events += 2 * static_cast<double>(plan.micro_batches) * (count + 1);
    if (events > static_cast<double>(kMaxEvents)) {
      return fail(ErrorCode::kInvalidInput,
                  "micro_batches is {}: with stages[{}] and its {} a step has {} events; accepted are {}",
                  plan.micro_batches, s, format_count(count, "replica"), events, kMaxEvents);
    }
    stage.count = static_cast<std::int64_t>(count);
    stages.push_back(std::move(stage));
  }
  return stages;
}

// The transfer of `bytes` between two stages either way takes as long as on the slowest link between their types.
struct Crossing {
  double seconds = 0;
  int from = 0;  // the types of that link
  int to = 0;
};

Crossing make_crossing(const Problem& problem, const TypedStage& sender, const TypedStage& receiver, double bytes) {
  const auto senders = static_cast<double>(sender.count);
  const auto receivers = static_cast<double>(receiver.count);
  Crossing slowest{-1};
  for (const int from : sender.types) {
    for (const int to : receiver.types) {
      const double seconds =
          problem.link(from, to).latency_seconds + bytes * problem.seconds_per_byte(from, senders, to, receivers);
      if (seconds > slowest.seconds) slowest = {seconds, from, to};
    }
  }
  return slowest;
}

Status check_finite(double seconds, std::size_t stage, const char* what) {
  if (!(seconds >= 0) || !std::isfinite(seconds)) {
    return fail(ErrorCode::kInvalidInput, "stages[{}]: its {} would take {} seconds; accepted are finite times", stage,
                what, seconds);
  }
  return {};
}

Status slow_down(Setup& setup, const std::vector<Straggler>& stragglers) {
  for (std::size_t i = 0; i < stragglers.size(); ++i) {
    const auto& [stage, replica, slowdown] = stragglers[i];
    if (stage < 0 || index(stage) >= setup.stages.size()) {
      return fail(ErrorCode::kInvalidInput, "stragglers[{}].stage is {}; the plan has stages 0 to {}", i, stage,
                  setup.stages.size() - 1);
    }
    StageState& state = setup.stages[index(stage)];
    if (replica < 0 || replica >= state.device_count) {
      return fail(ErrorCode::kInvalidInput, "stragglers[{}].replica is {}; stage {} has replicas 0 to {}", i, replica,
                  stage, state.device_count - 1);
    }
    if (!(slowdown >= 1) || !std::isfinite(slowdown)) {
      return fail(ErrorCode::kInvalidInput, "stragglers[{}].slowdown is {}; accepted is a number of at least 1", i,
                  slowdown);
    }
    DeviceState& device = setup.devices[index(state.first_device + replica)];
    device.forward_seconds *= slowdown;
    device.backward_seconds *= slowdown;
    device.update_seconds *= slowdown;
    state.update_seconds = std::max(state.update_seconds, device.update_seconds);
  }
  return {};
}

Result<Setup> set_up(const Problem& problem, const Plan& plan, const Options& options) {
  MOTLEY_ASSIGN(const std::vector<TypedStage> typed, typed_stages(problem, plan));
  const double samples = static_cast<double>(plan.batch) / static_cast<double>(plan.micro_batches);
  const std::size_t stage_count = plan.stages.size();
  Setup setup;
  setup.micro_batches = plan.micro_batches;
  std::map<std::array<int, 3>, int> links;  // by what makes them one
  const auto link_number = [&](std::array<int, 3> key) {
    return links.emplace(key, static_cast<int>(links.size())).first->second;
  };
  for (std::size_t s = 0; s < stage_count; ++s) {
    const Stage& stage = plan.stages[s];
    StageState state;
    state.first_device = static_cast<int>(setup.devices.size());
    state.device_count = static_cast<int>(typed[s].count);
    state.warm_up = count_warm_up(plan.schedule, s, stage_count, plan.micro_batches);
    state.activations = s == 0 ? plan.micro_batches : 0;
    state.gradients = s + 1 == stage_count ? plan.micro_batches : 0;
    std::vector<PipelineStage> times;  // of each group
    for (const int type : typed[s].types) {
      times.push_back(pipeline_stage(problem, stage.first_layer, stage.last_layer, type, -1, static_cast<int>(s),
                                     static_cast<int>(stage_count)));
    }
    const double gradient_sync =
        gradient_sync_seconds(stage.gradient_sync, times.front().parameter_bytes, static_cast<double>(typed[s].count),
                              slowest_link(problem, typed[s].types));
    MOTLEY_TRY(check_finite(gradient_sync, s, "gradient-sync"));
    std::vector<std::pair<double, double>> exposed;  // of each group: its backward pass, and what is left after that
    for (std::size_t group = 0; group < stage.replicas.size(); ++group) {
      const Replicas& replicas = stage.replicas[group];
      const double k = times[group].samples / (samples * replicas.share);  // as if all were like this one
      DeviceState device;
      device.forward_seconds = times[group].forward_seconds(k);
      device.backward_seconds = times[group].backward_seconds(k, stage.recompute);
      device.update_seconds = times[group].update_seconds;
      MOTLEY_TRY(check_finite(device.forward_seconds, s, "forward pass"));
      MOTLEY_TRY(check_finite(device.backward_seconds, s, "backward pass"));
      device.stage = static_cast<int>(s);
      device.type = replicas.type;
      state.update_seconds = std::max(state.update_seconds, device.update_seconds);
      exposed.emplace_back(device.backward_seconds, times[group].exposed_seconds(gradient_sync, k));
      for (std::int64_t i = 0; i < replicas.count; ++i) {
        device.replica = static_cast<int>(setup.devices.size()) - state.first_device;
        setup.devices.push_back(device);
      }
    }
    // A gradient is there when it is on all replicas, of which those with less to do are done earlier.
    const double longest = std::ranges::max(exposed).first;
    state.gradient_sync_seconds = options.gradient_sync_overlaps ? 0 : gradient_sync;
    for (const auto& [backward, left] : exposed) {
      if (options.gradient_sync_overlaps) {
        state.gradient_sync_seconds = std::max(state.gradient_sync_seconds, left - (longest - backward));
      }
    }
    if (s + 1 < stage_count) {
      const double bytes = samples * problem.cut_bytes[index(stage.last_layer + 1)];
      const auto [seconds, from, to] = make_crossing(problem, typed[s], typed[s + 1], bytes);
      MOTLEY_TRY(check_finite(seconds, s, "transfer to the next stage"));
      const int here = static_cast<int>(s), next = here + 1;
      state.transfer_seconds = seconds;
      // Between devices of one type, the two directions are told apart by the way through the pipeline.
      state.link_to_next = link_number(options.shared_links ? std::array{from, to, 0} : std::array{here, next, 0});
      state.link_from_next =
          link_number(options.shared_links ? std::array{to, from, from == to ? 1 : 0} : std::array{next, here, 0});
    }
    setup.stages.push_back(state);
  }
  setup.link_count = static_cast<int>(links.size());
  MOTLEY_TRY(slow_down(setup, options.stragglers));
  if (!(options.jitter >= 0) || !std::isfinite(options.jitter)) {
    return fail(ErrorCode::kInvalidInput, "jitter is {}; accepted is a number of at least 0", options.jitter);
  }
  return setup;
}

class Replay {
 public:
  Replay(Setup setup, const Options& options)
      : micro_batches_(setup.micro_batches),
        devices_(std::move(setup.devices)),
        stages_(std::move(setup.stages)),
        links_(index(setup.link_count)),
        seed_(options.seed),
        sigma_(std::sqrt(std::log1p(options.jitter * options.jitter))),
        keep_events_(options.keep_events) {
    for (const StageState& stage : stages_) {
      unfinished_.insert(unfinished_.end(), index(2 * micro_batches_), stage.device_count);
    }
    if (keep_events_) {
      timeline_.events.reserve((devices_.size() + 2 * stages_.size()) * index(2 * micro_batches_));
    }
  }

  Timeline run() && {
    for (std::size_t device = 0; device < devices_.size(); ++device) start_work(device, 0, {});
    while (!pending_.empty()) {
      const Pending next = pending_.top();
      pending_.pop();
      if (next.resource < devices_.size()) {
        finish_work(next.resource, next.end);
      } else {
        finish_transfer(next.resource - devices_.size(), next.end);
      }
    }
    std::ranges::stable_sort(timeline_.events, {}, &Event::start);  // updates were recorded when their stage was done
    const Path& critical = timeline_.critical;
    timeline_.communication_seconds = critical.transfer + critical.gradient_sync;
    if (timeline_.step_seconds > 0) {
      timeline_.communication_fraction = timeline_.communication_seconds / timeline_.step_seconds;
    }
    for (DeviceState& device : devices_) {
      if (timeline_.step_seconds > 0) {
        device.bubble_fraction = std::max(0.0, 1 - device.busy_seconds / timeline_.step_seconds);
      }
      timeline_.devices.push_back(std::move(device));
    }
    return std::move(timeline_);
  }

 private:
  // The end of what a resource does; devices come first, then links.
  struct Pending {
    double end;
    std::size_t resource;
    auto operator<=>(const Pending&) const = default;
  };

  void record(Work work, int stage, int replica, std::int64_t micro_batch, double start, double end) {
    ++timeline_.event_count;
    if (keep_events_) {
      timeline_.events.push_back({work, stage, replica, static_cast<std::int32_t>(micro_batch), start, end});
    }
  }

  double jitter(const DeviceState& device, const Task& task) const {
    if (sigma_ == 0) return 1;
    Random random(mix({seed_, static_cast<std::uint64_t>(device.stage), static_cast<std::uint64_t>(device.replica),
                       static_cast<std::uint64_t>(task.micro_batch), task.forward ? 0u : 1u}));
    return std::exp(sigma_ * random.normal() - sigma_ * sigma_ / 2);
  }

  // Starts a device's next work, if there is any left and its input has come. `path` led to this instant.
  void start_work(std::size_t at, double now, const Path& path) {
    DeviceState& device = devices_[at];
    const StageState& stage = stages_[index(device.stage)];
    if (device.position == 2 * micro_batches_) return;
    const Task task = task_at(device.position, stage.warm_up, micro_batches_);
    if (task.micro_batch >= (task.forward ? stage.activations : stage.gradients)) return;
    const double seconds = (task.forward ? device.forward_seconds : device.backward_seconds) * jitter(device, task);
    device.computing = true;
    device.busy_seconds += seconds;
    device.path = path;
    (task.forward ? device.path.forward : device.path.backward) += seconds;
    record(task.forward ? Work::kForward : Work::kBackward, device.stage, device.replica, task.micro_batch, now,
           now + seconds);
    pending_.push({now + seconds, at});
  }

  void finish_work(std::size_t at, double now) {
    DeviceState& device = devices_[at];
    const StageState& stage = stages_[index(device.stage)];
    const Task task = task_at(device.position, stage.warm_up, micro_batches_);
    const std::int64_t counter = (2 * device.stage + (task.forward ? 0 : 1)) * micro_batches_ + task.micro_batch;
    device.computing = false;
    ++device.position;
    if (--unfinished_[index(counter)] == 0) finish_stage(device.stage, task, now, device.path);
    start_work(at, now, device.path);
  }

  // All replicas of a stage are done with a micro-batch.
  void finish_stage(int at, const Task& task, double now, Path path) {
    const StageState& stage = stages_[index(at)];
    const bool last = index(at) + 1 == stages_.size();
    if (task.forward ? !last : at > 0) {
      const std::size_t link = index(task.forward ? stage.link_to_next : stages_[index(at - 1)].link_from_next);
      links_[link].queue.push_back({at, task});
      if (links_[link].queue.size() == 1) start_transfer(link, now, path);
    }
    if (!task.forward && task.micro_batch + 1 == micro_batches_) {
      const double synchronised = now + stage.gradient_sync_seconds;
      const double end = synchronised + stage.update_seconds;
      path.gradient_sync += stage.gradient_sync_seconds;
      path.update += stage.update_seconds;
      for (int replica = 0; replica < stage.device_count; ++replica) {
        if (synchronised > now) record(Work::kGradientSync, at, replica, -1, now, synchronised);
        if (end > synchronised) record(Work::kUpdate, at, replica, -1, synchronised, end);
      }
      if (end >= timeline_.step_seconds) {
        timeline_.step_seconds = end;
        timeline_.critical = path;
      }
    }
  }

  void start_transfer(std::size_t at, double now, const Path& path) {
    LinkState& link = links_[at];
    const auto& [sender, task] = link.queue.front();
    const double seconds = stages_[index(task.forward ? sender : sender - 1)].transfer_seconds;
    link.path = path;
    link.path.transfer += seconds;
    record(task.forward ? Work::kSendForward : Work::kSendBackward, sender, -1, task.micro_batch, now, now + seconds);
    pending_.push({now + seconds, devices_.size() + at});
  }

  void finish_transfer(std::size_t at, double now) {
    LinkState& link = links_[at];
    const auto [sender, task] = link.queue.front();
    link.queue.pop_front();
    StageState& receiver = stages_[index(task.forward ? sender + 1 : sender - 1)];
    ++(task.forward ? receiver.activations : receiver.gradients);
    for (int i = 0; i < receiver.device_count; ++i) {
      const std::size_t device = index(receiver.first_device + i);
      if (!devices_[device].computing) start_work(device, now, link.path);
    }
    if (!link.queue.empty()) start_transfer(at, now, Path(link.path));
  }

  const std::int64_t micro_batches_;
  std::vector<DeviceState> devices_;
  std::vector<StageState> stages_;
  std::vector<LinkState> links_;
  const std::uint64_t seed_;
  const double sigma_;
  const bool keep_events_;
  std::vector<std::int32_t> unfinished_;  // replicas by stage, direction and micro-batch
  std::priority_queue<Pending, std::vector<Pending>, std::greater<>> pending_;
  Timeline timeline_;
};

}  // namespace

const char* to_string(Work work) {
  constexpr const char* kNames[] = {"forward", "backward", "send-forward", "send-backward", "gradient-sync", "update"};
  return kNames[static_cast<int>(work)];
}

Result<Timeline> simulate(const Problem& problem, const Plan& plan, const Options& options) {
  MOTLEY_TRY(validate(plan, "plan"));
  MOTLEY_TRY(check_layers(problem, plan));
  MOTLEY_ASSIGN(Setup setup, set_up(problem, plan, options));
  return Replay(std::move(setup), options).run();
}

Result<PredictedStep> read_prediction(const std::filesystem::path& folder, const PredictionFiles& files) {
  PredictedStep prediction;
  MOTLEY_ASSIGN(prediction.plan, read_plan(folder / files.plan));
  if (files.profile.empty()) {
    prediction.why_not = "the profile that the plan was made from is not in the run's folder";
    return prediction;
  }
  MOTLEY_ASSIGN(const model::Profile profile, model::read_profile(folder / files.profile));
  cluster::Cluster cluster;
  if (!files.cluster.empty()) {
    MOTLEY_ASSIGN(cluster, cluster::read_cluster(folder / files.cluster));
  }
  const auto problem = problem_of_plan(profile, cluster, prediction.plan);
  auto timeline = problem ? simulate(*problem, prediction.plan) : fail(problem.error());
  if (timeline) {
    prediction.timeline = std::move(*timeline);
  } else {
    prediction.why_not = timeline.error().message;
  }
  return prediction;
}

}  // namespace motley::planning
