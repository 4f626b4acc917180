#include "tests/simulation/run_schedule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <iterator>
#include <set>
#include <span>

#include "tests/simulation/cluster.h"
#include "tests/simulation/launcher_job.h"
#include "tests/simulation/scheduler_job.h"
#include "tests/simulation/server_job.h"
#include "tests/simulation/training_rank.h"

namespace motley::simulation {
namespace {

constexpr int kGenerations = 4;         // by then the job must be done
constexpr double kPatience = 400;       // seconds in which all waits of a generation end
constexpr double kSlowness = 40;        // of a slow rank
constexpr double kSlowSeconds = 30e-3;  // what a slow link adds on average
constexpr std::uint16_t kRendezvousPort = 29400, kServedRendezvousPort = 29401, kServerPort = 29500,
                        kRankServerPort = 29600;
constexpr float kMomentum = 0.9F;
constexpr double kServedTolerance = 2e-5;  // float32
constexpr const char* kFolder = "/run";
constexpr const char* kSchedulerFolder = "/scheduler";
constexpr double kLoadSeconds = 0.01;       // until a launcher's first processes begin to join, on average
constexpr double kSchedulerSeconds = 0.05;  // after which a scheduler that has ended is started again, on average

class JobRun {
 public:
  JobRun(const Schedule& schedule, bool keeps_notes)
      : schedule_(schedule),
        cluster_(schedule.seed),
        job_(make_job(schedule)),
        observer_(job_),
        scheduler_(observer_, schedule.seed, schedule.has_node_failures),
        processes_(static_cast<std::size_t>(schedule.processes())) {
    cluster_.simulator.keeps_notes = keeps_notes;
    cluster_.simulator.has_pauses = schedule.has_pauses;
    cluster_.network.sends_small_messages_whole = schedule.servers > 0;  // who probes a server does not ask often
    cluster_.simulator.on_end = [this](const Process& process) { follow_end(process); };
    cluster_.disk.make_folder(kFolder);
    cluster_.disk.sync(*cluster_.disk.find("/"));
  }

  Outcome run() {
    Outcome outcome;
    while (outcome.generations < kGenerations && observer_.violations().empty()) {
      ++outcome.generations;
      if (run_generation(outcome.generations)) break;
      if (outcome.generations == kGenerations)
        observer_.violate(kGoesOn, "the job is not done although no faults come any more");
    }
    outcome.violations = observer_.violations();
    outcome.trace = cluster_.simulator.trace();
    outcome.notes = cluster_.simulator.take_notes();
    outcome.seconds = cluster_.simulator.now();
    return outcome;
  }

 private:
  static LinearJob make_job(const Schedule& schedule) {
    LinearJob job;
    if (schedule.servers > 0) {
      job.bucket_elements = {8, 40};
      job.momentum = schedule.has_momentum ? kMomentum : 0;
      job.tolerance = kServedTolerance;
    }
    if (schedule.has_large_buckets) job.bucket_elements = {8, 8300, 40};
    return job;
  }

  int host(int process) const { return schedule_.host(process); }

  RankSetup make_setup(int rank) const {
    RankSetup setup;
    net::SessionOptions& session = setup.session;
    session.rank = rank;
    session.size = schedule_.ranks;
    session.rendezvous = {address(0), kRendezvousPort};
    session.bind_host = address(rank);
    session.given_secret = true;
    session.join_seconds = 10;
    session.silence_seconds = 1;
    session.encryption = net::Encryption::kOff;
    session.is_elastic = true;
    if (schedule_.topology == Topology::kOneHostTcp) setup.sync.method = collective::Method::kTcpRing;
    if (schedule_.servers > 0) {
      setup.sync.method = collective::Method::kParameterServer;
      setup.sync.servers_share_memory = schedule_.topology == Topology::kSharedMemory;
      setup.sync.chunk_bytes = schedule_.has_large_buckets ? 4096 : 64;
      setup.sync.update.rule = schedule_.has_momentum ? kernels::UpdateRule::kMomentum : kernels::UpdateRule::kSgd;
      setup.sync.update.momentum = kMomentum;
      for (int server = 0; server < schedule_.servers; ++server) {
        setup.sync.servers.push_back({server_endpoint(server), server_token()});
      }
      if (schedule_.servers > 1) setup.sync.server_speeds = {1, 1.5};  // as all ranks measure them at the start
    }
    setup.minimum = schedule_.minimum;
    setup.generation = observer_.generation();
    setup.folder = kFolder;
    if (schedule_.has_slow_rank && rank == schedule_.ranks - 1) setup.seconds_per_sample *= kSlowness;
    return setup;
  }

