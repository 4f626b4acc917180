// What a candidate takes and costs under the problem's cost model. Deterministic and cheap: planners call it thousands
// of times a second.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "motley/planning/cost/problem.h"

namespace motley::planning {

// Layers first..last (both included) on `replicas` devices of one type.
struct StageChoice {
  int first = 0;
  int last = 0;
  int type = 0;
  std::int64_t replicas = 1;
  bool recompute = false;
  bool operator==(const StageChoice&) const = default;
};
// Stages in the order of the layers, which they cover without gap. Under kHeterps, neighbours differ in type.
using Candidate = std::vector<StageChoice>;

// What one stage takes; the numbers are those of the equations in docs/explanation/cost-models.md.
//
// kHeterps, per SAMPLE. The stage's OCT and ODT are the sums over its layers, each layer with its own fraction:
//   CT = sum_l OCT_l / B_o * (1 - alpha_l + alpha_l / k)                                                (1)
//   DT = sum_l ODT_l / B_o * (1 - beta_l + beta_l / k)                                                  (2)
//        + incoming / B_o * (1 - beta_first + beta_first / k)
//   ET = max(CT, DT)                                                                                    (3)
// OCT_l = forward(B_o) + backward(B_o); ODT_l = 2 (rows(B_o) + parameter_bytes_l) / bytes_per_second of the
// type; incoming = 2 B_o cut_bytes[first] / link(previous type, type), none for the first stage.
//
// rows_l(b) = sparse_bytes_l * model::distinct_rows(b), of a batch of b samples.
//
// kPipeline, seconds of one MICRO-BATCH of u = batch / micro_batches samples, k replicas taking u / k each:
//   forward = sum_l forward_l(u / k) + sum_l rows_l(u / k) / bytes_per_second                          (8)
//   backward = sum_l backward_l(u / k) [+ sum_l forward_l(u / k) when recomputing] + the same push      (9)
//   transfer to the next stage, each direction =
//     latency + u * cut_bytes[last + 1] / min(bandwidth * min(k, k'), k * bytes_per_second,            (10)
//     k' * bytes_per_second of the next stage's type), k' its devices
//   exchange, once a step, none for k = 1: ring 2 (k - 1) (P / (k bytes_per_second) + latency),         (11)
//     parameter server, both directions at once, P / bytes_per_second + 2 latency; P = parameter bytes of the stage
//   exposed part of it, after the stage's last backward: gradients go in buckets, from the last layer on, each once
//     all layers in it are done and the bucket before it has been exchanged                             (11a)
//     max over buckets of: exchange of it and of all after it - backward of the layers before those in it
//   in_flight = min(m, stages from this one to the last) under 1F1B, m under gpipe                 (18)
//   k <= u, so that every replica gets a sample
//   memory of one device = memory_per_parameter_byte * P + in_flight * (u / k) * A,                     (19)
//     A = activation bytes of the stage's layers; when recomputing
//     memory_per_parameter_byte * P + (u / k) * (in_flight * cut_bytes[first] + A)                      (20)
struct StageCost {
  double compute_seconds = 0;        // kHeterps: CT;  kPipeline: forward + backward
  double communication_seconds = 0;  // kHeterps: DT;  kPipeline: the larger of sparse traffic and transfer
  double forward_seconds = 0;        // kPipeline only, as are those below
  double backward_seconds = 0;
  double transfer_seconds = 0;       // to the next stage, one direction, one micro-batch
  double gradient_sync_seconds = 0;  // once a step
  double exposed_sync_seconds = 0;   // of it, after the last backward
  double update_seconds = 0;         // likewise, after it
  double memory_bytes = 0;           // of one device
};

struct Evaluation {
  bool feasible = false;
  std::string violation;  // what is exceeded, in words with the numbers; empty where feasible
  double step_seconds = 0;
  double throughput = 0;   // samples a second
  double hourly_cost = 0;  // sum over stages of replicas * price
  double cost = 0;         // total_samples / throughput / 3600 * hourly_cost
  int bottleneck = 0;      // the slowest stage; kPipeline: the one busiest in a step, exchange included
  std::vector<StageCost> stages;
  std::vector<std::int64_t> used;  // devices of every type
};

// The whole pipeline. kHeterps: throughput = 1 / max ET (4), (5); step_seconds = batch / throughput.
// kPipeline, m micro-batches, stages s = 0 .. S - 1 with forward f_s, backward g_s, transfer c_s (of the last stage 0),
// exposed exchange X_s:
//   V_ab = sum_{a <= j <= b} (f_j + g_j) + 2 sum_{a <= j < b} c_j: there and back, a run of stages a .. b  (12)
//     lets b - a + 1 micro-batches pass, as stage a holds so many more than stage b
//   1F1B:       W = max(max_s c_s, max_{a <= b} V_ab / (b - a + 1))                                     (13)
//   gpipe: W = max_s max(f_s, c_s) + max_s max(g_s, c_s)                                           (14)
//   gpipe: T_pipe = sum_s (f_s + g_s + 2 c_s) + (m - 1) W                                               (15)
//     step = max_s (T_pipe - sum_{j < s} (g_j + c_j) + X_s): a stage's exchange ends that long after its (16)
//     last backward
//   1F1B: the work of the step in its order, replayed: what motley/planning/simulate does event by event
//   throughput = batch / step                                                                           (17)
// `feasible` covers counts, memory, and the objective's limits (to a relative 1e-9); the numbers are there
// either way. Where it was measured what a step takes, that stands in place of (16), and what follows from it.
Evaluation evaluate(const Problem& problem, const Candidate& candidate, const Objective& objective,
                    std::optional<double> measured_step_seconds = std::nullopt);

// What the objective minimises: cost, seconds a sample (1 / throughput), or seconds a step. Positive; infeasible:
// infinity.
double value(const Evaluation& evaluation, Criterion criterion);

// Data parallelism over all given devices, one stage, every device its share of the batch: equal shares, or shares that
// make all devices finish together. counts: devices of every type. The ring runs over the slowest link in use; all
// computation before the exchange (bulk-synchronous). kPipeline problems.
enum class BatchSplit { kEqual, kBalanced };
Evaluation evaluate_data_parallel(const Problem& problem, const std::vector<std::int64_t>& counts, BatchSplit shares);

// A plan's step in the problem's numbers; its stages may mix types (kPipeline): a stage takes what its slowest device
// takes for its share of a micro-batch, and its devices meet over the slowest link among them. The number of
// micro-batches is the plan's. Errors (kInvalidInput): device types that the problem does not have.
Result<Evaluation> evaluate_plan(const Problem& problem, const Plan& plan, const Objective& objective);

// The plan that a candidate stands for, with names instead of indices.
Plan to_plan(const Problem& problem, const Candidate& candidate, const Evaluation& evaluation,
             const Objective& objective, const std::string& method);

// Seconds in which so many devices agree on the gradients of `bytes` of parameters, over links like that one (11).
double gradient_sync_seconds(GradientSync gradient_sync, double bytes, double devices, const Link& link);
// The slowest of the links among devices of these types, each in latency and in bytes.
Link slowest_link(const Problem& problem, std::span<const int> types);

// What one stage takes as a function of its number of devices: the sums over its layers, made once, so that counts can
// be searched without walking the layers again.
//
// kHeterps: CT(k) = compute_fixed + compute_divided / k, DT(k) = data_fixed + data_divided / k; seconds a sample.
struct HeterpsStage {
  double compute_fixed = 0;
  double compute_divided = 0;
  double data_fixed = 0;
  double data_divided = 0;

