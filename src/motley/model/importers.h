// Models that others have written down: PipeDream's profiles (graph.txt).
#pragma once

#include <filesystem>
#include <string>

#include "motley/base/result.h"
#include "motley/model/profile.h"

namespace motley::model {

// PipeDream's graph.txt: "nodeN -- description -- forward_compute_time=ms, backward_compute_time=ms,
// activation_size=bytes, parameter_size=bytes" lines and "\tnodeA -- nodeB" edges, made for one whole minibatch on one
// device. The layers come in a topological order; `batch` is the minibatch that the file was profiled with, by which
// times and bytes are divided. One device type, named `type`, origin kPublished.
// Errors: kIo, kInvalidInput with file and line.
Result<Profile> read_pipedream(const std::filesystem::path& file, double batch, const std::string& type);

}  // namespace motley::model
