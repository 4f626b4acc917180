// What a profile's file may say, stated once for reading and writing, and the profile that is computed where nothing
// could be measured.
#include "motley/model/profile.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <utility>

#include "motley/base/os/file.h"
#include "motley/base/statistics.h"
#include "motley/base/units.h"
#include "motley/serial/json_schema.h"

namespace motley::model {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{1} << 28;
constexpr double kBytesPerParameter = 4;
constexpr RenamedKey kRenamedKeys[] = {  // since version 1
    {"batch", "batch_size"},
    {"row_bytes", "embedding_row_bytes"},
    {"table_rows", "num_embeddings"}};

}  // namespace

// As Origin has them.
constexpr const char* kOriginNames[] = {"measured", "fitted", "scaled", "published"};

const char* to_string(Origin origin) {
  return kOriginNames[static_cast<std::size_t>(origin)];
}

// Found by argument-dependent lookup, so not in the anonymous namespace.
static auto every_value(Origin) {
  return std::array{Origin::kMeasured, Origin::kFitted, Origin::kScaled, Origin::kPublished};
}

template <class Archive>
static void fields(Archive& archive, Layer& layer) {
  archive.required("name", layer.name, {kNotEmpty, "No other layer has it."});
  archive.required("kind", layer.kind);
  archive.optional("inputs", layer.inputs,
                   "Numbers, from 0, of the earlier layers whose outputs it reads. None: the model's own input.");
  archive.optional("parameters", layer.parameters, "Dense trainable scalars.");
  archive.optional("activation_bytes", layer.activation_bytes, "Of its output.");
  archive.optional("inner_bytes", layer.inner_bytes, "Kept inside it for the backward pass, beside its output.");
  archive.optional("flops", layer.flops, "Of its forward pass; a multiply-add counts two. 0 where it is not known.");
  archive.optional("lookups", layer.lookups, "Rows of its sparse table that a sample reads.");
  archive.optional("embedding_row_bytes", layer.row_bytes, "Of one row of that table.");
  archive.optional("num_embeddings", layer.table_rows, "Rows of that table in all.");
  archive.optional("parameter_shapes", layer.parameter_shapes,
                   "Of its dense parameters, such as '24x5, 24'. None: not known.");
}

template <class Archive>
static void fields(Archive& archive, DistinctLookups& lookups) {
  archive.required("batch_size", lookups.batch, NumberIs::kPositive);
  archive.required("share", lookups.share, NumberIs::kFraction);
}

template <class Archive>
static void fields(Archive& archive, Graph& graph) {
  archive.required("name", graph.name);
  archive.optional("source", graph.source, "Where its sizes come from.");
  archive.optional("input_bytes", graph.input_bytes, "Of the model's own input.");
  archive.required("layers", graph.layers, "In an order in which every layer comes after its inputs.");
  archive.optional("distinct_lookups", graph.distinct_lookups,
                   "Of a batch's lookups in the job's data, the share whose row it does not have already; such a row "
                   "comes once. By ascending batches, from above 1; none: all are distinct.");
}

template <class Archive>
static void fields(Archive& archive, Affine& time) {
  archive.optional("fixed", time.fixed);
  archive.optional("per_sample", time.per_sample);
}

template <class Archive>
static void fields(Archive& archive, Measurement& measurement) {
  archive.required("batch_size", measurement.batch, NumberIs::kPositive);
  archive.required("forward_seconds", measurement.forward_seconds, "Median of the repetitions.");
  archive.optional("backward_seconds", measurement.backward_seconds);
  archive.optional("spread", measurement.spread, "Median absolute deviation of the sum of both, as a share of it.");
}

template <class Archive>
static void fields(Archive& archive, LayerTime& time) {
  archive.required("forward", time.forward, "Seconds of a batch of b samples on one device: fixed + per_sample * b.");
  archive.required("backward", time.backward, "Likewise.");
  archive.optional("update_seconds", time.update_seconds,
                   "Of its weights, by the optimizer: once a step, whatever the batch.");
  archive.optional("measurements", time.measurements, "What the two lines were fitted to.");
  archive.optional("spread", time.spread,
                   "As of its measurements, for a layer that has none of its own. 0: not known.");
}

