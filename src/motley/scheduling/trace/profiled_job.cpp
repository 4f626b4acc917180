#include "motley/scheduling/trace/profiled_job.h"

namespace motley::scheduling {
namespace {

constexpr double kBytesOfParameter = 4;

double seconds_of(const model::DeviceProfile& device, double batch) {
  double seconds = 0;
  for (const model::LayerTime& layer : device.layers) seconds += layer.forward.at(batch) + layer.backward.at(batch);
  return seconds;
}

}  // namespace

ProfiledJob profiled_job(const model::Profile& profile) {
  ProfiledJob job;
  for (const model::Layer& layer : profile.graph.layers) {
    job.gradient_bytes += kBytesOfParameter * layer.parameters + profile.batch * layer.lookups * layer.row_bytes;
  }
  job.compute_seconds = seconds_of(profile.devices.front(), profile.batch);
  for (const model::DeviceProfile& device : profile.devices) {
    job.speeds.emplace_back(device.type, job.compute_seconds / seconds_of(device, profile.batch));
  }
  return job;
}

}  // namespace motley::scheduling
