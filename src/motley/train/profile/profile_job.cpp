#include "motley/train/profile/profile_job.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <unordered_set>

#include "motley/base/os/memory.h"
#include "motley/base/os/processor_load.h"
#include "motley/base/units.h"
#include "motley/cluster/machine.h"
#include "motley/net/link_speed.h"
#include "motley/nn/ctr_models.h"
#include "motley/nn/device_speed.h"
#include "motley/nn/model_graph.h"
#include "motley/nn/profiler.h"
#include "motley/train/job/job_data.h"
#include "motley/train/loop/progress.h"
#include "motley/train/profile/brief_run.h"
#include "motley/train/profile/choose_devices.h"
#include "motley/train/worker/job_parts.h"

namespace motley::train {
namespace {

using cluster::DeviceKind;

constexpr double kLayerShare = 0.5;    // of the time, for the layers; the others are for whole steps
constexpr std::int64_t kSettled = 5;   // steps that are not counted
constexpr std::int64_t kFewSteps = 8;  // that are, at least
constexpr std::int64_t kManySteps = 200;

// Real steps of the job with this many workers, each of which takes `batch` samples of a step.
Result<StepTimes> run_steps(Job job, DeviceKind kind, std::int64_t threads, std::int64_t workers, std::int64_t batch,
                            std::int64_t steps, const std::stop_token& stop) {
  job.execution.cluster.clear();
  job.execution.plan.clear();
  job.execution.device = cluster::to_string(kind);
  job.execution.threads = threads;
  job.execution.workers = workers;
  job.training.global_batch_size = batch * workers;
  job.training.gradient_accumulation_steps = 1;
  job.optimizer.learning_rate = 1e-12;  // a job's own may diverge on batches so small; the arithmetic is the same
  job.batch_split.mode = "equal";
  job.batch_split.fixed.clear();
  job.baseline.every = 0;
  if (job.gradient_sync.method == "parameter-server") job.gradient_sync.comm_dtype = "float32";  // a ring knows fewer
  job.gradient_sync.method = "tcp-ring";
  job.gradient_sync.overlap = false;
  job.gradient_sync.servers.clear();
  Result<StepTimes> times = run_briefly(std::move(job), {.settling_steps = kSettled, .steps = steps, .stop = stop});
  const bool is_whole = times || times.error().code == ErrorCode::kInterrupted;
  return is_whole ? std::move(times) : fail(times.error().within("whole steps of " + format_count(workers, "worker")));
}

// A device that is not here: every time of `from`, multiplied by `factor`.
struct Scaling {
  std::string type;
  std::string from;
  double factor = 1;
};

Result<Scaling> parse_scaling(const std::string& text) {
  const std::size_t equals = text.find('=');
  const std::size_t times = text.rfind('*');
  if (equals != std::string::npos && times != std::string::npos && equals > 0 && times > equals + 1) {
    const std::string number = text.substr(times + 1);
    char* end = nullptr;
    const double factor = std::strtod(number.c_str(), &end);
    if (!number.empty() && *end == '\0' && std::isfinite(factor) && factor > 0) {
      return Scaling{text.substr(0, equals), text.substr(equals + 1, times - equals - 1), factor};
    }
  }
  return fail(ErrorCode::kInvalidInput,
              "--scale: '{}' is no rule; accepted: TYPE=TYPE*FACTOR with a FACTOR above 0, such as gpu=cpu*0.05", text);
}

// Where a device type's times come from.
struct Source {
  std::string type;
  DeviceKind kind = DeviceKind::kCpu;
  std::optional<double> seconds_per_sample;  // seconds a sample that all its workers are emulated at
  std::int64_t threads = 1;
};

// The types that are not scaled by a rule of the user's.
Result<std::vector<Source>> find_sources(const Job& job, const std::vector<Scaling>& scalings) {
  const auto is_scaled = [&](const std::string& type) {
    return std::ranges::find(scalings, type, &Scaling::type) != scalings.end();
  };
  std::vector<Source> sources;
  if (job.execution.cluster.empty()) {
    sources.push_back({"cpu", DeviceKind::kCpu, std::nullopt, job.execution.threads});
    if (job.execution.device.starts_with("emulated")) MOTLEY_TRY(nn::parse_device(job.execution.device));
    MOTLEY_ASSIGN(const auto accelerators, find_accelerators());
    if (accelerators) {
      sources.push_back(
          {cluster::to_string(accelerators->kind), accelerators->kind, std::nullopt, job.execution.threads});
    }
    std::erase_if(sources, [&](const Source& source) { return is_scaled(source.type); });
    return sources;
  }
  MOTLEY_ASSIGN(const cluster::Cluster cluster, cluster::read_cluster(job.execution.cluster));
  std::map<DeviceKind, std::string> measured;
  for (const cluster::DeviceType& type : cluster.device_types) {
    if (is_scaled(type.name)) continue;
    Source source{type.name, type.kind, std::nullopt, job.execution.threads};
    std::set<std::optional<double>> paces;  // of its workers; none: as fast as the machine
    for (const cluster::Worker& worker : cluster.workers) {
      if (worker.device != type.name) continue;
      source.threads = worker.threads;
      paces.insert(worker.emulation ? std::optional(worker.emulation->seconds_per_sample) : std::nullopt);
    }
    if (paces.size() == 1 && *paces.begin()) {
      source.seconds_per_sample = *paces.begin();
    } else if (const auto [other, is_first] = measured.emplace(type.kind, type.name); !is_first) {
      return fail(ErrorCode::kInvalidInput,
                  "{}: device_types: '{}' and '{}' are both of kind {}, and this machine can be only one of them; "
                  "accepted: --scale TYPE=TYPE*FACTOR for the other",
                  job.execution.cluster, other->second, type.name, cluster::to_string(type.kind));
    } else if (const auto device = nn::parse_device(cluster::to_string(type.kind)); !device) {
      return fail(ErrorCode::kInvalidInput,
                  "{}: device_types: '{}' is of kind {}, and there is no such device here to measure; accepted: "
                  "--scale {}=TYPE*FACTOR, where FACTOR multiplies the times of a TYPE that is here",
                  job.execution.cluster, type.name, cluster::to_string(type.kind), type.name);
    }
    sources.push_back(std::move(source));
  }
  return sources;
}

// Each scales a type that is here, or one that was scaled before it.
Status check_scalings(const std::vector<Source>& sources, const std::vector<Scaling>& scalings) {
  std::vector<std::string> types;
  for (const Source& source : sources) types.push_back(source.type);
  for (const Scaling& scaling : scalings) {
    if (std::ranges::find(types, scaling.from) == types.end()) {
      return fail(ErrorCode::kInvalidInput, "--scale {}={}*{}: there is no device type '{}' to scale; accepted: {}",
                  scaling.type, scaling.from, scaling.factor, scaling.from, fmt::join(types, ", "));
    }
    types.push_back(scaling.type);
  }
  return {};
}

// Rows that a batch of so many samples spread over the data reads, as a share of its lookups.
Result<double> count_distinct(const data::Dataset& data, const nn::LookupLayout& layout, std::uint64_t batch) {
  std::vector<std::uint32_t> samples;
  for (std::uint64_t i = 0; i < batch; ++i) samples.push_back(static_cast<std::uint32_t>(i * data.size() / batch));
  std::vector<std::uint64_t> ids(batch * static_cast<std::uint64_t>(data.categories()));
  MOTLEY_TRY(data.read(samples, {.features = {}, .classes = {}, .values = {}, .ids = ids}));
  std::unordered_set<std::uint64_t> rows;
  for (const std::uint64_t id : ids) rows.insert(nn::folded(id, layout));
  return static_cast<double>(rows.size()) / static_cast<double>(ids.size());
}

// Of batches up to that of the job, each four times as large as the one before. Batches of other samples may happen to
// read fewer rows than smaller ones: they count as many.
Status count_distinct_lookups(const data::Dataset& data, const nn::NetworkSpec& spec, std::int64_t batch,
                              model::Graph& graph) {
  const auto layout = nn::lookup_layout(spec);
  if (!layout || layout->categories == 0 || data.size() == 0) return {};
  const auto whole = std::min<std::uint64_t>(static_cast<std::uint64_t>(batch), data.size());
  std::vector<std::uint64_t> batches;
  for (std::uint64_t size = whole; size > 1; size /= 4) batches.insert(batches.begin(), size);
  model::DistinctLookups smaller;
  for (const std::uint64_t size : batches) {
    MOTLEY_ASSIGN(const double counted, count_distinct(data, *layout, size));
    const auto samples = static_cast<double>(size);
    smaller = {samples, std::max(counted, smaller.batch * smaller.share / samples)};
    graph.distinct_lookups.push_back(smaller);
  }
  return {};
}

// Seconds of one layer, or of the loss, as the measurements at this batch or the fits say.
double layer_seconds(const model::LayerTime& layer, double batch) {
  const auto measured = std::ranges::find(layer.measurements, batch, &model::Measurement::batch);
  return measured != layer.measurements.end() ? measured->forward_seconds + measured->backward_seconds
                                              : layer.forward.at(batch) + layer.backward.at(batch);
}

// Seconds of a pass of one device: of its layers with what that takes longer in training, of the loss and of loading.
double step_seconds(const model::DeviceProfile& device, double batch) {
  const double loss = layer_seconds(device.layers.back(), batch);
  double own = -loss;
  for (const model::LayerTime& layer : device.layers) own += layer_seconds(layer, batch);
  return own * (1 + device.overheads.framework_fraction) + loss + device.overheads.data.at(batch);
}

void scale(model::DeviceProfile& device, double factor) {
  device.overheads.data.fixed *= factor;
  device.overheads.data.per_sample *= factor;
  for (model::LayerTime& layer : device.layers) {
    layer.spread = layer.relative_spread();
    for (model::Affine* time : {&layer.forward, &layer.backward}) {
      time->fixed *= factor;
      time->per_sample *= factor;
    }
    layer.update_seconds *= factor;
    layer.measurements.clear();
  }
  device.origin = model::Origin::kScaled;
  device.fractions_origin = model::Origin::kScaled;
}

class JobProfiler {
 public:
  JobProfiler(const Job& job, const ProfileJobOptions& options, std::vector<Scaling> scalings)
      : job_(job), options_(options), scalings_(std::move(scalings)) {}
  ~JobProfiler() { progress_.clear(); }

