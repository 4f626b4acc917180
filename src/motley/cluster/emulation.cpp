#include "motley/cluster/emulation.h"

#include <algorithm>
#include <cmath>

#include "motley/base/random.h"
#include "motley/base/units.h"

namespace motley::cluster {
namespace {

// A draw of mean shape and variance shape (scale 1): Marsaglia and Tsang, "A simple method for generating gamma
// variables", 2000. Shapes below 1 by their section 6: gamma(shape) = gamma(shape + 1) * u^(1 / shape).
double gamma(Random& random, double shape) {
  if (shape < 1) {
    const double boost = std::pow(1 - random.uniform(), 1 / shape);
    return gamma(random, shape + 1) * boost;
  }
  const double d = shape - 1.0 / 3;
  const double c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = random.normal();
    const double v = std::pow(1 + c * x, 3);
    if (v > 0 && std::log(1 - random.uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
  }
}

double draw(const Delay& delay, Random& random) {
  switch (delay.kind) {
    case Delay::Kind::kFixed:
      return delay.seconds;
    case Delay::Kind::kUniform:
      return delay.seconds + delay.deviation * std::sqrt(3.0) * (2 * random.uniform() - 1);
    case Delay::Kind::kNormal:
      return delay.seconds + delay.deviation * random.normal();
    case Delay::Kind::kExponential:
      return random.exponential(delay.seconds);
    case Delay::Kind::kGamma: {
      const double scale = delay.deviation * delay.deviation / delay.seconds;
      return scale * gamma(random, delay.seconds / scale);
    }
    case Delay::Kind::kBernoulli:
      return random.uniform() < delay.probability ? delay.seconds : 0;
  }
  return 0;
}

}  // namespace

double emulated_seconds(const Emulation& emulation, std::uint64_t step, std::int64_t samples, std::uint64_t seed,
                        int rank) {
  if (samples <= 0) return 0;
  double seconds_per_sample = emulation.seconds_per_sample;
  Delay delay = emulation.delay;
  for (const SpeedChange& change : emulation.changes) {
    if (static_cast<std::uint64_t>(change.from_step) > step) break;
    seconds_per_sample = change.seconds_per_sample.value_or(seconds_per_sample);
    delay = change.delay.value_or(delay);
  }
  Random random(mix({seed, static_cast<std::uint64_t>(rank), step}));
  return seconds_per_sample * static_cast<double>(samples) + std::max(0.0, draw(delay, random));
}

Status check_emulation(std::span<const WorkerLoad> loads, int cores, double step_seconds) {
  double total = 0;
  bool any_emulated = false;
  std::string who;
  for (const WorkerLoad& load : loads) {
    total += load.cpu_seconds;
    any_emulated = any_emulated || load.emulated_seconds;
    who += fmt::format("{}{} {}", who.empty() ? "" : ", ", load.name, format_seconds(load.cpu_seconds));
    if (load.emulated_seconds && load.cpu_seconds > *load.emulated_seconds) {
      return fail(ErrorCode::kUnavailable,
                  "worker '{}' cannot be emulated here: its own computation took {} of CPU time in a step that should "
                  "take {}; raise its seconds_per_sample at least {:.2f} times, or make the model smaller",
                  load.name, format_seconds(load.cpu_seconds), format_seconds(*load.emulated_seconds),
                  load.cpu_seconds / *load.emulated_seconds);
    }
  }
  const double allowed = 0.5 * cores * step_seconds;
  if (any_emulated && total > allowed) {
    return fail(
        ErrorCode::kUnavailable,
        "the workers cannot be emulated here: together they took {} of CPU time ({}) in a step of {}, more than "
        "half of what {} cores give ({}), so they would slow each other; raise every seconds_per_sample at "
        "least {:.2f} times, or use fewer workers or a smaller model",
        format_seconds(total), who, format_seconds(step_seconds), cores, format_seconds(allowed), total / allowed);
  }
  return {};
}

}  // namespace motley::cluster
