#include "motley/cli/planner_progress.h"

#include <unistd.h>

#include <cstdio>

#include "motley/base/units.h"

namespace motley::cli {
namespace {

// A line that replaces itself, on a terminal only.
std::function<void(const planning::Progress&)> progress_line(const std::string& method) {
  if (::isatty(STDERR_FILENO) == 0) return {};
  return [method](const planning::Progress& progress) {
    std::fprintf(stderr, "\r\033[K%s: %lld plans in %s, best %.6g, bound %.6g", method.c_str(),
                 static_cast<long long>(progress.evaluations), format_seconds(progress.seconds).c_str(), progress.best,
                 progress.bound);
    std::fflush(stderr);
  };
}

}  // namespace

Result<planning::Answer> ask(const planning::Planner& planner, planning::Request request) {
  request.progress = progress_line(planner.name);
  Result<planning::Answer> answer = planner.plan(request);
  if (request.progress) std::fprintf(stderr, "\r\033[K");
  return answer;
}

void print_warning(const std::string& text) {
  std::fprintf(stderr, "motley: warning: %s\n", text.c_str());
}

}  // namespace motley::cli
