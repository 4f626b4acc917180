#include "motley/app/profiled_job.h"

namespace motley::app {
namespace {

constexpr double kBytesOfParameter = 4;

double predict_seconds(const model::DeviceProfile& device, double batch) {
  double seconds = 0;
  for (const model::LayerTime& layer : device.layers) seconds += layer.forward.at(batch) + layer.backward.at(batch);
  return seconds;
}

}  // namespace

scheduling::ProfiledJob profiled_job(const model::Profile& profile) {
  scheduling::ProfiledJob job;
  for (const model::Layer& layer : profile.graph.layers) {
    job.gradient_bytes += kBytesOfParameter * layer.parameters + profile.batch * layer.lookups * layer.row_bytes;
  }
  job.compute_seconds = predict_seconds(profile.devices.front(), profile.batch);
  for (const model::DeviceProfile& device : profile.devices) {
    job.speeds.emplace_back(device.type, job.compute_seconds / predict_seconds(device, profile.batch));
  }
  return job;
}

Result<scheduling::ProfiledJob> read_profiled_job(const std::filesystem::path& file) {
  MOTLEY_ASSIGN(const model::Profile profile, model::read_profile(file));
  for (const model::DeviceProfile& device : profile.devices) {
    if (predict_seconds(device, profile.batch) > 0) continue;
    return fail(ErrorCode::kInvalidInput, "{}: all times of device '{}' are 0; accepted: a profile that took some",
                file.string(), device.type);
  }
  return profiled_job(profile);
}

}  // namespace motley::app
