// Parameters that layers in several stages share, such as a token embedding that is the output layer, too. Each such
// stage has a copy of its own, whose gradient comes from the stage's own layers. When a stage's gradient is reduced,
// its ranks send it to those of the other stages, and every rank adds up those of all stages in the stages' order: the
// sums are bitwise the same, and so are the steps that the copies take.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "motley/base/result.h"
#include "motley/collective/stage_channels.h"
#include "motley/nn/network_part.h"
#include "motley/train/loop/stage_layout.h"

namespace motley::train {

struct TiedParameter {
  std::string name;
  std::vector<int> stages;  // that have a copy: two or more, ascending
};

// Of a network's shared tensors those that a layout has in several stages. Errors (kInvalidInput): a tensor that is not
// trained, whose copies nothing would keep alike; a stage that uses a parameter server, which has moved the weights
// before other stages' gradients could be added.
Result<std::vector<TiedParameter>> tied_parameters(const StageLayout& layout,
                                                   const std::vector<nn::SharedTensor>& shared);

class TiedGradients {
 public:
  // Connects this rank with those that it sends to or hears from; collective. `parameters` are those of the rank's
  // stage. The session must outlive this object.
  static Result<std::unique_ptr<TiedGradients>> create(net::Session& session, const StageLayout& layout,
                                                       const std::vector<TiedParameter>& tied,
                                                       const nn::NamedTensors& parameters, const Deadline& deadline);

  // Adds the other stages' gradients to this rank's, in .grad, where its stage's reduced gradient stands; collective.
  Status add_up(std::uint64_t step, const Deadline& deadline);

  // The tensors without copies of parameters, and what belongs to them ("<parameter>.<field>"), that an earlier stage
  // has: of all stages together each is there once.
  nn::NamedTensors without_copies(nn::NamedTensors tensors) const;

 private:
  // What a stage adds to a parameter's gradient.
  struct Part {
    int stage = 0;
    int sender = 0;  // a rank; this one, of its own stage
    torch::Tensor gradient;
    std::uint64_t number = 0;  // of StageChannels
  };
  struct Tied {
    std::uint64_t number = 0;  // among all that are tied
    nn::NamedTensor parameter;
    std::vector<Part> parts;  // by stage
    std::vector<int> receivers;
    bool is_copy = false;
  };

  explicit TiedGradients(int rank) : rank_(rank) {}

  const int rank_;
  std::vector<Tied> tied_;
  std::unique_ptr<collective::StageChannels> stage_channels_;  // none where nothing is tied here
};

}  // namespace motley::train
