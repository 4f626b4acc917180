// HeterPS's scheduler: a recurrent network (LSTM, or Elman's) reads the layers in order and chooses for each.
//
// Under kHeterps an action is a type. Under kPipeline it is either a type, on which a stage begins at this layer, or
// "go on" with the stage: types with cuts, without naming one plan twice. All N plans of a round go through the network
// together, a step for each layer.
#include <tuple>

#include "motley/planning/learned/layer_features.h"
#include "motley/planning/learned/learned.h"
#include "motley/planning/learned/policy.h"
#include "motley/planning/learned/policy_gradient.h"

namespace motley::planning {
namespace {

constexpr int kHidden = 32;

torch::Tensor output_of(const torch::Tensor& state) {
  return state;
}
torch::Tensor output_of(const std::tuple<torch::Tensor, torch::Tensor>& state) {
  return std::get<0>(state);
}

template <class Cell>  // torch::nn::LSTMCell or torch::nn::RNNCell
class SequencePolicy final : public Policy {
 public:
  explicit SequencePolicy(const planning::Problem& problem)
      : types_(problem.type_count()),
        cuts_(problem.cost_model == planning::CostModel::kPipeline),
        features_(layer_features(problem)),
        of_features_(register_module("of_features", torch::nn::Linear(features_.size(1), kHidden))),
        of_action_(register_module("of_action", torch::nn::Embedding(actions(), kHidden))),
        cell_(register_module("cell", Cell(kHidden, kHidden))),
        logits_(register_module("logits", torch::nn::Linear(kHidden, actions()))) {}

  Rollout roll(std::int64_t count, Choice choice, at::Generator& generator) override {
    const torch::Tensor inputs = of_features_(features_);
    Rollout rollout{.log_probability = torch::zeros({count}), .entropy = torch::zeros({count})};
    auto state = cell_->forward(inputs[0].expand({count, kHidden}));
    std::vector<torch::Tensor> chosen;
    for (std::int64_t layer = 0; layer < inputs.size(0); ++layer) {
      if (layer > 0) {
        state = cell_->forward(inputs[layer] + of_action_(chosen.back()), state);
      }
      torch::Tensor logits = logits_(output_of(state));
      if (layer == 0) {
        logits = logits.narrow(1, 0, types_);  // there is no stage yet to go on with
      }
      const torch::Tensor log_probabilities = torch::log_softmax(logits, 1);
      const torch::Tensor probabilities = log_probabilities.exp();
      const torch::Tensor action = choice == Choice::kSampled
                                       ? torch::multinomial(probabilities.detach(), 1, true, generator)
                                       : probabilities.argmax(1, true);
      chosen.push_back(action.squeeze(1));
      rollout.log_probability = rollout.log_probability + log_probabilities.gather(1, action).squeeze(1);
      rollout.entropy = rollout.entropy - (probabilities * log_probabilities).sum(1);
    }
    const torch::Tensor all = torch::stack(chosen, 1);
    const auto action = all.accessor<std::int64_t, 2>();
    for (std::int64_t n = 0; n < count; ++n) {
      rollout.assignments.push_back(assignment(action[n]));
    }
    return rollout;
  }

 private:
  int actions() const { return cuts_ ? types_ + 1 : types_; }

  template <class Actions>
  Assignment assignment(const Actions& actions) const {
    Assignment assignment;
    for (std::int64_t layer = 0; layer < actions.size(0); ++layer) {
      const bool begins = actions[layer] < types_;
      assignment.type_of_layer.push_back(begins ? static_cast<int>(actions[layer]) : assignment.type_of_layer.back());
      if (cuts_) {
        assignment.cut_before.push_back(begins);
      }
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
};

class SequencePlanner final : public Planner {
 public:
  explicit SequencePlanner(Recurrence recurrence) : recurrence_(recurrence) {}
  std::string name() const override { return recurrence_ == Recurrence::kLstm ? "rl-lstm" : "rl-rnn"; }
  Result<Answer> plan(const Request& request) const override {
    return plan_by_policy_gradient(
        request, [this](const planning::Problem& problem) { return make_sequence_policy(problem, recurrence_); }, {});
  }

 private:
  Recurrence recurrence_;
};

}  // namespace

std::shared_ptr<Policy> make_sequence_policy(const planning::Problem& problem, Recurrence recurrence) {
  if (recurrence == Recurrence::kLstm) {
    return std::make_shared<SequencePolicy<torch::nn::LSTMCell>>(problem);
  }
  return std::make_shared<SequencePolicy<torch::nn::RNNCell>>(problem);
}

std::unique_ptr<Planner> make_rl_lstm() {
  return std::make_unique<SequencePlanner>(Recurrence::kLstm);
}

std::unique_ptr<Planner> make_rl_rnn() {
  return std::make_unique<SequencePlanner>(Recurrence::kElman);
}

}  // namespace motley::planning
