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

Result<bool> note_begun(const std::filesystem::path& folder, int process) {
  const std::filesystem::path aside = folder / fmt::format("begun.{}", ::getpid());
  MOTLEY_TRY(write_file(aside, fmt::format("{} {}\n", process, boot_name())));
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

std::optional<AttemptStatus> read_ended(const Attempt& attempt) {
  const auto text = read_file(attempt.folder / "ended", kMaxNoteBytes);
  if (!text || !text->ends_with('\n')) return {};
  AttemptStatus status{AttemptStatus::State::kEnded};
  const char* end = text->data() + text->size() - 1;
  const auto [rest, problem] = std::from_chars(text->data(), end, status.exit_code);
  if (problem != std::errc()) return {};
  if (rest != end) status.why = std::string(rest + 1, end);
  return status;
}

bool kill_processes(const std::filesystem::path& folder) {
  std::error_code ignored;
  const std::string variable = fmt::format("{}={}", kFolderVariable, folder.string());
  const std::filesystem::path output = std::filesystem::canonical(folder / "output", ignored);
  const auto is_ours = [&](const std::filesystem::path& process) {
    std::ifstream variables(process / "environ");
    for (std::string one; std::getline(variables, one, '\0');) {
      if (one == variable) return true;
    }
    return !output.empty() && std::ranges::any_of(std::array{"fd/1", "fd/2"}, [&](const char* written) {
      return std::filesystem::read_symlink(process / written, ignored) == output;
    });
  };
  bool has_some = false;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    const int process = std::atoi(entry.path().filename().c_str());
    if (process <= 1 || process == ::getpid() || !is_ours(entry.path())) continue;
    ::kill(process, SIGKILL);
    has_some = true;
  }
  return has_some;
}

}  // namespace motley::scheduling
