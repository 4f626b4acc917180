#include "motley/base/os/processor_load.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

namespace motley {
namespace {

std::optional<ProcessorTimes> read_processor_times() {
  std::ifstream file("/proc/stat");
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return parse_processor_times(line, static_cast<double>(::sysconf(_SC_CLK_TCK)));
}

// Processor seconds of this process and of those that it has waited for.
double own_seconds() {
  double seconds = 0;
  for (const auto who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage usage{};
    ::getrusage(who, &usage);
    for (const timeval& part : {usage.ru_utime, usage.ru_stime}) {
      seconds += static_cast<double>(part.tv_sec) + 1e-6 * static_cast<double>(part.tv_usec);
    }
  }
  return seconds;
}

}  // namespace

std::optional<ProcessorTimes> parse_processor_times(std::string_view line, double ticks_per_second) {
  std::istringstream words{std::string(line)};
  std::string name;
  std::array<double, 8> ticks{};  // user, nice, system, idle, waiting for disks, both kinds of interrupts, stolen
  words >> name;
  for (double& value : ticks) words >> value;
  if (name != "cpu" || !words) return std::nullopt;
  ProcessorTimes times;
  for (const double value : ticks) times.all += value / ticks_per_second;
  times.stolen = ticks[7] / ticks_per_second;
  times.busy = times.all - times.stolen - (ticks[3] + ticks[4]) / ticks_per_second;
  return times;
}

ProcessorWatch::ProcessorWatch() : begin_(read_processor_times()), own_(own_seconds()) {
  double average = 0;
  if (::getloadavg(&average, 1) == 1) load_average_ = average;
}

std::optional<ProcessorLoad> ProcessorWatch::load() const {
  const std::optional<ProcessorTimes> now = read_processor_times();
  if (!begin_ || !now || now->all <= begin_->all) return std::nullopt;
  const double all = now->all - begin_->all;
  const auto fraction = [&](double seconds) { return std::clamp(seconds / all, 0.0, 1.0); };
  return ProcessorLoad{.load_average = load_average_,
                       .others_fraction = fraction(now->busy - begin_->busy - (own_seconds() - own_)),
                       .stolen_fraction = fraction(now->stolen - begin_->stolen)};
}

}  // namespace motley
