// What was measured of a model's layers on some device types (profile.json, docs/schema/profile.schema.json): the one
// thing that the planner believes about speed. It says of every number where it comes from.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "motley/base/result.h"
#include "motley/model/graph.h"

namespace motley::model {

// The last layer of a measured profile: the loss, which is on the device of the layer before it, whatever the plan. Its
// update is what a step takes once and is no layer's, on every device.
inline constexpr const char* kStepLayer = "step";

// Measured here; fitted to measurements; scaled from another device's by the stated rule; published elsewhere.
enum class Origin { kMeasured, kFitted, kScaled, kPublished };
const char* to_string(Origin origin);

// seconds(b) = fixed + per_sample * b, for a batch of b samples on one device; both >= 0.
struct Affine {
  double fixed = 0;
  double per_sample = 0;
  double at(double batch) const { return fixed + per_sample * batch; }
  Affine& operator+=(const Affine& other) { return *this = {fixed + other.fixed, per_sample + other.per_sample}; }
  bool operator==(const Affine&) const = default;
};

struct Measurement {
  double batch = 0;
  double forward_seconds = 0;   // median of the repetitions
  double backward_seconds = 0;  // 0 for a layer without one
  double spread = 0;            // median absolute deviation of their sum, as a share of it
  bool operator==(const Measurement&) const = default;
};

// One layer on one device.
struct LayerTime {
  Affine forward;
  Affine backward;
  std::vector<Measurement> measurements;  // what the fit was made from; may be empty
  double update_seconds = 0;              // of its weights, by the optimizer: once a step, whatever the batch
  double spread = 0;                      // as of its measurements, where it has none of its own; 0: not known
  Affine overhead = {};  // of both together: what is a step's and not its own (without_step_layer); in no file

  // The median of its measurements', else the one above.
  double relative_spread() const;
  // The layer by itself.
  double own_seconds(double batch) const { return forward.at(batch) + backward.at(batch) - overhead.at(batch); }
  void add(const LayerTime& other);  // its times, not what they were fitted to
  bool operator==(const LayerTime&) const = default;
};

// What passes of a step take besides the network's layers and the loss.
struct StepOverheads {
  Affine data;                    // to load the samples, on the device of the first layer
  double framework_fraction = 0;  // by which whole passes take longer in training than their layers one by one
  bool operator==(const StepOverheads&) const = default;
};

// How far from quiet the machine was while a device was measured.
struct Noise {
  double pass_spread = 0;      // median absolute deviation of whole passes, as a share of their median
  double drift = 0;            // by which the last third of the passes took longer than the first; below 0: shorter
  double load_average = 0;     // of the minute before
  double others_fraction = 0;  // of the machine's processor time, which other processes took
  double stolen_fraction = 0;  // likewise, which other virtual machines took
  bool operator==(const Noise&) const = default;
};

struct DeviceProfile {
  std::string type;  // a device type's name, as in cluster.yaml
  Origin origin = Origin::kMeasured;
  std::string rule;          // how it was measured, or scaled and from what: one sentence
  std::int64_t threads = 0;  // of a CPU that it was measured with; 0: not known
  double compute_fraction =
      1;  // alpha of Eq. (1) of docs/explanation/cost-models.md: the share of computation that k devices divide
  double communication_fraction = 1;  // beta of Eq. (2)
  Origin fractions_origin = Origin::kFitted;
  std::string fractions_rule;     // from which worker counts they were fitted
  std::vector<LayerTime> layers;  // one for each layer of the graph, in its order
  StepOverheads overheads = {};
  std::optional<Noise> noise = {};  // none: not known
  double once_seconds = 0;          // what a step takes once and is no layer's (without_step_layer); in no file
  bool operator==(const DeviceProfile&) const = default;
};

// Between a device of one type and one of another (or another of the same).
struct ProfiledLink {
  std::string from;
  std::string to;
  double bytes_per_second = 0;
  double latency_seconds = 0;
  Origin origin = Origin::kMeasured;
  bool operator==(const ProfiledLink&) const = default;
};

struct Profile {
  Graph graph;
  double batch = 1;                         // B_o: the batch at which OCT and ODT are taken
  std::optional<double> state_arrays = {};  // of the optimizer, each as large as the parameters; none: not known
  std::vector<DeviceProfile> devices;
  std::vector<ProfiledLink> links;