  Result<model::Profile> run() {
    MOTLEY_ASSIGN(const std::vector<Source> sources, find_sources(job_, scalings_));
    MOTLEY_TRY(check_scalings(sources, scalings_));
    MOTLEY_TRY(prepare());
    std::set<DeviceKind> kinds;
    for (const Source& source : sources) kinds.insert(source.kind);
    for (const Source& source : sources) {
      if (here_.contains(source.kind)) continue;
      MOTLEY_ASSIGN(here_[source.kind], measure(source, 1.0 / static_cast<double>(kinds.size())));
    }
    return assemble(sources);
  }

 private:
  void say(const std::string& text) { progress_.show({.text = options_.progress_prefix + text}); }

  Status prepare() {
    nn::set_deterministic(job_.execution.deterministic);
    say("opening the data");
    MOTLEY_ASSIGN(const auto data, open_training_data(job_));
    MOTLEY_ASSIGN(const nn::NetworkSpec spec, make_network_spec(job_, *data));
    MOTLEY_ASSIGN(network_, nn::make_network(spec, static_cast<std::uint64_t>(job_.seed)));
    MOTLEY_ASSIGN(step_.loss, nn::parse_loss(job_.training.loss));
    MOTLEY_ASSIGN(step_.dtype, nn::parse_dtype(job_.model.dtype));
    step_.optimizer = make_optimizer_spec(job_);
    step_.autocast = job_.precision == "bfloat16";
    step_.bucket_bytes = static_cast<std::size_t>(job_.gradient_sync.bucket_size);
    step_.tokens = has_tokens(job_.data) ? data->class_count() : 0;
    if (const auto layout = nn::lookup_layout(spec)) {  // numbers that any table has
      step_.tokens = layout->rows > 0 ? std::min(layout->rows, nn::kSmallTableRows) : nn::kSmallTableRows;
    }
    MOTLEY_ASSIGN(profile_.graph, nn::step_graph(*network_));
    MOTLEY_TRY(count_distinct_lookups(*data, spec, job_.training.global_batch_size, profile_.graph));
    profile_.state_arrays = count_state_arrays(job_);
    machine_ = cluster::detect_machine();
    say("measuring the loopback link");
    MOTLEY_ASSIGN(link_, net::measure_loopback());
    return {};
  }

