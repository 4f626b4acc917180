// Losses, metrics, optimizers, schedules and BatchNorm against closed forms written out here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "motley/base/random.h"
#include "motley/nn/loss.h"
#include "motley/nn/networks.h"
#include "motley/nn/optimizer.h"
#include "motley/nn/stage.h"

namespace motley::nn {
namespace {

using ::testing::HasSubstr;

TEST(Loss, CrossEntropyIsTheClosedForm) {
  torch::manual_seed(1);
  const torch::Tensor outputs = torch::randn({5, 3}, torch::kFloat64);
  const torch::Tensor targets = torch::tensor({0, 2, 1, 1, 0}, torch::kInt64);
  const LossOutcome loss = *compute_loss(Loss::kCrossEntropy, outputs, targets, 10);
  double sum = 0;
  for (int i = 0; i < 5; ++i) {
    double partition = 0;
    for (int k = 0; k < 3; ++k) {
      partition += std::exp(outputs[i][k].item<double>());
    }
    for (int k = 0; k < 3; ++k) {
      const double probability = std::exp(outputs[i][k].item<double>()) / partition;
      const bool is_target = targets[i].item<std::int64_t>() == k;
      EXPECT_NEAR(loss.output_gradient[i][k].item<double>(), (probability - is_target) / 10, 1e-12);
      sum -= is_target ? std::log(probability) : 0;
    }
  }
  EXPECT_NEAR(loss.sum.item<double>(), sum, 1e-12);
  EXPECT_EQ(loss.samples, 5);
}

// With a class at each position, a sample's loss is the mean over them.
TEST(Loss, CrossEntropyOfSequencesIsTheMeanOverTheirPositions) {
  torch::manual_seed(2);
  const torch::Tensor outputs = torch::randn({2, 3, 5}, torch::kFloat64);
  const torch::Tensor targets = torch::tensor({{0, 4, 1}, {3, 3, 2}}, torch::kInt64);
  const LossOutcome loss = *compute_loss(Loss::kCrossEntropy, outputs, targets, 8);
  EXPECT_EQ(loss.samples, 2);
  double sum = 0;
  for (int sample = 0; sample < 2; ++sample) {
    const LossOutcome own = *compute_loss(Loss::kCrossEntropy, outputs[sample], targets[sample], 3);
    sum += own.sum.item<double>() / 3;
    EXPECT_TRUE(torch::allclose(loss.output_gradient[sample], own.output_gradient / 8, 1e-12, 1e-14));
  }
  EXPECT_NEAR(loss.sum.item<double>(), sum, 1e-12);

  Evaluation evaluation(Loss::kCrossEntropy, {Metric::kAccuracy});
  torch::Tensor right = torch::zeros({2, 3, 5}, torch::kFloat64);
  right.scatter_(2, targets.unsqueeze(2), 1);
  right[1][0].zero_()[0] = 1;  // one of six is wrong
  ASSERT_TRUE(evaluation.add(right, targets));
  EXPECT_NEAR(evaluation.values()[1].value, 5.0 / 6, 1e-12);
}

TEST(Loss, BceAndMseAreTheClosedForms) {
  const torch::Tensor outputs = torch::tensor({{0.3, -1.2}, {2.0, 0.0}}, torch::kFloat64);
  const torch::Tensor targets = torch::tensor({{1.0, 0.0}, {0.0, 1.0}}, torch::kFloat64);
  double bce = 0;
  double mse = 0;
  const LossOutcome bce_found = *compute_loss(Loss::kBce, outputs, targets, 2);
  const LossOutcome mse_found = *compute_loss(Loss::kMse, outputs, targets, 2);
  for (int i = 0; i < 2; ++i) {
    for (int k = 0; k < 2; ++k) {
      const double x = outputs[i][k].item<double>();
      const double y = targets[i][k].item<double>();
      const double probability = 1 / (1 + std::exp(-x));
      bce -= (y * std::log(probability) + (1 - y) * std::log(1 - probability)) / 2;
      mse += (x - y) * (x - y) / 2;
      EXPECT_NEAR(bce_found.output_gradient[i][k].item<double>(), (probability - y) / 4, 1e-12);
      EXPECT_NEAR(mse_found.output_gradient[i][k].item<double>(), 2 * (x - y) / 4, 1e-12);
    }
  }
  EXPECT_NEAR(bce_found.sum.item<double>(), bce, 1e-12);
  EXPECT_NEAR(mse_found.sum.item<double>(), mse, 1e-12);
}

TEST(Loss, SaysWhatDoesNotFit) {
  const auto refused = compute_loss(Loss::kCrossEntropy, torch::zeros({4, 3}), torch::zeros({5}, torch::kInt64), 4);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("4x3"));
  EXPECT_FALSE(compute_loss(Loss::kCrossEntropy, torch::zeros({4, 3}), torch::full({4}, 3, torch::kInt64), 4))
      << "a class that does not exist";
  EXPECT_FALSE(compute_loss(Loss::kCrossEntropy, torch::zeros({4, 6, 3}), torch::zeros({4}, torch::kInt64), 4))
      << "one class for six positions";
  EXPECT_FALSE(compute_loss(Loss::kMse, torch::zeros({4, 3}), torch::zeros({4}), 4));
  EXPECT_THAT(parse_loss("hinge").error().message, HasSubstr("cross-entropy, bce, mse"));
}

// Property: any split into parts and workers gives the value of the whole.
TEST(Evaluation, PartsOfAnySizeGiveTheWhole) {
  torch::manual_seed(4);
  Random random(11);
  for (const Loss loss : {Loss::kCrossEntropy, Loss::kBce, Loss::kMse}) {
    const std::vector<Metric> metrics = loss == Loss::kCrossEntropy
                                            ? std::vector{Metric::kAccuracy}
                                            : std::vector{Metric::kAccuracy, Metric::kMeanAbsoluteError};
    const torch::Tensor outputs = torch::randn({97, loss == Loss::kCrossEntropy ? 5 : 1}, torch::kFloat64);
    const torch::Tensor targets =
        loss == Loss::kCrossEntropy ? torch::randint(0, 5, {97}) : torch::randint(0, 2, {97}).to(torch::kFloat64);
    Evaluation whole(loss, metrics);
    ASSERT_TRUE(whole.add(outputs, targets));
    Evaluation workers[3] = {{loss, metrics}, {loss, metrics}, {loss, metrics}};
    for (std::int64_t at = 0; at < 97;) {
      const std::int64_t size = std::min<std::int64_t>(97 - at, 1 + static_cast<std::int64_t>(random.below(20)));
      ASSERT_TRUE(workers[random.below(3)].add(outputs.narrow(0, at, size), targets.narrow(0, at, size)));
      at += size;
    }
    Evaluation joined(loss, metrics);
    for (Evaluation& worker : workers) {
      for (std::size_t i = 0; i < joined.totals().size(); ++i) {
        joined.totals()[i] += worker.totals()[i];
      }
    }
    for (std::size_t i = 0; i < whole.values().size(); ++i) {
      EXPECT_EQ(whole.values()[i].name, joined.values()[i].name);
      EXPECT_NEAR(whole.values()[i].value, joined.values()[i].value, 1e-12);
    }
    const double accuracy = loss == Loss::kCrossEntropy
                                ? outputs.argmax(1).eq(targets).to(torch::kFloat64).mean().item<double>()
                                : (outputs.squeeze(1) > (loss == Loss::kBce ? 0.0 : 0.5))
                                      .eq(targets > 0.5)
                                      .to(torch::kFloat64)
                                      .mean()
                                      .item<double>();
    EXPECT_NEAR(whole.values()[1].value, accuracy, 1e-12);
  }
  EXPECT_TRUE(std::isnan(Evaluation(Loss::kMse, {}).values()[0].value));
}

// The published update rules on one number each, without libtorch.
struct Reference {
  OptimizerSpec spec;
  double weight = 0, buffer = 0, square = 0;
  int steps = 0;

