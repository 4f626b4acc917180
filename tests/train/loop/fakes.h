// What the training loop puts together, played: ranks that measure what a test says, and parts that note what the loop
// asks of them, one after the other, in a common journal.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "motley/net/session.h"
#include "motley/train/loop/training_loop.h"

namespace motley::train {

using Journal = std::vector<std::string>;

// Of the loop's own calls only the phases matter.
class FakeSession final : public net::Session {
 public:
  const net::Membership& membership() const override { return membership_; }
  const net::SessionOptions& options() const override { return options_; }
  Result<std::unique_ptr<net::Connection>> connect(int, std::uint32_t, const Deadline&) override {
    return fail(ErrorCode::kInternal, "a fake connects to nobody");
  }
  Status health() const override { return {}; }
  void abort(const Error&) override {}
  void set_phase(std::uint64_t, const char* phase) override { phases.emplace_back(phase); }
  std::string last_seen(int) const override { return "nowhere"; }
  void leave() override {}

  std::vector<std::string> phases;

 private:
  net::Membership membership_;
  net::SessionOptions options_;
};

// A group of which this process is one rank, and all others do as it does.
class FakeGroup final : public collective::Group {
 public:
  FakeGroup(int rank, int size) : rank_(rank), size_(size) {}

  Result<std::vector<double>> all_gather(std::span<const double> values, const Deadline&) override {
    if (values.size_bytes() % sizeof(Report) != 0) return gather_numbers(values);
    std::vector<Report> own(values.size() * sizeof(double) / sizeof(Report));
    std::memcpy(static_cast<void*>(own.data()), values.data(), values.size_bytes());
    std::vector<Report> all;
    for (int rank = 0; rank < size_; ++rank) {
      for (Report report : own) {
        if (rank != rank_ && others) others(rank, report);
        all.push_back(report);
      }
    }
    gathered.insert(gathered.end(), own.begin(), own.end());
    std::vector<double> flat(all.size() * sizeof(Report) / sizeof(double));
    std::memcpy(flat.data(), all.data(), flat.size() * sizeof(double));
    return flat;
  }
  Status all_reduce_sum(std::span<double> values, const Deadline&) override {
    for (double& value : values) value *= reduces_by_size ? size_ : 1;
    return {};
  }
  // What another root says is `words`, one after the other, each as its length and its text.
  Status broadcast(std::span<std::byte> bytes, int root, const Deadline&) override {
    if (root == rank_ || words.empty()) return {};
    if (!sends_text_) {
      const std::uint64_t length = words.front().size();
      std::memcpy(bytes.data(), &length, sizeof(length));
    } else {
      std::memcpy(bytes.data(), words.front().data(), bytes.size());
      words.erase(words.begin());
    }
    sends_text_ = !sends_text_;
    return {};
  }
  Status barrier(const Deadline&) override { return {}; }
  Result<std::int64_t> fetch_add(int, std::int64_t amount, const Deadline&) override {
    counter += claims_of_others;
    return std::exchange(counter, counter + amount);
  }

  std::function<void(int rank, Report& report)> others;  // makes of this rank's report that of another
  std::function<void(int rank, std::span<double> numbers)> other_numbers;  // and so of what is no report
  std::vector<Report> gathered;                                            // this rank's reports so far
  bool reduces_by_size = false;                                            // else the others add nothing
  std::vector<std::string> words;
  std::int64_t counter = 0;
  std::int64_t claims_of_others = 0;  // before each of this rank's

 private:
  std::vector<double> gather_numbers(std::span<const double> own) const {
    std::vector<double> all;
    for (int rank = 0; rank < size_; ++rank) {
      all.insert(all.end(), own.begin(), own.end());
      if (rank != rank_ && other_numbers) other_numbers(rank, std::span(all).last(own.size()));
    }
    return all;
  }

  const int rank_, size_;
  bool sends_text_ = false;
};

class FakeRunner final : public StepRunner {
 public:
  FakeRunner(Journal& journal, BatchPlan& plan, SampleAudit& audit, int rank)
      : journal_(journal), plan_(plan), audit_(audit), rank_(rank) {}
  Status run(const Step& step, Report& report) override {
    journal_.push_back(fmt::format("run {}", step.number));
    for (int rank = 0; rank < ranks_counted; ++rank) {
      const std::vector<std::uint32_t> samples = plan_.samples(step, rank);
      if (step.number != loses_step) audit_.record(samples);
    }
    report.samples = static_cast<double>(plan_.samples(step, rank_).size());
    report.loss_sum = report.samples * loss;
    report.loss_count = report.samples;
    report.metric_count = report.samples;
    sent_ += 100;
    return {};
  }
  std::uint64_t bytes_sent() const override { return sent_; }

  double loss = 0.5;
  int ranks_counted = 2;         // whose samples count as used
  std::int64_t loses_step = -1;  // whose samples do not

