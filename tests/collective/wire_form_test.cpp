// Lossy frames: nothing is lost between what is sent and what stays, lengths are known beforehand, and error feedback
// is what makes a descent along lossy gradients arrive.
#include "motley/collective/wire_form.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "motley/base/random.h"
#include "motley/collective/wire_choice.h"

namespace motley::collective {
namespace {

struct Named {
  const char* name;
  WireForm form;
};
const Named kForms[] = {{"int8", {WireType::kInt8}},
                        {"one_percent", {WireType::kTopK, 0.01}},
                        {"a_fifth", {WireType::kTopK, 0.2}},
                        {"half", {WireType::kTopK, 0.5}}};

void PrintTo(const Named& named, std::ostream* out) {
  *out << named.name;
}

class LossyForm : public ::testing::TestWithParam<Named> {};
INSTANTIATE_TEST_SUITE_P(WireForm, LossyForm, ::testing::ValuesIn(kForms),
                         [](const auto& info) { return std::string(info.param.name); });

std::vector<float> random_values(Random& random, std::size_t count) {
  std::vector<float> values(count);
  const double magnitude = std::pow(10, -6 + 9 * random.uniform());
  for (float& value : values) value = static_cast<float>(magnitude * random.normal());
  return values;
}

std::vector<std::byte> frame_for(const WireForm& form, std::size_t count) {
  return std::vector<std::byte>(form.frame_bytes(count));
}

TEST_P(LossyForm, SendsAndKeepsExactlyWhatWasThere) {
  const WireForm form = GetParam().form;
  Random random(81);
  for (int trial = 0; trial < 200; ++trial) {
    const std::vector<float> before = random_values(random, 1 + random.below(3000));
    std::vector<float> stays = before;
    std::vector<std::byte> frame = frame_for(form, before.size());
    form.compress(stays, frame.data());
    std::vector<float> sent(before.size());
    ASSERT_TRUE(form.add(frame.data(), 1, sent));
    for (std::size_t e = 0; e < before.size(); ++e) {
      ASSERT_EQ(double{sent[e]} + double{stays[e]}, double{before[e]}) << e << " of " << before.size();
    }
    // Added to what stays, the frame restores the values as they were.
    ASSERT_TRUE(form.add(frame.data(), 1, stays));
    ASSERT_EQ(stays, before);
  }
}

TEST(WireForm, TopKKeepsTheLargest) {
  const WireForm form{WireType::kTopK, 0.1};
  Random random(82);
  for (int trial = 0; trial < 100; ++trial) {
    const std::vector<float> before = random_values(random, 1 + random.below(500));
    std::vector<float> stays = before;
    std::vector<std::byte> frame = frame_for(form, before.size());
    form.compress(stays, frame.data());
    std::vector<float> magnitudes;
    for (const float value : before) magnitudes.push_back(std::fabs(value));
    std::ranges::sort(magnitudes, std::greater());
    const auto kept = static_cast<std::size_t>(std::ceil(0.1 * static_cast<double>(before.size())));
    const auto zeros = static_cast<std::size_t>(std::ranges::count(stays, 0.0F));
    ASSERT_EQ(zeros, kept);
    for (const float value : stays) ASSERT_LE(std::fabs(value), magnitudes[kept - 1]);
  }
}

TEST(WireForm, FramesHaveTheLengthThatFollowsFromTheirValues) {
  EXPECT_EQ((WireForm{}.frame_bytes(1000)), 4000u);
  EXPECT_EQ((WireForm{WireType::kBfloat16}.frame_bytes(1000)), 2000u);
  EXPECT_EQ((WireForm{WireType::kInt8}.frame_bytes(1000)), 1000u + 4 * 4);
  EXPECT_EQ((WireForm{WireType::kInt8}.frame_bytes(1)), 5u);
  EXPECT_EQ((WireForm{WireType::kTopK, 0.01}.frame_bytes(1000)), 80u);
  EXPECT_EQ((WireForm{WireType::kTopK, 0.01}.frame_bytes(1001)), 88u);
  EXPECT_EQ((WireForm{WireType::kTopK, 1e-6}.frame_bytes(3)), 8u);
  EXPECT_EQ((WireForm{WireType::kTopK, 0.5}.frame_bytes(1)), 8u);
}

TEST(WireForm, AnswersToTopKAreSparseWhereNothingElseChangesAndInt8IsNotSmaller) {
  using kernels::UpdateRule;
  const WireForm one_percent{WireType::kTopK, 0.01};
  const WireForm int8{WireType::kInt8};
  EXPECT_EQ(one_percent.answer(4, {.rule = UpdateRule::kSum}), (WireForm{WireType::kTopK, 0.04}));
  EXPECT_EQ(one_percent.answer(4, {.rule = UpdateRule::kSgd}), (WireForm{WireType::kTopK, 0.04}));
  EXPECT_EQ(one_percent.answer(100, {.rule = UpdateRule::kSgd}), int8);
  EXPECT_EQ((WireForm{WireType::kTopK, 0.5}.answer(1, {.rule = UpdateRule::kSgd})), int8);
  EXPECT_EQ(one_percent.answer(4, {.rule = UpdateRule::kSgd, .weight_decay = 0.1}), int8);
  EXPECT_EQ(one_percent.answer(4, {.rule = UpdateRule::kMomentum}), int8);
  EXPECT_EQ(one_percent.answer(4, {.rule = UpdateRule::kAdamW}), int8);
  EXPECT_EQ(int8.answer(4, {.rule = UpdateRule::kMomentum}), int8);
  EXPECT_EQ((WireForm{WireType::kBfloat16}.answer(4, {})), (WireForm{WireType::kBfloat16}));
}

TEST(WireForm, RefusesAnIndexBeyondTheValues) {
  const WireForm form{WireType::kTopK, 0.5};
  const std::uint32_t indices[] = {1, 4};
  const float values[] = {1, 2};
  std::vector<std::byte> frame = frame_for(form, 4);
  ASSERT_EQ(frame.size(), sizeof(indices) + sizeof(values));
  std::memcpy(frame.data(), indices, sizeof(indices));
  std::memcpy(frame.data() + sizeof(indices), values, sizeof(values));
  std::vector<float> to(4, 7.0F);
  EXPECT_FALSE(form.add(frame.data(), 1, to));
  EXPECT_EQ(to, std::vector<float>(4, 7.0F));
}

// Gradient descent on the sum of (w - target)^2 / 2 of workers that send their own lossy gradients. Half of the targets
// are large and differ between the workers, so that each one's gradients stay large there at the optimum, the mean of
// the targets; beside them the others' gradients are too small to be sent. Returns how far those end from the optimum.
double distance_after(const WireForm& form, double small, bool feedback) {
  constexpr std::size_t kCount = 300;
  constexpr std::size_t kWorkers = 3;
  constexpr float kRate = 0.002F;
  Random random(83);
  std::vector<std::vector<float>> targets(kWorkers);
  for (auto& target : targets) {
    for (std::size_t e = 0; e < kCount; ++e) {
      target.push_back(static_cast<float>(random.normal() * (e % 2 == 0 ? small : 10)));
    }
  }
  std::vector<std::vector<float>> left(kWorkers, std::vector<float>(kCount));
  std::vector<float> weights(kCount);
  std::vector<std::byte> frame = frame_for(form, kCount);
  for (int step = 0; step < 5000; ++step) {
    std::vector<float> mean(kCount);
    for (std::size_t worker = 0; worker < kWorkers; ++worker) {
      if (!feedback) std::ranges::fill(left[worker], 0.0F);
      for (std::size_t e = 0; e < kCount; ++e) left[worker][e] += weights[e] - targets[worker][e];
      form.compress(left[worker], frame.data());
      EXPECT_TRUE(form.add(frame.data(), 1.0F / kWorkers, mean));
    }
    for (std::size_t e = 0; e < kCount; ++e) weights[e] -= kRate * mean[e];
  }
  double worst = 0;
  for (std::size_t e = 0; e < kCount; e += 2) {
    double optimum = 0;
    for (const auto& target : targets) optimum += target[e] / static_cast<double>(kWorkers);
    worst = std::max(worst, std::fabs(weights[e] - optimum));
  }
  return worst;
}

TEST(ErrorFeedback, MakesALossyDescentArrive) {
  for (const auto& [form, small] :
       {std::pair(WireForm{WireType::kInt8}, 0.02), {WireForm{WireType::kTopK, 0.1}, 1.0}}) {
    EXPECT_LT(distance_after(form, small, true), small / 5) << to_string(form);
    EXPECT_GT(distance_after(form, small, false), small) << to_string(form);
  }
}

TEST(BestWire, LosesMoreOnlyWhereThatSavesATenth) {
  const auto best = [](double native, double half, double eighth) {
    return best_wire(
        std::vector<WireTrial>{{WireType::kNative, native}, {WireType::kBfloat16, half}, {WireType::kInt8, eighth}});
  };
  EXPECT_EQ(best(1, 0.95, 0.91), WireType::kNative);
  EXPECT_EQ(best(1, 0.6, 0.55), WireType::kBfloat16);
  EXPECT_EQ(best(1, 0.6, 0.4), WireType::kInt8);
  EXPECT_EQ(best(1, 1.5, 0.8), WireType::kInt8);
  EXPECT_EQ(best(1, 2, 3), WireType::kNative);
}

}  // namespace
}  // namespace motley::collective
