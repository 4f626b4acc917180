// The networks that exported_models.py has written for these tests.
#pragma once

#include <filesystem>
#include <string>

#include "motley/nn/networks.h"

namespace motley::nn {

inline std::filesystem::path exported_file(const std::string& name) {
  return std::filesystem::path(MOTLEY_EXPORTED) / name;
}

inline NetworkSpec exported_spec(const std::string& name, const std::string& dtype = "float32") {
  NetworkSpec spec;
  spec.name = kExportedNetwork;
  spec.path = exported_file(name + ".pt2").string();
  spec.dtype = dtype;
  return spec;
}

}  // namespace motley::nn
