// `begun` is linked from a file aside, which of several processes, also of several hosts, one alone can do.
#include "motley/scheduling/executors/attempt_folder.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <utility>

#include "motley/base/os/file.h"

namespace motley::scheduling {
namespace {

constexpr std::size_t kMaxNoteBytes = 1 << 20;

}  // namespace

Result<std::string> find_wrapper(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "motley-run-attempt";
  if (::access(file.c_str(), X_OK) == 0) return file.string();
  return fail(ErrorCode::kUnavailable,
              "cannot run jobs: there is no program '{}'; accepted: motley-run-attempt in the folder of this program, "
              "where builds and installations put both",
              file.string());
}

std::vector<std::string> wrapped_command(const std::string& wrapper, const Attempt& attempt, bool is_batch_job) {
  std::vector<std::string> words = {wrapper};
  if (is_batch_job) words.emplace_back("--batch-job");
  words.insert(words.end(), {attempt.folder.string(), attempt.directory, "--"});
  words.insert(words.end(), attempt.command.begin(), attempt.command.end());
  return words;
}

// A name of the time since the machine was started; nothing where it has none.
static std::string boot_name() {
  std::string name;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> name;
  return name;
}

// Of the processes that can be seen from here, whose numbers mean nothing elsewhere, as in another container.
static std::string numbering_name() {
  std::error_code ignored;
  return std::filesystem::read_symlink("/proc/self/ns/pid", ignored).string();
}

Result<bool> note_begun(const std::filesystem::path& folder, int process) {
  const std::filesystem::path aside = folder / fmt::format("begun.{}", ::getpid());
  MOTLEY_TRY(write_file(aside, fmt::format("{} {} {}\n", process, boot_name(), numbering_name())));
  const bool is_first = ::link(aside.c_str(), (folder / "begun").c_str()) == 0;
  const int problem = errno;
  ::unlink(aside.c_str());
  if (is_first || problem == EEXIST) return is_first;
  return fail(ErrorCode::kIo, "{}: {}", (folder / "begun").string(), std::strerror(problem));
}

Status note_ended(const std::filesystem::path& folder, int exit_code, const std::string& why) {
  return write_file(folder / "ended", fmt::format("{}\n{}\n", exit_code, why));
}

bool forbid(const Attempt& attempt) {
  return make_folders(attempt.folder) && note_begun(attempt.folder, 0).value_or(false);
}

bool has_begun(const Attempt& attempt) {
  std::error_code ignored;
  return std::filesystem::exists(attempt.folder / "begun", ignored);
}

bool was_begun_since_boot(const std::filesystem::path& folder) {
  std::ifstream begun(folder / "begun");
  std::string process, boot;
  begun >> process >> boot;
  const std::string now = boot_name();
  return boot.empty() || now.empty() || boot == now;
}

// Where the file is there, or whether it is cannot be told, an error; empty where it is not.
static Result<std::string> read_note(const std::filesystem::path& file) {
  auto text = read_file(file, kMaxNoteBytes);
  if (!text && text.error().code == ErrorCode::kInvalidInput) return std::string();
  return text;
}

Result<std::optional<AttemptStatus>> read_ended(const Attempt& attempt) {
  MOTLEY_ASSIGN(const std::string text, read_note(attempt.folder / "ended"));
  if (!text.ends_with('\n')) return std::nullopt;
  AttemptStatus status{AttemptStatus::State::kEnded};
  const char* end = text.data() + text.size() - 1;
  const auto [rest, problem] = std::from_chars(text.data(), end, status.exit_code);
  if (problem != std::errc()) return std::nullopt;
  if (rest != end) status.why = std::string(rest + 1, end);
  return status;
}

// --- The processes of an attempt

namespace {

struct Process {
  int number = 0, parent = 0, session = 0;
};

// A file of /proc, for reading. Nothing of a process that has ended meanwhile or is hidden from this one; an error
// where this process may not open any more, as then nothing is known of the other.
Result<std::ifstream> open_entry(const std::filesystem::path& file) {
  errno = 0;
  std::ifstream stream(file);
  if (!stream.is_open() && (errno == EMFILE || errno == ENFILE || errno == ENOMEM)) {
    return fail(ErrorCode::kIo, "{}: {}", file.string(), errno_text());
  }
  return stream;
}

// All that have not ended.
Result<std::vector<Process>> list_processes() {
  std::vector<Process> all;
  std::error_code problem;
  std::filesystem::directory_iterator entry("/proc", problem);
  for (; !problem && entry != std::filesystem::directory_iterator(); entry.increment(problem)) {
    Process one{.number = std::atoi(entry->path().filename().c_str())};
    if (one.number <= 0) continue;
    MOTLEY_ASSIGN(std::ifstream stat, open_entry(entry->path() / "stat"));
    std::string text;
    std::getline(stat, text, '\0');
    // Its name stands in parentheses, and may have some.
    const std::size_t name = text.rfind(')');
    if (name == std::string::npos) continue;
    std::istringstream rest(text.substr(name + 1));
    char state = 'X';
    int group = 0;
    rest >> state >> one.parent >> group >> one.session;
    if (state != 'Z' && state != 'X') all.push_back(one);
  }
  if (problem) return fail(ErrorCode::kIo, "/proc: {}", problem.message());
  return all;
}

Result<bool> has_variable(int process, const std::string& variable) {
  MOTLEY_ASSIGN(std::ifstream variables, open_entry(fmt::format("/proc/{}/environ", process)));
  for (std::string one; std::getline(variables, one, '\0');) {
    if (one == variable) return true;
  }
  return false;
}

bool writes_into(int process, const std::filesystem::path& output) {
  return std::ranges::any_of(std::array{1, 2}, [&](int written) {
    std::error_code ignored;
    return std::filesystem::read_symlink(fmt::format("/proc/{}/fd/{}", process, written), ignored) == output;
  });
}

// The wrapper's process, which leads a session that nobody else has for as long as one of it lives; 0 where what was
// noted says nothing here and now.
Result<int> find_leader(const std::filesystem::path& folder) {
  MOTLEY_ASSIGN(const std::string text, read_note(folder / "begun"));
  std::istringstream begun(text);
  int process = 0;
  std::string boot, numbering;
  begun >> process >> boot >> numbering;
  const std::string now = boot_name();
  if (now.empty() && !boot.empty()) return fail(ErrorCode::kIo, "cannot tell when this machine was started");
  return !numbering.empty() && boot == now && numbering == numbering_name() ? process : 0;
}

Result<std::vector<int>> find_processes(const std::filesystem::path& folder) {
  const std::string variable = fmt::format("{}={}", kFolderVariable, folder.string());
  std::error_code ignored;
  const std::filesystem::path output = std::filesystem::canonical(folder / "output", ignored);
  MOTLEY_ASSIGN(const std::vector<Process> all, list_processes());
  std::set<int> ours;
  for (const Process& one : all) {
    MOTLEY_ASSIGN(const bool is_named, has_variable(one.number, variable));
    if (is_named || (!output.empty() && writes_into(one.number, output))) ours.insert(one.number);
  }
  MOTLEY_ASSIGN(const int leader, find_leader(folder));
  const bool is_taken = !ours.contains(leader) && std::ranges::find(all, leader, &Process::number) != all.end();
  const int session = leader > 1 && !is_taken ? leader : -1;
  for (bool has_more = true; std::exchange(has_more, false);) {
    for (const Process& one : all) {
      if (one.session == session || ours.contains(one.parent)) has_more |= ours.insert(one.number).second;
    }
  }
  return std::vector<int>(ours.begin(), ours.end());
}

}  // namespace

Result<bool> kill_processes(const std::filesystem::path& folder) {
  MOTLEY_ASSIGN(std::vector<int> processes, find_processes(folder));
  std::erase_if(processes, [](int process) { return process <= 1 || process == ::getpid(); });
  for (const int process : processes) ::kill(process, SIGKILL);
  return !processes.empty();
}

}  // namespace motley::scheduling
