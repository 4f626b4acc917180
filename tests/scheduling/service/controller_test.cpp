// The controller on a made-up world of attempts, killed at random points and made anew from its store.
#include "motley/scheduling/service/controller.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>

#include "motley/base/random.h"
#include "motley/scheduling/service/explain.h"

namespace motley::scheduling {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Killed {};  // the service, in the midst of something

// The cluster and what runs on it; outlives controllers.
struct World {
  struct Run {
    double ends = 0;    // by itself, with `code`
    double stops = -1;  // after it was asked to end; -1: it was not
    int code = 0;
    bool is_lost = false;
    std::vector<NodeAllocation> nodes;  // what it uses
    // Of one whose launcher can resize it: what that says, and does with a request some time after it has come.
    std::optional<train::WorkerCount> count;
    std::string request;
    std::vector<NodeAllocation> wanted;
    double answers = 0;  // when; infinite: never
  };
  double now = 1000;
  std::map<std::pair<int, int>, Run> runs;  // by job and attempt: each begins once at most, as executors promise
  std::map<int, int> completions;           // of jobs, with 0
  std::vector<std::string> down;
  std::function<Run(const Attempt&)> begin = [](const Attempt&) { return Run{10}; };
  std::function<double()> answers_after = [] { return 0.5; };
  std::function<std::string()> refuses = [] { return ""; };
  std::function<bool()> is_killed = [] { return false; };
  std::function<bool()> fails = [] { return false; };  // this call
  bool is_deaf = false;                                // nobody can be asked to end
  std::map<int, JobRecord> saved;                      // in a store in memory

  bool runs_now(const Run& run) const { return !run.is_lost && now < run.ends && (run.stops < 0 || now < run.stops); }
};

class FakeExecutor final : public Executor {
 public:
  explicit FakeExecutor(World& world) : world_(world) {}

  Status start(const Attempt& attempt) override {
    MOTLEY_TRY(maybe_fail());
    const auto [run, is_new] = world_.runs.emplace(std::pair(attempt.job, attempt.number), World::Run());
    if (is_new) {
      run->second = world_.begin(attempt);
      run->second.ends += world_.now;
      run->second.nodes = attempt.nodes;
    }
    return maybe_fail();
  }
  Result<AttemptStatus> look(const Attempt& attempt) override {
    MOTLEY_TRY(maybe_fail());
    const auto run = world_.runs.find({attempt.job, attempt.number});
    if (run == world_.runs.end()) return AttemptStatus{};
    if (world_.runs_now(run->second)) {
      AttemptStatus running{AttemptStatus::State::kRunning};
      running.count = say(run->second);
      return running;
    }
    if (run->second.is_lost) return AttemptStatus{AttemptStatus::State::kLost};
    const bool was_stopped = run->second.stops >= 0 && run->second.stops < run->second.ends;
    return AttemptStatus{AttemptStatus::State::kEnded, was_stopped ? 130 : run->second.code};
  }
  // Further workers begin at once; those who leave take their time.
  Status resize(const Attempt& attempt) override {
    MOTLEY_TRY(maybe_fail());
    World::Run& run = world_.runs.at({attempt.job, attempt.number});
    if (run.request == attempt.request) return maybe_fail();
    run.request = attempt.request;
    run.wanted = world_.saved.at(attempt.job).resizing.to;
    run.answers = world_.now + world_.answers_after();
    if (count_workers(run.wanted) > count_workers(run.nodes)) run.nodes = run.wanted;
    return maybe_fail();
  }
  Status ask_to_end(const Attempt& attempt) override {
    if (world_.is_deaf) return fail(ErrorCode::kUnavailable, "does not answer");
    MOTLEY_TRY(maybe_fail());
    const auto [found, has_not_begun] = world_.runs.emplace(std::pair(attempt.job, attempt.number), World::Run());
    World::Run& run = found->second;
    if (has_not_begun) {
      run.is_lost = true;
    } else if (run.stops < 0) {
      run.stops = world_.now + 1;
    }
    return maybe_fail();
  }
  Status kill(const Attempt& attempt) override {
    MOTLEY_TRY(maybe_fail());
    World::Run& run = world_.runs.at({attempt.job, attempt.number});
    if (world_.runs_now(run)) run.is_lost = true;
    return maybe_fail();
  }
  Result<std::vector<std::string>> down_nodes() override {
    MOTLEY_TRY(maybe_fail());
    return world_.down;
  }

 private:
  std::optional<train::WorkerCount> say(World::Run& run) const {
    if (!run.count) return {};
    if (!run.request.empty() && run.count->asked != run.request && world_.now >= run.answers) {
      run.count->asked = run.request;
      run.count->refused = world_.refuses();
      if (run.count->refused.empty()) {
        run.nodes = run.wanted;
        run.count->workers = count_workers(run.nodes);
        run.count->since = run.answers;
      }
    }
    train::WorkerCount said = *run.count;
    if (world_.now < said.since) said.workers = 0;
    return said;
  }
  Status maybe_fail() const {
    if (world_.is_killed()) throw Killed();
    if (world_.fails()) return fail(ErrorCode::kIo, "the executor fails");
    return {};
  }
  World& world_;
};

// What it has saved is the world's.
class FakeStore final : public Store {
 public:
  explicit FakeStore(World& world) : world_(world) {}

  Result<std::vector<JobRecord>> jobs() const override {
    std::vector<JobRecord> jobs;
    for (const auto& [id, record] : world_.saved) jobs.push_back(record);
    return jobs;
  }
  Result<std::vector<std::string>> drained_nodes() const override { return std::vector<std::string>(); }
  Status save(const std::vector<const JobRecord*>& records) override {
    if (records.empty()) return {};
    if (world_.is_killed()) throw Killed();
    if (world_.fails()) return fail(ErrorCode::kIo, "the store fails");
    for (const JobRecord* record : records) world_.saved[record->id] = *record;
    if (world_.is_killed()) throw Killed();
    return {};
  }
  Status save_drained(const std::string&, bool) override { return {}; }

 private:
  World& world_;
};

ClusterTopology make_topology(int nodes, int devices) {
  ClusterTopology topology;
  for (int i = 0; i < nodes; ++i) topology.nodes.push_back({fmt::format("n{}", i), devices});
  return topology;
}

class ControllerTest : public ::testing::Test {
 protected:
  void make(int nodes = 2, int devices = 4, ControllerOptions options = {}) {
    make(make_topology(nodes, devices), options);
  }
  void make(const ClusterTopology& topology, const ControllerOptions& options) {
    failed_.clear();
    auto created = Controller::make(std::make_unique<FakeStore>(world_), topology, "/nowhere", options);
    ASSERT_TRUE(created) << created.error().message;
    controller_.emplace(std::move(*created));
  }
  // By dominant share, decided at every second.
  static ControllerOptions share_fairly() {
    ControllerOptions options;
    options.policy = "drf";
    options.policy_options.slot_seconds = 1;
    return options;
  }
  void submit(const std::string& name, int workers, int least = 0, int most = 0, double restart = 0) {
    const auto ids = controller_->submit({job(name, workers, least, most, restart)}, world_.now);
    ASSERT_TRUE(ids) << ids.error().message;
  }
  static SubmittedJob job(const std::string& name, int workers, int least = 0, int most = 0, double restart = 0) {
    SubmittedJob job;
    job.name = name;
    job.command = {"train", "{workers}"};
    job.directory = "/";
    job.workers = workers;
    job.min_workers = least;
    job.max_workers = most;
    job.estimated_seconds = 100;
    job.restart_cost_seconds = restart;
    return job;
  }
  void step(double seconds = 0) {
    world_.now += seconds;
    FakeExecutor executor(world_);
    Observation seen = observe(executor, controller().watched());
    seen.problems.insert(seen.problems.end(), failed_.begin(), failed_.end());
    failed_ = carry_out(executor, controller_->step(world_.now, seen).commands);
  }
  const Controller& controller() const { return *controller_; }
  JobState state(const std::string& name) const { return controller().find(name)->state; }
  int workers(const std::string& name) const {
    int workers = 0;
    for (const NodeAllocation& share : controller().find(name)->nodes) workers += share.workers;
    return workers;
  }

