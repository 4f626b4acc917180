// Networks whose parameters are mostly rows of a sparse table, looked up by the categories of a sample: CTRDNN, 2EMB
// and MATCHNET of the HeterPS paper, with the sizes of PaddleFleetX's published examples, and NCE.
//
// The table is the network's own ("lookup.weight"), or a parameter server has it. Then rows come with the input, and
// their gradients are those of the input.
#pragma once

#include <torch/torch.h>

#include <optional>
#include <vector>

#include "motley/nn/networks.h"

namespace motley::nn {

inline constexpr std::int64_t kMaxOwnRows = 1 << 24;  // whose numbers a float32 holds exactly
inline constexpr std::int64_t kSmallTableRows = 100;  // of 2EMB's second table, which is always the network's own
inline constexpr float kInitialRows = 0.01F;          // rows begin in [-this, this)

// What the input of a sample holds, in this order: `features` values; `small` ids of the small table; the rows of
// `categories` ids, `dimension` values each, or the ids themselves where the table is the network's own.
struct LookupLayout {
  std::int64_t features = 0;
  std::int64_t small = 0;
  std::int64_t categories = 0;
  std::int64_t dimension = 0;
  std::int64_t rows = 0;  // of the table, into which ids are folded; 0: they are not
  bool served = false;

  std::int64_t row_values() const { return categories * dimension; }
  std::int64_t input_width() const { return features + small + (served ? row_values() : categories); }
};

// Nothing for a network that looks nothing up.
std::optional<LookupLayout> lookup_layout(const NetworkSpec& spec);

// The row of an id.
inline std::uint64_t folded(std::uint64_t id, const LookupLayout& layout) {
  return layout.rows > 0 ? id % static_cast<std::uint64_t>(layout.rows) : id;
}

// The input of n samples: features [n, layout.features], ids (n x categories), and in a layout whose rows are served
// rows [n, row_values()]. Features are on the CPU; rows may be on a device, and the result is where they are.
torch::Tensor lookup_input(const LookupLayout& layout, const torch::Tensor& features,
                           const std::vector<std::uint64_t>& ids, const torch::Tensor& rows);

// The gradient of the rows, out of that of the input: [n, row_values()].
torch::Tensor row_gradients(const LookupLayout& layout, const torch::Tensor& input_gradient);

}  // namespace motley::nn