  // The machine's device of the source's kind.
  Result<model::DeviceProfile> measure(const Source& source, double share_of_time) {
    const ProcessorWatch watch;
    const double seconds = options_.seconds * share_of_time;
    MOTLEY_ASSIGN(const torch::Device device, nn::parse_device(cluster::to_string(source.kind)));
    keep_freed_memory();
    nn::set_threads(static_cast<int>(source.threads));
    nn::ProfilerOptions options;
    options.batches = options_.batches;
    options.seconds = seconds * kLayerShare;
    options.progress = [this](const std::string& text) { say(text); };
    options.stop = options_.stop;
    const bool has_gpu = source.kind == DeviceKind::kCuda && !machine_.gpus.empty();
    const double memory = has_gpu           ? machine_.gpus.front().memory_bytes
                          : device.is_cpu() ? machine_.memory_bytes
                                            : nn::device_memory_bytes(device);
    if (memory > 0) options.memory_bytes = memory;
    MOTLEY_ASSIGN(nn::LayerTimes times, nn::profile_layers(*network_, profile_.graph, step_, device, options));

    model::DeviceProfile here;
    here.origin = model::Origin::kMeasured;
    here.threads = source.threads;
    here.layers = std::move(times.layers);
    const std::string name = has_gpu ? machine_.gpus.front().name : device.is_cpu() ? machine_.processor : device.str();
    here.rule = fmt::format("medians of {} whole passes at batches of {} with {} on {}", times.rounds,
                            fmt::join(times.batches, ", "), format_count(source.threads, "thread"), name);
    if (times.batches.size() < options_.batches.size()) {
      here.rule += "; larger ones did not fit into the time or the memory";
    }
    MOTLEY_ASSIGN(const nn::DeviceSpeed speed, nn::measure_device(device.str()));
    here.rule +=
        fmt::format("; {} of memory, read and written at {:.3g} GB/s, and matrices multiplied at {:.3g} GFLOP/s",
                    format_bytes(memory), speed.memory_bytes_per_second / 1e9, speed.flops_per_second / 1e9);
    MOTLEY_TRY(measure_whole_steps(source, times, seconds * (1 - kLayerShare), here));
    const ProcessorLoad load = watch.load().value_or(ProcessorLoad());
    here.noise = {.pass_spread = times.pass_spread,
                  .drift = times.drift,
                  .load_average = load.load_average,
                  .others_fraction = load.others_fraction,
                  .stolen_fraction = load.stolen_fraction};
    return here;
  }

