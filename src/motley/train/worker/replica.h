// What of a rank depends on the plan that the run follows: its layers, how their gradients are synchronised, and who
// computes a step with them. A run that moves to another plan makes a new one.
#pragma once

#include <memory>
#include <optional>

#include "motley/train/loop/batch_plan.h"
#include "motley/train/loop/training_loop.h"
#include "motley/train/pipeline/pipeline.h"
#include "motley/train/step/batch_computation.h"
#include "motley/train/step/batch_tensors.h"
#include "motley/train/step/bucketed_gradient_sync.h"
#include "motley/train/step/local_network.h"
#include "motley/train/step/network_state.h"
#include "motley/train/step/pipeline_runner.h"
#include "motley/train/step/test_evaluation.h"

namespace motley::train {

// Each uses what stands before it.
struct Replica {
  // The ranks that compute the same layers, where these are not all.
  std::unique_ptr<net::Session> stage_session;
  std::unique_ptr<collective::Group> stage_group;
  std::unique_ptr<net::Session> alone;  // this rank, where there is nothing to synchronise
  LocalNetwork network;
  std::unique_ptr<Pipeline> pipeline;  // of a planned run
  std::optional<BatchTensors> tensors;
  std::unique_ptr<BucketedGradientSync> sync;
  std::optional<BatchPlan> plan;
  std::optional<BatchComputation> computation;
  std::unique_ptr<StepRunner> runner;
  std::unique_ptr<StepRunner> work_queue;
  std::unique_ptr<TestEvaluation> evaluator;
  std::optional<NetworkState> state;
};

}  // namespace motley::train