  void start(int process, std::function<int()> main, bool is_service = false) {
    processes_[static_cast<std::size_t>(process)] =
        &cluster_.simulator.start_process(host(process), schedule_.name(process), std::move(main), is_service);
  }

  void start_processes() {
    if (schedule_.has_launcher) {
      start_launcher();
    } else {
      for (int rank = 0; rank < schedule_.ranks; ++rank) start_rank(rank, nullptr);
    }
    const int server = schedule_.ranks;
    for (int worker = 0; worker < kServerWorkers; ++worker) {
      const int process = server + 1 + worker;
      ServerJobSetup& setup = server_setups_[static_cast<std::size_t>(worker)];
      setup.session = make_setup(process).session;
      setup.session.job = "served";
      setup.session.rank = worker;
      setup.session.size = kServerWorkers;
      setup.session.is_elastic = false;
      setup.session.silence_seconds = 5;
      setup.session.rendezvous = {address(server + 1), kServedRendezvousPort};
      setup.server = {address(server), kServerPort};
      setup.shares_memory = schedule_.topology == Topology::kSharedMemory;
      start(process, [this, &setup] { return is_served_ ? 0 : run_server_worker(setup, observer_); });
    }
    start(
        server, [this] { return schedule_.servers > 0 ? 0 : run_parameter_server(server_setups_.front().server); },
        true);
    server_lives_.assign(static_cast<std::size_t>(schedule_.servers), 0);
    for (int number = 0; number < schedule_.servers; ++number) start_server(number);
    if (schedule_.has_scheduler) start_scheduler();
  }

  void start_launcher() {
    train::LaunchRules rules;
    rules.workers = rules.max_workers = schedule_.ranks;
    rules.min_workers = schedule_.minimum;
    rules.replacements = schedule_.replacements;
    rules.join_seconds = kGrowSeconds;
    LauncherJob& launcher = launchers_.emplace_back(
        rules, observer_, [this](int rank, LaunchedRank& launched) -> Process& { return start_rank(rank, &launched); });
    launcher_ = &cluster_.simulator.start_process(
        0, "the launcher", [this, &launcher] { return is_trained_ ? 0 : launcher.run(kFolder); });
  }

  void start_scheduler() {
    start(schedule_.ranks + 3, [this] { return scheduler_.run(kSchedulerFolder); });
  }

  net::Endpoint server_endpoint(int server) const {
    return {address(schedule_.first_server() + server), static_cast<std::uint16_t>(kRankServerPort + server)};
  }

  void start_server(int server) {
    const int process = schedule_.first_server() + server;
    start(process, [listen = server_endpoint(server)] { return run_parameter_server(listen); }, true);
    plan_life(process, ++server_lives_[static_cast<std::size_t>(server)]);
  }

  static int witness(const Fault& fault) { return fault.witness >= 0 ? fault.witness : fault.rank; }
  // Planned as the process starts whose calls are counted.
  bool is_of_life(const Fault& fault) const {
    const bool has_lives = witness(fault) < schedule_.ranks || schedule_.is_server(witness(fault));
    return has_lives && fault.operation > 0 && fault.step == 0 && !fault.follows;
  }
  // A process, one of those that take a place one after the other, has started.
  void plan_life(int process, int life) {
    for (const Fault& fault : schedule_.faults) {
      const bool is_own = fault.generation == observer_.generation() && witness(fault) == process && fault.life == life;
      if (is_own && is_of_life(fault)) plan(fault);
    }
  }

  Process& start_rank(int rank, LaunchedRank* launched) {
    RankSetup& setup = setups_.emplace_back(make_setup(rank));
    setup.launched = launched;
    const bool is_replacement = observer_.life(rank) > 0 && schedule_.replacements > 0;
    const double load_seconds = is_replacement ? schedule_.replacement_seconds : kLoadSeconds;
    if (launched != nullptr) setup.load_seconds = cluster_.simulator.random().exponential(load_seconds);
    setup.session.is_newcomer = observer_.life(rank) > 0;
    observer_.begin_life(rank);
    start(rank, [this, &setup] { return is_trained_ ? 0 : run_training_rank(setup, job_, observer_); });
    plan_life(rank, observer_.life(rank));
    return *processes_[static_cast<std::size_t>(rank)];
  }