  World world_;
  std::vector<Problem> failed_;  // of what the last step commanded
  std::optional<Controller> controller_;
};

TEST_F(ControllerTest, RunsJobsAndStartsThemAgainWhereTheyFail) {
  make();
  world_.begin = [](const Attempt& attempt) { return World::Run{.ends = 5, .code = attempt.number < 2 ? 7 : 0}; };
  submit("once", 2);
  SubmittedJob twice = job("twice", 2);
  twice.max_retries = 1;
  ASSERT_TRUE(controller_->submit({twice}, world_.now));
  step();
  EXPECT_EQ(state("once"), JobState::kRunning);
  step(6);
  EXPECT_EQ(state("once"), JobState::kFailed);
  EXPECT_EQ(controller().find("once")->exit_code, 7);
  EXPECT_EQ(state("twice"), JobState::kRunning);
  step(6);
  EXPECT_EQ(state("twice"), JobState::kCompleted);
  EXPECT_EQ(controller().find("twice")->attempt, 2);
}

// A job whose processes are gone has no exit code.
TEST_F(ControllerTest, SaysHowAJobFailedLast) {
  make();
  world_.begin = [](const Attempt& attempt) { return World::Run{.ends = 5, .code = 7, .is_lost = attempt.job == 1}; };
  submit("lost", 1);
  submit("ends", 1);
  step();
  step(6);
  const auto lost = explain(controller().present(world_.now, "lost"), "lost");
  ASSERT_TRUE(lost) << lost.error().message;
  EXPECT_THAT(lost->reason, HasSubstr("(attempt 1 failed: its processes were lost), and is not started again"));
  const auto ends = explain(controller().present(world_.now, "ends"), "ends");
  ASSERT_TRUE(ends) << ends.error().message;
  EXPECT_THAT(ends->reason,
              HasSubstr("(attempt 1 failed: its command ended with exit code 7), and is not started again"));
}

TEST_F(ControllerTest, AJobIsAskedBeforeItShrinksAndKilledIfItDoesNotListen) {
  make(1, 4, share_fairly());
  world_.begin = [](const Attempt&) { return World::Run{.ends = 1000}; };
  submit("a", 1, 1, 4);
  step();
  EXPECT_EQ(workers("a"), 4);
  submit("b", 1, 1, 4);
  step(2);
  EXPECT_EQ(state("a"), JobState::kStopping);
  EXPECT_EQ(state("b"), JobState::kPending) << "before a has given back what it has";
  step(1.5);
  EXPECT_EQ(workers("a"), 2);
  EXPECT_EQ(workers("b"), 2);
  EXPECT_THAT(controller().find("a")->changed, HasSubstr("shrunk from 4 to 2 workers for b"));

  // c comes, and a does not listen.
  submit("c", 2, 2, 2);
  step(2);
  for (auto& [key, run] : world_.runs) {
    if (run.stops >= world_.now) run.stops = 1e9;
  }
  step(29);
  EXPECT_EQ(state("c"), JobState::kPending);
  step(2);
  step();
  EXPECT_EQ(state("c"), JobState::kRunning);
}

// One that can have 1 to 4 workers of the four that there are, with the policy drf, which shares them equally.
class ResizeTest : public ControllerTest {
 protected:
  void SetUp() override {
    options_.policy = "drf";
    options_.policy_options.slot_seconds = 1;
    options_.preemption_cooldown_seconds = 0;
    make(1, 4, options_);
    world_.begin = [this](const Attempt& attempt) {
      World::Run run{.ends = 1000};
      if (announces_) {
        const int workers = count_workers(attempt.nodes);
        run.count = {.workers = workers, .since = world_.now + 0.25, .min_workers = 1, .max_workers = 4};
      }
      return run;
    };
    SubmittedJob elastic = job("a", 1, 1, 4, 3);
    elastic.resize = "in-place";
    elastic.grace_seconds = 5;
    ASSERT_TRUE(controller_->submit({elastic}, world_.now));
    step();
    EXPECT_EQ(workers("a"), 4);
    step(1);
  }
  // Another job comes, and after the policy's next decision half of the workers are to be its own.
  void let_another_come() {
    submit("b", 1, 1, 4);
    step(1);
  }
  std::string why(const std::string& name) { return explain(controller().present(world_.now, name), name)->reason; }
  const World::Run& run(int attempt) const { return world_.runs.at({1, attempt}); }
  void expect_restart(const std::string& why) {
    EXPECT_EQ(state("a"), JobState::kStopping);
    EXPECT_THAT(controller().find("a")->changed, HasSubstr("; by a restart, as " + why));
    EXPECT_TRUE(controller().find("a")->resizing.to.empty());
    step(2);
    step(1);
    EXPECT_EQ(controller().find("a")->attempt, 2);
    EXPECT_EQ(workers("a"), 2);
    EXPECT_EQ(workers("b"), 2);
  }

