#include "motley/train/pipeline/emulated_stage_timing.h"

#include <algorithm>

namespace motley::train {

Result<EmulatedStageTiming> EmulatedStageTiming::read(const std::filesystem::path& file, const planning::Plan& plan,
                                                      const planning::Stage& stage, const std::string& type) {
  MOTLEY_ASSIGN(model::Profile profile, model::read_profile(file));
  profile = model::coarsen(model::without_step_layer(std::move(profile)), static_cast<int>(plan.layers.size()));
  if (!std::ranges::equal(profile.graph.layers, plan.layers, {}, &model::Layer::name)) {
    return fail(
        ErrorCode::kInvalidInput,
        "emulation: '{}' is a profile of {}, whose layers are not those of the plan; accepted: the profile that "
        "the plan was made from",
        file.string(), profile.graph.name);
  }
  const model::DeviceProfile* device = profile.device(type);
  if (device == nullptr) {
    return fail(ErrorCode::kInvalidInput, "emulation: '{}' has no device type '{}', which the plan uses", file.string(),
                type);
  }
  EmulatedStageTiming timing;
  const auto add = [](model::Affine& sum, const model::Affine& part) {
    sum.fixed += part.fixed;
    sum.per_sample += part.per_sample;
  };
  for (int layer = stage.first_layer; layer <= stage.last_layer; ++layer) {
    const model::LayerTime& time = device->layers[static_cast<std::size_t>(layer)];
    add(timing.forward, time.forward);
    add(timing.backward, time.backward);
    timing.update_seconds += time.update_seconds;
    timing.layers.push_back(plan.layers[static_cast<std::size_t>(layer)]);
    timing.layer_backward.push_back(time.backward);
  }
  timing.update_seconds += device->once_seconds;
  if (stage.recompute) add(timing.backward, timing.forward);
  return timing;
}

double EmulatedStageTiming::share_of_backward(const std::string& layer, double rows) const {
  const auto found = std::ranges::find(layers, layer);
  const double whole = backward.at(rows);
  if (found == layers.end() || whole <= 0) return 1;
  double left = 0;  // of the layers before it
  for (auto before = layers.begin(); before != found; ++before) {
    left += layer_backward[static_cast<std::size_t>(before - layers.begin())].at(rows);
  }
  return 1 - left / whole;
}

}  // namespace motley::train
