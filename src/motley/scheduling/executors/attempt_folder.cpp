// `begun` is linked from a file aside, which of several processes, also of several hosts, one alone can do.
#include "motley/scheduling/executors/attempt_folder.h"

#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>

#include "motley/base/os/file.h"

namespace motley::scheduling {

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

Result<bool> note_begun(const std::filesystem::path& folder, int process) {
  const std::filesystem::path aside = folder / fmt::format("begun.{}", ::getpid());
  MOTLEY_TRY(write_file(aside, fmt::format("{}\n", process)));
  const bool is_first = ::link(aside.c_str(), (folder / "begun").c_str()) == 0;
  const int problem = errno;
  ::unlink(aside.c_str());
  if (is_first || problem == EEXIST) return is_first;
  return fail(ErrorCode::kIo, "{}: {}", (folder / "begun").string(), std::strerror(problem));
}

Status note_ended(const std::filesystem::path& folder, int exit_code) {
  return write_file(folder / "ended", fmt::format("{}\n", exit_code));
}

bool forbid(const Attempt& attempt) {
  return make_folders(attempt.folder) && note_begun(attempt.folder, 0).value_or(false);
}

bool has_begun(const Attempt& attempt) {
  std::error_code ignored;
  return std::filesystem::exists(attempt.folder / "begun", ignored);
}

std::optional<int> read_exit_code(const Attempt& attempt) {
  const auto text = read_file(attempt.folder / "ended", 64);
  if (!text) return {};
  int code = 1;
  std::from_chars(text->data(), text->data() + text->size(), code);
  return code;
}

}  // namespace motley::scheduling