  ControllerOptions options_;
  bool announces_ = true;
};

TEST_F(ResizeTest, AJobIsResizedWithoutARestart) {
  let_another_come();
  EXPECT_EQ(state("a"), JobState::kRunning);
  EXPECT_EQ(run(1).request, "2 1");
  EXPECT_EQ(workers("a"), 4) << "it has not answered";
  EXPECT_THAT(why("a"), HasSubstr("is asked to go on with 2 in place"));
  EXPECT_EQ(state("b"), JobState::kPending) << "before a has given back what it has";
  step(0.6);
  EXPECT_EQ(workers("a"), 2);
  EXPECT_EQ(workers("b"), 2);
  EXPECT_EQ(controller().find("a")->changed, "shrunk from 4 to 2 workers for b, in place");
  EXPECT_DOUBLE_EQ(controller().find("a")->measured_restart_cost.value(), 0.5);
  EXPECT_EQ(controller().find("a")->job.restart_cost_seconds, 3);

  // b ends, but not at once.
  ASSERT_TRUE(controller_->cancel("b", world_.now));
  step(0.1);
  step(0.7);
  EXPECT_EQ(run(1).request, "2 1") << "b still runs";
  world_.answers_after = [] { return 1.5; };
  step(1);
  step(1);
  EXPECT_EQ(run(1).request, "4 2");
  EXPECT_EQ(workers("a"), 4) << "what it is to have is its own already";
  step(1.6);
  EXPECT_TRUE(controller().find("a")->resizing.to.empty());
  EXPECT_EQ(controller().find("a")->changed, "grown from 2 to 4 workers, in place");
  EXPECT_DOUBLE_EQ(controller().find("a")->measured_restart_cost.value(), 1);
  EXPECT_EQ(controller().find("a")->attempt, 1);
  EXPECT_EQ(run(1).stops, -1) << "it was never asked to end";
}

TEST_F(ResizeTest, OneThatRefusesIsRestarted) {
  world_.refuses = [] { return "the others have ended"; };
  let_another_come();
  step(0.6);
  expect_restart("its launcher says: the others have ended");
}

TEST_F(ResizeTest, OneThatDoesNotAnswerIsRestarted) {
  world_.answers_after = [] { return 1e9; };
  let_another_come();
  step(7.9);
  EXPECT_EQ(state("a"), JobState::kRunning);
  step(0.2);
  expect_restart("it has not answered within 8 s");
}

TEST_F(ResizeTest, OneWhoseLauncherHasNotSaidSoIsRestarted) {
  announces_ = false;
  ASSERT_TRUE(controller_->cancel("a", world_.now));
  step();
  step(2);
  SubmittedJob elastic = job("a2", 1, 1, 4, 3);
  elastic.resize = "in-place";
  ASSERT_TRUE(controller_->submit({elastic}, world_.now));
  step(1);
  let_another_come();
  EXPECT_EQ(state("a2"), JobState::kStopping);
  EXPECT_THAT(controller().find("a2")->changed, HasSubstr("has not said that it can be resized in place"));
}

TEST_F(ResizeTest, OneIsRestartedWhoseLauncherTakesNoSuchNumber) {
  world_.runs.at({1, 1}).count->min_workers = 3;
  step(0.1);
  let_another_come();
  expect_restart("its launcher takes 3 to 4 workers");
}

// b has 2 workers of the 4, and is to have fewer.
TEST_F(ResizeTest, AJobThatSaysNothingOfItIsResizedAsItsLauncherAllows) {
  let_another_come();
  step(0.6);
  submit("c", 1, 1, 4);
  step(1);
  EXPECT_EQ(state("b"), JobState::kRunning);
  EXPECT_EQ(world_.runs.at({2, 1}).request, "1 1");
  step(0.6);
  EXPECT_EQ(controller().find("b")->changed, "shrunk from 2 to 1 worker for c, in place");
}

TEST_F(ResizeTest, AJobThatSaysNothingOfItIsRestartedWhereItsLauncherRefuses) {
  let_another_come();
  step(0.6);
  world_.runs.at({2, 1}).count->min_workers = 2;
  submit("c", 1, 1, 4);
  step(1);
  EXPECT_EQ(state("b"), JobState::kStopping);
  EXPECT_EQ(controller().find("b")->changed,
            "shrunk from 2 to 1 worker for c; by a restart, as its launcher takes 2 to 4 workers");
}

TEST_F(ResizeTest, AJobThatSaysNothingOfItIsRestartedWhereItsLauncherSaysNothing) {
  announces_ = false;
  let_another_come();
  step(0.6);
  submit("c", 1, 1, 4);
  step(1);
  EXPECT_EQ(state("b"), JobState::kStopping);
  EXPECT_EQ(controller().find("b")->changed, "shrunk from 2 to 1 worker for c");
}

TEST_F(ResizeTest, AJobThatIsToBeRestartedIs) {
  SubmittedJob restarted = job("b", 1, 1, 4);
  restarted.resize = "restart";
  ASSERT_TRUE(controller_->submit({restarted}, world_.now));
  step(1);
  step(0.6);
  ASSERT_EQ(workers("b"), 2);
  submit("c", 1, 1, 4);
  step(1);
  EXPECT_EQ(state("b"), JobState::kStopping) << "its launcher could, it is not asked";
  EXPECT_EQ(controller().find("b")->changed, "shrunk from 2 to 1 worker for c");
}

TEST_F(ResizeTest, ACancelledJobEndsWhateverItWasAsked) {
  world_.answers_after = [] { return 1e9; };
  let_another_come();
  ASSERT_TRUE(controller_->cancel("a", world_.now));
  step(0.1);
  EXPECT_EQ(state("a"), JobState::kStopping);
  step(2);
  step();
  EXPECT_EQ(state("a"), JobState::kCancelled);
  EXPECT_EQ(workers("b"), 4);
}

// The service is killed before the request has come, after it, and after its answer.
TEST_F(ResizeTest, AServiceThatWasKilledFindsOutWhatTheJobHas) {
  world_.answers_after = [] { return 2; };
  submit("b", 1, 1, 4);
  world_.now += 1;
  FakeExecutor executor(world_);
  const auto lost = controller_->step(world_.now, observe(executor, controller().watched())).commands;
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(lost[0].kind, Command::Kind::kResize);
  EXPECT_EQ(run(1).request, "");
  make(1, 4, options_);
  step(0.1);
  EXPECT_EQ(run(1).request, "2 1") << "it is asked by the new one";
  EXPECT_EQ(state("b"), JobState::kPending);
  make(1, 4, options_);
  step(1.8);
  EXPECT_EQ(workers("a"), 4);
  EXPECT_EQ(state("b"), JobState::kPending);
  make(1, 4, options_);
  step(0.5);
  EXPECT_EQ(workers("a"), 2);
  EXPECT_EQ(run(1).request, "2 1");
  step(1);
  EXPECT_EQ(workers("b"), 2);
  EXPECT_EQ(controller().find("a")->attempt, 1);
  EXPECT_NEAR(controller().find("a")->measured_restart_cost.value(), 2.1, 1e-9);
}

// It has 4 workers for 2 s, and 2 from then on.
TEST_F(ResizeTest, AnotherServiceCountsTheNewWorkersFromTheResizeOnly) {
  let_another_come();
  const double asked = world_.now;
  step(0.6);
  ASSERT_EQ(workers("a"), 2);
  step(1.4);
  world_.saved.at(1) = *parse_json<JobRecord>(write_json(world_.saved.at(1)), "record");  // as a store has it
  make(1, 4, options_);
  step(1);
  world_.runs.at({1, 1}).ends = world_.now;
  step(1);
  EXPECT_EQ(state("a"), JobState::kCompleted);
  EXPECT_NEAR(controller().find("a")->run_seconds, 2 + (world_.now - asked), 1e-6);
  EXPECT_NEAR(controller().find("a")->device_seconds, 4 * 2 + 2 * (world_.now - asked), 1e-6);
}

// It was started long before it was resized, and could grow as soon as b has ended.
TEST_F(ResizeTest, AnotherServiceKeepsTheCooldownOfAResize) {
  step(50);
  let_another_come();
  step(0.6);
  ASSERT_EQ(workers("a"), 2);
  options_.preemption_cooldown_seconds = 20;
  make(1, 4, options_);
  ASSERT_TRUE(controller_->cancel("b", world_.now));
  step(0.1);
  step(2);
  ASSERT_EQ(state("b"), JobState::kCancelled);
  step(16);
  EXPECT_EQ(run(1).request, "2 1") << "18.7 s after it was asked";
  step(2);
  EXPECT_EQ(run(1).request, "4 2") << "20.7 s after it was asked";
}

// From SIGTERM to the end, which takes a second, and from the start to the first step, a quarter of one.
TEST_F(ResizeTest, ARestartIsMeasured) {
  world_.refuses = [] { return "no"; };
  let_another_come();
  step(0.6);
  EXPECT_FALSE(controller().find("a")->measured_restart_cost);
  step(1.2);
  step(0.3);
  EXPECT_EQ(controller().find("a")->attempt, 2);
  EXPECT_NEAR(controller().find("a")->measured_restart_cost.value(), 1.2 + 0.25, 1e-9);
  EXPECT_EQ(controller().present(world_.now).jobs[0].elastic->restart_cost_seconds,
            controller().find("a")->measured_restart_cost);
}

TEST_F(ControllerTest, JobsThatHaveJustBegunAreLeftAlone) {
  ControllerOptions options = share_fairly();
  options.preemption_cooldown = 10;
  make(1, 4, options);
  world_.begin = [](const Attempt&) { return World::Run{.ends = 1000}; };
  submit("a", 1, 1, 4, 2);
  step();
  submit("b", 1, 1, 4, 2);
  for (int second = 1; second < 20; ++second) {
    step(1);
    EXPECT_EQ(workers("a"), 4) << "after " << second << " s";
  }
  step(3);
  EXPECT_EQ(state("a"), JobState::kStopping);
}

TEST_F(ControllerTest, NodesThatAreDrainedOrMissingAreLeft) {
  make(2, 2);
  world_.begin = [](const Attempt&) { return World::Run{.ends = 1000}; };
  submit("a", 2);
  submit("b", 2);
  step();
  ASSERT_TRUE(controller_->drain("n0", true));
  const std::string leaves = controller().find("a")->nodes[0].node == "n0" ? "a" : "b";
  const std::string stays = leaves == "a" ? "b" : "a";
  step(1);
  step(2);
  EXPECT_EQ(state(leaves), JobState::kPending);
  EXPECT_EQ(state(stays), JobState::kRunning);
  const auto why = explain(controller().present(world_.now, leaves), leaves);
  ASSERT_TRUE(why);
  EXPECT_EQ(why->blocked_by, "devices");
  EXPECT_THAT(why->changed, HasSubstr("leaves n0, which is drained"));
  world_.down = {"n1"};
  step(1);
  step(2);
  EXPECT_EQ(state(stays), JobState::kPending);
  EXPECT_EQ(explain(controller().present(world_.now, stays), stays)->blocked_by, "nodes");
  world_.down = {};
  ASSERT_TRUE(controller_->drain("n0", false));
  step(1);
  step(1);
  EXPECT_EQ(state("a"), JobState::kRunning);
  EXPECT_EQ(state("b"), JobState::kRunning);
}

TEST_F(ControllerTest, CancelledJobsEnd) {
  make(1, 2);
  world_.begin = [](const Attempt&) { return World::Run{.ends = 1000}; };
  submit("runs", 2);
  submit("waits", 2);
  step();
  ASSERT_TRUE(controller_->cancel("waits", world_.now));
  EXPECT_EQ(state("waits"), JobState::kCancelled);
  ASSERT_TRUE(controller_->cancel("runs", world_.now));
  step();
  step(2);
  EXPECT_EQ(state("runs"), JobState::kCancelled);
  EXPECT_FALSE(controller_->cancel("runs", world_.now));
  EXPECT_FALSE(controller_->cancel("nobody", world_.now));
}

// It may take long to end, and its devices are for others once it has.
TEST_F(ControllerTest, ACancelledJobThatEndsTakesNoPartInDecisions) {
  make(1, 4, share_fairly());
  world_.begin = [](const Attempt&) { return World::Run{.ends = 1000}; };
  submit("a", 1, 1, 4);
  submit("b", 1, 1, 4);
  const auto target_of_b = [&] {
    const Controller::Snapshot present = controller().present(world_.now);
    const auto b = std::ranges::find(present.records, 2, &JobRecord::id) - present.records.begin();
    return count_workers(present.standings[static_cast<std::size_t>(b)].target);
  };
  step();
  EXPECT_EQ(workers("a"), 2);
  EXPECT_EQ(target_of_b(), 2);
  world_.is_deaf = true;
  ASSERT_TRUE(controller_->cancel("a", world_.now));
  step(2);
  EXPECT_EQ(state("a"), JobState::kStopping);
  EXPECT_EQ(target_of_b(), 4);
  make(1, 4, share_fairly());
  step(2);
  EXPECT_EQ(target_of_b(), 4) << "to another service, too";
  world_.is_deaf = false;
  for (int i = 0; i < 5; ++i) step(2);
  EXPECT_EQ(state("a"), JobState::kCancelled);
  EXPECT_EQ(state("b"), JobState::kRunning);
  EXPECT_EQ(workers("b"), 4);
}

// Its grace period is for saving its work, and begins once it knows.
TEST_F(ControllerTest, AJobThatCouldNotBeAskedToEndIsAskedAgainBeforeItIsKilled) {
  make(1, 2);
  world_.begin = [](const Attempt&) { return World::Run{.ends = 1000}; };
  submit("a", 2);
  step();
  world_.is_deaf = true;
  ASSERT_TRUE(controller_->cancel("a", world_.now));
  for (int i = 0; i < 10; ++i) step(25);
  EXPECT_EQ(state("a"), JobState::kStopping);
  EXPECT_FALSE(controller().find("a")->is_killed);
  world_.is_deaf = false;
  step(1.5);
  step(1.5);
  EXPECT_EQ(state("a"), JobState::kCancelled);
  EXPECT_FALSE(world_.runs.at({1, 1}).is_lost);
  EXPECT_EQ(controller().find("a")->exit_code, 130);
}

// The clock may be set back while an attempt ends.
TEST_F(ControllerTest, ARecordIsReadAgainAfterTheClockWasSetBack) {
  make(1, 2);
  world_.begin = [](const Attempt&) { return World::Run{.ends = 1000}; };
  submit("a", 2);
  step();
  ASSERT_TRUE(controller_->cancel("a", world_.now));
  step();
  world_.runs.at({1, 1}).stops = 0;
  step(-50);
  EXPECT_EQ(state("a"), JobState::kCancelled);
  EXPECT_TRUE(parse_json<JobRecord>(write_json(world_.saved.at(1)), "record"));
}

// Another ends first, which takes a second and a half.
TEST_F(ControllerTest, WhatAJobWaitsForItsDevicesIsNotTimeThatItRan) {
  make(1, 4, share_fairly());
  world_.begin = [](const Attempt& attempt) { return World::Run{.ends = attempt.name == "b" ? 5.0 : 1000.0}; };
  submit("a", 1, 1, 4);
  step();
  submit("b", 1, 1, 4);
  step(2);
  ASSERT_EQ(state("b"), JobState::kPending);
  step(1.5);
  ASSERT_EQ(state("b"), JobState::kRunning);
  step(5.5);
  EXPECT_EQ(state("b"), JobState::kCompleted);
  EXPECT_DOUBLE_EQ(controller().find("b")->run_seconds, 5.5);
  EXPECT_DOUBLE_EQ(controller().find("b")->device_seconds, 11);
}

TEST_F(ControllerTest, AServiceThatComesWhileAJobEndsForgetsNothingOfIt) {
  make(1, 4);
  world_.begin = [](const Attempt&) { return World::Run{.ends = 1000}; };
  submit("a", 2);
  step();
  step(3);
  ASSERT_TRUE(controller_->cancel("a", world_.now));
  step();
  ASSERT_EQ(state("a"), JobState::kStopping);
  make(1, 4);
  step(2);
  EXPECT_EQ(state("a"), JobState::kCancelled);
  EXPECT_DOUBLE_EQ(controller().find("a")->run_seconds, 3);
  EXPECT_DOUBLE_EQ(controller().find("a")->device_seconds, 6);
  EXPECT_DOUBLE_EQ(controller().find("a")->done_seconds, 3);
}

TEST_F(ControllerTest, RefusesMoreSecondsAndBytesThanAnyJobHas) {
  const ClusterTopology topology = make_topology(1, 2);
  const auto refused = [&](double compute_seconds, double gradient_bytes) {
    SubmittedJob one = job("a", 1);
    one.compute_seconds = compute_seconds;
    one.gradient_bytes = gradient_bytes;
    const Status checked = check(one, topology);
    return checked ? std::string("taken") : checked.error().message;
  };
  EXPECT_EQ(refused(1e9, 1e15), "taken");
  EXPECT_THAT(refused(1e300, 0), HasSubstr("compute_seconds is '1e+300'; accepted: up to 1e9"));
  EXPECT_THAT(refused(1, 1e300), HasSubstr("gradient_bytes is '1e+300'; accepted: up to 1e15"));
}

TEST_F(ControllerTest, RefusesWhatCanNeverRunAndNamesTakenTwice) {
  make(2, 4);
  const auto refused = [&](const SubmittedJob& job) {
    const auto ids = controller_->submit({job}, world_.now);
    return ids ? std::string("taken") : ids.error().message;
  };
  EXPECT_THAT(refused(job("big", 9)), HasSubstr("workers is '9'; accepted: up to 8, all devices of the cluster"));
  for (const char* name : {"", "..", "../x", "a/b"}) {
    EXPECT_EQ(refused(job(name, 1)), fmt::format("name: '{}' is not the name of a folder; accepted: up to 200 letters, "
                                                 "digits, spaces, '.', '_' and '-', not beginning with '.'",
                                                 name));
  }
  EXPECT_THAT(refused(job("a\nb", 1)), HasSubstr("name: 'a\\x0ab' is not the name of a folder"));
  EXPECT_THAT(refused(job("a b", 1)), HasSubstr("name is 'a b'; accepted: letters, digits, '-', '_' and '.'"));
  EXPECT_THAT(refused(job("7", 1)), HasSubstr("name is '7'; accepted: a name that is no number"));
  EXPECT_THAT(refused(job("a", 2, 3)), HasSubstr("min_workers is '3'"));
  EXPECT_THAT(refused(job("a", 2, 1, 1)), HasSubstr("max_workers is '1'"));
  SubmittedJob heavy = job("a", 1);
  heavy.weight = 1e300;
  EXPECT_THAT(refused(heavy), HasSubstr("weight is '1e+300'; accepted: up to 1e9"));
  EXPECT_EQ(refused(job("a", 2)), "taken");
  EXPECT_EQ(refused(job("a", 2)), "taken") << "the same again is the same job";
  EXPECT_EQ(controller().records().size(), 1u);
  EXPECT_THAT(refused(job("a", 3)), HasSubstr("name is that of another job"));
  SubmittedJob uneven = job("b", 1);
  uneven.speedup = {{4, 3}, {2, 2}};
  EXPECT_THAT(refused(uneven), HasSubstr("speedup is '2:2'; accepted: more workers than the entry before"));
}

TEST_F(ControllerTest, ANameIsFreeOnceItsJobIsOver) {
  make(1, 2);
  SubmittedJob first = job("a", 1);
  first.submission = "one";
  const auto ids = controller_->submit({first}, world_.now);
  ASSERT_TRUE(ids);
  SubmittedJob again = first;
  again.submission = "two";
  EXPECT_EQ(*controller_->submit({again}, world_.now), *ids) << "while it is there, the same job is the same";
  step();
  step(11);
  ASSERT_EQ(state("a"), JobState::kCompleted);
  EXPECT_EQ(controller().find("a")->changed, "completed after 11 s with 1 worker");
  EXPECT_EQ(*controller_->submit({first}, world_.now), *ids) << "asked again, as no answer had come";
  const auto second = controller_->submit({again}, world_.now);
  ASSERT_TRUE(second);
  EXPECT_THAT(*second, ElementsAre(2));
  EXPECT_EQ(controller().find("a")->id, 2) << "the one submitted last";
  EXPECT_EQ(controller().find("1")->state, JobState::kCompleted) << "by its number";
  EXPECT_EQ(controller().find("3"), nullptr);
  EXPECT_NE(controller().make_attempt(*controller().find("1")).folder.parent_path(),
            controller().make_attempt(*controller().find("2")).folder.parent_path());
  make(1, 2);  // anew from the store
  EXPECT_EQ(controller().find("a")->id, 2);
  step();
  step(11);
  EXPECT_EQ(state("a"), JobState::kCompleted);
}

TEST_F(ControllerTest, AJobThatCannotTellItsWorkersIsNoFasterWithMore) {
  make(1, 4);
  world_.begin = [](const Attempt&) { return World::Run{.ends = 1000}; };
  SubmittedJob sleeps = job("sleeps", 1, 1, 4);
  sleeps.command = {"sleep", "60"};
  ASSERT_TRUE(controller_->submit({sleeps}, world_.now));
  step();
  EXPECT_EQ(workers("sleeps"), 1);
  const auto why = explain(controller().present(world_.now, "sleeps"), "sleeps");
  ASSERT_TRUE(why) << why.error().message;
  EXPECT_NEAR(why->finishes, 100, 1);
  EXPECT_EQ(why->one_more_device, "one device more would not make it done sooner");
  EXPECT_EQ(why->reason, "it runs with 1 worker on 1 node");
}

// A job that waits for a cooldown and a slot is told so, and when it will start: when the controller then starts it.
TEST_F(ControllerTest, ForecastsKnowCooldownsAndSlots) {
  ControllerOptions options;
  options.policy = "gadget-exact";
  options.policy_options.objective = Objective::kUtility;
  make(1, 4, options);
  world_.begin = [](const Attempt&) { return World::Run{.ends = 1e5}; };
  SubmittedJob large = job("large", 4, 2, 4, 10);
  large.estimated_seconds = 10'000;
  ASSERT_TRUE(controller_->submit({large}, world_.now));
  step();
  ASSERT_EQ(workers("large"), 4);
  step(20);
  SubmittedJob small = job("small", 2, 2, 2, 10);
  small.weight = 100;
  ASSERT_TRUE(controller_->submit({small}, world_.now));
  step();
  ASSERT_EQ(state("small"), JobState::kPending);
  const auto why = explain(controller().present(world_.now, "small"), "small");
  ASSERT_TRUE(why) << why.error().message;
  EXPECT_GE(why->starts, 80) << "large changed 20 s ago, and keeps its workers for ten times its restart cost";
  EXPECT_THAT(why->unblocked_by, ::testing::Contains(AllOf(
                                     HasSubstr("gadget-exact taking devices back"),
                                     HasSubstr("large keeps its workers for another 1 min 20 s (preemption cooldown)"),
                                     HasSubstr("the next decision comes in "))));
  double waited = 0;
  for (; workers("large") == 4 && waited < 1000; ++waited) step(1);
  EXPECT_NEAR(waited, why->starts, 2);
}

// What a policy without slots would change and may not is changed once it may, not only when another job comes or ends.
TEST_F(ControllerTest, WhoIsHeldIsChangedAtTheEndOfTheCooldown) {
  ControllerOptions options;
  options.policy = "las";
  options.preemption_cooldown_seconds = 5000;
  make(1, 2, options);
  world_.begin = [](const Attempt&) { return World::Run{.ends = 1e6}; };
  submit("first", 2);
  step();
  for (int i = 0; i < 45; ++i) step(100);  // it has had more than new jobs have
  submit("second", 2);
  step();
  ASSERT_EQ(state("first"), JobState::kRunning) << "it is held";
  step(400);
  EXPECT_EQ(state("first"), JobState::kRunning);
  step(101);
  EXPECT_EQ(state("first"), JobState::kStopping);
}

TEST_F(ControllerTest, ADurationThatWasNotGivenIsSaidToBeAssumed) {
  make(1, 2);
  world_.begin = [](const Attempt&) { return World::Run{.ends = 1e5}; };
  SubmittedJob unknown = job("unknown", 2);
  unknown.estimated_seconds = 0;
  ASSERT_TRUE(controller_->submit({unknown, job("known", 2)}, world_.now));
  step();
  const auto why = [&](const char* name) { return *explain(controller().present(world_.now, name), name); };
  EXPECT_EQ(why("unknown").assumption, "assuming 1 h 0 min, as no duration was given");
  EXPECT_EQ(why("known").assumption, "");
  EXPECT_EQ(write_json(unknown).find("estimated_duration"), std::string::npos);
}

// One node has devices on which jobs that say so cannot run, or are slow.
TEST_F(ControllerTest, JobsRunOnTypesThatTheyCanUse) {
  ClusterTopology topology = make_topology(2, 2);
  topology.types = {"new", "old"};
  topology.nodes[1].type = 1;
  ControllerOptions options;
  options.policy = "gadget-exact";
  make(topology, options);
  SubmittedJob only_old = job("only-old", 2);
  only_old.speeds = {{"old", 1}, {"older", 5}};
  SubmittedJob slow = job("slow-on-old", 2);
  slow.speeds = {{"new", 1}, {"old", 0.1}};
  world_.begin = [](const Attempt&) { return World::Run{.ends = 1000}; };
  ASSERT_TRUE(controller_->submit({slow, only_old}, world_.now));
  step();
  EXPECT_THAT(controller().find("only-old")->nodes, ElementsAre(NodeAllocation{"n1", 2}));
  EXPECT_THAT(controller().find("slow-on-old")->nodes, ElementsAre(NodeAllocation{"n0", 2}));

  SubmittedJob waits = job("waits", 1);
  waits.speeds = {{"new", 1}};
  ASSERT_TRUE(controller_->submit({waits}, world_.now));
  step();
  const auto why = explain(controller().present(world_.now, "waits"), "waits");
  ASSERT_TRUE(why) << why.error().message;
  EXPECT_EQ(why->blocked_by, "devices");
  EXPECT_THAT(why->reason, HasSubstr("it needs 1 device, and 0 of 2 are free"));
  EXPECT_THAT(why->unblocked_by, ::testing::Contains(HasSubstr("slow-on-old, which has 2 devices")));
  EXPECT_THAT(why->unblocked_by, ::testing::Not(::testing::Contains(HasSubstr("only-old"))));
  WhatIf change;
  change.add_nodes = {{"more", 2, "new"}};
  const auto rows = what_if(controller().present(world_.now), change);
  ASSERT_TRUE(rows) << rows.error().message;
  EXPECT_LT(rows->at(2).finishes_then, rows->at(2).finishes);
  change.add_nodes = {{"more", 2, "newest"}};
  EXPECT_THAT(what_if(controller().present(world_.now), change).error().message, HasSubstr("accepted: new, old"));

  const auto refused = [&](const SubmittedJob& one) {
    const auto ids = controller_->submit({one}, world_.now);
    return ids ? std::string("taken") : ids.error().message;
  };
  SubmittedJob nowhere = job("nowhere", 1);
  nowhere.speeds = {{"v100", 1}};
  EXPECT_THAT(refused(nowhere),
              HasSubstr("speeds is 'v100'; accepted: types of which the cluster has devices: new, old"));
  SubmittedJob large = job("large", 3);
  large.speeds = {{"new", 1}, {"old", 1}};
  EXPECT_THAT(refused(large),
              HasSubstr("workers is '3'; accepted: up to 2, all devices of the cluster that it could have"));
}

class RequestsTest : public ControllerTest {
 protected:
  // Of 4 devices each, n0 with 8 CPUs and 32 GB, n1 with 2 CPUs.
  void make_nodes() {
    ClusterTopology topology = make_topology(2, 4);
    topology.set_resource(kCpus, 0, 8);
    topology.set_resource(kCpus, 1, 2);
    topology.set_resource(kMemory, 0, 32e9);
    ControllerOptions options;
    options.policy = "fifo-backfill";
    make(topology, options);
    world_.begin = [](const Attempt&) { return World::Run{.ends = 1000}; };
  }
  static SubmittedJob requesting(const std::string& name, int workers, double cpus, double memory = 0) {
    SubmittedJob job = ControllerTest::job(name, workers);
    job.cpus_per_worker = cpus;
    job.memory_bytes_per_worker = memory;
    return job;
  }
  std::string refused(const SubmittedJob& job) {
    const auto ids = controller_->submit({job}, world_.now);
    return ids ? std::string("taken") : ids.error().message;
  }
};

TEST_F(RequestsTest, JobsRunWhereTheirCpusAndMemoryAre) {
  make_nodes();
  ASSERT_TRUE(controller_->submit({requesting("four", 2, 4)}, world_.now));
  step();
  EXPECT_THAT(controller().find("four")->nodes, ElementsAre(NodeAllocation{"n0", 2}));
  ASSERT_TRUE(controller_->submit({requesting("waits", 3, 1), job("plain", 2)}, world_.now));
  step(100);
  EXPECT_EQ(state("waits"), JobState::kPending) << "two more CPUs are free";
  EXPECT_EQ(state("plain"), JobState::kRunning) << "nobody waits for what takes no CPUs";
  const auto resources = controller().resources(0);
  ASSERT_EQ(resources.size(), 2u);
  EXPECT_EQ(resources[0].name, kCpus);
  EXPECT_EQ(resources[0].total, 8);
  EXPECT_EQ(resources[0].used, 8);
  EXPECT_EQ(controller().resources(1).size(), 1u) << "nothing is said of its memory";
  const auto why = explain(controller().present(world_.now, "waits"), "waits");
  ASSERT_TRUE(why) << why.error().message;
  EXPECT_EQ(why->blocked_by, "resources");
  EXPECT_THAT(
      why->reason,
      HasSubstr(
          "it needs 3 devices, each with 1 CPU, and 4 devices are free, but their nodes have CPUs left for only 2"));
  // One that is started again knows what its jobs have.
  make_nodes();
  step(1);
  EXPECT_EQ(state("waits"), JobState::kPending);
  ASSERT_TRUE(controller_->cancel("four", world_.now));
  step(1);
  step(2);
  step(100);
  EXPECT_EQ(state("waits"), JobState::kRunning);
}

TEST_F(RequestsTest, ANodeMoreHasCpusAndMemory) {
  make_nodes();
  ASSERT_TRUE(controller_->submit({requesting("first", 1, 8), requesting("second", 1, 8, 32e9)}, world_.now));
  step();
  WhatIf change;
  change.add_nodes = {{"more", 1}};
  const auto rows = what_if(controller().present(world_.now), change);
  ASSERT_TRUE(rows) << rows.error().message;
  const Comparison& waits = rows->at(state("first") == JobState::kPending ? 0 : 1);
  EXPECT_LT(waits.finishes_then, waits.finishes);
}

TEST_F(RequestsTest, WhoHoldsNothingThatAJobLacksUnblocksNothing) {
  make_nodes();
  ASSERT_TRUE(controller_->submit({job("plain", 1), requesting("one", 1, 6), requesting("small", 1, 0.5)}, world_.now));
  step();
  ASSERT_TRUE(controller_->submit({requesting("waits", 1, 4)}, world_.now));
  step();
  const auto why = explain(controller().present(world_.now, "waits"), "waits");
  ASSERT_TRUE(why) << why.error().message;
  EXPECT_THAT(why->reason, HasSubstr("their nodes have CPUs left for none"));
  EXPECT_THAT(why->unblocked_by, ::testing::Contains(HasSubstr("one, which has 1 device")));
  EXPECT_THAT(why->unblocked_by, ::testing::Not(::testing::Contains(HasSubstr("plain"))));
  ASSERT_TRUE(controller_->drain("n0", true));
  ASSERT_TRUE(controller_->drain("n1", true));
  step();
  const auto drained = explain(controller().present(world_.now, "waits"), "waits");
  EXPECT_EQ(drained->blocked_by, "nodes");
  EXPECT_THAT(drained->unblocked_by, ElementsAre(HasSubstr("n0, a drained node"))) << "n1 has 2 CPUs";
}

TEST_F(RequestsTest, JobsOfNodesThatHaveLessAreStopped) {
  make_nodes();
  ASSERT_TRUE(controller_->submit({requesting("four", 2, 4), job("plain", 4)}, world_.now));
  step();
  ASSERT_EQ(state("plain"), JobState::kRunning);
  for (const char* policy : {"fifo-backfill", "drf", "gadget-exact", "las"}) {
    ClusterTopology less = make_topology(2, 2);  // two devices each, and on both nodes too few CPUs for one of them
    less.set_resource(kCpus, 3);
    ControllerOptions options;
    options.policy = policy;
    make(less, options);
    step(1);
    step(100);
    EXPECT_EQ(state("four"), JobState::kPending) << policy;
    EXPECT_EQ(workers("plain"), 4) << policy;
    const auto why = explain(controller().present(world_.now, "four"), "four");
    EXPECT_THAT(why->reason,
                HasSubstr("each with 4 CPUs, and the nodes that are there have room for 0, of which none has "
                          "more than 3 CPUs"));
  }
}

TEST_F(ControllerTest, JobsOfNodesWithFewerDevicesAreStopped) {
  for (const char* policy : {"fifo", "drf", "gadget-exact", "las"}) {
    world_.runs.clear();
    world_.saved.clear();
    world_.begin = [](const Attempt&) { return World::Run{.ends = 1000}; };
    ControllerOptions options;
    options.policy = policy;
    make(make_topology(2, 4), options);
    submit("large", 8, 2);
    step();
    ASSERT_EQ(workers("large"), 8) << policy;
    make(make_topology(2, 1), options);
    step(1);
    EXPECT_EQ(state("large"), JobState::kStopping) << policy;
    if (std::string_view(policy) == "fifo") {  // the others start it at once with what there is
      EXPECT_THAT(controller().find("large")->changed, HasSubstr("its nodes have less"));
    }
    ClusterTopology others = make_topology(1, 8);
    others.nodes[0].name = "other";
    make(others, options);
    step(100);
    step(100);
    EXPECT_EQ(controller().find("large")->nodes.front().node, "other") << policy;
  }
}

TEST_F(RequestsTest, RefusesWhatNoNodeHas) {
  make_nodes();
  EXPECT_THAT(refused(requesting("a", 1, 9)),
              HasSubstr("cpus_per_worker is '9'; accepted: up to 8, the most that a node"));
  EXPECT_THAT(refused(requesting("a", 3, 4)),
              HasSubstr("workers is '3'; accepted: up to 2, for which the nodes have the"));
  EXPECT_EQ(refused(requesting("a", 1, 0, 1e12)), "taken") << "n1 says nothing of its memory";
  EXPECT_THAT(refused(requesting("b", 1, 4, 64e9)),
              HasSubstr("cpus_per_worker is '4'; accepted: what a node that it may be on has, together "
                        "with all else that it requests"));
  EXPECT_THAT(refused(requesting("b", 1, 2e6)),
              HasSubstr("cpus_per_worker is '2000000'; accepted: a number from 0 to 1e6"));
  make(2, 4);
  EXPECT_THAT(
      refused(requesting("b", 1, 0, 1e9)),
      HasSubstr("memory_bytes_per_worker is '1000000000'; accepted: none, as the cluster does not say how much"));
}

TEST_F(ControllerTest, WhatIfChangesNothingAndForetells) {
  make(1, 2);
  world_.begin = [](const Attempt&) { return World::Run{.ends = 1000}; };
  submit("first", 2);
  submit("second", 2);
  step();
  WhatIf change;
  change.add_nodes = {{"new", 2}};
  change.submit = {job("third", 2)};
  const auto rows = what_if(controller().present(world_.now), change);
  ASSERT_TRUE(rows) << rows.error().message;
  ASSERT_EQ(rows->size(), 3u);
  EXPECT_NEAR(rows->at(1).finishes, 200, 61);
  EXPECT_NEAR(rows->at(1).finishes_then, 100, 61);
  EXPECT_EQ(rows->at(2).finishes, -1);
  EXPECT_GT(rows->at(2).finishes_then, 0);
  EXPECT_EQ(controller().records().size(), 2u);
  EXPECT_FALSE(what_if(controller().present(world_.now), {.cancel = {"nobody"}}));
}

// It has stated that it is 4 times as fast with 8 workers, and 3.2 times with 4.
TEST_F(ControllerTest, OnFewerDevicesAJobIsAsFastAsItSays) {
  ControllerOptions options;
  options.policy = "fifo";
  make(2, 4, options);
  world_.begin = [](const Attempt&) { return World::Run{.ends = 1e6}; };
  submit("before", 8);
  SubmittedJob wide = job("wide", 8, 2, 8);
  wide.estimated_seconds = 3200;
  wide.speedup = {{4, 3.2}, {8, 4}};
  ASSERT_TRUE(controller_->submit({wide}, world_.now));
  step();
  const auto rows = what_if(controller().present(world_.now), {.cancel = {"before"}, .drain = {"n1"}});
  ASSERT_TRUE(rows) << rows.error().message;
  EXPECT_NEAR(rows->at(1).finishes_then, 3200 * 4 / 3.2, 1);
}

// It is over to the policy, which decides only when a job comes or ends, and it is none of those that are forecast.
TEST_F(ControllerTest, ForecastsWhileACancelledJobEnds) {
  ControllerOptions options;
  options.policy = "fifo";
  make(1, 4, options);
  world_.begin = [](const Attempt&) { return World::Run{.ends = 1e6}; };
  submit("first", 4);
  submit("second", 4);
  step();
  ASSERT_TRUE(controller_->cancel("first", world_.now));
  const auto rows = what_if(controller().present(world_.now), {.add_nodes = {{"new", 4}}});
  ASSERT_TRUE(rows) << rows.error().message;
  EXPECT_NEAR(rows->back().finishes_then, 100, 1);
}

TEST_F(ControllerTest, AnExecutorThatFailsIsAskedAgain) {
  make(1, 2);
  submit("a", 2);
  world_.fails = [] { return true; };
  for (int second = 0; second < 10; ++second) step(1);
  world_.saved.clear();  // what must come again once the store works
  world_.fails = [] { return false; };
  EXPECT_EQ(state("a"), JobState::kRunning);
  EXPECT_TRUE(world_.runs.empty()) << "nothing is started before it is durable";
  step(1);
  step(1);
  EXPECT_EQ(world_.runs.size(), 1u);
  EXPECT_EQ(world_.saved.at(1).attempt, 1);
  step(11);
  EXPECT_EQ(state("a"), JobState::kCompleted);
}

// Forecasts that would take a policy by slots of a second years, and more devices than anybody has.
class ForecastBounds : public ControllerTest, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Policies, ForecastBounds, ::testing::Values("drf", "optimus", "elasticflow"));

