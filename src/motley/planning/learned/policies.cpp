// The policies of the learned planners: what their networks see of a problem, and how plans are drawn from them.
//
// SequencePolicy, HeterPS's scheduler: a recurrent network (LSTM, or Elman's) reads the layers in order and chooses for
// each either a type, on which a stage begins at this layer, or to go on with the stage, without naming one plan twice:
// what is near in a chain of layers mostly belongs together, and a network that had to say the type again for every
// layer would begin with as many stages as layers. All N plans of a round go through the network together, a step for
// each layer.
//
// AttentionPolicy, TAPP's planner: a feed-forward network partitions the layers into groups, and a network with
// attention allocates the groups to device types; one policy, trained together.
//
// Partition. The network gives every layer logits over the groups 0, 1, .. To keep the groups contiguous and in order,
// the first layer is in group 0 and every other layer chooses, by the softmax of just these two logits, between the
// group of the layer before and the next one; once the last group is reached, all others are in it.
// There are no more groups than devices, and fresh networks draw about four, with borders anywhere.
// Allocation. A group's vector is the mean of its layers' features, beside that of the next group (0 after the last).
// Every group attends to all groups of its partition, and gets a type by a softmax; neighbours on a type of which there
// is one device are one stage. Counts are provisioned.
#include <ATen/ops/scaled_dot_product_attention.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "motley/planning/learned/learned.h"
#include "motley/planning/learned/policy_gradient.h"

namespace motley::planning {
namespace {

constexpr int kKinds = static_cast<int>(model::LayerKind::kOther) + 1;
constexpr int kSequenceHidden = 32;
constexpr double kFreshStages = 4;
constexpr double kNever = -1e9;  // a logit
constexpr int kAttentionHidden = 64;
constexpr int kMaxGroups = 32;
constexpr int kWorkers = 4;

// Sizes and times span many powers of ten and may be 0: log(1 + x / scale), where the scale is the geometric mean of
// the positive values, spreads them evenly whatever their unit; then mean 0 and variance 1 (a constant becomes 0).
torch::Tensor standardised(const std::vector<double>& values) {
  const torch::Tensor column = torch::tensor(values, torch::kFloat64);
  const torch::Tensor positive = column.index({column > 0});
  if (positive.numel() == 0) return torch::zeros_like(column);
  const torch::Tensor scaled = torch::log1p(column / positive.log().mean().exp());
  const torch::Tensor centred = scaled - scaled.mean();
  return centred / (centred.square().mean().sqrt() + 1e-6);
}

torch::Tensor top_output(const torch::Tensor& state) {
  return state;
}
torch::Tensor top_output(const std::tuple<torch::Tensor, torch::Tensor>& state) {
  return std::get<0>(state);
}

template <class Cell>  // torch::nn::LSTMCell or torch::nn::RNNCell
class SequencePolicy final : public Policy {
 public:
  explicit SequencePolicy(const Problem& problem)
      : types_(problem.type_count()),
        cuts_(problem.cost_model == CostModel::kPipeline),
        features_(layer_features(problem)),
        of_features_(register_module("of_features", torch::nn::Linear(features_.size(1), kSequenceHidden))),
        of_action_(register_module("of_action", torch::nn::Embedding(actions(), kSequenceHidden))),
        cell_(register_module("cell", Cell(kSequenceHidden, kSequenceHidden))),
        logits_(register_module("logits", torch::nn::Linear(kSequenceHidden, actions()))),
        prior_(make_prior(problem.layer_count())) {}

  Rollout roll(std::int64_t count, Choice choice, at::Generator& generator) override {
    const torch::Tensor inputs = of_features_(features_);
    Rollout rollout{.log_probability = torch::zeros({count}), .entropy = torch::zeros({count})};
    auto state = cell_->forward(inputs[0].expand({count, kSequenceHidden}));
    std::vector<torch::Tensor> chosen;
    torch::Tensor type;  // of the layer before
    for (std::int64_t layer = 0; layer < inputs.size(0); ++layer) {
      if (layer > 0) state = cell_->forward(inputs[layer] + of_action_(chosen.back()), state);
      torch::Tensor logits = logits_(top_output(state));
      if (layer == 0) {
        logits = logits.narrow(1, 0, types_);  // there is no stage yet to go on with
      } else {
        logits = logits + prior_;
        // Without cuts, a stage of the type that the layer before has would be the same stage.
        if (!cuts_) logits = logits.masked_fill(torch::one_hot(type, actions()).to(torch::kBool), kNever);
      }
      const torch::Tensor log_probabilities = torch::log_softmax(logits, 1);
      const torch::Tensor probabilities = log_probabilities.exp();
      const torch::Tensor action = choice == Choice::kSampled
                                       ? torch::multinomial(probabilities.detach(), 1, true, generator)
                                       : probabilities.argmax(1, true);
      chosen.push_back(action.squeeze(1));
      type = layer == 0 ? chosen.back() : torch::where(chosen.back() < types_, chosen.back(), type);
      rollout.log_probability = rollout.log_probability + log_probabilities.gather(1, action).squeeze(1);
      rollout.entropy = rollout.entropy - (probabilities * log_probabilities).sum(1);
    }
    const torch::Tensor all = torch::stack(chosen, 1);
    const auto action = all.accessor<std::int64_t, 2>();
    for (std::int64_t n = 0; n < count; ++n) rollout.assignments.push_back(assignment(action[n]));
    return rollout;
  }

