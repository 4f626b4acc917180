// The loopback link is measured as something that bytes can really do.
#include "motley/net/link_speed.h"

#include <gtest/gtest.h>

#include <cmath>

namespace motley::net {
namespace {

TEST(LinkSpeed, IsPositiveAndFinite) {
  const auto speed = measure_loopback();
  ASSERT_TRUE(speed) << speed.error().message;
  EXPECT_TRUE(std::isfinite(speed->bytes_per_second));
  EXPECT_GT(speed->bytes_per_second, 0);
  EXPECT_GT(speed->latency_seconds, 0);
}

}  // namespace
}  // namespace motley::net