  // What rows of a served table take, on a line through two batches: pulled before forward, and pushed after backward,
  // which are as many bytes.
  static void add_rows(double few, double few_seconds, double many, double many_seconds, model::LayerTime& lookup) {
    const double slope = many > few ? std::max(0.0, (many_seconds - few_seconds) / (many - few)) : many_seconds / many;
    const double fixed = std::max(0.0, many_seconds - slope * many);
    for (auto* time : {&lookup.forward, &lookup.backward}) {
      time->fixed += fixed / 2;
      time->per_sample += slope / 2;
    }
    for (model::Measurement& measurement : lookup.measurements) {
      measurement.forward_seconds += (fixed + slope * measurement.batch) / 2;
      measurement.backward_seconds += (fixed + slope * measurement.batch) / 2;
    }
  }

  Status measure_whole_steps(const Source& source, const nn::LayerTimes& times, double seconds,
                             model::DeviceProfile& here) {
    std::vector<std::int64_t> batches = times.batches;
    if (!network_->batch_norms().empty()) {
      std::erase(batches, 1);  // of which a worker cannot take statistics
      if (batches.empty()) batches = {2};
    }
    const bool has_two = source.kind == DeviceKind::kCpu && machine_.cores >= 2 * source.threads;
    const double runs = has_two ? 2 : 1;
    // The batch nearest to a worker's share, of which enough steps fit into the time: how much workers get in each
    // other's way depends on it.
    const double share = static_cast<double>(job_.training.global_batch_size) / runs;
    const auto distance = [&](std::int64_t batch) { return std::abs(std::log(static_cast<double>(batch) / share)); };
    std::int64_t batch = batches.front();
    for (const std::int64_t candidate : batches) {
      const double needed = runs * static_cast<double>(kFewSteps + kSettled) * step_seconds(here, double(candidate));
      if (distance(candidate) < distance(batch) && needed <= seconds) batch = candidate;
    }
    const double layers = step_seconds(here, static_cast<double>(batch));
    const auto steps = std::clamp(static_cast<std::int64_t>(seconds / runs / layers) - kSettled, kFewSteps, kManySteps);
    say(fmt::format("whole steps of one worker, {} each", format_count(batch, "sample")));
    MOTLEY_ASSIGN(const StepTimes one, run_steps(job_, source.kind, source.threads, 1, batch, steps, options_.stop));
    const auto lookup =
        std::ranges::find_if(profile_.graph.layers, [](const auto& layer) { return layer.lookups > 0; });
    if (lookup != profile_.graph.layers.end()) {
      StepTimes few = one;
      if (batch > batches.front()) {
        say(fmt::format("whole steps of one worker, {} each", format_count(batches.front(), "sample")));
        MOTLEY_ASSIGN(few, run_steps(job_, source.kind, source.threads, 1, batches.front(), kManySteps, options_.stop));
      }
      const auto number = static_cast<std::size_t>(lookup - profile_.graph.layers.begin());
      add_rows(static_cast<double>(batches.front()), few.rows, static_cast<double>(batch), one.rows,
               here.layers[number]);
      here.rule += fmt::format("; rows of {} took {} from and to a server here, part of layer '{}'",
                               format_count(batch, "sample"), format_seconds(one.rows), lookup->name);
    }
    // What no layer takes, none of it the difference of two long times that were measured apart: a busy machine would
    // put its milliseconds there. The update is measured, and each layer has its part of it. Loading and what else a
    // step takes once are found within each step. What passes take longer in training is found from the quietest ones.
    const auto measured = static_cast<std::size_t>(std::ranges::find(times.batches, batch) - times.batches.begin());
    const double quiet = measured < times.batches.size() ? times.quiet_seconds[measured] : layers;
    const double slower = std::max(0.0, one.quiet_compute - quiet);
    double update = 0;
    for (const model::LayerTime& layer : here.layers) update += layer.update_seconds;
    const double once = std::max(0.0, one.rest - update);
    const double data = std::min(slower, one.load);
    here.overheads.data.per_sample = data / static_cast<double>(batch);
    here.overheads.framework_fraction =
        (slower - data) / (layers - layer_seconds(here.layers.back(), static_cast<double>(batch)));
    here.layers.back().update_seconds = once;
    here.rule += fmt::format(
        "; a whole step of {} took {}: its layers {}, loading {}, the framework {}, the update {}, what else "
        "it "
        "takes once {}",
        format_count(batch, "sample"), format_seconds(one.step), format_seconds(layers), format_seconds(data),
        format_seconds(slower - data), format_seconds(update), format_seconds(once));
    if (!has_two) {
      here.fractions_origin = model::Origin::kScaled;
      here.fractions_rule = "not measured, for want of devices for two workers: perfect division is assumed";
      return {};
    }

    say(fmt::format("whole steps of two workers, {} each", format_count(batch, "sample")));
    MOTLEY_ASSIGN(const StepTimes two, run_steps(job_, source.kind, source.threads, 2, batch, steps, options_.stop));
    double bytes = 0;
    for (const model::Layer& layer : profile_.graph.layers) bytes += layer.parameters * sizeof(float);
    // Two workers that take as many samples each as one did: (1 - alpha) + alpha / 2 of twice the work.
    const double compute_ratio = two.compute / one.compute;
    // And an exchange of their gradients against 2 P / bandwidth, which is ODT of docs/explanation/cost-models.md for a
    // dense model.
    const double gradient_sync_ratio = two.gradient_sync * link_.bytes_per_second / (2 * bytes);
    here.compute_fraction = std::clamp(2 - compute_ratio, 0.0, 1.0);
    here.communication_fraction = std::clamp(2 - gradient_sync_ratio, 0.0, 1.0);
    here.fractions_origin = model::Origin::kFitted;
    here.fractions_rule = fmt::format(
        "two points only: 1 and 2 workers of {} each on {}, which computed {} and {}; the "
        "synchronisation of {} between the two over loopback TCP took {}",
        format_count(batch, "sample"), format_count(machine_.cores, "core"), format_seconds(one.compute),
        format_seconds(two.compute), format_bytes(bytes),
        two.gradient_sync > 0 ? format_seconds(two.gradient_sync) : "no time beside the computation");
    return {};
  }

