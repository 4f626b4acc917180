// Sums over the layers of a graph.
#pragma once

#include "motley/model/graph.h"

namespace motley::model {

inline double sum(const Graph& graph, double Layer::* member) {
  double total = 0;
  for (const Layer& layer : graph.layers) {
    total += layer.*member;
  }
  return total;
}

}  // namespace motley::model
