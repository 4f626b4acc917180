// The communication hook by which DistributedDataParallel sums gradients of ranks that had different numbers of
// samples:
//
//     g = sum_i w_i g_i,   w_i = n_i / N,
//
// the gradient of the mean over all N samples of the step, where g_i is the mean over rank i's n_i. It runs inside
// backward, without Python and its lock, over whichever process group the model has.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <vector>

namespace motley::bind {

// The running statistics of a model's BatchNorm layers, which become those of all samples of a step, wherever these
// were: with r' = k r + (1 - k) s, where s is what a rank saw, the statistics s_i of ranks with the shares w_i of the
// samples make
//
//     mean = sum w_i mean_i        variance = sum w_i (variance_i + mean_i^2) - mean^2
//
// and enter the running values once a step, however many ranks and micro-batches it had (nn/stage.h has the argument).
struct RunningStatistics {
  std::vector<at::Tensor> layers;  // the means of all layers, then their variances: the layers' own tensors
  at::Tensor before;               // their values as the step began, flat, float64
  at::Tensor kept, kept_once;  // k of the step's micro-batches on this rank, and of one batch; for each of the values
};

// Shared by the hook, which reads it in backward, and by the loader, which writes it between steps; never at the same
// time.
struct GradientWeight {
  double weight = 1;  // of this rank's gradients; 0: they do not count, also where they are not numbers
  double share = 1;   // n_i / N, the weight of its running statistics
  std::optional<RunningStatistics> statistics;  // averaged over the ranks after each backward; none: left alone
  double finished = 0;  // when the last bucket came, in seconds of the monotonic clock; 0: none came yet
  double reduced = 0;   // and when the sum of all ranks' was there, of gradients on a CPU; 0: not yet, or not known
  std::optional<c10::Event> began_on_device,
      finished_on_device;  // the same on a GPU's stream, where gradients live on one

  // Begins a step of a model on this device: measures it, and leaves running statistics alone unless they are given.
  void begin(const at::Device& device);
  // The last bucket came, with gradients on this device.
  void note_finished(const at::Device& device);
  // Seconds between begin() and the last bucket as the device saw them; -1 where gradients are not on a GPU or none
  // came.
  double device_seconds() const;
};

class GradientHook : public c10d::CommHookInterface {
 public:
  GradientHook(c10::intrusive_ptr<c10d::ProcessGroup> group, std::shared_ptr<GradientWeight> weight)
      : group_(std::move(group)), weight_(std::move(weight)) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override;
  at::Tensor parseHookResult(const c10::IValue& result) override;

 private:
  c10::intrusive_ptr<c10::ivalue::Future> sum(at::Tensor tensor);
  c10::intrusive_ptr<c10::ivalue::Future> average_statistics();

  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  std::shared_ptr<GradientWeight> weight_;
  c10::intrusive_ptr<c10::ivalue::Future> averaged_;  // the running statistics of the backward under way; or none
};

}  // namespace motley::bind