  Result<model::Profile> assemble(const std::vector<Source>& sources) {
    for (const Source& source : sources) {
      model::DeviceProfile device = here_.at(source.kind);
      device.type = source.type;
      if (source.seconds_per_sample) {
        const double batch = device.layers.front().measurements.back().batch;
        const double factor = *source.seconds_per_sample * batch / step_seconds(device, batch);
        scale(device, factor);
        device.rule = fmt::format(
            "scaled by {:.4g} from this machine's {}, so that {:.0f} samples take {} each, as seconds_per_sample of "
            "its workers in {} says; there: {}",
            factor, cluster::to_string(source.kind), batch, format_seconds(*source.seconds_per_sample),
            job_.execution.cluster, device.rule);
      } else {
        local_.push_back(source.type);
      }
      profile_.devices.push_back(std::move(device));
    }
    for (const Scaling& scaling : scalings_) {
      model::DeviceProfile device = *profile_.device(scaling.from);  // which check_scalings() has seen
      device.type = scaling.type;
      scale(device, scaling.factor);
      device.rule =
          fmt::format("not here: {} times the seconds of '{}', as --scale says", scaling.factor, scaling.from);
      device.fractions_rule = fmt::format("those of '{}'", scaling.from);
      profile_.devices.push_back(std::move(device));
    }
    for (std::size_t i = 0; i < local_.size(); ++i) {
      for (std::size_t j = i; j < local_.size(); ++j) {
        profile_.links.push_back(
            {local_[i], local_[j], link_.bytes_per_second, link_.latency_seconds, model::Origin::kMeasured});
      }
    }
    profile_.batch = static_cast<double>(options_.batches.front());
    for (const auto& [kind, device] : here_) {
      for (const model::Measurement& measurement : device.layers.front().measurements) {
        if (measurement.batch <= static_cast<double>(job_.training.global_batch_size)) {
          profile_.batch = std::max(profile_.batch, measurement.batch);
        }
      }
    }
    return std::move(profile_);
  }

