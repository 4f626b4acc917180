// Gradient synchronisation through parameter servers, which take the optimizer's step on the way: the worker's side. It
// puts together what a rank needs for that: control connections, the model as the servers divide it, and a path for
// gradients and weights. With bounded staleness (Ho et al. 2013) a rank's push is a share of a step, and says how far
// the rank may be ahead of the slowest. docs/explanation/parameter-server.md has the protocol.
#pragma once

#include <memory>
#include <vector>

#include "motley/collective/gradient_reducer.h"
#include "motley/ps/client/server_optimizer.h"
#include "motley/ps/client/server_path.h"

namespace motley::ps {

class ServerReducer final : public collective::GradientReducer, public ServerOptimizer {
 public:
  // kInvalidInput where the options name no server. The session must outlive the reducer.
  static Result<std::unique_ptr<ServerReducer>> create(net::Session& session, const ServerOptions& options);
  ~ServerReducer() override { controls_.leave(); }
  // Leaves in order, before it is destroyed: nothing is started or waited for any more; memory stays.
  void leave() { controls_.leave(); }

  Status prepare(const collective::Layout& layout, const Deadline& deadline) override;
  std::span<std::byte> buffer(int bucket) override;
  Status start(std::uint64_t step, int bucket, double weight) override;
  Result<collective::Outcome> wait(int bucket, const Deadline& deadline) override;
  void abort(const Error& error) override;
  std::string name() const override { return "parameter-server"; }
  std::uint64_t bytes_sent() const override { return path_ ? path_->bytes_sent() : 0; }
  bool in_memory() const { return joined_.of_server != nullptr; }  // after prepare
  // Whether the bucket was started, and wait() for it would return at once; false where only wait() knows.
  bool has_come(int bucket) const { return buckets_[bucket].under_way && path_->has_come(bucket); }
  int cores() const { return static_cast<int>(joined_.model.load().size()); }  // of all servers, after prepare

  // Whether the servers take the optimizer's step; else they only add up, and the following is of no use.
  bool updates_weights() const { return options_.update.rule != kernels::UpdateRule::kSum; }
  std::span<const float> weights(int bucket) override;
  void set_learning_rate(double learning_rate) override { learning_rate_ = learning_rate; }
  bool is_async() const override { return options_.staleness.has_value(); }
  std::uint64_t updates() const override { return loaded_updates_ + committed_; }
  void commit() override { ++committed_; }
  void hand_over() override { controls_.set_failed(); }
  std::vector<std::string> list_servers_without_state() const override;
  std::optional<int> lost_server() override;
  bool has_replicas() const override;
  std::vector<int> server_cores() const override;
  void begin_step(double total_weight, bool together) override;
  // All memory that weights() are in, in one piece; after prepare().
  std::span<std::byte> weight_memory() const;
  bool is_reversible() const override { return options_.reversible && in_memory() && updates_weights(); }
  double squares(int bucket) const override;
  void take_back(double factor) override { redo_factor_ = factor; }
  Status load(const ServerState& state, const Deadline& deadline) override;
  Result<ServerState> save(const Deadline& deadline) override;

 private:
  ServerReducer(net::Session& session, const ServerOptions& options)
      : session_(session),
        options_(options),
        controls_(session, options.job_suffix, options.elastic),
        loaded_updates_(options.elastic ? options.elastic->updates : 0) {}

  Status find_replaced();

  struct Bucket {
    Round round;
    double weight = 0;  // of this rank
    bool under_way = false;
  };

  net::Session& session_;
  const ServerOptions options_;
  double learning_rate_ = 0;
  double step_weight_ = 1;   // asynchronous: of all ranks in a step
  std::uint32_t ahead_ = 0;  // rounds that this rank may be ahead of the slowest
  ControlConnections controls_;
  Joined joined_;
  std::unique_ptr<ServerPath> path_;  // from prepare on
  std::vector<Bucket> buckets_;
  int next_bucket_ = 0;
  bool has_state_ = false;  // all servers have theirs
  std::uint64_t loaded_updates_ = 0;
  std::uint32_t committed_ = 0;  // rounds
  // Where updates can be taken back.
  std::uint64_t update_ = 0;  // that was started last
  double factor_ = 1;         // of its gradient
  std::optional<double> redo_factor_;
};

}  // namespace motley::ps