 private:
  int actions() const { return types_ + 1; }

  // Added to the logits, so that fresh networks draw plans of about kFreshStages stages, on any of the types alike.
  torch::Tensor make_prior(std::int64_t layers) const {
    const double begins = std::min(0.5, kFreshStages / static_cast<double>(layers));
    torch::Tensor prior = torch::zeros({actions()});
    prior[types_] = std::log(types_ * (1 - begins) / begins);
    return prior;
  }

  template <class Actions>
  Assignment assignment(const Actions& actions) const {
    Assignment assignment;
    for (std::int64_t layer = 0; layer < actions.size(0); ++layer) {
      const bool begins = actions[layer] < types_;
      assignment.type_of_layer.push_back(begins ? static_cast<int>(actions[layer]) : assignment.type_of_layer.back());
      if (cuts_) assignment.cut_before.push_back(begins);
    }
    normalise(assignment);
    return assignment;
  }

  int types_;
  bool cuts_;
  torch::Tensor features_;
  torch::nn::Linear of_features_;
  torch::nn::Embedding of_action_;
  Cell cell_;
  torch::nn::Linear logits_;
  torch::Tensor prior_;
};

torch::Tensor compute_entropy(const torch::Tensor& log_probabilities) {  // over the last dimension
  return -(log_probabilities.exp() * log_probabilities).sum(-1);
}

class AttentionPolicy final : public Policy {
 public:
  explicit AttentionPolicy(const Problem& problem)
      : cuts_(problem.cost_model == CostModel::kPipeline),
        layers_(problem.layer_count()),
        groups_(count_groups(problem)),
        prior_(std::log(fresh_share(layers_, groups_) / (1 - fresh_share(layers_, groups_)))),
        features_(layer_features(problem)),
        partition_hidden_(register_module("partition_hidden", torch::nn::Linear(features_.size(1), kAttentionHidden))),
        partition_logits_(register_module("partition_logits", torch::nn::Linear(kAttentionHidden, groups_))),
        group_hidden_(register_module("group_hidden", torch::nn::Linear(2 * features_.size(1), kAttentionHidden))),
        query_key_value_(register_module("query_key_value", torch::nn::Linear(kAttentionHidden, 3 * kAttentionHidden))),
        type_logits_(register_module("type_logits", torch::nn::Linear(kAttentionHidden, problem.type_count()))) {
    for (const Type& type : problem.types) several_.push_back(type.count > 1);
  }

  Rollout roll(std::int64_t count, Choice choice, at::Generator& generator) override {
    // steps[layer][group][0]: log probability that the layer stays in the group that the layer before is in; [1]: that
    // it begins the next. A row without a choice (entropy and logarithm 0) stands behind them, for the last group.
    const torch::Tensor logits = partition_logits_(torch::tanh(partition_hidden_(features_)));
    const torch::Tensor steps = torch::log_softmax(
        torch::stack({logits.narrow(1, 0, groups_ - 1), logits.narrow(1, 1, groups_ - 1) + prior_}, 2), 2);
    const torch::Tensor no_choice = torch::zeros({1});
    const torch::Tensor log_steps = torch::cat({steps.flatten(), no_choice});
    const torch::Tensor step_entropies = torch::cat({compute_entropy(steps).flatten(), no_choice});

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
            along(step_entropies, place) + (compute_entropy(log_types) * present).sum(1)};
  }

 private:
  // No more than there are devices.
  static int count_groups(const Problem& problem) {
    std::int64_t devices = 0;
    for (const Type& type : problem.types) devices += std::min<std::int64_t>(type.count, kMaxGroups);
    return static_cast<int>(std::clamp<std::int64_t>(devices, 1, std::min(problem.layer_count(), kMaxGroups)));
  }