  void update(double gradient, double rate) {
    ++steps;
    if (spec.name == "adamw") {
      weight -= rate * spec.weight_decay * weight;
    } else {
      gradient += spec.weight_decay * weight;
    }
    if (spec.name == "sgd") {
      buffer = steps == 1 ? gradient : spec.momentum * buffer + gradient;
      weight -= rate * (spec.nesterov ? gradient + spec.momentum * buffer : spec.momentum > 0 ? buffer : gradient);
      return;
    }
    buffer = spec.beta1 * buffer + (1 - spec.beta1) * gradient;
    square = spec.beta2 * square + (1 - spec.beta2) * gradient * gradient;
    const double first = buffer / (1 - std::pow(spec.beta1, steps));
    const double second = square / (1 - std::pow(spec.beta2, steps));
    weight -= rate * first / (std::sqrt(second) + spec.epsilon);
  }
};

std::vector<OptimizerSpec> optimizers() {
  return {{.name = "sgd", .learning_rate = 0.1},
          {.name = "sgd", .learning_rate = 0.1, .weight_decay = 0.02},
          {.name = "sgd", .learning_rate = 0.1, .momentum = 0.9, .weight_decay = 0.01},
          {.name = "sgd", .learning_rate = 0.1, .momentum = 0.8, .nesterov = true},
          {.name = "adam", .learning_rate = 0.05, .weight_decay = 0.01},
          {.name = "adamw", .learning_rate = 0.05, .weight_decay = 0.1, .beta1 = 0.8, .beta2 = 0.95}};
}

TEST(Optimizer, FollowsThePublishedRules) {
  for (const OptimizerSpec& spec : optimizers()) {
    const torch::Tensor weights = torch::tensor({0.5, -2.0}, torch::kFloat64).requires_grad_();
    Reference references[2] = {{spec, 0.5}, {spec, -2.0}};
    const auto optimizer = *Optimizer::create(spec, {{"w", weights}});
    Random random(3);
    for (int step = 0; step < 8; ++step) {
      const double rate = spec.learning_rate / (1 + step);
      const double gradients[2] = {random.normal(), random.normal()};
      weights.mutable_grad() = torch::tensor({gradients[0], gradients[1]}, torch::kFloat64);
      ASSERT_TRUE(optimizer->step(rate));
      for (int i = 0; i < 2; ++i) {
        references[i].update(gradients[i], rate);
        EXPECT_NEAR(weights[i].item<double>(), references[i].weight, 1e-12) << spec.name << " step " << step;
      }
    }
  }
}

TEST(Optimizer, ResumesBitwiseFromAFile) {
  for (const OptimizerSpec& spec : optimizers()) {
    const auto run = [&](bool interrupted) {
      torch::manual_seed(5);
      NamedTensors parameters = {{"a", torch::randn({3, 2}).requires_grad_()},
                                 {"b", torch::randn({4}).requires_grad_()}};
      auto optimizer = *Optimizer::create(spec, parameters);
      for (int step = 0; step < 6; ++step) {
        if (interrupted && step == 3) {
          const NamedTensors saved = optimizer->state();
          optimizer = *Optimizer::create(spec, parameters);
          EXPECT_TRUE(optimizer->load_state(saved));
        }
        for (NamedTensor& parameter : parameters) {
          parameter.tensor.mutable_grad() = torch::randn_like(parameter.tensor);
        }
        EXPECT_TRUE(optimizer->step(spec.learning_rate));
      }
      return parameters;
    };
    const NamedTensors straight = run(false);
    const NamedTensors resumed = run(true);
    for (std::size_t i = 0; i < straight.size(); ++i) {
      EXPECT_TRUE(torch::equal(straight[i].tensor, resumed[i].tensor)) << spec.name;
    }
  }
}

TEST(Optimizer, CountsTheArraysOfItsState) {
  for (const OptimizerSpec& spec : optimizers()) {
    const torch::Tensor weights = torch::ones({3, 2}).requires_grad_();
    weights.mutable_grad() = torch::ones({3, 2});
    const auto optimizer = *Optimizer::create(spec, {{"w", weights}});
    ASSERT_TRUE(optimizer->step(spec.learning_rate));
    std::int64_t numbers = 0;
    for (const NamedTensor& tensor : optimizer->state()) {
      numbers += tensor.tensor.dim() > 0 ? tensor.tensor.numel() : 0;  // not the number of steps
    }
    EXPECT_EQ(count_state_arrays(spec) * weights.numel(), numbers) << spec.name << ", momentum " << spec.momentum;
  }
}

TEST(Optimizer, RefusesAStateThatDoesNotFit) {
  const torch::Tensor weights = torch::ones({2}).requires_grad_();
  weights.mutable_grad() = torch::ones({2});
  const auto optimizer = *Optimizer::create({.name = "adam"}, {{"w", weights}});
  ASSERT_TRUE(optimizer->step(0.1));
  NamedTensors state = optimizer->state();
  ASSERT_EQ(state.size(), 3u);
  EXPECT_THAT(optimizer->load_state({state[0]}).error().message, HasSubstr("in part"));
  NamedTensors foreign = state;
  foreign.push_back({"v.exp_avg", torch::ones({2})});
  EXPECT_THAT(optimizer->load_state(foreign).error().message, HasSubstr("v.exp_avg"));
  state[0].tensor = torch::ones({3});
  EXPECT_THAT(optimizer->load_state(state).error().message, HasSubstr("w.exp_avg"));
}

TEST(Optimizer, RefusesSettingsByName) {
  const auto message = [](const OptimizerSpec& spec) { return check_optimizer(spec).error().message; };
  EXPECT_THAT(message({.name = "lion"}), HasSubstr("sgd, adam, adamw"));
  EXPECT_THAT(message({.learning_rate = -1}), HasSubstr("optimizer.learning_rate"));
  EXPECT_THAT(message({.momentum = 1}), HasSubstr("optimizer.momentum"));
  EXPECT_THAT(message({.nesterov = true}), HasSubstr("optimizer.nesterov"));
  EXPECT_THAT(message({.name = "adam", .momentum = 0.9}), HasSubstr("beta1"));
  EXPECT_THAT(message({.name = "adam", .epsilon = -1e-8}), HasSubstr("optimizer.epsilon"));
  EXPECT_THAT(message({.name = "adam", .epsilon = std::nan("")}), HasSubstr("optimizer.epsilon"));
}

// As PyTorch takes it: a first step is then the learning rate, whatever the size of the gradient.
TEST(Optimizer, AdamTakesAnEpsilonOfZero) {
  for (const char* name : {"adam", "adamw"}) {
    const torch::Tensor weights = torch::tensor({0.5, -2.0}, torch::kFloat64).requires_grad_();
    const auto optimizer = Optimizer::create({.name = name, .epsilon = 0}, {{"w", weights}});
    ASSERT_TRUE(optimizer) << optimizer.error().message;
    weights.mutable_grad() = torch::tensor({1e-9, -3.0}, torch::kFloat64);
    ASSERT_TRUE((*optimizer)->step(0.125));
    EXPECT_NEAR(weights[0].item<double>(), 0.375, 1e-12) << name;
    EXPECT_NEAR(weights[1].item<double>(), -1.875, 1e-12) << name;
  }
}

TEST(Gradients, HaveANormThatNamesWhatIsNotFinite) {
  const torch::Tensor a = torch::zeros({2}).requires_grad_();
  const torch::Tensor b = torch::zeros({1}).requires_grad_();
  const NamedTensors parameters = {{"a", a}, {"b", b}};
  a.mutable_grad() = torch::tensor({3.0F, 4.0F});
  b.mutable_grad() = torch::tensor({12.0F});
  EXPECT_DOUBLE_EQ(*gradient_norm(parameters), 13);
  ASSERT_TRUE(scale_gradients(parameters, 0.5));
  EXPECT_TRUE(torch::equal(a.grad(), torch::tensor({1.5F, 2.0F})));
  EXPECT_DOUBLE_EQ(*gradient_norm(parameters), 6.5);
  b.mutable_grad()[0] = std::numeric_limits<float>::quiet_NaN();
  const auto refused = gradient_norm(parameters);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kDiverged);
  EXPECT_THAT(refused.error().message, HasSubstr("'b'"));
}

