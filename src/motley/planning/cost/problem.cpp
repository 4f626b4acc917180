// Checks a planning problem, and makes one of a profile and a cluster.
#include "motley/planning/cost/problem.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace motley::planning {
namespace {

constexpr double kBytesPerParameter = 4;  // fp32
constexpr double kMinSeconds = 1e-12;     // that a sample takes through all layers on any device

// Checks values one after the other and keeps the first refusal.
class Check {
 public:
  explicit Check(const std::string& model) : model_(model) {}

  void at_least(double least, double value, const std::string& field) {
    require(value >= least && !std::isinf(value), field, value, fmt::format("a number of at least {}", least));
  }
  void above_zero(double value, const std::string& field) {
    require(value > 0 && !std::isinf(value), field, value, "a number above 0");
  }
  void rate(double value, const std::string& field) {
    require(value > 0, field, value, "a number above 0; infinity where there is no limit");
  }
  void fraction(double value, const std::string& field) {
    require(value >= 0 && value <= 1, field, value, "a number from 0 to 1");
  }
  void size(std::size_t is, std::size_t wanted, const std::string& field) {
    if (is != wanted) keep(fmt::format("{} has {} elements; accepted: {}", field, is, wanted));
  }
  void keep(const std::string& problem) {
    if (status_) status_ = fail(ErrorCode::kInvalidInput, "planning problem of '{}': {}", model_, problem);
  }
  const Status& status() const { return status_; }

 private:
  void require(bool passed, const std::string& field, double value, const std::string& accepted) {
    if (!passed) keep(fmt::format("{} is {}; accepted: {}", field, value, accepted));
  }

  const std::string& model_;
  Status status_;
};

}  // namespace

const char* to_string(CostModel model) {
  return model == CostModel::kHeterps ? "heterps" : "pipeline";
}

Status validate(const Problem& problem) {
  Check check(problem.model);
  const std::size_t layers = problem.layers.size();
  const std::size_t types = problem.types.size();
  if (layers == 0 || types == 0) {
    check.keep(fmt::format("it has {} layers and {} device types; accepted: one or more of each", layers, types));
  }
  check.size(problem.table.size(), layers * types, "table");
  check.size(problem.cut_bytes.size(), layers + 1, "cut_bytes");
  check.size(problem.links.size(), types * types, "links");
  if (!check.status()) return check.status();

  std::set<std::string> names;
  for (const Type& type : problem.types) {
    const std::string field = fmt::format("types['{}'].", type.name);
    if (!names.insert(type.name).second) {
      check.keep(fmt::format("types has '{}' twice; accepted: each name once", type.name));
    }
    check.at_least(0, type.price_per_hour, field + "price_per_hour");
    check.at_least(0, static_cast<double>(type.count), field + "count");
    check.at_least(0, type.memory_bytes, field + "memory_bytes");
    check.rate(type.bytes_per_second, field + "bytes_per_second");
    check.at_least(0, type.latency_seconds, field + "latency_seconds");
  }
  for (const LayerSize& layer : problem.layers) {
    const std::string field = fmt::format("layers['{}'].", layer.name);
    check.at_least(0, layer.parameter_bytes, field + "parameter_bytes");
    check.at_least(0, layer.activation_bytes, field + "activation_bytes");
    check.at_least(0, layer.sparse_bytes, field + "sparse_bytes");
    check.at_least(0, layer.flops, field + "flops");
  }
  for (int type = 0; type < problem.type_count(); ++type) {
    double seconds = 0;
    for (int layer = 0; layer < problem.layer_count(); ++layer) {
      const LayerOnType& times = problem.at(layer, type);
      seconds += times.forward.at(1) + times.backward.at(1);
    }
    if (seconds < kMinSeconds) {
      check.keep(fmt::format("table['{}']: all layers together take {:g} s a sample; accepted: at least {:g} s",
                             problem.type(type).name, seconds, kMinSeconds));
    }
  }
  for (int layer = 0; layer < problem.layer_count(); ++layer) {
    for (int type = 0; type < problem.type_count(); ++type) {
      const LayerOnType& times = problem.at(layer, type);
      const std::string field = fmt::format("table['{}', '{}'].", problem.layer(layer).name, problem.type(type).name);
      check.at_least(0, times.forward.fixed, field + "forward.fixed");
      check.at_least(0, times.forward.per_sample, field + "forward.per_sample");
      check.at_least(0, times.backward.fixed, field + "backward.fixed");
      check.at_least(0, times.backward.per_sample, field + "backward.per_sample");
      check.fraction(times.compute_fraction, field + "compute_fraction");
      check.fraction(times.communication_fraction, field + "communication_fraction");
    }
  }
  for (std::size_t cut = 0; cut < problem.cut_bytes.size(); ++cut) {
    check.at_least(0, problem.cut_bytes[cut], fmt::format("cut_bytes[{}]", cut));
  }
  for (std::size_t from = 0; from < types; ++from) {
    for (std::size_t to = 0; to < types; ++to) {
      const Link& link = problem.link(static_cast<int>(from), static_cast<int>(to));
      const std::string field = fmt::format("links['{}', '{}'].", problem.types[from].name, problem.types[to].name);
      check.rate(link.bytes_per_second, field + "bytes_per_second");
      check.at_least(0, link.latency_seconds, field + "latency_seconds");
    }
  }

  check.above_zero(problem.total_samples, "total_samples");
  check.above_zero(problem.profile_batch, "profile_batch");
  check.at_least(1, static_cast<double>(problem.batch), "batch");
  if (problem.micro_batches < 1 || problem.micro_batches > problem.batch) {
    check.keep(
        fmt::format("micro_batches is {}; accepted: 1 to the batch of {}", problem.micro_batches, problem.batch));
  }
  check.at_least(0, problem.memory_per_parameter_byte, "memory_per_parameter_byte");
  return check.status();
}

