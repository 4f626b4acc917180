// Profiles that benchmarks take themselves, by `motley profile`.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "motley/model/profile.h"

namespace motley::bench {

// Of the job's network with these flags; `batches` as --batch-sizes takes them, `seconds` as --time-limit does.
Result<model::Profile> measure_profile(const BenchOptions& options, const std::filesystem::path& job,
                                       const std::vector<std::string>& flags, const std::string& batches,
                                       double seconds);

// The cost model takes devices for independent. Workers of one machine share its memory's bandwidth: k of them at once
// take 1 + (k - 1) (1 - alpha) times as long as one, by the definition of alpha.
void contend(model::DeviceProfile& device, double workers);

// Each of these layers takes so many times as long.
void slow_down(std::span<model::LayerTime> layers, double factor);

}  // namespace motley::bench
