// Gradient synchronisation of a rank's layers: buckets that a reducer sums over the ranks that compute the same layers,
// embedding rows that servers have, gradients of parameters that several stages share, the running statistics of
// BatchNorm; and what follows, the optimizer's step here or at the servers.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "motley/collective/gradient_reducer.h"
#include "motley/collective/replaceable_reducer.h"
#include "motley/nn/gradients/gradient_buckets.h"
#include "motley/nn/optimizer.h"
#include "motley/nn/stage.h"
#include "motley/train/loop/parts.h"
#include "motley/train/pipeline/tied_gradients.h"
#include "motley/train/step/local_network.h"
#include "motley/train/sync/choose_method.h"
#include "motley/train/sync/elastic_servers.h"

namespace motley::train {

class BucketedGradientSync final : public GradientSync, public ServedSync {
 public:
  struct Parts {
    SyncMethod method;                                      // who reduces, and maybe takes the optimizer's step
    collective::ReplaceableReducer* replaceable = nullptr;  // the reducer, where ranks may be lost
    std::unique_ptr<nn::GradientBuckets>
        buckets;  // bound to the reducer's memory; keeping gradients where ranks may be lost
    std::unique_ptr<nn::Optimizer> optimizer;
    std::unique_ptr<TiedGradients> tied;  // of a planned run
  };
  struct Options {
    double max_grad_norm = 0;  // 0: gradients are not clipped
    int replicas = 1;          // ranks that compute these layers
    int replica = 0;           // which of them this one is
    bool is_planned = false;   // other ranks compute other layers
    bool is_served = false;    // servers take the optimizer's step, even if this rank has not joined them yet
  };
  // `peers` are the ranks that compute the same layers. All that is referred to must outlive this object.
  BucketedGradientSync(const RankContext& context, collective::Group& peers, const LocalNetwork& network,
                       BatchTensors& tensors, Parts parts, Options options);

  // Where servers take the optimizer's step: they get the weights, and the state of Parts::optimizer, which has this
  // spec and is not stepped afterwards. On the CPU the parameters become views of the reducer's memory, so that the
  // network must not be used after that; not where ranks may be lost: there they keep the weights of the last step that
  // all have done until update(). Nothing elsewhere. Collective.
  Status serve_weights(const nn::OptimizerSpec& spec, const Deadline& deadline);

  // What the optimizer's step takes on the device that this rank is emulated at; 0: as long as it does here.
  void emulate_update(double seconds) { update_seconds_ = seconds; }

  void begin(const Step& step) override;
  void arm(const Step& step, double weight, std::function<void(int bucket)> on_bucket) override;
  Status flush() override { return parts_.buckets->flush(); }
  void scale(double factor) override { parts_.buckets->scale(factor); }
  void resume() override { parts_.buckets->restore(); }
  void undo() override {
    if (batch_norm_) batch_norm_->undo_step();
  }
  bool keeps_gradients() const override { return keeps_weights() && !batch_norm_ && !is_served(); }
  std::vector<std::vector<std::byte>> own_gradients() override { return parts_.buckets->own(); }
  void go_on_with(const std::vector<std::vector<std::byte>>& gradients, double factor) override {
    parts_.buckets->set_own(gradients, factor);
  }
  Status wait(const Step& step, double seconds, Report& report) override;
  Status update(const Step& step) override;
  bool postpone_updates() override;
  Result<bool> catch_up() override;
  std::uint64_t postponed_bytes() const override;
  std::string parameter_name(std::size_t number) const override;
  bool is_async() const override { return server_ != nullptr && server_->is_async(); }
  bool is_served() const { return options_.is_served; }  // the optimizer's step is
  std::uint64_t updates() const override { return server_ != nullptr ? server_->updates() : 0; }
  std::uint64_t bytes_sent() const override { return parts_.method.reducer->bytes_sent(); }

  Status go_on(net::Session& session, const ps::ServerOptions& options, const Deadline& deadline) override;
  std::vector<std::string> list_servers_without_state() const override {
    return server_ != nullptr ? server_->list_servers_without_state() : std::vector<std::string>();
  }
  std::optional<int> lost_server() const override { return server_ != nullptr ? server_->lost_server() : std::nullopt; }
  bool has_replicas() const override { return server_ != nullptr && server_->has_replicas(); }
  std::vector<int> server_cores() const override {
    return server_ != nullptr ? server_->server_cores() : std::vector<int>();
  }
  Status restore_servers(const std::string& optimizer, const Deadline& deadline) override;

  // Rank 0's is complete where servers have it.
  Result<nn::NamedTensors> optimizer_state(const Deadline& deadline) const;
  Status load_optimizer_state(const nn::NamedTensors& state) { return parts_.optimizer->load_state(state); }
  // The tensors without what an earlier stage has, too.
  nn::NamedTensors without_copies(nn::NamedTensors tensors) const;

  bool has_batch_norm() const { return batch_norm_.has_value(); }
  // The network's state as the last finished step has left it.
  nn::NamedTensors state_after_step() const {
    const nn::NamedTensors state = network_.stage->state();
    return batch_norm_ ? batch_norm_->before_step(state) : state;
  }
  const nn::GradientBuckets& buckets() const { return *parts_.buckets; }
  std::string name() const { return parts_.method.reducer->name(); }

 private:
  Result<ps::ServerState> collect_state(const std::vector<std::string>& fields) const;
  bool keeps_weights() const { return parts_.replaceable != nullptr; }  // until update()
  bool clips() const { return options_.max_grad_norm > 0 && !served_state_ && !network_.is_synthetic; }
  bool clips_at_servers() const { return options_.max_grad_norm > 0 && served_state_ && server_->is_reversible(); }
  Status wait_for_buckets(const Deadline& deadline, Report& report);
  Status clip_at_servers(const Step& step, const Deadline& deadline, Report& report);
  Status fetch(int bucket) const;
  Status copy_weights(int bucket) const;
  std::size_t find_not_finite(int bucket, std::span<const std::byte> values) const;
  std::size_t check_reduced(int bucket) const;
  Status measure_norm(const Deadline& deadline);
  Status take_step(double learning_rate, double norm);

  // What the optimizer's step of a step takes that is done later.
  struct PostponedUpdate {
    double learning_rate = 0;
    double norm = 0;
    std::vector<double> batch_norm_sums;
    std::vector<std::vector<std::byte>> gradients;  // reduced, by bucket
  };
  Status take_postponed_step(PostponedUpdate& update);

  const RankContext& context_;
  collective::Group& peers_;
  const LocalNetwork& network_;
  BatchTensors& tensors_;
  const Parts parts_;
  ps::ServerOptimizer* server_;  // null where each rank takes the optimizer's step itself
  Options options_;
  double update_seconds_ = 0;
  std::size_t own_not_finite_ = 0;  // in this step, as in Report
  double norm_ = 0;                 // of the whole network's reduced gradient, where it is clipped
  std::optional<nn::BatchNormAverage> batch_norm_;
  std::vector<double> batch_norm_sums_;                           // of all ranks, of this step
  std::optional<std::deque<PostponedUpdate>> postponed_updates_;  // none: update() takes the optimizer's step
  std::optional<std::vector<std::string>> served_state_;  // once servers have the weights: an array's field, in order
};

}  // namespace motley::train
