// The parameters of one group of a PyTorch optimizer, held by parameter servers: gradients go there bucket by bucket
// while backward still runs, without Python and its lock, and weights come back that the servers' optimizer has moved;
// or, where servers only add up, the gradient of all ranks.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "motley/nn/gradients/device_copy.h"
#include "motley/nn/gradients/gradient_buckets.h"
#include "motley/nn/gradients/pinned_region.h"
#include "motley/ps/client/server_reducer.h"

namespace motley::bind {

// A step: arm(); forward and backward; flush(); wait(). What is not said to come from any thread is called by one.
// `seconds` bound each wait; errors are final.
class ServedParameters : public std::enable_shared_from_this<ServedParameters> {
 public:
  // Asked once a step, when the first bucket is ready, from within backward.
  struct Step {
    double weight = 1;         // of this rank's gradients: its samples in the step
    double learning_rate = 0;  // the same on all ranks
  };
  using BeginStep = std::function<Step()>;

  // Joins the servers and puts the gradients into memory from where they go there; collective over the session's ranks,
  // which all give the same. The parameters are float32, on one device.
  static Result<std::shared_ptr<ServedParameters>> join(std::shared_ptr<net::Session> session,
                                                        const ps::ServerOptions& options,
                                                        const nn::NamedTensors& parameters, std::size_t bucket_bytes,
                                                        BeginStep begin_step, double seconds);

  // The optimizer's state: arrays of it as the server's rule has them (kernels/update.h), each with a tensor a
  // parameter.
  struct State {
    std::uint64_t updates = 0;
    std::vector<nn::Tensors> arrays;
  };
  // Hands weights and state to the servers, once, before the first step; collective. The weights are this rank's
  // parameters as they are, the same on all ranks. On the CPU the parameters then are the servers' weights, or a copy
  // that they keep up to date; on a device they lie in buckets, which are copied there as they come, beside what the
  // device computes.
  Status load(const State& state, double seconds);

  // The next backward announces what is complete; disarm() takes that back, unless something was announced.
  void arm();
  bool disarm() { return buckets_->disarm(); }
  // Announces the rest; parameters without a gradient have one of zeros. Fails where a gradient was changed after it
  // was announced, as by clipping.
  Status flush();
  // Until the step's new weights are there, or the sum of the gradients.
  Status wait(double seconds);
  // Where updates can be taken back (ps::ServerReducer), after wait(): the sum of the squares of the step's gradient;
  // and the step again, with a gradient scaled by this factor, which waits for its weights.
  bool is_reversible() const { return reducer_->is_reversible(); }
  double squares() const;
  Status take_back(double factor, double seconds);
  // When a bucket was announced last, in seconds of the monotonic clock; 0: never.
  double announced_at() const { return announced_at_; }

  // After a wait() and before the next arm(), on any rank.
  Result<State> save(double seconds);
  // Leaves in order: parameters get memory of their own, with the weights as they are, and their gradients are gone.
  void leave();

 private:
  ServedParameters(std::shared_ptr<net::Session> session, std::unique_ptr<ps::ServerReducer> reducer,
                   std::unique_ptr<nn::GradientBuckets> buckets, BeginStep begin_step)
      : session_(std::move(session)),
        reducer_(std::move(reducer)),
        buckets_(std::move(buckets)),
        begin_step_(std::move(begin_step)) {}
  at::Tensor view(const nn::GradientBuckets::Place& place, const float* bucket);
  Status announce(int bucket);
  Status bind_device(at::Device device);
  Status fetch(int bucket);
  Status fetch_come();
  Status finish_copies();

  const std::shared_ptr<net::Session> session_;
  const std::unique_ptr<ps::ServerReducer> reducer_;
  std::unique_ptr<nn::GradientBuckets> buckets_;  // null once it has left
  const BeginStep begin_step_;
  std::uint64_t number_ = 0;  // of the step
  double weight_ = 0;
  double announced_at_ = 0;
  int next_fetch_ = 0;                                  // the first bucket that was not fetched in this step
  std::vector<std::optional<std::uint32_t>> versions_;  // of gradients when they were announced; by place

  // On a device.
  std::optional<nn::DeviceCopies> copies_;
  nn::PinnedRegion pinned_;             // the servers' weights, where the device copies them by itself
  std::vector<at::Tensor> weights_;     // flat, by bucket: the parameters are views
  std::shared_ptr<c10::Event> filled_;  // the step's weights are there
};

}  // namespace motley::bind
