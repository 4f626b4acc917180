// The network that a job trains: its layers, and where its embeddings are.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "motley/base/result.h"
#include "motley/serial/options.h"

namespace motley::train {

// The network, key model.
struct ModelSpec {
  std::string name = "cnn";
  std::string path;
  std::vector<std::int64_t> hidden_sizes;
  std::int64_t num_layers = 0;
  std::int64_t hidden_size = 0;
  std::int64_t num_heads = 0;
  bool tie_embeddings = false;
  std::string norm = "auto";
  double dropout = 0;
  std::string dtype = "float32";
  std::vector<std::int64_t> input_shape;
  std::int64_t outputs = 0;

  static const OptionTable<ModelSpec>& options();
  Status check() const;
};

// The embeddings of CTR models, key embedding.
struct EmbeddingSpec {
  std::string placement = "server";
  std::int64_t num_embeddings = 1'000'001;
  std::int64_t embedding_dim = 0;
  std::string optimizer = "adagrad";
  double learning_rate = 0.05;
  double memory = 0;  // bytes
  std::string comm_dtype = "float32";
  bool prefetch = true;
  std::int64_t cache_rows = 0;
  std::int64_t max_staleness = 0;

  static const OptionTable<EmbeddingSpec>& options();
};

}  // namespace motley::train