template <class Archive>
static void fields(Archive& archive, StepOverheads& overheads) {
  archive.optional("data", overheads.data, "Loading the samples, on the device of the first layer.");
  archive.optional(
      "framework_fraction", overheads.framework_fraction,
      "By how much whole passes take longer in training than their layers one by one, as a share of these.");
}

template <class Archive>
static void fields(Archive& archive, Noise& noise) {
  archive.required("pass_spread", noise.pass_spread,
                   "Median absolute deviation of whole passes, as a share of their median.");
  archive.required("drift", noise.drift,
                   {NumberIs::kFinite, "By how much the last third of the passes took longer than the first."});
  archive.required("load_average", noise.load_average, "Of the minute before.");
  archive.required("others_fraction", noise.others_fraction,
                   {NumberIs::kFraction, "Of the machine's processor time, which other processes took."});
  archive.required("stolen_fraction", noise.stolen_fraction,
                   {NumberIs::kFraction, "Likewise, which other virtual machines took."});
}

template <class Archive>
static void fields(Archive& archive, DeviceProfile& device) {
  archive.required("type", device.type, "Name of a device type, as in cluster.yaml; no other device has it.");
  archive.required("origin", device.origin,
                   "Measured here; fitted to measurements; scaled by the stated rule; published elsewhere.");
  archive.required("rule", device.rule, "How it was measured, or scaled and from what: one sentence.");
  archive.optional("threads", device.threads, "Of a CPU that it was measured with. 0: not known.");
  archive.required("compute_fraction", device.compute_fraction,
                   {NumberIs::kFraction, "alpha: the share of computation that several devices divide."});
  archive.required("communication_fraction", device.communication_fraction,
                   {NumberIs::kFraction, "beta: the share of communication that several devices divide."});
  archive.required("fractions_origin", device.fractions_origin);
  archive.required("fractions_rule", device.fractions_rule, "From which worker counts the fractions were fitted.");
  archive.required("layers", device.layers, "One for each layer of the graph, in its order.");
  archive.optional("overheads", device.overheads,
                   "What passes take besides the network's layers and the loss, which is the layer 'step'.");
  archive.optional("noise", device.noise, "How far from quiet the machine was. None: not known.");
}

template <class Archive>
static void fields(Archive& archive, ProfiledLink& link) {
  archive.required("from", link.from, "Type of one of the devices.");
  archive.required("to", link.to, "Type of one of the devices.");
  archive.required("bytes_per_second", link.bytes_per_second, NumberIs::kPositive);
  archive.optional("latency_seconds", link.latency_seconds);
  archive.required("origin", link.origin);
}

template <class Archive>
static void fields(Archive& archive, Profile& profile) {
  archive.version(2, kRenamedKeys);
  archive.required("graph", profile.graph);
  archive.required("batch_size", profile.batch,
                   {NumberIs::kPositive, "Samples at which the cost model's OCT and ODT are taken."});
  archive.optional("state_arrays", profile.state_arrays,
                   "Of the optimizer, each as large as the parameters: 1 with momentum, 2 with Adam. None: not known, "
                   "and 1 is planned for.");
  archive.required("devices", profile.devices, kNotEmpty);
  archive.optional("links", profile.links,
                   "Between a device of one type and one of another, or another of the same; both directions.");
}

namespace {

// What no single field can show.
Status validate_whole(const Profile& profile) {
  MOTLEY_TRY(validate(profile.graph));
  std::set<std::string> types;
  for (std::size_t i = 0; i < profile.devices.size(); ++i) {
    const DeviceProfile& device = profile.devices[i];
    if (device.type.empty() || !types.insert(device.type).second) {
      return fail(ErrorCode::kInvalidInput,
                  "field 'devices[{}].type' is '{}'; accepted is a name that no other device has", i, device.type);
    }
    if (device.layers.size() != profile.graph.layers.size()) {
      return fail(
          ErrorCode::kInvalidInput,
          "field 'devices[{}].layers' of '{}' has {} elements; accepted is one for each of the graph's {} layers", i,
          device.type, device.layers.size(), profile.graph.layers.size());
    }
  }
  std::set<std::pair<std::string, std::string>> pairs;
  for (std::size_t i = 0; i < profile.links.size(); ++i) {
    const ProfiledLink& link = profile.links[i];
    for (const auto& [field, type] : {std::pair("from", link.from), std::pair("to", link.to)}) {
      if (!types.contains(type)) {
        return fail(ErrorCode::kInvalidInput, "field 'links[{}].{}' is '{}'; accepted are the types of the devices: {}",
                    i, field, type, fmt::join(types, ", "));
      }
    }
    if (!pairs.insert(std::minmax(link.from, link.to)).second) {
      return fail(ErrorCode::kInvalidInput,
                  "field 'links[{}]' is between '{}' and '{}' once more; accepted is one link, for both directions", i,
                  link.from, link.to);
    }
  }
  return {};
}

}  // namespace