  const DeviceProfile* device(std::string_view type) const;  // null where there is none
  bool operator==(const Profile&) const = default;
};

// Errors (kInvalidInput): the file, the field, the value and what would be accepted. Unknown keys are errors.
Result<Profile> read_profile(const std::filesystem::path& file);
Result<Profile> parse_profile(std::string_view text, const std::string& name);
std::string to_json(const Profile& profile);  // reads back to an equal value
std::string profile_schema();                 // docs/schema/profile.schema.json

// A profile without measurements: each layer's time on a device that sustains `flops_per_second` and reads memory at
// `bytes_per_second`, the larger of the two (the roofline model; backward = twice forward), plus
// `layer_overhead_seconds` a layer and direction. Origin kScaled, with the rule in words.
struct DeviceSpeed {
  std::string type;
  double flops_per_second = 0;  // above 0
  double bytes_per_second = 0;  // above 0
  double layer_overhead_seconds = 0;
  double lookups_per_second = 0;  // random rows of a sparse table; above 0 where a layer has lookups
  double compute_fraction = 1;
  double communication_fraction = 1;
};
Profile estimate(const Graph& graph, const std::vector<DeviceSpeed>& speeds, double batch);

// The same as planning sees it, without kStepLayer and overheads: each is part of the layers where it occurs, of which
// LayerTime::overhead keeps it apart. The loss is in the last layer, loading in the first, and what whole passes take
// longer in all of them, as much for each. What a step takes once is DeviceProfile::once_seconds.
Profile without_step_layer(Profile profile);
// For people to read: "loss 0.1 ms, data 0.3 ms and the framework 0.2 ms of a pass of 64 samples; the optimizer 1 ms
// and other work 0.1 ms of a step". Empty where nothing of it is known.
std::string describe_overheads(const Profile& profile, const DeviceProfile& device);
// "load average 1.9, other processes took 31 % of the processors' time, passes spread by 4.1 % and drifted by +2 %".
std::string describe(const Noise& noise);
// Whether times that were measured meanwhile are to be measured again: others took a fifth of the processors' time, or
// passes spread or drifted by as much.
bool is_too_noisy(const Noise& noise);

// The profile of the coarsened graph, whose work is the seconds of all devices together; times are summed.
Profile coarsen(const Profile& profile, int most);

// Reads the profile that PipeDream wrote, its graph.txt: "nodeN -- description -- forward_compute_time=ms,
// backward_compute_time=ms, activation_size=bytes, parameter_size=bytes" lines and "\tnodeA -- nodeB" edges, made for
// one whole minibatch on one device. The layers come in a topological order, of several the one with the smallest node
// numbers first; `batch` is the minibatch that the file was profiled with, by which times and bytes are divided. 0: it
// is told by a layer "Linear(... out_features=N ...)", whose output has N values a sample (PipeDream's image models;
// its gnmt has no such layer and was profiled with 32). One device type, named `type`, origin kPublished; flops are not
// known (0).
//
// A node "Input..." without edges into it is the model's own input, and its time, which is that of loading data, is
// left out, as PipeDream's optimizer does; it stays a layer (without time) where others read it beside further layers
// and it has bytes.
// Errors: kIo, kInvalidInput with file and line.
Result<Profile> read_pipedream(const std::filesystem::path& file, double batch, const std::string& type);
Result<Profile> parse_pipedream(std::string_view text, const std::string& name, double batch, const std::string& type);

}  // namespace motley::model
