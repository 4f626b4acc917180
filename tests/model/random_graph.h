// Random directed acyclic graphs of layers for the property tests, fixed by their seed.
#pragma once

#include <fmt/format.h>

#include <algorithm>

#include "motley/base/random.h"
#include "motley/model/graph.h"

namespace motley::model {

// Sizes are integers, so that sums are exact in any order.
inline Graph random_graph(std::uint64_t seed, int max_layers = 14) {
  Random random(seed);
  Graph graph{.name = fmt::format("random{}", seed), .source = "drawn", .input_bytes = 1.0 + random.below(1000)};
  const int count = 1 + static_cast<int>(random.below(max_layers));
  for (int i = 0; i < count; ++i) {
    Layer layer{.name = fmt::format("layer{}", i),
                .kind = static_cast<LayerKind>(random.below(static_cast<std::uint64_t>(LayerKind::kOther) + 1)),
                .parameters = 1.0 * random.below(1000),
                .activation_bytes = 1.0 * random.below(1000),
                .inner_bytes = 1.0 * random.below(100),
                .flops = 1.0 * random.below(5)};
    if (random.below(3) == 0) {
      layer.lookups = 1.0 + random.below(20);
      layer.row_bytes = 40;
      layer.table_rows = 1.0 * random.below(1000);
    }
    for (int j = 0; j < i; ++j) {
      if (random.below(j + 1 == i ? 2 : 6) == 0) {
        layer.inputs.push_back(j);
      }
    }
    graph.layers.push_back(std::move(layer));
  }
  DistinctLookups smaller;
  for (std::uint64_t i = random.below(4); i > 0; --i) {
    const double batch = smaller.batch * (2 + random.below(4));
    const double least = smaller.batch * smaller.share / batch;
    smaller = {batch, std::min(1.0, least * (1 + random.uniform()))};
    graph.distinct_lookups.push_back(smaller);
  }
  return graph;
}

}  // namespace motley::model