const DeviceProfile* Profile::device(std::string_view type) const {
  const auto found = std::ranges::find(devices, type, &DeviceProfile::type);
  return found == devices.end() ? nullptr : &*found;
}

Result<Profile> read_profile(const std::filesystem::path& file) {
  MOTLEY_ASSIGN(const std::string text, read_file(file, kMaxBytes));
  return parse_profile(text, file.string());
}

Result<Profile> parse_profile(std::string_view text, const std::string& name) {
  MOTLEY_ASSIGN(Profile profile, parse_json<Profile>(text, name));
  if (const Status status = validate_whole(profile); !status) return fail(status.error().within(name));
  return profile;
}

std::string to_json(const Profile& profile) {
  return write_json(profile);
}

std::string profile_schema() {
  return json_schema<Profile>(
      "Motley profile",
      "What was measured of a model's layers on some device types (profile.json). Sizes are for "
      "one sample; bytes are of fp32 values.");
}

// The roofline is a maximum of two lines in the batch; a profile holds one. It is that of the side which is the larger
// at `batch`, so that the time there is exactly the roofline's.
Profile estimate(const Graph& graph, const std::vector<DeviceSpeed>& speeds, double batch) {
  Profile profile{.graph = graph, .batch = batch};
  for (const DeviceSpeed& speed : speeds) {
    DeviceProfile device{
        .type = speed.type,
        .origin = Origin::kScaled,
        .rule = fmt::format(
            "computed, not measured: the larger of operations at {:g} Gflop/s and memory traffic at {}/s, {} rows of "
            "tables a second, {} a layer and direction; backward is twice forward",
            speed.flops_per_second / 1e9, format_bytes(speed.bytes_per_second), format_number(speed.lookups_per_second),
            format_seconds(speed.layer_overhead_seconds)),
        .compute_fraction = speed.compute_fraction,
        .communication_fraction = speed.communication_fraction,
        .fractions_origin = Origin::kScaled,
        .fractions_rule = "given, not measured"};
    for (const Layer& layer : graph.layers) {
      double read_bytes = layer.inputs.empty() ? graph.input_bytes : 0;
      for (const int input : layer.inputs) read_bytes += graph.layers[input].activation_bytes;
      const Affine arithmetic{.per_sample = layer.flops / speed.flops_per_second};
      const Affine memory{.fixed = layer.parameters * kBytesPerParameter / speed.bytes_per_second,
                          .per_sample = (read_bytes + layer.activation_bytes) / speed.bytes_per_second};
      Affine forward = arithmetic.at(batch) >= memory.at(batch) ? arithmetic : memory;
      if (layer.lookups > 0) forward.per_sample += layer.lookups / speed.lookups_per_second;
      device.layers.push_back({.forward = {speed.layer_overhead_seconds + forward.fixed, forward.per_sample},
                               .backward = {speed.layer_overhead_seconds + 2 * forward.fixed, 2 * forward.per_sample}});
    }
    profile.devices.push_back(std::move(device));
  }
  return profile;
}

double LayerTime::relative_spread() const {
  if (measurements.empty()) return spread;
  std::vector<double> spreads;
  for (const Measurement& measurement : measurements) spreads.push_back(measurement.spread);
  return median(std::move(spreads));
}

void LayerTime::add(const LayerTime& other) {
  forward += other.forward;
  backward += other.backward;
  update_seconds += other.update_seconds;
  overhead += other.overhead;
}

namespace {

Affine scaled(const Affine& time, double factor) {
  return {factor * time.fixed, factor * time.per_sample};
}

void charge(LayerTime& layer, const Affine& forward, const Affine& backward) {
  layer.forward += forward;
  layer.backward += backward;
  layer.overhead += forward;
  layer.overhead += backward;
}

}  // namespace

