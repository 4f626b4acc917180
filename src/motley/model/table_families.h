// The families that tables.cpp finds models in: each file knows one kind of network and how its layers' sizes follow
// from a few numbers.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "motley/model/graph.h"

namespace motley::model {

using TableFamily = std::vector<std::pair<std::string, std::function<Graph()>>>;  // by name

const TableFamily& ctr_models();            // click-through rate, matching and word prediction: sparse tables
const TableFamily& convolutional_models();  // images
const TableFamily& transformer_models();    // sequences of 1024 tokens

constexpr double kValueBytes = 4;  // fp32

}  // namespace motley::model