  double compute(double k) const { return compute_fixed + compute_divided / k; }
  double data(double k) const { return data_fixed + data_divided / k; }
  double seconds(double k) const { return std::max(compute(k), data(k)); }  // ET
};
// previous: the type of the stage before, -1 for the first stage.
HeterpsStage heterps_stage(const Problem& problem, int first, int last, int type, int previous);

// kPipeline: seconds and bytes of a stage on k devices.
struct PipelineStage {
  double samples = 1;    // u, of a micro-batch
  double in_flight = 1;  // micro-batches whose activations are held at once
  Affine forward;        // computation
  Affine backward;
  double sparse_seconds = 0;                                 // pull of one sample's rows by one device
  std::span<const model::DistinctLookups> distinct_lookups;  // the problem's
  double parameter_bytes = 0;
  double activation_bytes = 0;
  double input_bytes = 0;  // of one sample
  double state_bytes = 0;  // parameters, gradients and optimizer state
  // Of a micro-batch to the next stage: over one pair of devices, and what one of its own devices and one of the next's
  // take for it alone.
  double send_seconds = 0;
  double send_latency = 0;
  double own_send_seconds = 0;
  double next_send_seconds = 0;
  GradientSync gradient_sync = GradientSync::kNone;
  Link link;  // among its devices
  // Where a bucket of gradients begins: the part of the exchange that is left then, and the layers whose backward is.
  struct Bucket {
    double left = 1;
    Affine backward;
  };
  std::vector<Bucket> buckets;  // empty: nothing to exchange
  double update_seconds = 0;    // of the weights, and what else a step takes once, by every device