TEST_P(ForecastBounds, Hold) {
  ControllerOptions options = share_fairly();
  options.policy = GetParam();
  make(1, 2, options);
  world_.begin = [](const Attempt&) { return World::Run{.ends = 1e9}; };
  for (const char* name : {"a", "b", "c"}) {
    SubmittedJob one = job(name, 2, 1, 2, 1e9);
    one.estimated_seconds = 1e9;
    ASSERT_TRUE(controller_->submit({one}, world_.now));
  }
  step();
  const auto why = explain(controller().present(world_.now, "c"), "c");
  ASSERT_TRUE(why) << why.error().message;
  EXPECT_EQ(why->state, std::string("pending"));
  EXPECT_THAT(why->reason, ::testing::Not(::testing::IsEmpty()));
  const auto rows = what_if(controller().present(world_.now), {.cancel = {"a"}});
  ASSERT_FALSE(rows);
  EXPECT_EQ(rows.error().code, ErrorCode::kTimeout);
  EXPECT_THAT(what_if(controller().present(world_.now), {.add_nodes = {{"new", 100'000'000}}}).error().message,
              HasSubstr("accepted: a new name, 1 device or more, and no more than 100000 in the whole cluster"));
}

// It is given a job that another policy had taken, and knows no types of devices.
TEST_F(ControllerTest, APolicyThatFailsIsAskedAgain) {
  ClusterTopology topology = make_topology(1, 2);
  topology.types = {"new"};
  SubmittedJob uneven = job("uneven", 1);
  uneven.speeds = {{"new", 2}};
  world_.saved[1] = {.id = 1, .job = uneven};
  ControllerOptions options;
  options.policy = "list-scheduling";
  make(topology, options);
  submit("good", 2);
  step();
  EXPECT_THAT(controller().problem(), HasSubstr("list-scheduling failed: "));
  ASSERT_TRUE(controller_->cancel("uneven", world_.now));
  step();
  EXPECT_EQ(controller().problem(), "");
  EXPECT_EQ(state("good"), JobState::kRunning);
}

