// TAPP's planner: a feed-forward network partitions the layers into groups, and a network with attention allocates the
// groups to device types; one policy, trained together.
//
// Partition. The network gives every layer logits over the groups 0, 1, .. To keep the groups contiguous and in order,
// the first layer is in group 0 and every other layer chooses, by the softmax of just these two logits, between the
// group of the layer before and the next one; once the last group is reached, all others are in it.
// Allocation. A group's vector is the mean of its layers' features, beside that of the next group (0 after the last).
// Every group attends to all groups of its partition, and gets a type by a softmax. Counts are provisioned.
#include <ATen/ops/scaled_dot_product_attention.h>

#include <algorithm>

#include "motley/planning/learned/layer_features.h"
#include "motley/planning/learned/learned.h"
#include "motley/planning/learned/policy.h"
#include "motley/planning/learned/policy_gradient.h"

namespace motley::planning {
namespace {

constexpr int kHidden = 64;
constexpr int kMostGroups = 32;
constexpr int kWorkers = 4;

torch::Tensor entropy_of(const torch::Tensor& log_probabilities) {  // over the last dimension
  return -(log_probabilities.exp() * log_probabilities).sum(-1);
}

class AttentionPolicy final : public Policy {
 public:
  explicit AttentionPolicy(const planning::Problem& problem)
      : cuts_(problem.cost_model == planning::CostModel::kPipeline),
        layers_(problem.layer_count()),
        groups_(std::min(problem.layer_count(), kMostGroups)),
        features_(layer_features(problem)),
        partition_hidden_(register_module("partition_hidden", torch::nn::Linear(features_.size(1), kHidden))),
        partition_logits_(register_module("partition_logits", torch::nn::Linear(kHidden, groups_))),
        group_hidden_(register_module("group_hidden", torch::nn::Linear(2 * features_.size(1), kHidden))),
        query_key_value_(register_module("query_key_value", torch::nn::Linear(kHidden, 3 * kHidden))),
        type_logits_(register_module("type_logits", torch::nn::Linear(kHidden, problem.type_count()))) {}

  Rollout roll(std::int64_t count, Choice choice, at::Generator& generator) override {
    // steps[layer][group][0]: log probability that the layer stays in the group that the layer before is in; [1]: that
    // it begins the next. A row without a choice (entropy and logarithm 0) stands behind them, for the last group.
    const torch::Tensor logits = partition_logits_(torch::tanh(partition_hidden_(features_)));
    const torch::Tensor steps =
        torch::log_softmax(torch::stack({logits.narrow(1, 0, groups_ - 1), logits.narrow(1, 1, groups_ - 1)}, 2), 2);
    const torch::Tensor no_choice = torch::zeros({1});
    const torch::Tensor log_steps = torch::cat({steps.flatten(), no_choice});
    const torch::Tensor step_entropies = torch::cat({entropy_of(steps).flatten(), no_choice});

    // Draw the partitions, and note which elements of log_steps and step_entropies each of them went through.
    const torch::Tensor group = torch::zeros({count, layers_}, torch::kInt64);
    const torch::Tensor step = torch::full({count, layers_}, log_steps.size(0) - 1, torch::kInt64);
    const torch::Tensor place = torch::full({count, layers_}, step_entropies.size(0) - 1, torch::kInt64);
    const torch::Tensor draws =
        choice == Choice::kSampled ? torch::rand({count, layers_}, generator) : torch::full({count, layers_}, 0.5);
    draw_partitions(log_steps.detach(), draws, group, step, place);

    // Means over the layers of each group, beside those of the next.
    const torch::Tensor member = torch::one_hot(group, groups_).transpose(1, 2).to(torch::kFloat32);  // N x G x L
    const torch::Tensor sizes = member.sum(2, true);
    const torch::Tensor mean = torch::matmul(member / sizes.clamp_min(1), features_);
    const torch::Tensor next = torch::cat({mean.narrow(1, 1, groups_ - 1), torch::zeros_like(mean.narrow(1, 0, 1))}, 1);
    const torch::Tensor hidden = torch::tanh(group_hidden_(torch::cat({mean, next}, 2)));
    const auto parts = query_key_value_(hidden).chunk(3, 2);
    const torch::Tensor present = (sizes > 0).squeeze(2);  // N x G
    const torch::Tensor attended = at::scaled_dot_product_attention(
        parts[0], parts[1], parts[2], present.unsqueeze(1).expand({count, groups_, groups_}));
    const torch::Tensor log_types = torch::log_softmax(type_logits_(hidden + attended), 2);
    const torch::Tensor type =
        choice == Choice::kSampled
            ? torch::multinomial(log_types.detach().exp().flatten(0, 1), 1, true, generator).view({count, groups_, 1})
            : log_types.argmax(2, true);

    const auto along = [](const torch::Tensor& values, const torch::Tensor& indices) {
      return values.index_select(0, indices.flatten()).view(indices.sizes()).sum(1);
    };
    return {assignments(group, type.squeeze(2)),
            along(log_steps, step) + (log_types.gather(2, type).squeeze(2) * present).sum(1),
            along(step_entropies, place) + (entropy_of(log_types) * present).sum(1)};
  }

