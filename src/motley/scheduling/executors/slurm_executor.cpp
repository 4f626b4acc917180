#include "motley/scheduling/executors/executors.h"

#include <fcntl.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "motley/base/clock.h"
#include "motley/base/log.h"
#include "motley/base/os/descriptor.h"
#include "motley/base/os/file.h"
#include "motley/base/os/process.h"
#include "motley/net/session.h"
#include "motley/scheduling/executors/attempt_folder.h"

namespace motley::scheduling {
namespace {

constexpr double kAnswerSeconds = 20;   // in which Slurm's programs have to answer
constexpr double kAskSeconds = 1;       // between questions to Slurm
constexpr double kFileSeconds = 5;      // in which a file of another node is seen here
constexpr double kSuspectSeconds = 60;  // for which a node that did not answer gets no jobs
constexpr double kMebibyte = 1 << 20;   // Slurm's unit of memory
constexpr int kMaxRefusals = 5;         // of an attempt by sbatch, before it counts as failed
constexpr int kRefusedCode = 1;         // the exit code of such an attempt

std::string quoted(const std::string& word) {
  std::string text = "'";
  for (const char c : word) {
    if (c == '\'') {
      text += "'\\''";
    } else {
      text += c;
    }
  }
  text += '\'';
  return text;
}

// Runs a program of Slurm. What it says on standard error goes to ours, or to another descriptor.
Output ask(std::vector<std::string> words, int errors = -1) {
  const auto output = run_program({.words = std::move(words), .errors = errors}, Deadline::after(kAnswerSeconds));
  return output ? *output : Output{.exit_code = 1};
}

// The fields of each line, which are as many as `count`; the last one may hold separators.
std::vector<std::vector<std::string>> table(const std::string& text, std::size_t count) {
  std::vector<std::vector<std::string>> rows;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::vector<std::string> fields;
    for (std::size_t begin = 0; fields.size() < count;) {
      const std::size_t end = fields.size() + 1 < count ? line.find('|', begin) : std::string::npos;
      fields.push_back(line.substr(begin, end == std::string::npos ? end : end - begin));
      if (end == std::string::npos) break;
      begin = end + 1;
    }
    if (fields.size() == count) rows.push_back(std::move(fields));
  }
  return rows;
}

int number_in(const std::string& text, int otherwise = 0) {
  int number = otherwise;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

struct Gpus {
  int count = 0;
  std::string type;  // as Slurm calls it, "gpu" where it does not; several are joined by '+'
};

// Of a node's generic resources, such as "gpu:v100:4(S:0-1),nic:2".
Gpus gpus_in(const std::string& resources) {
  Gpus gpus;
  std::istringstream entries(resources);
  for (std::string entry; std::getline(entries, entry, ',');) {
    if (!entry.starts_with("gpu:")) continue;
    const std::string name = entry.substr(0, entry.find('('));
    const std::size_t first = name.find(':');
    const std::size_t last = name.rfind(':');
    gpus.count += number_in(name.substr(last + 1));
    if (!gpus.type.empty()) gpus.type += '+';
    gpus.type += first == last ? "gpu" : name.substr(first + 1, last - first - 1);
  }
  return gpus;
}

struct SlurmNode {
  std::string name;
  int cpus = 0;
  double memory_bytes = 0;  // 0: Slurm does not know
  Gpus gpus;
  bool is_there = false;
};

// Each node once. Nothing where Slurm does not answer.
std::optional<std::vector<SlurmNode>> read_nodes(const SlurmOptions& options) {
  std::vector<std::string> words = {"sinfo", "--noheader", "--Node", "--format=%N|%c|%m|%T|%G"};
  if (!options.partition.empty()) words.push_back("--partition=" + options.partition);
  const Output answer = ask(words);
  if (!answer.is_good()) return {};
  std::vector<SlurmNode> nodes;
  std::set<std::string> names;
  for (const auto& row : table(answer.text, 5)) {
    if (!names.insert(row[0]).second) continue;  // it is in several partitions
    static const std::set<std::string> good_states = {"allocated", "completing", "idle", "mixed", "planned"};
    // Marks such as '~' (asleep) and '#' (waking up) follow the state; '*' says that the node does not answer.
    const std::string state = row[3].substr(0, row[3].find_first_not_of("abcdefghijklmnopqrstuvwxyz"));
    const int mebibytes = number_in(row[2]);  // 1 where nobody has told it
    nodes.push_back({row[0], number_in(row[1]), mebibytes > 1 ? mebibytes * kMebibyte : 0, gpus_in(row[4]),
                     good_states.contains(state) && row[3].find('*') == std::string::npos});
  }
  return nodes;
}

// A job of Slurm's, or a part of one.
struct SlurmJob {
  std::string id;
  std::string state;

  bool is_over() const {
    static const std::set<std::string> final_states = {"BOOT_FAIL", "CANCELLED", "COMPLETED",     "DEADLINE",
                                                       "FAILED",    "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED",
                                                       "REVOKED",   "TIMEOUT"};
    return final_states.contains(state);
  }
  bool lost_its_node() const { return state == "NODE_FAIL" || state == "BOOT_FAIL" || state == "PREEMPTED"; }
};

class SlurmExecutor final : public Executor {
 public:
  SlurmExecutor(SlurmOptions options, std::string wrapper, std::vector<SlurmNode> nodes)
      : options_(std::move(options)), wrapper_(std::move(wrapper)), nodes_(std::move(nodes)) {}

  Status start(const Attempt& attempt) override {
    const std::string key = attempt.folder.string();
    if (has_begun(attempt) || !ask_for_jobs() || jobs_.contains(key)) return {};
    MOTLEY_TRY(make_folders(attempt.folder));
    MOTLEY_TRY(write_file(attempt.folder / "script", make_script(attempt)));
    MOTLEY_TRY(net::Secret::generate().write(attempt.folder / "secret"));
    const std::string output = (attempt.folder / "output").string();
    const Descriptor errors(::open(output.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    const Output answer = ask(make_submission(attempt), errors.get());
    if (answer.is_good()) {
      jobs_[key].push_back({answer.text.substr(0, answer.text.find_first_of(";\n")), "PENDING"});
      return {};
    }
    // It may have been accepted nevertheless, which the next question to Slurm tells.
    if (++watched_[key].refusals < kMaxRefusals) return {};
    if (!forbid(attempt)) return {};
    return note_ended(attempt.folder, kRefusedCode, fmt::format("sbatch does not accept it; {} says why", output));
  }

  Result<AttemptStatus> look(const Attempt& attempt) override {
    using State = AttemptStatus::State;
    const std::string key = attempt.folder.string();
    MOTLEY_ASSIGN(std::optional<AttemptStatus> ended, read_ended(attempt));
    if (ended && ended->exit_code == 0) return over(key, *ended);
    const double now = monotonic_seconds();
    if (now >= asked_for_jobs_ + kAskSeconds) ask_for_jobs();
    const auto found = jobs_.find(key);
    const bool is_known = found != jobs_.end();
    if (is_known && !std::ranges::all_of(found->second, &SlurmJob::is_over)) return AttemptStatus{State::kRunning};
    if (!is_known && !has_begun(attempt)) return AttemptStatus{State::kUnknown};
    if (!is_known && !answers_) return AttemptStatus{State::kRunning};
    MOTLEY_ASSIGN(ended, read_ended(attempt));
    double& unseen = watched_[key].unseen;
    if (unseen < 0) unseen = now;
    if (!ended && now < unseen + kFileSeconds) return AttemptStatus{State::kRunning};
    const bool has_suspects = note_suspects(attempt);
    if (has_suspects || (is_known && std::ranges::any_of(found->second, &SlurmJob::lost_its_node))) {
      return over(key, {State::kLost, 0, true});
    }
    return over(key, ended.value_or(AttemptStatus{State::kLost}));
  }

  // Its looks see no launcher that could be asked: the tasks of a job are Slurm's.
  Status resize(const Attempt& attempt) override {
    return fail(ErrorCode::kUnavailable, "job '{}': Slurm's jobs are not resized in place", attempt.name);
  }

  Status ask_to_end(const Attempt& attempt) override {
    if (forbid(attempt)) return cancel(attempt, {});
    return cancel(attempt, {"--batch", "--signal=TERM"});
  }

  Status kill(const Attempt& attempt) override {
    double& killed = watched_[attempt.folder.string()].killed;
    if (monotonic_seconds() < killed + kAskSeconds) return {};
    killed = monotonic_seconds();
    forbid(attempt);
    return cancel(attempt, {"--full", "--signal=KILL"});
  }

  Result<std::vector<std::string>> down_nodes() override {
    const double now = monotonic_seconds();
    if (now >= asked_for_nodes_ + kAskSeconds) {
      const auto nodes = read_nodes(options_);
      asked_for_nodes_ = monotonic_seconds();
      if (nodes) {
        for (SlurmNode& node : nodes_) {
          const auto found = std::ranges::find(*nodes, node.name, &SlurmNode::name);
          node.is_there = found != nodes->end() && found->is_there;
        }
      }
    }
    std::vector<std::string> down;
    for (const SlurmNode& node : nodes_) {
      const auto suspect = suspects_.find(node.name);
      if (!node.is_there || (suspect != suspects_.end() && now < suspect->second)) down.push_back(node.name);
    }
    return down;
  }

 private:
  // Slurm takes scripts only.
  std::string make_script(const Attempt& attempt) const {
    std::string script = "#!/bin/sh\n";
    auto variables = list_variables(attempt);
    variables.emplace_back(net::kSecretFileVariable, (attempt.folder / "secret").string());
    for (const auto& [name, value] : variables) script += fmt::format("export {}={}\n", name, quoted(value));
    script += "exec";
    for (const std::string& word : wrapped_command(wrapper_, attempt, true)) script += fmt::format(" {}", quoted(word));
    return script + "\n";
  }

  std::vector<std::string> make_submission(const Attempt& attempt) const {
    std::map<std::pair<int, bool>, std::vector<std::string>> parts;  // nodes by workers on each, and whether on GPUs
    for (const NodeAllocation& allocation : attempt.nodes) {
      const auto node = std::ranges::find(nodes_, allocation.node, &SlurmNode::name);
      parts[{allocation.workers, node != nodes_.end() && node->gpus.count > 0}].push_back(allocation.node);
    }
    const std::string folder = attempt.folder.string();
    std::vector<std::string> words = {"sbatch", "--parsable", "--no-requeue", "--open-mode=append",
                                      "--output=" + folder + "/output"};
    for (const auto& [kind, names] : parts) {
      const auto& [workers, has_gpus] = kind;
      if (words.back() != words[4]) words.emplace_back(":");
      words.insert(words.end(),
                   {"--comment=" + folder, fmt::format("--job-name={}.{}", attempt.name, attempt.number),
                    fmt::format("--nodelist={}", fmt::join(names, ",")), fmt::format("--nodes={}", names.size()),
                    fmt::format("--ntasks={}", names.size() * static_cast<std::size_t>(workers)),
                    fmt::format("--ntasks-per-node={}", workers)});
      if (has_gpus) words.push_back(fmt::format("--gres=gpu:{}", workers));
      const double cpus = std::max(1.0, std::ceil(attempt.cpus_per_worker));
      if (attempt.cpus_per_worker > 0) words.push_back(fmt::format("--cpus-per-task={}", cpus));
      if (attempt.memory_bytes_per_worker > 0) {
        words.push_back(fmt::format("--mem-per-cpu={}", std::ceil(attempt.memory_bytes_per_worker / cpus / kMebibyte)));
      }
      if (!options_.partition.empty()) words.push_back("--partition=" + options_.partition);
      words.insert(words.end(), options_.options.begin(), options_.options.end());
    }
    words.push_back(folder + "/script");
    return words;
  }

  // Learns of all our jobs that Slurm still knows. False where it does not answer; then what is known stays.
  bool ask_for_jobs() {
    const Output answer = ask({"squeue", "--me", "--noheader", "--states=all", "--format=%i|%T|%k"});
    asked_for_jobs_ = monotonic_seconds();
    if (answer.is_good() != answers_) {
      answers_ = answer.is_good();
      spdlog::warn("Slurm {}", answers_ ? "answers again" : "does not answer; asking again");
    }
    if (!answer.is_good()) return false;
    jobs_.clear();
    for (auto& row : table(answer.text, 3)) {
      jobs_[row[2]].push_back({row[0].substr(0, row[0].find('+')), row[1]});
    }
    return true;
  }

  Status cancel(const Attempt& attempt, const std::vector<std::string>& how) {
    const auto found = jobs_.find(attempt.folder.string());
    if (found == jobs_.end()) {
      if (answers_) return {};
      return fail(ErrorCode::kUnavailable, "Slurm does not answer, and what it runs of it is not known");
    }
    std::set<std::string> ids;
    for (const SlurmJob& job : found->second) {
      if (!job.is_over()) ids.insert(job.id);
    }
    if (ids.empty()) return {};
    std::vector<std::string> words = {"scancel"};
    words.insert(words.end(), how.begin(), how.end());
    words.insert(words.end(), ids.begin(), ids.end());
    if (ask(words).is_good()) return {};
    return fail(ErrorCode::kUnavailable, "scancel failed for Slurm's job {}", fmt::join(ids, ", "));
  }

  bool note_suspects(const Attempt& attempt) {
    const auto text = read_file(attempt.folder / "suspects", 1 << 20);
    if (!text) return false;
    std::istringstream names(*text);
    for (std::string name; names >> name;) {
      spdlog::warn("node '{}' did not answer when job '{}' had failed there", name, attempt.name);
      suspects_[name] = monotonic_seconds() + kSuspectSeconds;
    }
    return true;
  }

  // Forgets what was noted of the attempt.
  Result<AttemptStatus> over(const std::string& key, const AttemptStatus& status) {
    watched_.erase(key);
    return status;
  }

  const SlurmOptions options_;
  const std::string wrapper_;
  std::vector<SlurmNode> nodes_;
  // When Slurm last answered, or did not: a slow one is not asked again for each attempt that is looked at.
  double asked_for_nodes_ = -1e18;
  double asked_for_jobs_ = -1e18;
  bool answers_ = true;
  // All by the attempt's folder, which is the jobs' comment.
  std::map<std::string, std::vector<SlurmJob>> jobs_;
  struct Watched {
    int refusals = 0;
    double unseen = -1;            // since when it should have ended, as Slurm says, and nothing says how
    double killed = -kAskSeconds;  // when it was last
  };
  std::map<std::string, Watched> watched_;
  std::map<std::string, double> suspects_;  // nodes, until when
};

Result<std::vector<SlurmNode>> nodes_now(const SlurmOptions& options) {
  const auto nodes = read_nodes(options);
  const std::string where = options.partition.empty() ? "" : fmt::format(" in partition '{}'", options.partition);
  if (!nodes) {
    return fail(ErrorCode::kUnavailable,
                "Slurm does not answer (sinfo says why above); accepted: a machine where sinfo, squeue, sbatch and "
                "scancel work");
  }
  if (nodes->empty()) return fail(ErrorCode::kInvalidInput, "Slurm has no nodes{}; accepted: one or more", where);
  return *nodes;
}

}  // namespace

Result<ClusterTopology> slurm_topology(const SlurmOptions& options) {
  MOTLEY_ASSIGN(const std::vector<SlurmNode> nodes, nodes_now(options));
  ClusterTopology topology;
  topology.gives_whole_cpus = true;
  for (const SlurmNode& node : nodes) {
    const bool has_gpus = node.gpus.count > 0;
    topology.nodes.push_back({.name = node.name,
                              .devices = has_gpus ? node.gpus.count : node.cpus,
                              .type = topology.type_named(has_gpus ? node.gpus.type : "cpu")});
  }
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    topology.set_resource(kCpus, static_cast<int>(i), nodes[i].cpus);
    if (nodes[i].memory_bytes > 0) topology.set_resource(kMemory, static_cast<int>(i), nodes[i].memory_bytes);
  }
  return topology;
}

Result<std::unique_ptr<Executor>> make_slurm_executor(const SlurmOptions& options) {
  MOTLEY_ASSIGN(std::vector<SlurmNode> nodes, nodes_now(options));
  MOTLEY_ASSIGN(std::string wrapper, find_wrapper());
  return std::make_unique<SlurmExecutor>(options, std::move(wrapper), std::move(nodes));
}

}  // namespace motley::scheduling
