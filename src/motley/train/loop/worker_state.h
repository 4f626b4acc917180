// One rank of a training job: all that it holds, and the parts of its work. Of the worker_*.cpp files each has one of
// them: getting ready (worker_setup), a step's computation (worker_compute), and what is found out and kept of it
// (worker_records); worker.cpp has the loop.
#pragma once

#include <algorithm>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "motley/base/clock.h"
#include "motley/cluster/cluster.h"
#include "motley/cluster/emulation.h"
#include "motley/collective/gradient_reducer.h"
#include "motley/data/local/batch_split.h"
#include "motley/data/local/dataset.h"
#include "motley/data/local/ledger.h"
#include "motley/data/local/loader.h"
#include "motley/net/secret.h"
#include "motley/net/session.h"
#include "motley/nn/batch_norm.h"
#include "motley/nn/ctr_models.h"
#include "motley/nn/gradient_buckets.h"
#include "motley/nn/loss.h"
#include "motley/nn/metrics.h"
#include "motley/nn/optimizer.h"
#include "motley/nn/stage.h"
#include "motley/ps/service/service.h"
#include "motley/train/checkpoint/checkpoint.h"
#include "motley/train/job/batch_split.h"
#include "motley/train/job/job.h"
#include "motley/train/job/job_data.h"
#include "motley/train/job/run_directory.h"
#include "motley/train/job/servers.h"
#include "motley/train/launch/cores.h"
#include "motley/train/launch/progress.h"
#include "motley/train/launch/role.h"
#include "motley/train/loop/emulated_timing.h"
#include "motley/train/loop/replanner.h"
#include "motley/train/loop/served_table.h"
#include "motley/train/loop/served_weights.h"
#include "motley/train/loop/tensorboard.h"
#include "motley/train/loop/timeline.h"
#include "motley/train/pipeline/emulated_stage_timing.h"
#include "motley/train/pipeline/pipeline.h"
#include "motley/train/pipeline/stage_layout.h"
#include "motley/train/pipeline/stage_split.h"
#include "motley/train/pipeline/tied_gradients.h"
#include "motley/train/worker/job_parts.h"

namespace motley::train {

using Json = nlohmann::ordered_json;

// What each rank tells all others at the end of a step; the all-gather carries these as doubles, in this order.
struct Report {
  double samples = 0;
  double load = 0;     // seconds of reading samples that are here
  double compute = 0;  // seconds of loading, forward and backward, emulated sleep included
  double waited = 0;   // seconds of these in which it waited for rows or samples, or a planned stage for its neighbours
  double total = 0;    // seconds from the step's begin to the reduced gradient
  double cpu = 0;      // seconds of CPU time
  double memory = 0;   // bytes that the process had resident at most so far
  double target = -1;  // seconds that the emulated device takes; < 0: not emulated
  double stop = 0;
  double checkpoint = 0;
  double loss_sum = 0;
  double loss_count = 0;
  double metric_sum = 0;
  double metric_count = 0;
  double staleness = 0;    // steps that the oldest part in the new weights is behind this rank's
  double moves = 0;        // rank 0's: all go on by another plan after this step
  double sent_bytes = 0;   // of gradients and, to neighbouring stages, of activations
  double rows_waited = 0;  // of `waited`: for rows of a served table; the rest as in ServedTable::Counts
  double rows_pulled_bytes = 0;
  double rows_pushed_bytes = 0;
  double rows_needed = 0;
  double rows_cached = 0;
  double rows_prefetched = 0;
  double fetched = 0;  // seconds of `waited` that were for a data server
};
inline constexpr std::size_t kReportValues = sizeof(Report) / sizeof(double);
static_assert(sizeof(Report) == kReportValues * sizeof(double));

// Seconds until the last rank had computed.
inline double last_compute(const std::vector<Report>& reports) {
  return std::ranges::max(reports, {}, &Report::compute).compute;
}

inline constexpr double kCheckpointDeadlineFactor = 10;  // of the step's deadline

class Worker {
 public:
  Worker(const Job& job, const RunDirectory& run, const Role& role, cluster::Cluster cluster,
         std::optional<planning::Plan> plan)
      : job_(job), run_(run), role_(role), cluster_(std::move(cluster)) {
    if (plan) layout_.emplace(std::move(*plan));
  }

