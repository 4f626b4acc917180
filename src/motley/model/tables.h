// The models that publications plan for, as tables of layers: one function finds them by name.
#pragma once

#include <string>
#include <vector>

#include "motley/base/result.h"
#include "motley/model/graph.h"

namespace motley::model {

// "ctrdnn-8", "ctrdnn-12", "ctrdnn-16", "ctrdnn-20", "2emb", "matchnet", "nce", "alexnet", "vgg11", "vgg16", "vgg19",
// "resnet18", "resnet50", "resnet101", "resnet269", "googlenet", "inception-v3", "gpt2-small", "gpt2-medium", ...
std::vector<std::string> table_names();
// Errors: kInvalidInput with the names that are there.
Result<Graph> table(const std::string& name);

}  // namespace motley::model