  // A rank that was killed is replaced, by the launcher where there is one, else after a while; between hosts also one
  // that was put out or has failed, as a person may.
  void follow_end(const Process& process) {
    if (process.status == 128 + SIGABRT)
      observer_.violate(kWaitsEnd, process.name + " stops by a broken invariant of its own");
    const auto number = static_cast<int>(std::ranges::find(processes_, &process) - processes_.begin());
    if (schedule_.has_scheduler && number == schedule_.ranks + 3 && process.status != 0 && !is_down_) {
      act_later(kSchedulerSeconds, [this] { start_scheduler(); });
    }
    if (schedule_.is_server(number) && !is_down_) {
      is_server_lost_early_ = is_server_lost_early_ || !observer_.has_committed();
      restart_server(number);
    }
    if (number >= schedule_.ranks) return;
    const int rank = number;
    observer_.end_life(rank);
    if (schedule_.has_launcher) return launchers_.back().wake();
    const bool is_replaced = process.status > 128 || (process.status != 0 && !is_one_host());
    if (!is_replaced || is_down_ || replacements_ == schedule_.replacements) return;
    ++replacements_;
    act_later(schedule_.replacement_seconds, [this, rank] {
      cluster_.simulator.note(fmt::format("another process takes the place of rank {}", rank));
      const int lost = processes_[static_cast<std::size_t>(rank)]->id;
      start_rank(rank, nullptr);
      cluster_.network.hand_links_over(lost, processes_[static_cast<std::size_t>(rank)]->id);
    });
  }

  void restart_server(int process) {
    act_later(schedule_.restart_seconds, [this, process] {
      cluster_.simulator.note(fmt::format("another process takes the place of {}", schedule_.name(process)));
      const int lost = processes_[static_cast<std::size_t>(process)]->id;
      start_server(process - schedule_.first_server());
      cluster_.network.hand_links_over(lost, processes_[static_cast<std::size_t>(process)]->id);
    });
  }

  // After so many seconds on average, where the job has not been started anew and the power has not failed until then.
  void act_later(double seconds, const std::function<void()>& act) {
    seconds = cluster_.simulator.random().exponential(seconds);
    cluster_.simulator.at(cluster_.simulator.now() + seconds, [this, act, generation = observer_.generation()] {
      if (!is_down_ && observer_.generation() == generation) act();
    });
  }

  std::string address(int process) const {
    return is_one_host() ? "127.0.0.1" : fmt::format("10.0.0.{}", 1 + host(process));
  }
  bool is_one_host() const { return host(schedule_.ranks - 1) == 0; }

  // True once the jobs are done.
  bool run_generation(int generation) {
    Simulator& simulator = cluster_.simulator;
    observer_.begin_generation();
    replacements_ = 0;
    is_down_ = is_server_lost_early_ = false;
    cluster_.disk.fill(0, 0);
    simulator.note(fmt::format("start {} of the job", generation));
    start_processes();
    std::vector<const Fault*> faults;
    for (const Fault& fault : schedule_.faults) {
      if (fault.generation != generation) continue;
      faults.push_back(&fault);
      if (!is_of_life(fault) && !fault.follows) plan(fault);
    }
    if (!simulator.run(simulator.now() + kPatience)) {
      observer_.violate(kWaitsEnd, "a wait never ends: " + simulator.describe_waits());
      return true;
    }
    is_down_ = true;
    simulator.kill(*processes_[static_cast<std::size_t>(schedule_.ranks)]);
    for (int server = schedule_.first_server(); server < schedule_.processes(); ++server) {
      simulator.kill(*processes_[static_cast<std::size_t>(server)]);
    }
    if (faults.empty() && !is_served_ && observer_.finished_workers() < kServerWorkers) {
      observer_.violate(kGoesOn, fmt::format("the server's job is not done: {}", fmt::join(observer_.endings(), "; ")));
    }
    const bool is_scheduled = !schedule_.has_scheduler || scheduler_.is_done();
    if (faults.empty() && !is_scheduled) observer_.violate(kGoesOn, "the scheduler's jobs are not over");
    is_served_ = is_served_ || observer_.finished_workers() == kServerWorkers;
    const int least = is_trained_ ? 0 : least_finished(faults);
    if (observer_.finished() < least) {
      observer_.violate(kGoesOn, fmt::format("{} ranks have done the job, at least {} were to: {}",
                                             observer_.finished(), least, fmt::join(observer_.endings(), "; ")));
    }
    if (observer_.has_replaced_momentum() && !may_lose_momentum(faults)) {
      observer_.violate(kServersKeep,
                        "the optimizer's state was lost with one server although the other one was there");
    }
    is_trained_ = is_trained_ || observer_.finished() > 0;
    return is_trained_ && is_served_ && is_scheduled;
  }