 private:
  Journal& journal_;
  BatchPlan& plan_;
  SampleAudit& audit_;
  const int rank_;
  std::uint64_t sent_ = 0;
};

class FakeSync final : public GradientSync {
 public:
  explicit FakeSync(Journal& journal) : journal_(journal) {}
  void begin(const Step& step) override {
    journal_.push_back(fmt::format("begin {}", step.number));
    learning_rates.push_back(step.learning_rate);
  }
  void arm(const Step& step, double weight, std::function<void(int)> on_bucket) override {
    journal_.push_back(fmt::format("arm {} {}", step.number, weight));
    on_bucket_ = std::move(on_bucket);
  }
  Status flush() override {
    journal_.push_back("flush");
    on_bucket_(0);
    return {};
  }
  void resume() override { journal_.push_back("resume"); }
  void scale(double factor) override { journal_.push_back(fmt::format("scale {}", factor)); }
  Status wait(const Step& step, double seconds, Report& report) override {
    journal_.push_back(fmt::format("wait {}", step.number));
    waits.push_back(seconds);
    report.staleness = async ? 1 : 0;
    return {};
  }
  Status update(const Step& step) override {
    journal_.push_back(fmt::format("update {}", step.number));
    return {};
  }
  std::string parameter_name(std::size_t number) const override { return fmt::format("layer-{}", number); }
  bool is_async() const override { return async; }
  std::uint64_t bytes_sent() const override { return 0; }

  bool async = false;
  std::vector<double> learning_rates;
  std::vector<double> waits;  // seconds

 private:
  Journal& journal_;
  std::function<void(int)> on_bucket_;
};

class FakeEvaluator final : public Evaluator {
 public:
  explicit FakeEvaluator(Journal& journal) : journal_(journal) {}
  Result<std::optional<std::vector<Value>>> evaluate(std::int64_t step) override {
    journal_.push_back(fmt::format("evaluate {}", step));
    if (!has_data) return std::nullopt;
    return std::vector<Value>{{"loss", 0.25}, {"accuracy", 0.75}};
  }
  bool has_data = true;

 private:
  Journal& journal_;
};

// A network whose weights and optimizer are texts.
class FakeModel final : public ModelState {
 public:
  explicit FakeModel(Journal& journal) : journal_(journal) {}
  Result<std::string> weights(std::int64_t) override {
    if (has_exploded) return fail(ErrorCode::kDiverged, "the weights are huge");
    return weights_;
  }
  Result<std::string> optimizer(std::int64_t) override { return optimizer_; }
  Status load_weights(const std::string& text) override {
    weights_ = text;
    return fits ? Status() : fail(ErrorCode::kInvalidInput, "the weights do not fit");
  }
  Status load_optimizer(const std::string& text) override {
    optimizer_ = text;
    return {};
  }
  Status start(std::int64_t step, int embedding_servers) override {
    journal_.push_back(fmt::format("start {} {}", step, embedding_servers));
    return {};
  }
  Status save_embeddings() override {
    journal_.push_back("save embeddings");
    return {};
  }
  int embedding_servers() const override { return servers; }
  Result<WeightsHash> hash_weights() const override { return hash; }

  WeightsHash hash = {.replicas = 1, .arithmetic = 1, .hash = 1};
  bool fits = true;
  bool has_exploded = false;
  int servers = 0;
  std::string weights_ = "weights";
  std::string optimizer_ = "momentum";

 private:
  Journal& journal_;
};

class FakeFollower final : public PlanFollower {
 public:
  explicit FakeFollower(Journal& journal) : journal_(journal) {}
  bool may_follow(const Replanner::Move&) const override { return may; }
  Result<const StageLayout*> follow(planning::Plan plan, std::vector<int> ranks) override {
    journal_.push_back(fmt::format("follow {} [{}]", plan.model, fmt::join(ranks, ", ")));
    layout_.emplace(std::move(plan), std::move(ranks));
    return &*layout_;
  }
  bool may = true;

 private:
  Journal& journal_;
  std::optional<StageLayout> layout_;
};

// Two stages of one worker each.
inline planning::Plan make_two_stages() {
  planning::Plan plan;
  plan.model = "toy";
  plan.layers = {"a", "b"};
  plan.batch = 12;
  plan.micro_batches = 3;
  plan.cost_model = "pipeline";
  plan.stages = {{0, 0, {{"unit", 1, 1}}}, {1, 1, {{"unit", 1, 1}}}};
  return plan;
}

// A batch that two ranks share evenly, of a dataset of 36 samples.
inline Result<BatchPlan> make_batch_plan(BatchPlanOptions options = {.mode = "equal"}, std::uint32_t samples = 36) {
  data::BatchSplitOptions split;
  split.policy = data::SplitPolicy::kEqual;
  split.batch = 12;
  split.limits.resize(2);
  return BatchPlan::create(std::move(options), std::move(split), data::LedgerState{.seed = 3, .size = samples});
}

}  // namespace motley::train
