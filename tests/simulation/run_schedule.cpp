#include "tests/simulation/run_schedule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <set>

#include "tests/simulation/cluster.h"
#include "tests/simulation/server_job.h"
#include "tests/simulation/training_rank.h"

namespace motley::simulation {
namespace {

constexpr int kGenerations = 4;         // by then the job must be done
constexpr double kPatience = 400;       // seconds in which all waits of a generation end
constexpr double kSlowness = 40;        // of a slow rank
constexpr double kSlowSeconds = 30e-3;  // what a slow link adds on average
constexpr std::uint16_t kRendezvousPort = 29400, kServedRendezvousPort = 29401, kServerPort = 29500;
constexpr const char* kFolder = "/run";

class JobRun {
 public:
  JobRun(const Schedule& schedule, bool keeps_notes)
      : schedule_(schedule),
        cluster_(schedule.seed),
        job_(make_job(schedule)),
        observer_(job_),
        setups_(static_cast<std::size_t>(schedule.ranks)),
        processes_(static_cast<std::size_t>(schedule.processes())) {
    cluster_.simulator.keeps_notes = keeps_notes;
    cluster_.disk.make_folder(kFolder);
    cluster_.disk.sync(*cluster_.disk.find("/"));
  }

  Outcome run() {
    Outcome outcome;
    while (outcome.generations < kGenerations && observer_.violations().empty()) {
      ++outcome.generations;
      if (run_generation(outcome.generations)) break;
      if (outcome.generations == kGenerations)
        observer_.violate("the job is not done although no faults come any more");
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
    if (schedule.has_large_buckets) job.bucket_elements = {8, 8300, 40};
    return job;
  }

  int host(int process) const {
    const int rank = process % schedule_.ranks;
    switch (schedule_.topology) {
      case Topology::kHostEach:
        return rank;
      case Topology::kTwoHosts:
        return rank / 2;
      default:
        return 0;
    }
  }

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
    if (schedule_.topology == Topology::kOneHostTcp) setup.reducer.method = collective::Method::kTcpRing;
    setup.resume = true;
    setup.folder = kFolder;
    if (schedule_.has_slow_rank && rank == schedule_.ranks - 1) setup.seconds_per_sample *= kSlowness;
    return setup;
  }

  void start(int process, std::function<int()> main, bool is_service = false) {
    processes_[static_cast<std::size_t>(process)] =
        &cluster_.simulator.start_process(host(process), schedule_.name(process), std::move(main), is_service);
  }

