// What one stage takes as a function of its number of devices: the sums over its layers, made once, so that counts can
// be searched without walking the layers again. The equations are those of evaluation.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "motley/planning/cost/evaluation.h"

namespace motley::planning {

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
  double sparse_seconds = 0;  // pull of one sample's rows by one device
  double parameter_bytes = 0;
  double activation_bytes = 0;
  double input_bytes = 0;   // of one sample
  double state_bytes = 0;   // parameters, gradients and optimizer state
  double send_seconds = 0;  // of a micro-batch to the next stage over one pair of devices
  double send_latency = 0;
  planning::GradientSync gradient_sync = planning::GradientSync::kNone;
  double bytes_per_second = 1;
  double latency = 0;
  double update_seconds = 0;  // of the weights, by every device

  double forward_seconds(double k) const { return forward.at(samples / k) + sparse_seconds * samples / k; }
  double backward_seconds(double k, bool recompute) const {
    const double computation = backward.at(samples / k) + (recompute ? forward.at(samples / k) : 0);
    return computation + sparse_seconds * samples / k;
  }
  double transfer_seconds(double k, double next) const { return send_latency + send_seconds / std::min(k, next); }
  double gradient_sync_seconds(double k) const;
  // Once a step, after the last backward.
  double closing_seconds(double k) const { return gradient_sync_seconds(k) + update_seconds; }
  double memory_bytes(double k, bool recompute) const;
};
// stages: of the whole pipeline; next: the type of the stage after, -1 for the last stage.
PipelineStage pipeline_stage(const Problem& problem, int first, int last, int type, int next, int index, int stages);

// What the whole pipeline takes for a step, and its parts.
struct PipelineTime {
  double fill = 0;              // sum of f_s + g_s + 2 c_s
  double longest_forward = 0;   // max of f_s and c_s
  double longest_backward = 0;  // max of g_s and c_s
  double interval = 0;          // between micro-batches: W, or the sum of both maxima under gpipe
  double step = 0;
};
PipelineTime pipeline_time(const Problem& problem, std::span<const StageCost> stages);

// A limit is exceeded only by more than this share of it, so that rounding never turns a plan down.
constexpr double kTolerance = 1e-9;

}  // namespace motley::planning