// Jobs come and are cancelled, attempts fail, nodes go and come back, any call to executor or store may fail, before or
// after it has done something, and the service is killed before or after any of them; who got no answer asks again. In
// the end every job that was acknowledged is over, none was completed twice, and at no time did two attempts of a job
// run or a node have more than it has room for.
TEST_F(ControllerTest, LosesAndDoublesNothingWhereverItIsKilled) {
  int all_resized = 0;
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    SCOPED_TRACE(seed);
    world_ = World();
    Random random(seed);
    ControllerOptions options;
    options.policy = seed % 3 == 0 ? "drf" : seed % 3 == 1 ? "gadget-exact" : "fifo";
    options.policy_options.slot_seconds = 5;
    options.preemption_cooldown = 2;
    world_.begin = [&](const Attempt& attempt) {
      World::Run run{.ends = 30 * random.uniform(), .code = random.below(4) == 0 ? 1 : 0};
      if (random.below(4) > 0) {
        run.count = {.workers = count_workers(attempt.nodes), .since = world_.now, .min_workers = 1, .max_workers = 9};
      }
      return run;
    };
    world_.answers_after = [&] { return random.below(4) == 0 ? 1e9 : 2 * random.uniform(); };
    world_.refuses = [&] { return random.below(4) == 0 ? "the others have ended" : ""; };
    double until = 0;  // the disk is full
    make(3, 4, options);
    world_.is_killed = [&] { return random.below(50) == 0; };
    world_.fails = [&] {
      if (random.below(200) == 0) until = world_.now + 5 * random.uniform();
      return world_.now < until || random.below(20) == 0;
    };
    int kills = 0, resized = 0;
    std::vector<std::string> acknowledged;
    std::optional<SubmittedJob> asked;  // and not acknowledged
    for (int round = 0; round < 4000; ++round) {
      const bool is_ending = round > 400;
      if (is_ending) world_.is_killed = world_.fails = [] { return false; };
      world_.now += random.uniform();
      try {
        if (!is_ending && !asked && random.below(4) == 0) {
          const int workers = 1 + static_cast<int>(random.below(6));
          asked = job(fmt::format("job{}", acknowledged.size()), workers,
                      1 + static_cast<int>(random.below(static_cast<std::uint64_t>(workers))),
                      workers + static_cast<int>(random.below(4)), 0.5);
          asked->max_retries = 1000;
          asked->grace_seconds = 5;
          if (random.below(2) == 0) asked->resize = "in-place";
        }
        if (asked && controller_->submit({*asked}, world_.now)) {
          acknowledged.push_back(asked->name);
          asked.reset();
        }
        if (!is_ending && random.below(40) == 0 && !acknowledged.empty()) {
          (void)controller_->cancel(acknowledged[random.below(acknowledged.size())], world_.now);
        }
        if (random.below(60) == 0) {
          world_.down = is_ending || !world_.down.empty() ? std::vector<std::string>() : std::vector{std::string("n1")};
          for (auto& [key, run] : world_.runs) {  // what ran there is gone
            if (!world_.down.empty() && world_.runs_now(run) &&
                std::ranges::find(run.nodes, "n1", &NodeAllocation::node) != run.nodes.end()) {
              run.is_lost = true;
            }
          }
        }
        step();
      } catch (const Killed&) {
        ++kills;
        make(3, 4, options);
      }
      std::map<int, int> running;
      std::map<std::string, int> used;
      for (const auto& [key, run] : world_.runs) {
        if (!world_.runs_now(run)) continue;
        EXPECT_EQ(++running[key.first], 1) << "job " << key.first << " runs twice";
        for (const NodeAllocation& share : run.nodes) used[share.node] += share.workers;
      }
      for (const auto& [node, workers] : used) EXPECT_LE(workers, 4) << node;
      for (const JobRecord& record : controller().records()) {
        if (record.state == JobState::kRunning && record.resizing.number > 0 && record.resizing.to.empty()) ++resized;
      }
      if (is_ending &&
          std::ranges::all_of(controller().records(), [](const JobRecord& one) { return is_over(one.state); })) {
        break;
      }
    }
    EXPECT_GT(kills, 0);
    all_resized += resized;
    ASSERT_EQ(controller().records().size(), acknowledged.size());
    for (const std::string& name : acknowledged) {
      const JobRecord* record = controller().find(name);
      ASSERT_NE(record, nullptr) << name << " was lost";
      EXPECT_TRUE(record->state == JobState::kCompleted || record->state == JobState::kCancelled) << name;
      int completions = 0;
      for (const auto& [key, run] : world_.runs) {
        const bool was_stopped = run.stops >= 0 && run.stops < run.ends;
        if (key.first == record->id && !run.is_lost && !was_stopped && run.code == 0) ++completions;
      }
      EXPECT_LE(completions, 1) << name;
      EXPECT_EQ(record->state == JobState::kCompleted, completions == 1) << name;
    }
  }
  EXPECT_GT(all_resized, 0);
}

}  // namespace
}  // namespace motley::scheduling