 private:
  void draw_partitions(const torch::Tensor& log_steps, const torch::Tensor& draws, const torch::Tensor& group,
                       const torch::Tensor& step, const torch::Tensor& place) const {
    const torch::Tensor probabilities = log_steps.exp();
    const auto probability = probabilities.accessor<float, 1>();
    const auto draw = draws.accessor<float, 2>();
    auto groups = group.accessor<std::int64_t, 2>();
    auto steps = step.accessor<std::int64_t, 2>();
    auto places = place.accessor<std::int64_t, 2>();
    for (std::int64_t n = 0; n < draws.size(0); ++n) {
      for (std::int64_t layer = 1; layer < layers_; ++layer) {
        const std::int64_t before = groups[n][layer - 1];
        groups[n][layer] = before;
        if (before + 1 < groups_) {
          places[n][layer] = layer * (groups_ - 1) + before;
          const bool advances = draw[n][layer] >= probability[2 * places[n][layer]];
          steps[n][layer] = 2 * places[n][layer] + (advances ? 1 : 0);
          groups[n][layer] += advances ? 1 : 0;
        }
      }
    }
  }

  std::vector<Assignment> assignments(const torch::Tensor& group, const torch::Tensor& type) const {
    const auto groups = group.accessor<std::int64_t, 2>();
    const auto types = type.accessor<std::int64_t, 2>();
    std::vector<Assignment> all(static_cast<std::size_t>(group.size(0)));
    for (std::int64_t n = 0; n < group.size(0); ++n) {
      Assignment& assignment = all[static_cast<std::size_t>(n)];
      for (std::int64_t layer = 0; layer < layers_; ++layer) {
        assignment.type_of_layer.push_back(static_cast<int>(types[n][groups[n][layer]]));
        if (cuts_) {
          assignment.cut_before.push_back(layer > 0 && groups[n][layer] != groups[n][layer - 1]);
        }
      }
      normalise(assignment);
    }
    return all;
  }

  bool cuts_;
  std::int64_t layers_;
  std::int64_t groups_;
  torch::Tensor features_;
  torch::nn::Linear partition_hidden_;
  torch::nn::Linear partition_logits_;
  torch::nn::Linear group_hidden_;
  torch::nn::Linear query_key_value_;
  torch::nn::Linear type_logits_;
};

class AttentionPlanner final : public Planner {
 public:
  std::string name() const override { return "rl-attention"; }
  Result<Answer> plan(const Request& request) const override {
    return plan_by_policy_gradient(request, make_attention_policy, {.workers = kWorkers});
  }
};

}  // namespace

std::shared_ptr<Policy> make_attention_policy(const planning::Problem& problem) {
  return std::make_shared<AttentionPolicy>(problem);
}

std::unique_ptr<Planner> make_rl_attention() {
  return std::make_unique<AttentionPlanner>();
}

}  // namespace motley::planning
