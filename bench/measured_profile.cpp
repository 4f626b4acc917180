#include "bench/measured_profile.h"

#include <unistd.h>

#include "bench/child_process.h"

namespace motley::bench {
namespace {

constexpr double kProfileDeadline = 300;  // seconds

}  // namespace

Result<model::Profile> measure_profile(const BenchOptions& options, const std::filesystem::path& job,
                                       const std::vector<std::string>& flags, const std::string& batches,
                                       double seconds) {
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / fmt::format("motley-bench-profile-{}.json", ::getpid());
  std::vector<std::string> command = {
      options.motley.string(), "profile",       job.string(), "--output",     file.string(),
      "--overwrite",           "--batch-sizes", batches,      "--time-limit", fmt::format("{}s", seconds)};
  command.insert(command.end(), flags.begin(), flags.end());
  MOTLEY_ASSIGN(const auto process, ChildProcess::start(command));
  const Deadline deadline = Deadline::after(kProfileDeadline);
  for (Result<std::string> line = process->read_line(deadline); line; line = process->read_line(deadline)) {
  }
  Result<model::Profile> read = model::read_profile(file);
  std::error_code ignored;
  std::filesystem::remove(file, ignored);
  return read;
}

void contend(model::DeviceProfile& device, double workers) {
  const double factor = 1 + (workers - 1) * (1 - device.compute_fraction);
  slow_down(device.layers, factor);
  device.overheads.data.fixed *= factor;
  device.overheads.data.per_sample *= factor;
}

void slow_down(std::span<model::LayerTime> layers, double factor) {
  for (model::LayerTime& layer : layers) {
    for (model::Affine* time : {&layer.forward, &layer.backward}) {
      time->fixed *= factor;
      time->per_sample *= factor;
    }
    layer.update_seconds *= factor;
    layer.measurements.clear();
  }
}

}  // namespace motley::bench