// Weights from which a step can be computed: finite, and so are the products that they have with each other.
TEST(Weights, AreRefusedWhereNoStepCanGoOnFromThem) {
  const auto check = [](const torch::Tensor& tensor) {
    return check_weights({{"a", torch::zeros({3})}, {"b", tensor}});
  };
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float value : {0.0F, 1e-40F, -1e4F, 1e19F}) EXPECT_TRUE(check(torch::full({3}, value))) << value;
  EXPECT_TRUE(check(torch::full({3}, 1e100, torch::kFloat64)));
  EXPECT_TRUE(check(torch::zeros({0})));
  for (const float value : {kInfinity, -kInfinity, std::nanf(""), 1e37F, -2e19F}) {
    torch::Tensor weights = torch::zeros({2, 2});
    weights[1][0] = value;
    EXPECT_FALSE(std::isfinite((weights * weights).sum().item<float>()));
    const Status refused = check(weights);
    ASSERT_FALSE(refused) << value;
    EXPECT_EQ(refused.error().code, ErrorCode::kDiverged);
    EXPECT_THAT(refused.error().message, HasSubstr("'b'"));
  }
}

TEST(Schedule, IsTheClosedForm) {
  const ScheduleSpec constant;
  EXPECT_EQ(learning_rate_factor(constant, 1000), 1);
  const ScheduleSpec steps{.name = "step", .warmup_steps = 4, .step_size = 10, .factor = 0.5};
  EXPECT_DOUBLE_EQ(learning_rate_factor(steps, 0), 0.25);
  EXPECT_DOUBLE_EQ(learning_rate_factor(steps, 3), 1);
  EXPECT_DOUBLE_EQ(learning_rate_factor(steps, 13), 1);
  EXPECT_DOUBLE_EQ(learning_rate_factor(steps, 14), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate_factor(steps, 34), 0.125);
  const ScheduleSpec cosine{.name = "cosine", .warmup_steps = 10, .total_steps = 110, .minimum = 0.1};
  EXPECT_DOUBLE_EQ(learning_rate_factor(cosine, 10), 1);
  EXPECT_DOUBLE_EQ(learning_rate_factor(cosine, 60), 0.55);
  EXPECT_NEAR(learning_rate_factor(cosine, 35), 0.1 + 0.9 * (1 + std::numbers::sqrt2 / 2) / 2, 1e-12);
  EXPECT_DOUBLE_EQ(learning_rate_factor(cosine, 110), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate_factor(cosine, 500), 0.1);
}