Profile without_step_layer(Profile profile) {
  const bool has_step = profile.graph.layers.size() > 1 && profile.graph.layers.back().name == kStepLayer;
  if (has_step) profile.graph.layers.pop_back();
  for (DeviceProfile& device : profile.devices) {
    LayerTime step;
    if (has_step) {
      step = std::move(device.layers.back());
      device.layers.pop_back();
    }
    const StepOverheads overheads = std::exchange(device.overheads, {});
    for (LayerTime& layer : device.layers) {
      charge(layer, scaled(layer.forward, overheads.framework_fraction),
             scaled(layer.backward, overheads.framework_fraction));
    }
    charge(device.layers.front(), overheads.data, {});
    charge(device.layers.back(), step.forward, step.backward);
    device.once_seconds += step.update_seconds;
  }
  return profile;
}

std::string describe_overheads(const Profile& profile, const DeviceProfile& device) {
  const auto list = [](const std::vector<std::pair<const char*, double>>& parts) {
    std::vector<std::string> words;
    for (const auto& [name, seconds] : parts) {
      if (seconds > 0) words.push_back(fmt::format("{} {}", name, format_seconds(seconds)));
    }
    return fmt::format("{}", fmt::join(words, ", "));
  };
  const bool has_step = profile.graph.layers.back().name == kStepLayer;
  const LayerTime step = has_step ? device.layers.back() : LayerTime();
  double update = 0, own = 0;
  for (std::size_t i = 0; i + (has_step ? 1 : 0) < device.layers.size(); ++i) {
    update += device.layers[i].update_seconds;
    own += device.layers[i].own_seconds(profile.batch);
  }
  const std::string pass = list({{"loss", step.forward.at(profile.batch) + step.backward.at(profile.batch)},
                                 {"data", device.overheads.data.at(profile.batch)},
                                 {"framework", device.overheads.framework_fraction * own}});
  const std::string once = list({{"optimizer", update}, {"other work", step.update_seconds}});
  return fmt::format("{}{}{}", pass.empty() ? "" : fmt::format("{} of a pass of {:g} samples", pass, profile.batch),
                     pass.empty() || once.empty() ? "" : "; ", once.empty() ? "" : once + " of a step");
}

std::string describe(const Noise& noise) {
  std::string text = fmt::format("load average {:.2g}, other processes took {} of the processors' time",
                                 noise.load_average, format_percent(noise.others_fraction, 0));
  if (noise.stolen_fraction >= 0.005) {
    text += fmt::format(" and other virtual machines {}", format_percent(noise.stolen_fraction, 0));
  }
  return text + fmt::format("; passes spread by {} and drifted by {:+.1f} %", format_percent(noise.pass_spread, 1),
                            100 * noise.drift);
}

bool is_too_noisy(const Noise& noise) {
  constexpr double kMost = 0.2;
  return noise.others_fraction + noise.stolen_fraction > kMost || noise.pass_spread > kMost ||
         std::abs(noise.drift) > kMost;
}

Profile coarsen(const Profile& profile, int most) {
  std::vector<double> work(profile.graph.layers.size(), 0.0);
  for (const DeviceProfile& device : profile.devices) {
    for (std::size_t i = 0; i < work.size(); ++i) {
      work[i] += device.layers[i].forward.at(profile.batch) + device.layers[i].backward.at(profile.batch);
    }
  }
  std::vector<std::pair<int, int>> members;
  Profile coarse{
      .batch = profile.batch, .state_arrays = profile.state_arrays, .devices = profile.devices, .links = profile.links};
  coarse.graph = coarsen(profile.graph, most, &members, work);
  for (DeviceProfile& device : coarse.devices) {
    std::vector<LayerTime> joined;
    for (const auto& [first, last] : members) {
      LayerTime time = device.layers[first];
      double spread = 0, seconds = 0;  // of layers whose times vary together, which is the most that it can be
      for (int i = first; i <= last; ++i) {
        const double own = device.layers[i].own_seconds(profile.batch);
        spread += device.layers[i].relative_spread() * own;
        seconds += own;
        if (i > first) time.add(device.layers[i]);
      }
      if (last > first) {
        time.measurements.clear();
        time.spread = seconds > 0 ? spread / seconds : 0;
      }
      joined.push_back(std::move(time));
    }
    device.layers = std::move(joined);
  }
  return coarse;
}

}  // namespace motley::model
