// The picture of a simulated step: it says what the simulator found, stays small for large plans, and keeps text text.
#include "motley/report/plan_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace motley::report {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct Simulated {
  planning::Plan plan;
  planning::Timeline timeline;
};

// Stages of one layer on `replicas` devices; a forward takes 1 s, a backward 2, a transfer half a second.
Simulated simulated(int stages, std::int64_t replicas, std::int64_t micro_batches, const std::string& name) {
  constexpr std::int64_t kSamples = 64;  // of a micro-batch
  planning::Problem problem;
  planning::Plan plan;
  problem.model = plan.model = name;
  problem.types.push_back({.name = name, .bytes_per_second = 1e3});
  problem.links.push_back({static_cast<double>(2 * kSamples), 0});
  for (int s = 0; s < stages; ++s) {
    problem.layers.push_back({.name = fmt::format("{}{}", name, s), .parameter_bytes = 1e3});
    problem.table.push_back({{0, 1.0 / kSamples}, {0, 2.0 / kSamples}});
    problem.cut_bytes.push_back(1);
    plan.layers.push_back(problem.layers.back().name);
    plan.stages.push_back({s, s, {{name, replicas, 1.0 / static_cast<double>(replicas)}}});
    plan.stages.back().gradient_sync = replicas > 1 ? planning::GradientSync::kRing : planning::GradientSync::kNone;
  }
  problem.cut_bytes.push_back(0);
  plan.batch = kSamples * micro_batches;
  plan.micro_batches = micro_batches;
  auto timeline = planning::simulate(problem, plan);
  EXPECT_TRUE(timeline) << timeline.error().message;
  return {plan, timeline.value_or(planning::Timeline{})};
}

TEST(PlanTimeline, DrawsEveryDeviceTransferAndMicroBatch) {
  const Simulated created = simulated(2, 1, 3, "unit");
  // 1F1B holds two micro-batches: 2 * 3 + 2 * 0.5 s for the first, and 3 s for the second, 7 s after the first, the
  // third.
  const std::string html = plan_timeline(created.timeline, created.plan);
  EXPECT_THAT(html, HasSubstr("unit0 on 1 × unit"));
  EXPECT_THAT(html, HasSubstr("<title>forward 0: 1 s, from 1.5 s</title>"));
  EXPECT_THAT(html, HasSubstr("sends activations 2: 500 ms"));
  EXPECT_THAT(html, HasSubstr("sends gradients 0: 500 ms"));
  EXPECT_THAT(html, HasSubstr("bubble 36 %")) << "of 14 s, 9 s are computing";
  std::size_t forwards = 0;
  for (std::size_t at = html.find("class=\"forward\" x="); at != std::string::npos;
       at = html.find("class=\"forward\" x=", at + 1)) {
    ++forwards;
  }
  EXPECT_EQ(forwards, 2 * 3 + 1u) << "and once on the critical path";
  EXPECT_THAT(html, Not(HasSubstr("gradient synchronisation")));
}

TEST(PlanTimeline, StaysSmallForLargePlans) {
  const Simulated created = simulated(24, 32, 300, "unit");
  const std::string html = simulation_page(created.timeline, created.plan);
  EXPECT_THAT(html, HasSubstr("24 more"));
  EXPECT_THAT(html, HasSubstr("many micro-batches"));
  EXPECT_THAT(html, HasSubstr("gradient synchronisation"));
  EXPECT_LT(html.size(), 5'000'000u);
}

TEST(PlanTimeline, HostileNamesStayText) {
  const Simulated created = simulated(2, 2, 2, "</svg><script>alert(1)</script>\"'&");
  const std::string html = simulation_page(created.timeline, created.plan);
  EXPECT_THAT(html, Not(HasSubstr("<script>alert")));
  EXPECT_THAT(html, HasSubstr("&lt;script&gt;alert(1)"));
}

TEST(PlanTimeline, NothingToDrawIsNothing) {
  EXPECT_EQ(plan_timeline({}, {}), "");
}

}  // namespace
}  // namespace motley::report
