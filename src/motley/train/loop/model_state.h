// The state of the network that is trained, as files of a checkpoint.
#pragma once

#include <cstdint>
#include <string>

#include "motley/base/result.h"

namespace motley::train {

// Every operation is collective, but for save_embeddings().
class ModelState {
 public:
  virtual ~ModelState() = default;
  // Of all ranks together, as safetensors: complete on rank 0, empty elsewhere.
  virtual Result<std::string> weights(std::int64_t step) = 0;
  virtual Result<std::string> optimizer(std::int64_t step) = 0;
  // The same, of which each rank takes what it has; the same text on all ranks. Errors (kInvalidInput) name a tensor
  // that does not fit.
  virtual Status load_weights(const std::string& text) = 0;
  virtual Status load_optimizer(const std::string& text) = 0;
  // After the loads: servers get what is theirs. `step` and `embedding_servers` are of the checkpoint that the run goes
  // on from; 0: it starts afresh.
  virtual Status start(std::int64_t step, int embedding_servers) = 0;
  // Rank 0: servers write the embedding rows that they have.
  virtual Status save_embeddings() = 0;
  virtual int embedding_servers() const = 0;  // that have rows; 0: none does
};

}  // namespace motley::train
