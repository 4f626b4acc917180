// One rank of a training job, from joining the others to the last checkpoint: makes the parts of its loop, and makes
// those anew that depend on the plan where the run moves to another.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "motley/cluster/cluster.h"
#include "motley/model/profile.h"
#include "motley/net/secret.h"
#include "motley/net/session.h"
#include "motley/ps/service/service.h"
#include "motley/train/job/job.h"
#include "motley/train/job/run_directory.h"
#include "motley/train/launch/role.h"
#include "motley/train/loop/training_loop.h"
#include "motley/train/step/batch_runners.h"
#include "motley/train/step/network_state.h"
#include "motley/train/step/pipeline_runner.h"
#include "motley/train/step/test_evaluation.h"
#include "motley/train/worker/elastic_worker.h"
#include "motley/train/worker/rank_data.h"

namespace motley::train {

// What of a rank depends on the plan that the run follows: its layers, how their gradients are synchronised, and who
// computes a step with them. A run that moves to another plan makes a new one. Each uses what stands before it.
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
  std::optional<TestEvaluation> evaluator;
  std::optional<NetworkState> state;
};

class RankWorker final : public PlanFollower, public ElasticStages {
 public:
  // All that is referred to must outlive this object. `cores`: of this machine, that its ranks share.
  RankWorker(const Job& job, const RunDirectory& run, const Role& role, cluster::Cluster cluster,
             std::optional<planning::Plan> plan, int cores);

  Status run(const std::filesystem::path& hosts, bool resume);  // once
  bool writes() const { return context_ ? context_->writes() : role_.rank == 0 && !role_.is_newcomer; }
  bool keeps_files() const;  // in the end

  bool may_follow(const Replanner::Move& move) const override;
  Result<const StageLayout*> follow(planning::Plan plan, std::vector<int> ranks) override;

  Result<bool> lay_out(bool has_state) override;
  Status rebuild(bool goes_back) override;
  Status give_all_layers() override;
  std::string take_news() override;

 private:
  bool is_elastic() const;
  std::filesystem::path logs() const { return run_.folder() / "logs"; }
  // A newcomer has no stage until the others have made a place for it.
  bool waits_for_stage() const { return role_.is_newcomer && layout_ != nullptr && replica_ == nullptr; }
  // Of the ranks that begin together: all, or of an elastic run some.
  net::Session& beginners() { return elastic_ ? elastic_->first() : *session_; }
  net::Session& peers() { return replica_->stage_session ? *replica_->stage_session : beginners(); }
  collective::Group& peer_group() const { return replica_->stage_group ? *replica_->stage_group : *group_; }
  const cluster::Worker& description(int rank) const { return cluster_.workers[static_cast<std::size_t>(rank)]; }

  Status join(const std::filesystem::path& hosts);
  Status prepare(bool resume);
  Status join_session(const std::filesystem::path& hosts, net::SessionOptions options);
  bool others_go_on() const;
  Status take_over_files(std::int64_t step);
  Status keep_log() const;
  bool gathers_files() const;
  Status open_data();
  Status compare_data();

  // What depends on the plan.
  Status build();
  Status join_stage();
  Result<std::unique_ptr<TiedGradients>> build_network();
  Result<std::unique_ptr<TiedGradients>> build_stage(const nn::NetworkSpec& spec, nn::StageOptions options);
  Status build_sync(std::unique_ptr<TiedGradients> tied);
  Result<ps::ServerOptions> choose_sync(const collective::Layout& layout);
  Result<bool> may_clip_at_servers(const ps::ServerOptions& options);
  Status build_plan();
  Result<std::optional<PipelineRunner::Emulation>> emulate_stage() const;
  void build_runners(std::optional<PipelineRunner::Emulation> emulation);

  // Of an elastic run with a plan.
  Status take_state(Replica* before, bool goes_back);

  RunState run_state(Replica& replica);
  Status start(bool resume);
  Status restore(Checkpoint start, bool resume);
  Status explain(Status loaded, bool resume) const;
  Status open_outputs();
  Status write_facts(const RunDirectory::Measured& before) const;
  Status describe_run(const RunDirectory::Measured& before);
  Status watch_speeds();
  struct Speeds {
    std::string file;
    model::Profile profile;
    cluster::Cluster devices;
  };
  Result<std::optional<Speeds>> read_speeds() const;
  StageLayout improve(StageLayout layout) const;
  void connect_loop();
  Status loop();
  Status report_lateness();
  Status finish();
  Status write_timeline();

  const Job& job_;
  const RunDirectory& run_;
  const Role& role_;
  const cluster::Cluster cluster_;
  const ps::ServerOptions sync_options_;  // without the servers' addresses

  std::optional<net::Secret> secret_;
  std::unique_ptr<ps::Service> service_;  // beside this worker
  std::unique_ptr<net::Session> session_;
  std::optional<ElasticWorker> elastic_;  // of a run that goes on where ranks are lost
  std::unique_ptr<collective::Group> group_;
  RankData data_{job_};
  std::optional<TimelineRecorder> timeline_;
  std::optional<RankContext> context_;
  EmulationWatch emulation_;

  std::unique_ptr<StageLayout> layout_;  // of a planned run: who computes what
  std::optional<NextStages> next_stages_;
  std::vector<std::string> stage_news_;
  int plans_ = 0;  // that the run has followed before the present one
  std::unique_ptr<Replica> replica_;
  RunProgress progress_;
  std::optional<Checkpoints> checkpoints_;
  std::optional<Reporter> reporter_;
  std::optional<PlanMover> mover_;
  LoopParts loop_parts_;
};

// torchrun's store (c10d::TCPStore), where its ranks tell each other how to meet.
Result<std::unique_ptr<KeyValueStore>> open_torchrun_store(const StoreAddress& address);

}  // namespace motley::train
