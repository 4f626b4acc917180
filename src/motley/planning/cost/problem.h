// A planning problem as plain numbers: what a model's layers take on every device type, what moves between them, and
// what may be used. All cost models and planners work on this one value; docs/explanation/cost-models.md has the
// equations.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <string>
#include <vector>

#include "motley/base/result.h"
#include "motley/cluster/cluster.h"
#include "motley/model/profile.h"
#include "motley/planning/plan/plan.h"

namespace motley::planning {

using model::Affine;

constexpr std::size_t index(std::integral auto value) {
  return static_cast<std::size_t>(value);
}

// A limit is exceeded only by more than this share of it, so that rounding never turns a plan down.
constexpr double kTolerance = 1e-9;

// HeterPS's steady-state model (a stage is a longest run of layers on one type; Eqs. (1)-(7)), or the synchronous
// pipeline step with fill, drain, transfers and exchange (neighbouring stages may be of one type).
enum class CostModel { kHeterps, kPipeline };
const char* to_string(CostModel model);

struct Type {
  std::string name;
  double price_per_hour = 0;  // of one device
  std::int64_t count = 1;     // that may be used in all
  double memory_bytes = 0;    // of one device; 0: not limited
  GradientSync gradient_sync = GradientSync::kRing;
  // What one device sends or receives with the others of its stage, and with the servers of sparse tables.
  double bytes_per_second = kInfinity;
  double latency_seconds = 0;
  double step_seconds = 0;  // what a step takes once and is no layer's (kPipeline)
  double noise = 0;         // standard deviation of what its times have in common, as a share of them; 0: not known
};

// One layer on one type.
struct LayerOnType {
  Affine forward;                     // computation; seconds of b samples on one device
  Affine backward;                    // likewise
  double compute_fraction = 1;        // alpha
  double communication_fraction = 1;  // beta
  double update_seconds = 0;          // of its weights, once a step (kPipeline)
  Affine overhead = {};               // of both: loss, loading and the framework's, which are not its own
  double noise = 0;                   // standard deviation of its own times, as a share of them; 0: not known

  double own_seconds(double samples) const { return forward.at(samples) + backward.at(samples) - overhead.at(samples); }
};

// One layer on any type; bytes of one sample where not said otherwise.
struct LayerSize {
  std::string name;
  model::LayerKind kind = model::LayerKind::kOther;
  double parameter_bytes = 0;   // dense, in all
  double activation_bytes = 0;  // kept for the backward pass
  double sparse_bytes = 0;      // rows pulled in the forward pass, and pushed in the backward pass, if alone
  double flops = 0;
  std::string parameter_shapes;  // as the profile has them
};

struct Link {  // between a device of one type and one of another
  double bytes_per_second = kInfinity;
  double latency_seconds = 0;
};

struct Problem {
  std::string model;    // the network's name
  int merged_from = 0;  // layers of the network, where those of the problem are merged from more; 0: they are not
  CostModel cost_model = CostModel::kHeterps;
  std::vector<Type> types;
  std::vector<LayerSize> layers;
  std::vector<LayerOnType> table;  // layers x types, by rows
  std::vector<double> cut_bytes;   // layers + 1: sent for one sample when cut before that layer (model::cut_bytes)
  std::vector<Link> links;         // types x types, symmetric
  // A row that a batch of samples reads twice is pulled once.
  std::vector<model::DistinctLookups> distinct_lookups;

  double total_samples = 1;  // L * M: samples that the job trains on in all, for cost
  double profile_batch = 1;  // B_o: the batch at which OCT and ODT are taken (kHeterps)
  // kPipeline only:
  std::int64_t batch = 1;          // samples of a step
  std::int64_t micro_batches = 1;  // it is cut into
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  bool allow_recompute = false;          // stages may recompute activations to save memory
  double memory_per_parameter_byte = 3;  // weight, gradient and optimizer state, of which one value where not known
  // Gradients that are exchanged together: those of the first layers that are done, and of others. As motley train has
  // them by default (gradient_sync.bucket_size).
  double first_bucket_bytes = 1e6;
  double bucket_bytes = 4e6;

  // Of one stage: under kPipeline every replica gets at least one sample of a micro-batch.
  std::int64_t max_replicas(int type) const {
    const std::int64_t count = types[index(type)].count;
    return cost_model == CostModel::kPipeline ? std::min(count, batch / micro_batches) : count;
  }
  const Type& type(int type) const { return types[index(type)]; }
  const LayerSize& layer(int layer) const { return layers[index(layer)]; }
  double micro_batch_samples() const { return static_cast<double>(batch) / static_cast<double>(micro_batches); }
  int layer_count() const { return static_cast<int>(layers.size()); }
  int type_count() const { return static_cast<int>(types.size()); }
  const LayerOnType& at(int layer, int type) const { return table[place(layer, type)]; }
  const Link& link(int from, int to) const { return links[place(from, to)]; }
  // Of a transfer from so many devices of one type to so many of another: as many pairs as the smaller side has
  // devices, and no device moves more than it can among its own type.
  double seconds_per_byte(int from, double senders, int to, double receivers) const {
    return std::max({1 / (link(from, to).bytes_per_second * std::min(senders, receivers)),
                     1 / (type(from).bytes_per_second * senders), 1 / (type(to).bytes_per_second * receivers)});
  }
  // Where a row's entry for a type stands in `table` and `links`.
  std::size_t place(int row, int type) const { return index(row) * types.size() + index(type); }
};

// Errors (kInvalidInput, naming field and value): no layers or types, sizes of the arrays that do not fit, NaN,
// negative numbers (prices, times, bytes), fractions outside [0, 1], counts below 0.
Status validate(const Problem& problem);

// Puts a profile and a cluster together. Every device type of the cluster with count > 0 must have its device in the
// profile (kInvalidInput names the missing one). CPU types exchange through a parameter server, CUDA types by ring.
// Links of the profile come first; else the slowest link between nodes of the two types; else unlimited.
struct ProblemOptions {
  CostModel cost_model = CostModel::kHeterps;
  double total_samples = 1;
  std::int64_t batch = 1;
  std::int64_t micro_batches = 1;
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  bool allow_recompute = false;
};
Result<Problem> make_problem(const model::Profile& profile, const cluster::Cluster& cluster,
                             const ProblemOptions& options);

// The problem (kPipeline) that a plan answers, to value that plan and others beside it: its batch, micro-batches and
// schedule, and the profile joined to as many layers as it has. A cluster without device types stands for the devices
// that the plan uses, with nothing known of their links but what the profile says.
Result<Problem> problem_of_plan(const model::Profile& profile, const cluster::Cluster& cluster, const Plan& plan);

}  // namespace motley::planning
