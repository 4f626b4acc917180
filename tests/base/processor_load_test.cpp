// The kernel's line is read as it says, and what others than this process do is told apart.
#include "motley/base/os/processor_load.h"

#include <gtest/gtest.h>

#include "motley/base/clock.h"

namespace motley {
namespace {

TEST(ProcessorLoad, ReadsTheKernelsLine) {
  const auto times = parse_processor_times("cpu  100 20 30 400 50 6 4 90 0 0", 100);
  ASSERT_TRUE(times);
  EXPECT_DOUBLE_EQ(times->all, 7.0);
  EXPECT_DOUBLE_EQ(times->stolen, 0.9);
  EXPECT_DOUBLE_EQ(times->busy, 1.6) << "neither idle nor waiting for disks";
  EXPECT_FALSE(parse_processor_times("cpu0 1 2 3 4 5 6 7 8", 100));
  EXPECT_FALSE(parse_processor_times("cpu 1 2 3", 100));
  EXPECT_FALSE(parse_processor_times("", 100));
}

TEST(ProcessorLoad, DoesNotCountThisProcess) {
  const ProcessorWatch watch;
  const double end = process_cpu_seconds() + 0.2;
  volatile double sum = 0;
  while (process_cpu_seconds() < end) sum = sum + 1;
  const auto load = watch.load();
  ASSERT_TRUE(load);
  EXPECT_GE(load->others_fraction, 0);
  EXPECT_LE(load->others_fraction + load->stolen_fraction, 1 + 1e-9);
  EXPECT_GE(load->load_average, 0);
}

}  // namespace
}  // namespace motley