  void start_processes() {
    for (int rank = 0; rank < schedule_.ranks; ++rank) {
      RankSetup& setup = setups_[static_cast<std::size_t>(rank)];
      setup = make_setup(rank);
      start(rank, [this, &setup] { return is_trained_ ? 0 : run_training_rank(setup, job_, observer_); });
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
    start(server, [this] { return run_parameter_server(server_setups_.front()); }, true);
  }

  std::string address(int process) const {
    return is_one_host() ? "127.0.0.1" : fmt::format("10.0.0.{}", 1 + host(process));
  }
  bool is_one_host() const { return host(schedule_.ranks - 1) == 0; }

  // True once the jobs are done.
  bool run_generation(int generation) {
    Simulator& simulator = cluster_.simulator;
    observer_.begin_generation();
    cluster_.disk.fill(0);
    simulator.note(fmt::format("start {} of the job", generation));
    start_processes();
    std::vector<const Fault*> faults;
    for (const Fault& fault : schedule_.faults) {
      if (fault.generation != generation) continue;
      faults.push_back(&fault);
      plan(fault, generation);
    }
    if (!simulator.run(simulator.now() + kPatience)) {
      observer_.violate("a wait never ends: " + simulator.describe_waits());
      return true;
    }
    for (const Process* process : processes_) {
      if (process->status == 128 + SIGABRT)
        observer_.violate(process->name + " stops by a broken invariant of its own");
    }
    cluster_.simulator.kill(*processes_[static_cast<std::size_t>(schedule_.ranks)]);
    if (faults.empty() && !is_served_ && observer_.finished_workers() < kServerWorkers) {
      observer_.violate(fmt::format("the server's job is not done: {}", fmt::join(observer_.endings(), "; ")));
    }
    is_served_ = is_served_ || observer_.finished_workers() == kServerWorkers;
    const int least = is_trained_ ? 0 : least_finished(faults);
    if (observer_.finished() < least) {
      observer_.violate(fmt::format("{} ranks have done the job, at least {} were to: {}", observer_.finished(), least,
                                    fmt::join(observer_.endings(), "; ")));
    }
    is_trained_ = is_trained_ || observer_.finished() > 0;
    return is_trained_ && is_served_;
  }

  // Ranks that a generation's faults must leave alone: on one host those that are not killed; else all others where one
  // is killed, a majority where one is stopped, and some where the links of one are bad. A majority may be lost where
  // there are more faults, and the run ends where the disk fails.
  int least_finished(const std::vector<const Fault*>& faults) const {
    std::set<int> hit;
    bool all_are_deaths = true;
    for (const Fault* fault : faults) {
      if (fault->kind >= FaultKind::kDiskFull) return 0;
      if (fault->rank >= schedule_.ranks) continue;
      hit.insert(fault->rank);
      all_are_deaths = all_are_deaths && fault->kind == FaultKind::kKill;
    }
    if (hit.empty()) return schedule_.ranks;
    // A rank that is lost while all join ends the start.
    if (!observer_.has_committed()) return 0;
    if (all_are_deaths && is_one_host()) return schedule_.ranks - static_cast<int>(hit.size());
    if (faults.size() > 1) return 0;
    if (all_are_deaths) return schedule_.ranks - 1;
    return faults.front()->kind == FaultKind::kStop ? schedule_.ranks / 2 + 1 : 1;
  }

  void plan(const Fault& fault, int generation) {
    const auto act = [this, &fault, generation] {
      if (observer_.generation() == generation) inject(fault);
    };
    if (fault.epoch > 0) {
      observer_.at_epoch(fault.epoch, fault.rank, act);
    } else if (fault.operation > 0) {
      processes_[static_cast<std::size_t>(fault.rank)]->at_operation[fault.operation] = act;
    } else {
      cluster_.simulator.at(cluster_.simulator.now() + fault.at, act);
    }
  }

  void inject(const Fault& fault) {
    Simulator& simulator = cluster_.simulator;
    Process& process = *processes_[static_cast<std::size_t>(fault.rank)];
    simulator.note("FAULT: " + describe(schedule_, fault));
    const double until = simulator.now() + fault.seconds;
    switch (fault.kind) {
      case FaultKind::kKill:
        return simulator.kill(process);
      case FaultKind::kStop:
        simulator.stop(process);
        return simulator.at(until, [&simulator, &process] { simulator.go_on(process); });
      case FaultKind::kPowerLoss:
      case FaultKind::kBitRot:
        for (Process* each : processes_) simulator.kill(*each);
        cluster_.disk.lose_power();
        if (fault.kind == FaultKind::kBitRot) damage_newest_checkpoint();
        return;
      case FaultKind::kDiskFull:
        return cluster_.disk.fill(until);
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
    for (int rank = 0; rank < schedule_.ranks; ++rank) {
      if (host(rank) == host(fault.rank) || (fault.other >= 0 && rank != fault.other)) continue;
      const int other = processes_[static_cast<std::size_t>(rank)]->id;
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

  const Schedule& schedule_;
  Cluster cluster_;
  const LinearJob job_;
  Observer observer_;
  std::vector<RankSetup> setups_;  // by rank, as are the processes
  std::vector<Process*> processes_;
  std::array<ServerJobSetup, kServerWorkers> server_setups_;
  bool has_damaged_ = false;
  bool is_trained_ = false;
  bool is_served_ = false;
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