// A network of one BatchNorm, so that workers' inputs to it are parts of the whole batch.
class NormNetwork final : public Network {
 public:
  explicit NormNetwork(std::optional<double> momentum)
      : Network("norm", {}), norm_(torch::nn::BatchNorm1dOptions(3).momentum(momentum)) {
    const torch::NoGradGuard no_grad;
    norm_->running_mean.copy_(torch::tensor({0.5, -1.0, 2.0}));
    norm_->running_var.copy_(torch::tensor({1.0, 2.0, 0.5}));
    norm_->num_batches_tracked.fill_(4);
  }
  Tensors forward(const Tensors& inputs) override { return {norm_->forward(inputs.front())}; }
  NamedTensors parameters() const override { return {{"weight", norm_->weight}, {"bias", norm_->bias}}; }
  NamedTensors buffers() const override { return {{"mean", norm_->running_mean}, {"var", norm_->running_var}}; }
  std::vector<BatchNormLayer> batch_norms() const override {
    return {{"", norm_->running_mean, norm_->running_var, norm_->num_batches_tracked, norm_->options.momentum()}};
  }
  void train(bool on) override { norm_->train(on); }
  void to(torch::Device device, torch::Dtype dtype) override { norm_->to(device, dtype); }

 private:
  torch::nn::BatchNorm1d norm_;
};

