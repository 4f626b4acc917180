// Names of networks (a job's model.name) that more modules than the one which makes them tell apart.
#pragma once

#include <string_view>

namespace motley::model {

inline constexpr const char* kSyntheticModel = "synthetic";  // layers of a profile that compute nothing

// Networks whose inputs are categories, looked up in a table of embeddings.
inline bool is_ctr_model(std::string_view name) {
  return name == "ctrdnn" || name == "2emb" || name == "matchnet" || name == "nce";
}

}  // namespace motley::model
