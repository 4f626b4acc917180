// Models that others have written down: PipeDream's profiles (graph.txt).
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "motley/base/result.h"
#include "motley/model/profile.h"

namespace motley::model {

// PipeDream's graph.txt: "nodeN -- description -- forward_compute_time=ms, backward_compute_time=ms,
// activation_size=bytes, parameter_size=bytes" lines and "\tnodeA -- nodeB" edges, made for one whole minibatch on one
// device. The layers come in a topological order, of several the one with the smallest node numbers first; `batch` is
// the minibatch that the file was profiled with, by which times and bytes are divided. 0: it is told by a layer
// "Linear(... out_features=N ...)", whose output has N values a sample (PipeDream's image models; its gnmt has no such
// layer and was profiled with 32). One device type, named `type`, origin kPublished; flops are not known (0).
//
// A node "Input..." without edges into it is the model's own input, and its time, which is that of loading data, is
// left out, as PipeDream's optimizer does; it stays a layer (without time) where others read it beside further layers
// and it has bytes.
// Errors: kIo, kInvalidInput with file and line.
Result<Profile> read_pipedream(const std::filesystem::path& file, double batch, const std::string& type);
Result<Profile> parse_pipedream(std::string_view text, const std::string& name, double batch, const std::string& type);

}  // namespace motley::model
