// The policies and their gradient, against what enumeration of all plans of a tiny problem gives.
#include "motley/planning/learned/policy_gradient.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "motley/planning/search/random_problem.h"

namespace motley::planning {
namespace {

// Tensors here are small: more threads would only wait for each other.
const bool kOneThread = (at::set_num_threads(1), true);

struct NamedPolicy {
  const char* name;
  std::shared_ptr<Policy> policy;
};

std::vector<NamedPolicy> policies(const planning::Problem& problem) {
  torch::manual_seed(7);
  return {{"lstm", make_sequence_policy(problem, Recurrence::kLstm)},
          {"elman", make_sequence_policy(problem, Recurrence::kElman)},
          {"attention", make_attention_policy(problem)}};
}

at::Generator generator(std::uint64_t seed) {
  return at::make_generator<at::CPUGeneratorImpl>(seed);
}

planning::Problem tiny(planning::CostModel cost_model) {
  return random_problem({.layers = 3, .types = 2, .cost_model = cost_model}, 1);
}

// Any reward that tells plans apart.
double compute_reward(const Assignment& assignment) {
  double reward = 0;
  for (std::size_t layer = 0; layer < assignment.type_of_layer.size(); ++layer) {
    reward = 1.7 * reward + assignment.type_of_layer[layer];
    reward += !assignment.cut_before.empty() && assignment.cut_before[layer] ? 0.4 : 0;
  }
  return reward;
}

// The gradient of `scalar` with respect to all parameters, as one vector.
torch::Tensor gradient(Policy& policy, const torch::Tensor& scalar) {
  policy.zero_grad();
  scalar.backward();
  std::vector<torch::Tensor> parts;
  for (const torch::Tensor& parameter : policy.parameters()) {
    parts.push_back((parameter.grad().defined() ? parameter.grad() : torch::zeros_like(parameter)).flatten().clone());
  }
  return torch::cat(parts);
}

// The sequence policy names every plan in one way, so its distinct plans are all there is.
TEST(SequencePolicy, ProbabilitiesOfAllPlansSumToOne) {
  for (const auto cost_model : {planning::CostModel::kHeterps, planning::CostModel::kPipeline}) {
    const planning::Problem problem = tiny(cost_model);
    for (const Recurrence recurrence : {Recurrence::kLstm, Recurrence::kElman}) {
      auto draws = generator(3);
      const Rollout rollout = make_sequence_policy(problem, recurrence)->roll(4000, Choice::kSampled, draws);
      const torch::Tensor probabilities = rollout.log_probability.detach().exp();
      std::map<Assignment, double> probability;
      std::map<Assignment, double> frequency;
      for (std::int64_t n = 0; n < 4000; ++n) {
        const Assignment& assignment = rollout.assignments[static_cast<std::size_t>(n)];
        probability[assignment] = probabilities.data_ptr<float>()[n];
        frequency[assignment] += 1.0 / 4000;
      }
      double sum = 0;
      for (const auto& [assignment, value] : probability) {
        sum += value;
        EXPECT_NEAR(frequency[assignment], value, 0.05);
      }
      // Under kPipeline every layer but the first has two types to begin a stage on, or goes on with the stage.
      EXPECT_EQ(probability.size(), cost_model == planning::CostModel::kHeterps ? 8u : 18u);
      EXPECT_NEAR(sum, 1, 1e-5);
    }
  }
}

// E[R grad log P] over many draws approaches grad sum_plans P(plan) R(plan), and a baseline does not change that.
TEST(PolicyGradient, IsTheGradientOfTheExpectedReward) {
  for (const auto cost_model : {planning::CostModel::kHeterps, planning::CostModel::kPipeline}) {
    const planning::Problem problem = tiny(cost_model);
    for (const Recurrence recurrence : {Recurrence::kLstm, Recurrence::kElman}) {
      torch::manual_seed(5);
      const auto policy = make_sequence_policy(problem, recurrence);
      auto draws = generator(11);

      const Rollout all = policy->roll(4000, Choice::kSampled, draws);
      std::map<Assignment, std::int64_t> first;
      for (std::int64_t n = 0; n < 4000; ++n) {
        first.try_emplace(all.assignments[static_cast<std::size_t>(n)], n);
      }
      torch::Tensor expected = torch::zeros({});
      for (const auto& [assignment, n] : first) {
        expected = expected + all.log_probability[n].exp() * compute_reward(assignment);
      }
      const torch::Tensor exact = gradient(*policy, expected);

      const Rollout drawn = policy->roll(40'000, Choice::kSampled, draws);
      std::vector<float> rewards;
      for (const Assignment& assignment : drawn.assignments) {
        rewards.push_back(static_cast<float>(compute_reward(assignment)));
      }
      const torch::Tensor reward = torch::tensor(rewards);
      const torch::Tensor advantages = reward - reward.mean();
      const torch::Tensor estimate = -gradient(*policy, policy_gradient_loss(drawn, advantages, 0));
      EXPECT_LT((estimate - exact).norm().item<double>(), 0.1 * exact.norm().item<double>());
    }
  }
}

TEST(PolicyGradient, EntropyIsThatOfTheDrawnPlans) {
  const planning::Problem problem = tiny(planning::CostModel::kHeterps);
  for (const auto& [name, policy] : policies(problem)) {
    auto draws = generator(2);
    const Rollout rollout = policy->roll(20'000, Choice::kSampled, draws);
    // The mean of -log P over draws is the entropy, and so is the mean of the entropies along them.
    EXPECT_NEAR(-rollout.log_probability.mean().item<double>(), rollout.entropy.mean().item<double>(), 0.03) << name;
  }
}

TEST(Policies, DrawPlansThatCoverTheLayers) {
  for (const auto cost_model : {planning::CostModel::kHeterps, planning::CostModel::kPipeline}) {
    for (const int layers : {1, 2, 40}) {
      const planning::Problem problem = random_problem({.layers = layers, .types = 3, .cost_model = cost_model}, 4);
      for (const auto& [name, policy] : policies(problem)) {
        for (const Choice choice : {Choice::kSampled, Choice::kMaxLikely}) {
          auto draws = generator(9);
          const Rollout rollout = policy->roll(5, choice, draws);
          ASSERT_EQ(rollout.assignments.size(), 5u);
          for (const Assignment& assignment : rollout.assignments) {
            const auto stages = planning::list_stages(problem, assignment.type_of_layer, assignment.cut_before);
            EXPECT_EQ(stages.front().first, 0) << name;
            EXPECT_EQ(stages.back().last, layers - 1) << name;
          }
          EXPECT_TRUE(torch::isfinite(rollout.log_probability).all().item<bool>()) << name;
          EXPECT_TRUE((rollout.entropy >= 0).all().item<bool>()) << name;
        }
      }
    }
  }
}

TEST(LayerFeatures, AreFiniteAndStandardised) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const planning::Problem problem = random_problem({.layers = 12, .types = 3, .links = seed % 2 == 0}, seed);
    const torch::Tensor features = layer_features(problem);
    EXPECT_TRUE(torch::isfinite(features).all().item<bool>());
    EXPECT_TRUE(features.narrow(1, 0, 12).equal(torch::eye(12)));
    const torch::Tensor numbers = features.narrow(1, features.size(1) - 9, 9);
    EXPECT_LT(numbers.mean(0).abs().max().item<double>(), 1e-4);
    EXPECT_LT(numbers.abs().max().item<double>(), std::sqrt(12.0));
  }
}

}  // namespace
}  // namespace motley::planning