std::unique_ptr<Stage> batch_norm_stage(std::optional<double> momentum) {
  auto stage = Stage::create(std::make_unique<NormNetwork>(momentum), {.dtype = torch::kFloat64});
  EXPECT_TRUE(stage) << stage.error().message;
  return std::move(*stage);
}

// Of a network with one BatchNorm: means, then variances.
std::vector<double> running_statistics(const Stage& stage) {
  const BatchNormLayer norm = stage.batch_norms().front();
  const torch::Tensor both = torch::cat({norm.running_mean, norm.running_var}).to(torch::kFloat64);
  return {both.data_ptr<double>(), both.data_ptr<double>() + both.numel()};
}

TEST(BatchNorm, UnequalWorkersHoldTheStatisticsOfOneLargeBatch) {
  torch::manual_seed(8);
  for (const std::optional<double> momentum : {std::optional(0.1), std::optional(0.7), std::optional<double>()}) {
    const auto whole = batch_norm_stage(momentum);
    std::unique_ptr<Stage> workers[3];
    std::vector<BatchNormAverage> averages;
    for (auto& worker : workers) {
      worker = batch_norm_stage(momentum);
      averages.emplace_back(*worker);
    }
    ASSERT_TRUE(has_batch_norm(*whole));
    for (int step = 0; step < 3; ++step) {
      // The workers' means lie far apart; the third worker has no samples in the last step.
      const std::int64_t sizes[3] = {200, 90, step == 2 ? 0 : 10};
      std::vector<torch::Tensor> parts;
      std::vector<double> sums;
      for (int i = 0; i < 3; ++i) {
        averages[static_cast<std::size_t>(i)].begin_step();
        parts.push_back(torch::randn({sizes[i], 3, 4}, torch::kFloat64) * (1 + i) + 5 * i);
        if (sizes[i] > 0) {
          ASSERT_TRUE(workers[i]->forward(step, {parts.back()}));
        }
        const std::vector<double> part =
            averages[static_cast<std::size_t>(i)].contribution(static_cast<double>(sizes[i]));
        sums.resize(part.size());
        for (std::size_t c = 0; c < part.size(); ++c) {
          sums[c] += part[c];
        }
      }
      for (BatchNormAverage& average : averages) {
        average.finish_step(sums);
      }
      ASSERT_TRUE(whole->forward(step, {torch::cat(parts)}));
      const std::vector<double> expected = running_statistics(*whole);
      for (auto& worker : workers) {
        const std::vector<double> found = running_statistics(*worker);
        ASSERT_EQ(found.size(), 6u);
        for (std::size_t c = 0; c < 3; ++c) {
          EXPECT_NEAR(found[c], expected[c], 1e-9 * (1 + std::abs(expected[c]))) << "mean";
          EXPECT_NEAR(found[3 + c], expected[3 + c], expected[3 + c] / 200) << "variance, biased against unbiased";
        }
        EXPECT_EQ(found, running_statistics(*workers[0])) << "bitwise the same on all";
      }
    }
  }
}