  // Ranks that a generation's faults must leave alone: those that are not killed on one host, or elsewhere as long as
  // they are a majority, also one that is parted from the others for good; a majority where one is stopped, and some
  // where the links of one are bad. A majority may be lost where there are more faults, and the run ends where the disk
  // fails, or where too few are left.
  int least_finished(const std::vector<const Fault*>& faults) const {
    std::set<int> hit;
    bool all_are_deaths = true, hits_server = false;
    for (const Fault* fault : faults) {
      if (fault->kind == FaultKind::kPartition) {
        if (schedule_.servers > 0) return 0;  // whose state may be on the other side
        std::ranges::copy(list_cut_off(*fault), std::inserter(hit, hit.end()));
        all_are_deaths = all_are_deaths && std::isinf(fault->seconds);
        continue;
      }
      if (fault->kind >= FaultKind::kDiskFull) return 0;
      hits_server = hits_server || schedule_.is_server(fault->rank);
      if (fault->rank >= schedule_.ranks) continue;
      hit.insert(fault->rank);
      all_are_deaths = all_are_deaths && fault->kind == FaultKind::kKill;
    }
    if (hit.empty() && !hits_server) return schedule_.ranks;
    // A rank that is lost while all join ends the start.
    if (!observer_.has_committed()) return 0;
    const int left = schedule_.ranks - static_cast<int>(hit.size());
    if (left < schedule_.minimum) return 0;
    if (all_are_deaths && (is_one_host() || 2 * left > schedule_.ranks)) return left;
    if (faults.size() > 1 || schedule_.minimum > 1) return 0;
    return faults.front()->kind == FaultKind::kStop ? schedule_.ranks / 2 + 1 : 1;
  }

  // The ranks on the smaller side of a partition; where there is none, all.
  std::vector<int> list_cut_off(const Fault& fault) const {
    std::vector<int> sides[2];
    for (int rank = 0; rank < schedule_.ranks; ++rank) sides[fault.is_on_side(host(rank)) ? 1 : 0].push_back(rank);
    if (sides[0].size() == sides[1].size()) {
      std::ranges::copy(sides[1], std::back_inserter(sides[0]));
      return sides[0];
    }
    return sides[0].size() < sides[1].size() ? sides[0] : sides[1];
  }

  // Where two servers keep each other's state, it takes the loss of both, or bad links.
  bool may_lose_momentum(const std::vector<const Fault*>& faults) const {
    if (schedule_.servers < 2 || is_server_lost_early_) return true;
    std::set<int> hit;
    for (const Fault* fault : faults) {
      if (fault->kind != FaultKind::kKill) return true;
      if (schedule_.is_server(fault->rank)) hit.insert(fault->rank);
    }
    return hit.size() > 1;
  }

  // Of this generation; those that come before an operation of a rank: as the process starts that it is counted in.
  void plan(const Fault& fault) {
    const auto act = [this, &fault, generation = observer_.generation()] {
      if (observer_.generation() == generation) inject(fault);
    };
    const auto act_before_operation = [this, &fault, act] {
      if (processes_[static_cast<std::size_t>(witness(fault))] == nullptr) return;  // as in inject
      Process& process = *processes_[static_cast<std::size_t>(witness(fault))];
      Process::Calls& calls = fault.is_of_disk ? process.disk_operations : process.operations;
      calls.acts[calls.number + fault.operation] = act;
    };
    const bool is_any = fault.witness == kAnyRank || (fault.witness == kOwn && schedule_.is_server(fault.rank));
    const int rank = is_any ? kAnyRank : witness(fault);
    if (fault.epoch > 0) {
      observer_.at_epoch(fault.epoch, rank, act);
    } else if (fault.step > 0) {
      observer_.at_step(fault.step, rank, act_before_operation);
    } else if (fault.operation > 0) {
      act_before_operation();
    } else {
      cluster_.simulator.at(cluster_.simulator.now() + fault.at, act);
    }
  }

  void inject(const Fault& fault) {
    Simulator& simulator = cluster_.simulator;
    if (processes_[static_cast<std::size_t>(fault.rank)] == nullptr) return;  // the launcher has not started it yet
    Process& process = *processes_[static_cast<std::size_t>(fault.rank)];
    simulator.note("FAULT: " + describe(schedule_, fault));
    const double until = simulator.now() + fault.seconds;
    const Fault* const next = &fault + 1;
    if (next < schedule_.faults.data() + schedule_.faults.size() && next->follows) plan(*next);
    switch (fault.kind) {
      case FaultKind::kKill:
        return simulator.kill(process);
      case FaultKind::kStop:
        simulator.stop(process);
        return simulator.at(until, [&simulator, &process] { simulator.go_on(process); });
      case FaultKind::kPowerLoss:
      case FaultKind::kBitRot:
        is_down_ = true;
        scheduler_.lose_power();
        for (Process* each : processes_) {
          if (each != nullptr) simulator.kill(*each);
        }
        if (schedule_.has_launcher) simulator.kill(*launcher_);
        cluster_.disk.lose_power();
        if (fault.kind == FaultKind::kBitRot) damage_newest_checkpoint();
        return;
      case FaultKind::kDiskFull:
        return cluster_.disk.fill(until, fault.space);
      case FaultKind::kInterrupt:
        return launchers_.back().stop();
      case FaultKind::kResize:
        return launchers_.back().ask_for(fault.workers);
      case FaultKind::kPartition:
        return part_hosts(fault, until);
      case FaultKind::kLaunchLoss:
        simulator.kill(*launcher_);
        return launchers_.back().lose();
      default:
        return inject_into_links(fault, until);
    }
  }