  const Job& job_;
  const ProfileJobOptions& options_;
  const std::vector<Scaling> scalings_;
  ProgressLine progress_;
  std::unique_ptr<nn::Network> network_;
  nn::StepSpec step_;
  cluster::Machine machine_;
  net::LinkSpeed link_;
  std::map<DeviceKind, model::DeviceProfile> here_;
  std::vector<std::string> local_;  // types that are devices of this machine
  model::Profile profile_;
};

}  // namespace

Result<model::Graph> load_graph(const Job& job) {
  MOTLEY_ASSIGN(const auto data, open_training_data(job));
  MOTLEY_ASSIGN(const nn::NetworkSpec spec, make_network_spec(job, *data));
  MOTLEY_ASSIGN(const auto network, nn::make_network(spec, static_cast<std::uint64_t>(job.seed)));
  MOTLEY_ASSIGN(model::Graph graph, nn::model_graph(*network));
  MOTLEY_TRY(count_distinct_lookups(*data, spec, job.training.global_batch_size, graph));
  return graph;
}

double count_state_arrays(const Job& job) {
  return nn::count_state_arrays(make_optimizer_spec(job));
}

Result<model::Profile> profile_job(const Job& job, const ProfileJobOptions& options) {
  std::vector<Scaling> scalings;
  for (const std::string& text : options.scalings) {
    MOTLEY_ASSIGN(Scaling scaling, parse_scaling(text));
    if (std::ranges::find(scalings, scaling.type, &Scaling::type) != scalings.end()) {
      return fail(ErrorCode::kInvalidInput, "--scale: '{}' is given twice; accepted is one rule a type", scaling.type);
    }
    scalings.push_back(std::move(scaling));
  }
  return JobProfiler(job, options, std::move(scalings)).run();
}

}  // namespace motley::train
