// Trains a few weights by random gradients with every optimizer's step and writes how they went as JSON lines, one a
// case, for optimizers.py, which takes the same steps with PyTorch.
#include <nlohmann/json.hpp>

#include <cstdio>
#include <vector>

#include "motley/base/random.h"
#include "motley/kernels/update.h"

namespace motley::kernels {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kCount = 37;
constexpr std::uint64_t kSteps = 12;

std::vector<float> random_values(Random& random) {
  std::vector<float> values(kCount);
  for (float& value : values) value = static_cast<float>(random.normal());
  return values;
}

void run(const char* name, UpdateOptions options) {
  Random random(41);
  std::vector<float> weights = random_values(random);
  std::vector<float> first(kCount);
  std::vector<float> second(kCount);
  float* const state[] = {first.data(), second.data()};
  Json json = {{"optimizer", name},
               {"learning_rate", options.learning_rate},
               {"momentum", options.momentum},
               {"dampening", options.dampening},
               {"nesterov", options.rule == UpdateRule::kNesterov},
               {"weight_decay", options.weight_decay},
               {"betas", {options.beta1, options.beta2}},
               {"epsilon", options.epsilon},
               {"start", weights}};
  for (options.step = 1; options.step <= kSteps; ++options.step) {
    const std::vector<float> gradient = random_values(random);
    const WireInput input{gradient.data(), WireFormat::kFloat32};
    const float one = 1;
    fused_update({&input, 1}, {&one, 1}, 1, options, weights.data(), state, nullptr, WireFormat::kFloat32, kCount);
    json["gradients"].push_back(gradient);
    json["weights"].push_back(weights);
  }
  std::puts(json.dump().c_str());
}

void run_all() {
  for (const double decay : {0.0, 0.1}) {
    run("sgd", {.rule = UpdateRule::kSgd, .learning_rate = 0.1, .weight_decay = decay});
    for (const double dampening : {0.0, 0.4}) {
      run("sgd", {.rule = UpdateRule::kMomentum,
                  .learning_rate = 0.1,
                  .momentum = 0.9,
                  .dampening = dampening,
                  .weight_decay = decay});
    }
    run("sgd", {.rule = UpdateRule::kNesterov, .learning_rate = 0.1, .momentum = 0.9, .weight_decay = decay});
    run("adam", {.rule = UpdateRule::kAdam, .learning_rate = 0.01, .weight_decay = decay});
    run("adamw", {.rule = UpdateRule::kAdamW, .learning_rate = 0.01, .weight_decay = decay});
    run("adam", {.rule = UpdateRule::kAdam,
                 .learning_rate = 0.01,
                 .weight_decay = decay,
                 .beta1 = 0.5,
                 .beta2 = 0.9,
                 .epsilon = 0.1});
  }
}

}  // namespace
}  // namespace motley::kernels

int main() {
  motley::kernels::run_all();
}