  Status run(const std::filesystem::path& hosts, bool resume);

 private:
  bool writes() const { return role_.rank == 0; }
  Deadline step_deadline() const { return Deadline::after(job_.deadline.step); }
  // Those that compute the same layers as this rank, itself included.
  net::Session& peers() const { return stage_session_ ? *stage_session_ : *session_; }
  collective::Group& peer_group() const { return stage_group_ ? *stage_group_ : *group_; }
  // Changes of shares so far.
  std::uint64_t split_moves() const { return stage_split_ ? stage_split_->moves() : splitter_->diagnostics().moves; }
  const cluster::Worker& description(int rank) const { return cluster_.workers[static_cast<std::size_t>(rank)]; }

  Status join(const std::filesystem::path& hosts);
  Status join_stage();
  Status open_data();
  Result<std::unique_ptr<data::Dataset>> open_at_server(data::Set set);
  Status build_model();
  std::vector<double> bucket_positions() const;
  Result<std::unique_ptr<nn::Stage>> make_stage();
  Status explain(Status loaded, bool resume) const;
  Status start_state(bool resume);
  Status start_from(Checkpoint start, bool resume);
  Status watch_speeds();
  bool may_follow(const Replanner::Move& move) const;
  Status move();
  Status open_outputs();
  Status loop();
  Status step(bool& stop);
  bool is_async() const { return server_optimizer_ != nullptr && server_optimizer_->is_async(); }
  bool synchronises_in(data::Range window, bool baseline) const;
  Deadline wait_deadline(bool synchronises) const;
  double epochs_done(std::uint32_t cursor) const;
  bool evaluation_is_due(double epochs) const;
  bool keeps_checkpoints() const { return !is_synthetic(job_) && job_.checkpoint.keep > 0; }
  bool checkpoint_is_due() const;
  Status synchronise(data::Range window, bool& stop);
  Status clip_gradients();
  Status compute_share(const data::StepPlan& plan, data::Range window, Report& report);
  Status compute_pulled(const data::StepPlan& plan, data::Range window, Report& report);
  Status compute_planned(const data::StepPlan& plan, data::Range window, Report& report);
  Status see_outputs(const torch::Tensor& outputs, const torch::Tensor& targets, Report& report) const;
  Status compute_batch(const data::Batch& batch, double divisor, bool last, Report& report);
  Status compute_micro_batch(const data::Batch& batch, std::int64_t first, const torch::Tensor& inputs,
                             const torch::Tensor& targets, double divisor, bool last, Report& report);
  Status open_table(const ServedTable::Start& start, const Deadline& deadline);
  Status ask_for_rows(const Deadline& patience);
  Result<torch::Tensor> make_inputs(const data::Batch& batch, const data::Dataset& data);
  Result<data::Batch> load(std::span<const std::uint32_t> samples, Report& report);
  std::vector<std::uint32_t> own_samples(data::Range window, const data::StepPlan& plan) const;
  data::Parts own_parts() const;
  void read_ahead(data::Range window, const data::StepPlan& plan);
  Status start_reduce(double weight);
  struct StepRecord;
  Status check_reports(const std::vector<Report>& reports, const StepRecord& record);
  Status write_step(const std::vector<Report>& reports, const StepRecord& record, double step_seconds);
  Status evaluate();
  Status evaluate_own_part(nn::Evaluation& evaluation);
  Status evaluate_planned(nn::Evaluation& evaluation);
  Result<data::UseCounts> merge_counts();
  Status audit_epoch();
  Result<std::string> collect(const std::function<Result<nn::NamedTensors>()>& own);
  Result<Checkpoint> gather_state();
  Status save_checkpoint();
  Status event(const std::string& kind, const std::string& text);
  Status log_lateness();
  Status finish();

  const Job& job_;
  const RunDirectory& run_;
  const Role& role_;
  const cluster::Cluster cluster_;
  const JobParts parts_{make_parts(job_)};