  // Rows of so many samples, one direction.
  double rows_seconds(double of) const {
    return sparse_seconds > 0 ? sparse_seconds * model::distinct_rows(distinct_lookups, of) : 0;
  }
  double forward_seconds(double k) const { return forward.at(samples / k) + rows_seconds(samples / k); }
  double backward_seconds(double k, bool recompute) const {
    const double computation = backward.at(samples / k) + (recompute ? forward.at(samples / k) : 0);
    return computation + rows_seconds(samples / k);
  }
  double transfer_seconds(double k, double next) const {
    return send_latency + std::max({send_seconds / std::min(k, next), own_send_seconds / k, next_send_seconds / next});
  }
  double gradient_sync_seconds(double k) const {
    return planning::gradient_sync_seconds(gradient_sync, parameter_bytes, k, link);
  }
  // What is left of an exchange of so many seconds when the last backward of samples / k samples ends.
  double exposed_seconds(double exchange, double k) const {
    double exposed = 0;
    for (const Bucket& bucket : buckets) {
      exposed = std::max(exposed, exchange * bucket.left - bucket.backward.at(samples / k));
    }
    return exposed;
  }
  // Once a step, after the last backward.
  double closing_seconds(double k) const { return exposed_seconds(gradient_sync_seconds(k), k) + update_seconds; }
  double memory_bytes(double k, bool recompute) const;
};
// stages: of the whole pipeline; next: the type of the stage after, -1 for the last stage.
PipelineStage pipeline_stage(const Problem& problem, int first, int last, int type, int next, int position, int stages);

// What the rear of a pipeline, its stages from one on to the last, takes at least under 1F1B: lengths of paths through
// the work of a step, each thing of which waits for the one before it. A path goes to a stage, stays with it for all
// micro-batches, and comes back; on its way it may go on to the last stage and back with the first or the last
// micro-batch. Most steps take exactly as long as the longest of these. All values grow with the seconds of any stage.
struct RearTime {
  std::int64_t stages = 0;
  double round_trip = 0;        // of one micro-batch, from the first stage of the rear on
  double exposed = 0;           // likewise, until every stage has exchanged and updated
  double makespan = 0;          // until the last backward of the first stage
  double exposed_makespan = 0;  // until every stage has exchanged and updated: of the whole pipeline, its step

  // With one more stage in front.
  RearTime behind(const StageCost& stage, std::int64_t micro_batches) const;
};

// No more than pipeline_time(...).step, in a time that does not grow with the micro-batches.
double least_step_seconds(const Problem& problem, std::span<const StageCost> stages);

// What the whole pipeline takes for a step, and its parts.
struct PipelineTime {
  double fill = 0;              // sum of f_s + g_s + 2 c_s
  double longest_forward = 0;   // max of f_s and c_s
  double longest_backward = 0;  // max of g_s and c_s
  double interval = 0;          // between micro-batches: W, or the sum of both maxima under gpipe
  double step = 0;
};
PipelineTime pipeline_time(const Problem& problem, std::span<const StageCost> stages);

}  // namespace motley::planning