namespace {

constexpr double kDeviationOfSpread = 1.4826;  // a normal distribution's standard deviation, of its median absolute one

// What the times on the device have in common: whole passes vary, and their times drift.
double common_noise(const model::DeviceProfile& device) {
  if (!device.noise) return 0;
  return std::hypot(kDeviationOfSpread * device.noise->pass_spread, device.noise->drift);
}

// The link between two device types: the profile's, else the slowest of the cluster between nodes that have them.
Link link_between(const model::Profile& profile, const cluster::Cluster& cluster, const std::string& from,
                  const std::string& to) {
  for (const model::ProfiledLink& link : profile.links) {
    if ((link.from == from && link.to == to) || (link.from == to && link.to == from)) {
      return {link.bytes_per_second, link.latency_seconds};
    }
  }
  const auto devices = [&](const std::string& name, const std::string& type) {
    std::int64_t count = 0;
    for (const cluster::Node& node : cluster.nodes) {
      for (const cluster::NodeDevices& held : node.devices) {
        count += node.name == name && held.type == type ? held.count : 0;
      }
    }
    return count;
  };
  Link slowest;
  for (const cluster::Link& link : cluster.links) {
    // Inside a node, two devices of one type need two of them.
    const std::int64_t needed = link.from == link.to && from == to ? 2 : 1;
    const bool joins = (devices(link.from, from) >= needed && devices(link.to, to) >= needed) ||
                       (devices(link.from, to) >= needed && devices(link.to, from) >= needed);
    if (joins) {
      slowest.bytes_per_second = std::min(slowest.bytes_per_second, link.bytes_per_second);
      slowest.latency_seconds = std::max(slowest.latency_seconds, link.latency_seconds);
    }
  }
  return slowest;
}

}  // namespace

