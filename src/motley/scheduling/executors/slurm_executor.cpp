#include "motley/scheduling/executors/slurm_executor.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "motley/base/clock.h"
#include "motley/base/log.h"
#include "motley/base/os/file.h"
#include "motley/net/session.h"

namespace motley::scheduling {
namespace {

constexpr int kAnswerSeconds = 20;      // in which Slurm's programs have to answer
constexpr double kAskSeconds = 1;       // between questions to Slurm
constexpr double kFileSeconds = 5;      // in which a file of another node is seen here
constexpr double kSuspectSeconds = 60;  // for which a node that did not answer gets no jobs
constexpr int kMostRefusals = 5;        // of an attempt by sbatch, before it counts as failed
constexpr int kRefusedCode = 1;         // the exit code of such an attempt

// The batch job. Arguments: the attempt's folder, the directory to run in, then the command.
//
// srun would end its tasks at once if it got SIGTERM itself. So the command is left alone where it has srun run
// something; Slurm brings the signal to the tasks, as soon as there are any.
constexpr const char* kBatchScript = R"script(#!/bin/bash
folder=$1 directory=$2
shift 2
mkdir "$folder/begun" 2>/dev/null || exit 0
parts=${SLURM_HET_SIZE:-1}
MOTLEY_SRUN=srun
if [ "$parts" -gt 1 ]; then MOTLEY_SRUN="srun --het-group=0-$((parts - 1))"; fi
export MOTLEY_SRUN MOTLEY_SECRET_FILE="$folder/secret"

set -m
(
  trap : TERM INT HUP
  cd -- "$directory" && "$@"
  echo $? >"$folder/code"
) &
command=$!

ask_to_end() {
  asked=yes
  if ! pgrep --pgroup "$command" --exact srun >/dev/null; then
    kill -TERM -- "-$command"
    return
  fi
  until squeue --noheader --steps --job="$SLURM_JOB_ID" --format=%i | grep -q '\.[0-9]*$'; do
    kill -0 "$command" 2>/dev/null || return
    sleep 0.2
  done
  scancel --signal=TERM "$SLURM_JOB_ID"
}
trap ask_to_end TERM
while kill -0 "$command" 2>/dev/null; do wait "$command"; done

code=$(cat "$folder/code" || echo 1)
if [ "$code" -ne 0 ] && [ -z "${asked:-}" ]; then
  for ((part = 0; part < parts; ++part)); do
    nodes=SLURM_JOB_NODELIST
    of_part=()
    if [ "$parts" -gt 1 ]; then
      nodes=SLURM_JOB_NODELIST_HET_GROUP_$part
      of_part=("--het-group=$part")
    fi
    for node in $(scontrol show hostnames "${!nodes}"); do
      timeout 20 srun "${of_part[@]}" --overlap --nodes=1 --ntasks=1 --ntasks-per-node=1 --nodelist="$node" true \
        </dev/null || echo "$node" >>"$folder/suspects" &
    done
  done
  wait
fi
echo "$code" >"$folder/ended.new"
mv "$folder/ended.new" "$folder/ended"
)script";

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

struct Answer {
  bool is_good = false;  // the program ended with 0
  std::string text;      // of its standard output
};

// Runs a program of Slurm. What it says on standard error goes to ours, or to the end of a file.
Answer ask(const std::vector<std::string>& words, const std::string& errors = "") {
  std::string line = fmt::format("exec timeout --signal=KILL {}", kAnswerSeconds);
  for (const std::string& word : words) line += fmt::format(" {}", quoted(word));
  if (!errors.empty()) line += fmt::format(" 2>>{}", quoted(errors));
  std::FILE* pipe = ::popen(line.c_str(), "re");
  if (pipe == nullptr) return {};
  Answer answer;
  std::array<char, 4096> buffer{};
  while (const std::size_t bytes = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    answer.text.append(buffer.data(), bytes);
  }
  answer.is_good = ::pclose(pipe) == 0;
  return answer;
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

struct Node {
  std::string name;
  int cpus = 0;
  Gpus gpus;
  bool is_there = false;
};

// Each node once. Nothing where Slurm does not answer.
std::optional<std::vector<Node>> nodes_of(const SlurmOptions& options) {
  std::vector<std::string> words = {"sinfo", "--noheader", "--Node", "--format=%N|%c|%T|%G"};
  if (!options.partition.empty()) words.push_back("--partition=" + options.partition);
  const Answer answer = ask(words);
  if (!answer.is_good) return {};
  std::vector<Node> nodes;
  std::set<std::string> names;
  for (const auto& row : table(answer.text, 4)) {
    if (!names.insert(row[0]).second) continue;  // it is in several partitions
    static const std::set<std::string> good_states = {"allocated", "completing", "idle", "mixed", "planned"};
    // Marks such as '~' (asleep) and '#' (waking up) follow the state; '*' says that the node does not answer.
    const std::string state = row[2].substr(0, row[2].find_first_not_of("abcdefghijklmnopqrstuvwxyz"));
    nodes.push_back({row[0], number_in(row[1]), gpus_in(row[3]),
                     good_states.contains(state) && row[2].find('*') == std::string::npos});
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
  SlurmExecutor(SlurmOptions options, std::vector<Node> nodes)
      : options_(std::move(options)), nodes_(std::move(nodes)) {}

  Status start(const Attempt& attempt) override {
    const std::string key = attempt.folder.string();
    if (exists(attempt, "begun") || !ask_for_jobs() || jobs_.contains(key)) return {};
    MOTLEY_TRY(make_folders(attempt.folder));
    MOTLEY_TRY(write_file(attempt.folder / "script", script_of(attempt)));
    MOTLEY_TRY(write_secret(attempt.folder / "secret"));
    const std::string output = (attempt.folder / "output").string();
    const Answer answer = ask(submission_of(attempt), output);
    if (answer.is_good) {
      jobs_[key].push_back({answer.text.substr(0, answer.text.find_first_of(";\n")), "PENDING"});
      return {};
    }
    // It may have been accepted nevertheless, which the next question to Slurm tells.
    if (++refusals_[key] < kMostRefusals) return {};
    spdlog::warn("job '{}': sbatch does not accept it; {} says why", attempt.name, output);
    if (forbid(attempt)) return write_file(attempt.folder / "ended", fmt::format("{}\n", kRefusedCode));
    return {};
  }

  Result<AttemptStatus> look(const Attempt& attempt) override {
    using State = AttemptStatus::State;
    const std::string key = attempt.folder.string();
    if (exit_code(attempt) == 0) return over(key, {State::kEnded, 0});
    const double now = monotonic_seconds();
    if (now >= asked_for_jobs_ + kAskSeconds) ask_for_jobs();
    const auto found = jobs_.find(key);
    const bool is_known = found != jobs_.end();
    if (is_known && !std::ranges::all_of(found->second, &SlurmJob::is_over)) return AttemptStatus{State::kRunning};
    if (!is_known && !exists(attempt, "begun")) return AttemptStatus{State::kUnknown};
    if (!is_known && !answers_) return AttemptStatus{State::kRunning};
    const auto code = exit_code(attempt);
    if (!code && now < unseen_.emplace(key, now).first->second + kFileSeconds) return AttemptStatus{State::kRunning};
    const bool has_suspects = note_suspects(attempt);
    if (has_suspects || (is_known && std::ranges::any_of(found->second, &SlurmJob::lost_its_node))) {
      return over(key, {State::kLost, 0, true});
    }
    return over(key, code ? AttemptStatus{State::kEnded, *code} : AttemptStatus{State::kLost});
  }

  Status ask_to_end(const Attempt& attempt) override {
    if (forbid(attempt)) {
      cancel(attempt, {});
    } else {
      cancel(attempt, {"--batch", "--signal=TERM"});
    }
    return {};
  }

  Status kill(const Attempt& attempt) override {
    double& killed = killed_.emplace(attempt.folder.string(), -kAskSeconds).first->second;
    if (monotonic_seconds() < killed + kAskSeconds) return {};
    killed = monotonic_seconds();
    forbid(attempt);
    cancel(attempt, {"--full", "--signal=KILL"});
    return {};
  }

  Result<std::vector<std::string>> missing_nodes() override {
    const double now = monotonic_seconds();
    if (now >= asked_for_nodes_ + kAskSeconds) {
      asked_for_nodes_ = now;
      if (const auto nodes = nodes_of(options_)) {
        for (Node& node : nodes_) {
          const auto found = std::ranges::find(*nodes, node.name, &Node::name);
          node.is_there = found != nodes->end() && found->is_there;
        }
      }
    }
    std::vector<std::string> missing;
    for (const Node& node : nodes_) {
      const auto suspect = suspects_.find(node.name);
      if (!node.is_there || (suspect != suspects_.end() && now < suspect->second)) missing.push_back(node.name);
    }
    return missing;
  }

 private:
  static bool exists(const Attempt& attempt, const char* name) {
    std::error_code ignored;
    return std::filesystem::exists(attempt.folder / name, ignored);
  }

  static std::optional<int> exit_code(const Attempt& attempt) {
    const auto text = read_file(attempt.folder / "ended", 64);
    if (!text) return {};
    return number_in(*text, 1);
  }

  // Makes sure that it never begins; false where it has.
  static bool forbid(const Attempt& attempt) {
    std::error_code ignored;
    std::filesystem::create_directories(attempt.folder, ignored);
    return std::filesystem::create_directory(attempt.folder / "begun", ignored);
  }

  static Status write_secret(const std::filesystem::path& file) {
    MOTLEY_TRY(write_file(file, ""));
    std::error_code error;
    std::filesystem::permissions(file, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write, error);
    if (error) return fail(ErrorCode::kIo, "{}: {}", file.string(), error.message());
    return append_line(file, net::Secret::generate().hex());
  }

  static std::string script_of(const Attempt& attempt) {
    std::string variables;
    for (const auto& [name, value] : variables_of(attempt)) {
      variables += fmt::format("export {}={}\n", name, quoted(value));
    }
    return "#!/bin/bash\n" + variables + kBatchScript;
  }

  std::vector<std::string> submission_of(const Attempt& attempt) const {
    std::map<std::pair<int, bool>, std::vector<std::string>> parts;  // nodes by workers on each, and whether on GPUs
    for (const NodeShare& share : attempt.nodes) {
      const auto node = std::ranges::find(nodes_, share.node, &Node::name);
      parts[{share.workers, node != nodes_.end() && node->gpus.count > 0}].push_back(share.node);
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
      if (!options_.partition.empty()) words.push_back("--partition=" + options_.partition);
      words.insert(words.end(), options_.options.begin(), options_.options.end());
    }
    words.insert(words.end(), {folder + "/script", folder, attempt.directory});
    words.insert(words.end(), attempt.command.begin(), attempt.command.end());
    return words;
  }

  // Learns of all our jobs that Slurm still knows. False where it does not answer; then what is known stays.
  bool ask_for_jobs() {
    asked_for_jobs_ = monotonic_seconds();
    const Answer answer = ask({"squeue", "--me", "--noheader", "--states=all", "--format=%i|%T|%k"});
    if (answer.is_good != answers_) {
      answers_ = answer.is_good;
      spdlog::warn("Slurm {}", answers_ ? "answers again" : "does not answer; asking again");
    }
    if (!answer.is_good) return false;
    jobs_.clear();
    for (auto& row : table(answer.text, 3)) {
      jobs_[row[2]].push_back({row[0].substr(0, row[0].find('+')), row[1]});
    }
    return true;
  }

  void cancel(const Attempt& attempt, const std::vector<std::string>& how) {
    const auto found = jobs_.find(attempt.folder.string());
    if (found == jobs_.end()) return;
    std::set<std::string> ids;
    for (const SlurmJob& job : found->second) {
      if (!job.is_over()) ids.insert(job.id);
    }
    if (ids.empty()) return;
    std::vector<std::string> words = {"scancel"};
    words.insert(words.end(), how.begin(), how.end());
    words.insert(words.end(), ids.begin(), ids.end());
    if (!ask(words).is_good) spdlog::warn("job '{}': scancel failed for {}", attempt.name, fmt::join(ids, ", "));
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
    refusals_.erase(key);
    unseen_.erase(key);
    killed_.erase(key);
    return status;
  }

  SlurmOptions options_;
  std::vector<Node> nodes_;
  double asked_for_nodes_ = -1e18;
  double asked_for_jobs_ = -1e18;
  bool answers_ = true;
  // All by the attempt's folder, which is the jobs' comment.
  std::map<std::string, std::vector<SlurmJob>> jobs_;
  std::map<std::string, int> refusals_;
  std::map<std::string, double> unseen_;  // since when it should have ended, as Slurm says, and nothing says how
  std::map<std::string, double> killed_;
  std::map<std::string, double> suspects_;  // nodes, until when
};

Result<std::vector<Node>> nodes_now(const SlurmOptions& options) {
  const auto nodes = nodes_of(options);
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

Result<Machines> slurm_machines(const SlurmOptions& options) {
  MOTLEY_ASSIGN(const std::vector<Node> nodes, nodes_now(options));
  Machines machines;
  for (const Node& node : nodes) {
    const bool has_gpus = node.gpus.count > 0;
    machines.servers.push_back({.name = node.name,
                                .devices = has_gpus ? node.gpus.count : node.cpus,
                                .type = machines.type_named(has_gpus ? node.gpus.type : "cpu")});
  }
  return machines;
}

Result<std::unique_ptr<Executor>> make_slurm_executor(const SlurmOptions& options) {
  MOTLEY_ASSIGN(std::vector<Node> nodes, nodes_now(options));
  return std::make_unique<SlurmExecutor>(options, std::move(nodes));
}

}  // namespace motley::scheduling