  // How likely fresh networks are to begin a group with a layer, so that borders may be anywhere.
  static double fresh_share(std::int64_t layers, int groups) {
    return std::min(0.5, std::min(kFreshStages, static_cast<double>(groups)) / static_cast<double>(layers));
  }

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
    std::vector<Assignment> all(index(group.size(0)));
    for (std::int64_t n = 0; n < group.size(0); ++n) {
      Assignment& assignment = all[index(n)];
      for (std::int64_t layer = 0; layer < layers_; ++layer) {
        assignment.type_of_layer.push_back(static_cast<int>(types[n][groups[n][layer]]));
        if (cuts_) {
          const bool divides = several_.at(index(assignment.type_of_layer.back()));
          assignment.cut_before.push_back(divides && layer > 0 && groups[n][layer] != groups[n][layer - 1]);
        }
      }
      normalise(assignment);
    }
    return all;
  }

  bool cuts_;
  std::int64_t layers_;
  int groups_;
  double prior_;               // added to the logit of a new group
  std::vector<bool> several_;  // by type: two groups may have a device of it each
  torch::Tensor features_;
  torch::nn::Linear partition_hidden_;
  torch::nn::Linear partition_logits_;
  torch::nn::Linear group_hidden_;
  torch::nn::Linear query_key_value_;
  torch::nn::Linear type_logits_;
};

}  // namespace

torch::Tensor layer_features(const Problem& problem) {
  const bool heterps = problem.cost_model == CostModel::kHeterps;
  const double batch =
      heterps ? problem.profile_batch : static_cast<double>(problem.batch) / static_cast<double>(problem.micro_batches);
  const int layers = problem.layer_count();

  std::vector<std::int64_t> kinds;
  for (const LayerSize& layer : problem.layers) {
    kinds.push_back(static_cast<std::int64_t>(layer.kind));
  }
  const auto column = [&](auto&& compute_value) {
    std::vector<double> values;
    for (int layer = 0; layer < layers; ++layer) values.push_back(compute_value(layer));
    return standardised(values);
  };
  const auto size = [&](int layer) -> const LayerSize& { return problem.layer(layer); };

  const double distinct = model::distinct_rows(problem.distinct_lookups, batch);
  std::vector<torch::Tensor> numbers;
  numbers.push_back(column([&](int layer) { return problem.cut_bytes[index(layer)]; }));
  numbers.push_back(column([&](int layer) { return size(layer).parameter_bytes; }));
  numbers.push_back(column([&](int layer) { return size(layer).sparse_bytes; }));
  for (int type = 0; type < problem.type_count(); ++type) {
    const double bytes_per_second = problem.type(type).bytes_per_second;
    numbers.push_back(column([&](int layer) {
      const LayerOnType& time = problem.at(layer, type);
      return time.forward.at(batch) + time.backward.at(batch);
    }));
    numbers.push_back(column([&](int layer) {
      return 2 * (distinct * size(layer).sparse_bytes + size(layer).parameter_bytes) / bytes_per_second;
    }));
  }
  return torch::cat({torch::eye(layers), torch::one_hot(torch::tensor(kinds), kKinds).to(torch::kFloat32),
                     torch::stack(numbers, 1).to(torch::kFloat32)},
                    1);
}

std::shared_ptr<Policy> make_sequence_policy(const Problem& problem, Recurrence recurrence) {
  if (recurrence == Recurrence::kLstm) return std::make_shared<SequencePolicy<torch::nn::LSTMCell>>(problem);
  return std::make_shared<SequencePolicy<torch::nn::RNNCell>>(problem);
}

std::shared_ptr<Policy> make_attention_policy(const Problem& problem) {
  return std::make_shared<AttentionPolicy>(problem);
}

Result<Answer> plan_rl_lstm(const Request& request) {
  return plan_by_policy_gradient(
      request, [](const Problem& problem) { return make_sequence_policy(problem, Recurrence::kLstm); }, {});
}

Result<Answer> plan_rl_rnn(const Request& request) {
  return plan_by_policy_gradient(
      request, [](const Problem& problem) { return make_sequence_policy(problem, Recurrence::kElman); }, {});
}

Result<Answer> plan_rl_attention(const Request& request) {
  return plan_by_policy_gradient(request, make_attention_policy, {.workers = kWorkers});
}

std::vector<Planner> learned_planners() {
  return {{"rl-lstm", plan_rl_lstm}, {"rl-rnn", plan_rl_rnn}, {"rl-attention", plan_rl_attention}};
}

}  // namespace motley::planning