TEST(BatchNorm, SeveralMicroBatchesCountAsOneBatch) {
  torch::manual_seed(9);
  const auto stage = batch_norm_stage(0.2);
  const std::vector<double> before = running_statistics(*stage);
  BatchNormAverage average(*stage);
  const torch::Tensor inputs = torch::randn({500, 3}, torch::kFloat64) + 3;
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(stage->forward(i, {inputs}));
  }
  const std::vector<double> sums = average.contribution(2000);
  average.finish_step(sums);
  const std::vector<double> after = running_statistics(*stage);
  for (int c = 0; c < 3; ++c) {
    const auto at = static_cast<std::size_t>(c);
    EXPECT_NEAR(after[at], 0.8 * before[at] + 0.2 * inputs.select(1, c).mean().item<double>(), 1e-12);
    EXPECT_NEAR(after[at + 3], 0.8 * before[at + 3] + 0.2 * inputs.select(1, c).var().item<double>(), 1e-9);
  }
}

TEST(BatchNorm, WhatAStepHasChangedIsLeftOutUntilItIsFinished) {
  torch::manual_seed(11);
  const auto stage = batch_norm_stage(0.2);
  BatchNormAverage average(*stage);
  const auto told = [&] {
    const NamedTensors state = average.before_step(stage->state());
    const torch::Tensor both = torch::cat({state[2].tensor, state[3].tensor});  // after weight and bias
    return std::vector(both.data_ptr<double>(), both.data_ptr<double>() + both.numel());
  };
  stage->batch_norms().front().running_mean.fill_(7);  // loaded since
  const std::vector<double> before = running_statistics(*stage);
  EXPECT_EQ(told(), before);
  average.begin_step();
  ASSERT_TRUE(stage->forward(0, {torch::randn({5, 3}, torch::kFloat64)}));
  EXPECT_EQ(told(), before);
  EXPECT_NE(running_statistics(*stage), before);
  average.finish_step(average.contribution(5));
  EXPECT_NE(told(), before);
  EXPECT_EQ(told(), running_statistics(*stage));
}

// PyTorch's kernel, of which an exported network has no more, gives a single sample a variance of 0 / 0.
TEST(BatchNorm, ASingleSampleSaysNothingOfItsSpread) {
  torch::manual_seed(10);
  const auto stage = batch_norm_stage(0.2);
  BatchNormAverage average(*stage);
  average.begin_step();
  const std::vector<double> before = running_statistics(*stage);
  ASSERT_TRUE(stage->forward(0, {torch::randn({2, 3}, torch::kFloat64)}));
  const BatchNormLayer norm = stage->batch_norms().front();
  norm.running_var.fill_(std::nan(""));
  const std::vector<double> sums = average.contribution(1);
  EXPECT_EQ(sums.front(), 0);
  average.finish_step(sums);
  EXPECT_EQ(running_statistics(*stage), before);
}

TEST(BatchNorm, IsFoundInOurNetworks) {
  NetworkSpec spec;
  spec.name = "resnet18";
  spec.input_shape = {1, 8, 8};
  spec.outputs = 2;
  EXPECT_EQ((*make_stage(spec, 0, {}))->batch_norms().size(), 20u);
  spec.norm = "group";
  EXPECT_FALSE(has_batch_norm(**make_stage(spec, 0, {})));
}

}  // namespace
}  // namespace motley::nn
