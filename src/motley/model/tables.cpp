// Finds a published model by its name among the families of tables.
#include "motley/model/tables.h"

#include "motley/model/table_families.h"

namespace motley::model {

std::vector<std::string> table_names() {
  std::vector<std::string> names;
  for (const TableFamily& family : {ctr_models(), convolutional_models(), transformer_models()}) {
    for (const auto& [name, make] : family) {
      names.push_back(name);
    }
  }
  return names;
}

Result<Graph> table(const std::string& name) {
  for (const TableFamily& family : {ctr_models(), convolutional_models(), transformer_models()}) {
    for (const auto& [known, make] : family) {
      if (known == name) {
        Graph graph = make();
        graph.name = name;
        return graph;
      }
    }
  }
  return fail(ErrorCode::kInvalidInput, "there is no table of a model '{}'; accepted are {}", name,
              fmt::join(table_names(), ", "));
}

}  // namespace motley::model