  // Once, where there is one before it.
  void damage_newest_checkpoint() {
    const auto folder = cluster_.disk.find(fmt::format("{}/checkpoint", kFolder));
    if (!folder) return;
    std::vector<std::string> names;
    for (const auto& [name, inode] : folder->entries) {
      if (!name.ends_with(".part")) names.push_back(name);
    }
    if (names.size() < 2 || std::exchange(has_damaged_, true)) return;
    observer_.expect_damage();
    const std::string file = cluster_.disk.flip_bit(fmt::format("{}/checkpoint/{}", kFolder, names.back()));
    cluster_.simulator.note("in " + file);
  }

  void inject_into_links(const Fault& fault, double until) {
    const int own = processes_[static_cast<std::size_t>(fault.rank)]->id;
    for (int process = 0; process < schedule_.processes(); ++process) {
      const bool is_linked = process < schedule_.ranks || schedule_.is_server(process);
      if (!is_linked || host(process) == host(fault.rank) || (fault.other >= 0 && process != fault.other)) continue;
      const int other = processes_[static_cast<std::size_t>(process)]->id;
      Network& network = cluster_.network;
      if (fault.kind == FaultKind::kReset) network.reset(own, other);
      if (fault.kind == FaultKind::kSilence || fault.kind == FaultKind::kHalfOpen) network.silence(own, other, until);
      if (fault.kind == FaultKind::kSilence) network.silence(other, own, until);
      if (fault.kind == FaultKind::kSlow) {
        network.slow_down(own, other, kSlowSeconds, until);
        network.slow_down(other, own, kSlowSeconds, until);
      }
    }
  }

  void part_hosts(const Fault& fault, double until) {
    const auto is_on_side = [&](int process) { return fault.is_on_side(host(process)); };
    for (int one = 0; one < schedule_.processes(); ++one) {
      for (int other = 0; other < schedule_.processes(); ++other) {
        if (is_on_side(one) == is_on_side(other)) continue;
        cluster_.network.silence(processes_[static_cast<std::size_t>(one)]->id,
                                 processes_[static_cast<std::size_t>(other)]->id, until);
      }
    }
  }

  const Schedule& schedule_;
  Cluster cluster_;
  const LinearJob job_;
  Observer observer_;
  SchedulerJob scheduler_;
  std::deque<LauncherJob> launchers_;  // of the generations
  Process* launcher_ = nullptr;        // of this one
  std::deque<RankSetup> setups_;       // of all processes of ranks, one after the other
  std::vector<Process*> processes_;    // by rank; then the server's
  int replacements_ = 0;               // of this generation
  bool is_down_ = false;               // the power has failed, or all is over
  std::array<ServerJobSetup, kServerWorkers> server_setups_;
  std::vector<int> server_lives_;      // of the ranks' servers, in this generation
  bool is_server_lost_early_ = false;  // before a step was committed
  bool has_damaged_ = false;
  bool is_trained_ = false;
  bool is_served_ = schedule_.servers > 0;  // the job with the server of its own is done, or there is none
};

}  // namespace

Outcome run_schedule(const Schedule& schedule, bool keeps_notes) {
  return JobRun(schedule, keeps_notes).run();
}

Schedule shrink(const Schedule& schedule) {
  Schedule best = schedule;
  const auto still_fails = [](const Schedule& candidate) { return !run_schedule(candidate).violations.empty(); };
  for (bool has_changed = true; std::exchange(has_changed, false);) {
    for (std::size_t i = 0; i < best.faults.size(); ++i) {
      Schedule candidate = best;
      candidate.faults.erase(candidate.faults.begin() + static_cast<std::ptrdiff_t>(i));
      if (!still_fails(candidate)) continue;
      best = std::move(candidate);
      has_changed = true;
      break;
    }
  }
  return best;
}

}  // namespace motley::simulation