Result<Problem> make_problem(const model::Profile& measured, const cluster::Cluster& cluster,
                             const ProblemOptions& options) {
  MOTLEY_TRY(model::validate(measured.graph));
  const model::Profile profile = model::without_step_layer(measured);
  Problem problem;
  problem.model = profile.graph.name;
  problem.cost_model = options.cost_model;
  problem.total_samples = options.total_samples;
  problem.profile_batch = profile.batch;
  problem.batch = options.batch;
  problem.micro_batches = options.micro_batches;
  problem.schedule = options.schedule;
  problem.allow_recompute = options.allow_recompute;
  if (profile.state_arrays) problem.memory_per_parameter_byte = 2 + *profile.state_arrays;  // weights and gradients
  problem.cut_bytes = model::cut_bytes(profile.graph);
  problem.distinct_lookups = profile.graph.distinct_lookups;
  for (const model::Layer& layer : profile.graph.layers) {
    problem.layers.push_back({.name = layer.name,
                              .kind = layer.kind,
                              .parameter_bytes = kBytesPerParameter * layer.parameters,
                              .activation_bytes = layer.activation_bytes + layer.inner_bytes,
                              .sparse_bytes = layer.lookups * layer.row_bytes,
                              .flops = layer.flops,
                              .parameter_shapes = layer.parameter_shapes});
  }

  std::vector<const model::DeviceProfile*> devices;
  for (const cluster::DeviceType& type : cluster.device_types) {
    if (type.count <= 0) continue;
    const model::DeviceProfile* device = profile.device(type.name);
    if (device == nullptr) {
      std::vector<std::string> there;
      for (const model::DeviceProfile& other : profile.devices) there.push_back(other.type);
      return fail(ErrorCode::kInvalidInput,
                  "the cluster's device type '{}' is not in the profile of '{}'; it has: {}. Profile the model on "
                  "'{}' too, or set the type's count to 0",
                  type.name, problem.model, fmt::join(there, ", "), type.name);
    }
    if (device->layers.size() != problem.layers.size()) {
      return fail(ErrorCode::kInvalidInput, "the profile of '{}' has times of {} layers on '{}'; accepted: {}",
                  problem.model, device->layers.size(), type.name, problem.layers.size());
    }
    devices.push_back(device);
    const Link own = link_between(profile, cluster, type.name, type.name);
    problem.types.push_back(
        {.name = type.name,
         .price_per_hour = type.price_per_hour,
         .count = type.count,
         .memory_bytes = type.memory_bytes,
         .gradient_sync = type.kind == cluster::DeviceKind::kCpu ? GradientSync::kParameterServer : GradientSync::kRing,
         .bytes_per_second = own.bytes_per_second,
         .latency_seconds = own.latency_seconds,
         .step_seconds = device->once_seconds,
         .noise = common_noise(*device)});
  }
  for (std::size_t layer = 0; layer < problem.layers.size(); ++layer) {
    for (const model::DeviceProfile* device : devices) {
      const model::LayerTime& time = device->layers[layer];
      problem.table.push_back({.forward = time.forward,
                               .backward = time.backward,
                               .compute_fraction = device->compute_fraction,
                               .communication_fraction = device->communication_fraction,
                               .update_seconds = time.update_seconds,
                               .overhead = time.overhead,
                               .noise = kDeviationOfSpread * time.relative_spread()});
    }
  }
  for (const Type& from : problem.types) {
    for (const Type& to : problem.types) {
      problem.links.push_back(link_between(profile, cluster, from.name, to.name));
    }
  }
  MOTLEY_TRY(validate(problem));
  return problem;
}

Result<Problem> problem_of_plan(const model::Profile& profile, const cluster::Cluster& cluster, const Plan& plan) {
  cluster::Cluster devices = cluster;
  if (devices.device_types.empty()) {
    for (const Stage& stage : plan.stages) {
      for (const Replicas& replicas : stage.replicas) {
        const auto found = std::ranges::find(devices.device_types, replicas.type, &cluster::DeviceType::name);
        if (found == devices.device_types.end()) {
          devices.device_types.push_back({.name = replicas.type, .count = replicas.count});
        } else {
          found->count += replicas.count;
        }
      }
    }
  }
  const auto layers = static_cast<int>(plan.layers.size());
  return make_problem(model::coarsen(model::without_step_layer(profile), layers), devices,
                      {.cost_model = CostModel::kPipeline,
                       .batch = plan.batch,
                       .micro_batches = plan.micro_batches,
                       .schedule = plan.schedule});
}

}  // namespace motley::planning