  std::optional<net::Secret> secret_;
  std::unique_ptr<ps::Service> service_;  // beside this worker
  std::unique_ptr<net::Session> session_;
  std::unique_ptr<collective::Group> group_;
  // A planned job: who computes what, and the ranks that compute the same as this one. Else those are all ranks.
  std::optional<StageLayout> layout_;
  std::unique_ptr<net::Session> stage_session_;
  std::unique_ptr<collective::Group> stage_group_;
  std::unique_ptr<net::Session> stage_alone_;  // of this rank, where there is nothing to exchange
  std::unique_ptr<collective::GradientReducer> reducer_;
  ps::ServerOptimizer* server_optimizer_ = nullptr;  // of reducer_, where parameter servers take the step
  std::unique_ptr<data::Dataset> train_data_;
  std::unique_ptr<data::Dataset> test_data_;
  std::unique_ptr<data::Loader> loader_;
  std::deque<std::vector<std::uint32_t>> read_ahead_;  // samples that were requested and not taken, by request
  std::unique_ptr<nn::Stage> stage_;
  std::unique_ptr<Pipeline> pipeline_;       // of a planned job
  std::vector<nn::SharedTensor> shared_;     // the same: tensors that several layers of the network read
  std::unique_ptr<TiedGradients> tied_;      // the same
  std::optional<nn::LookupLayout> lookups_;  // where this rank's layers read what the samples look up
  std::unique_ptr<ServedTable> table_;       // and servers have it
  std::unique_ptr<nn::Optimizer> optimizer_;
  std::unique_ptr<nn::GradientBuckets> buckets_;
  std::unique_ptr<ServedWeights> served_;  // where server_optimizer_ is
  std::optional<nn::BatchNormAverage> batch_norm_;
  std::optional<data::Ledger> ledger_;
  std::optional<data::BatchSplitter> splitter_;
  std::optional<StageSplit> stage_split_;  // in the partition's place, of a planned job
  std::optional<Replanner> replanner_;     // rank 0's, of a planned job that may move to another plan
  std::optional<Replanner::Move> next_move_;
  int plans_ = 0;  // that the run has followed before the present one
  std::optional<data::UseCounts> counts_;
  std::optional<EmulatedTiming> timing_;
  std::optional<EmulatedStageTiming> stage_timing_;  // of a planned job whose workers are emulated
  std::optional<TimelineRecorder> timeline_;

  nn::Loss loss_ = nn::Loss::kCrossEntropy;
  nn::Metric metric_ = nn::Metric::kAccuracy;
  torch::Device device_ = torch::kCPU;
  torch::Dtype dtype_ = torch::kFloat32;

  std::int64_t step_ = 0;         // the step under way; steps count from 1
  std::int64_t steps_ = 0;        // of the whole job
  std::int64_t micro_batch_ = 0;  // of this step
  std::int64_t pulled_ = 0;       // value of the shared counter at which this step's shards begin
  double weight_ = 0;             // samples that this rank brings to the exchange
  double step_begin_ = 0;
  struct StepRecord {
    std::int64_t step = 0;
    bool baseline = false;
    bool pulls = false;
    double learning_rate = 0;
    data::LedgerState ledger;  // before the step
    double samples = 0;        // of all ranks
    Report report;             // this rank's
  };
  std::vector<StepRecord> unreported_;  // steps since all ranks met
  double interval_begin_ = 0;           // of the first of them
  double computed_ = 0;                 // when the newest step's computation ended
  std::int64_t checked_steps_ = 0;
  std::vector<cluster::WorkerLoad> loads_;
  double checked_seconds_ = 0;
  struct Lateness {
    std::int64_t steps = 0;  // emulated ones
    std::int64_t late = 0;
    double excess = 0;  // of the late ones over their deadlines, summed shares
  };
  std::vector<Lateness> lateness_;  // a rank
  std::int64_t not_used_once_ = 0;  // over the epochs that ended
  std::int64_t evaluated_step_ = 0;
  std::int64_t saved_step_ = 0;
  double next_checkpoint_ = 0;
  double next_evaluation_ = 0;  // epochs

  // Rank 0's outputs.
  std::unique_ptr<JsonLines> metrics_;
  std::optional<TensorBoardWriter> tensorboard_;
  std::optional<ProgressLine> progress_;
  std::uint64_t moves_ = 0;
  double started_ = 0;
  double smooth_step_seconds_ = 0;
};

// Sends root's text to all ranks.
Result<std::string> broadcast_text(collective::Group& group, std::string text, int root, const Deadline& deadline);

}  // namespace motley::train
