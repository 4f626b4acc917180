// What sending fewer bits has to save.
#include "motley/train/sync/choose_method.h"

#include <gtest/gtest.h>

#include <vector>

namespace motley::train {
namespace {

using collective::WireType;

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
}  // namespace motley::train
