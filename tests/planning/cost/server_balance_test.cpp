// The balance of a server and the comparison over racks, against numbers worked out by hand and published ones.
#include "motley/planning/cost/server_balance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "motley/base/random.h"

namespace motley::planning {
namespace {

constexpr double kGbps = 1e9 / 8;

// PHub's table of the bandwidth that a server's host needs, 8 workers, float32. Each row follows from what a worker's
// link carries, which for AlexNet is 11 GB/s.
TEST(ServerSite, NeedsWhatIsPublished) {
  const ServedModel alexnet = {.bytes = 176e6, .seconds_per_batch = 0.016};
  EXPECT_NEAR(site_demand(ServerSite::kColocatedCentral, alexnet, 8) / kGbps, 1232, 0.5);
  EXPECT_NEAR(site_demand(ServerSite::kColocatedSharded, alexnet, 8) / kGbps, 308, 0.5);
  EXPECT_NEAR(site_demand(ServerSite::kDedicatedCentral, alexnet, 8) / kGbps, 1408, 0.5);
  EXPECT_NEAR(site_demand(ServerSite::kDedicatedSharded, alexnet, 8) / kGbps, 176, 0.5);
  // From the models' sizes and times as published, which are rounded: within 6 %.
  const auto demand = [](const char* name, double bytes) {
    const ServedModel model = {.bytes = bytes, .seconds_per_batch = published_compute(name)->seconds_per_batch};
    return site_demand(ServerSite::kDedicatedCentral, model, 8) / kGbps;
  };
  EXPECT_NEAR(demand("googlenet", 38e6), 46, 0.06 * 46);
  EXPECT_NEAR(demand("inception-v3", 91e6), 50, 0.06 * 50);
  EXPECT_NEAR(demand("resnet269", 390e6), 140, 0.06 * 140);
}

// "One PBox: about 120 workers of ResNet-50": ten links of 56 Gb/s at their full rate, 97 MB, 161 ms a batch, cores and
// memory that are not in the way. By its measured 42 GB/s each way between links and caches it is 70.
TEST(ServerLimits, GiveThePBoxItsWorkers) {
  const ServedModel resnet50 = {.bytes = 97e6, .seconds_per_batch = published_compute("resnet50")->seconds_per_batch};
  ServerMachine pbox = {.cores = 28,
                        .core_bytes_per_second = 1e12,
                        .core_seconds_per_byte = 0,
                        .memory_bytes_per_second = 1e12,
                        .memory_bytes = 128e9,
                        .link_bytes_per_second = 560 * kGbps};
  EXPECT_EQ(server_limits(resnet50, pbox)[0].resource, Resource::kLink);
  EXPECT_NEAR(server_limits(resnet50, pbox)[0].workers, 120, 0.05 * 120);
  pbox.link_bytes_per_second = 42e9;
  EXPECT_NEAR(server_limits(resnet50, pbox)[0].workers, 70, 1);
}

// 100 MB, 0.1 s, momentum, wire of half the width: by hand.
TEST(ServerLimits, AreThoseOfTheHand) {
  const ServedModel model = {.bytes = 100e6, .seconds_per_batch = 0.1, .state_arrays = 1, .wire_fraction = 0.5};
  const ServerMachine machine = {.cores = 4,
                                 .core_bytes_per_second = 10e9,
                                 .core_seconds_per_byte = 0.2e-9,
                                 .memory_bytes_per_second = 40e9,
                                 .memory_bytes = 1e9,
                                 .link_bytes_per_second = 5.5e9};
  // 3 x 50 MB a worker and 4 x 100 MB for all, in 0.1 s.
  EXPECT_DOUBLE_EQ(needed(Resource::kMemoryBandwidth, model, machine, 10), 19e9);
  // (10 + 4) x 10 ms and 10 x 100 MB x 0.2 ns = 20 ms for 10 workers: 0.34 s of 0.1 s.
  EXPECT_NEAR(needed(Resource::kCores, model, machine, 10), 3.4, 1e-12);
  // 2 x 100 MB and 50 MB, and for 10 workers at 4 cores half a MiB each.
  EXPECT_DOUBLE_EQ(needed(Resource::kMemory, model, machine, 10), 250e6 + 40 * (512 << 10));
  EXPECT_DOUBLE_EQ(needed(Resource::kLink, model, machine, 10), 5e9);
  const auto limits = server_limits(model, machine);
  ASSERT_EQ(limits.size(), 4u);
  EXPECT_EQ(limits[0].resource, Resource::kLink);
  EXPECT_NEAR(limits[0].workers, 11, 1e-9);
  EXPECT_EQ(limits[1].resource, Resource::kCores);  // (4 - 0.4) / 0.3
  EXPECT_NEAR(limits[1].workers, 12, 1e-9);
  EXPECT_EQ(limits[2].resource, Resource::kMemoryBandwidth);  // (40 - 4) / 1.5
  EXPECT_NEAR(limits[2].workers, 24, 1e-9);
  EXPECT_EQ(limits[3].resource, Resource::kMemory);
  EXPECT_NEAR(limits[3].workers, 750e6 / (4 * (512 << 10)), 1e-9);
}

TEST(ServerLimits, AreWhereTheNeedIsWhatIsThere) {
  Random random(11);
  for (int trial = 0; trial < 200; ++trial) {
    const auto any = [&](double low, double high) { return low * std::pow(high / low, random.uniform()); };
    const ServedModel model = {.bytes = any(1e6, 1e11),
                               .seconds_per_batch = any(1e-3, 10),
                               .state_arrays = static_cast<int>(random.below(3)),
                               .wire_fraction = random.below(2) == 0 ? 1 : 0.5};
    const ServerMachine machine = {.cores = any(1, 200),
                                   .core_bytes_per_second = any(1e9, 1e11),
                                   .core_seconds_per_byte = any(1e-11, 1e-9),
                                   .memory_bytes_per_second = any(1e9, 1e12),
                                   .memory_bytes = any(1e9, 1e12),
                                   .link_bytes_per_second = any(1e8, 1e11)};
    const auto limits = server_limits(model, machine);
    EXPECT_TRUE(std::ranges::is_sorted(limits, {}, &ServerLimit::workers));
    for (const ServerLimit& limit : limits) {
      const double there = available(limit.resource, machine);
      const double need = needed(limit.resource, model, machine, limit.workers);
      if (limit.workers > 0) {
        EXPECT_NEAR(need, there, 1e-6 * there) << to_string(limit.resource);
      } else {
        EXPECT_GE(need, there) << to_string(limit.resource);
      }
    }
  }
}

// 4 racks of 8 workers at 10 Gb/s, rack servers of 100 Gb/s, uplinks of 40 Gb/s, 100 MB = 0.8 Gb.
TEST(Racks, AreThoseOfTheHand) {
  Racks racks = {.racks = 4,
                 .workers_per_rack = 8,
                 .worker_rate = 10 * kGbps,
                 .server_rate = 100 * kGbps,
                 .uplink_rate = 40 * kGbps};
  const SumSwitch wide = {.slots = 1e6, .payload_bytes = 256, .header_bytes = 64, .port_rate = 100 * kGbps};
  const RackSeconds seconds = rack_seconds(100e6, racks, wide);
  EXPECT_NEAR(seconds.flat, 0.24, 1e-12);                 // uplink: 2 x 8 x 0.8 x 3/4 / 40; workers: 0.155
  EXPECT_NEAR(seconds.hierarchical, 0.08 + 0.03, 1e-12);  // 0.8 / 10, then 2 x 0.8 x 3/4 / 40
  EXPECT_NEAR(seconds.pipelined, 0.08, 1e-12);
  EXPECT_NEAR(seconds.in_switches, 0.1, 1e-12);  // 4/5 of 10 Gb/s is values
  // A window of 100 packets of 256 bytes in 10 us is 2.56 GB/s, more than 1 GB/s of values; 20 packets are half of it.
  EXPECT_NEAR(slots_for_full_rate(racks, wide), 39.0625, 1e-9);
  SumSwitch narrow = wide;
  narrow.slots = 20;
  narrow.round_trip_seconds = 1e-5;
  EXPECT_NEAR(rack_seconds(100e6, racks, narrow).in_switches, 100e6 / 512e6, 1e-12);
}

// The traffic over a rack's uplink falls by the number of workers in a rack.
TEST(Racks, SaveTheUplinkWhatTheWorkersSend) {
  Racks racks = {.racks = 2, .workers_per_rack = 16, .worker_rate = 1e12, .server_rate = 1e15, .uplink_rate = 1e9};
  const RackSeconds seconds = rack_seconds(1e9, racks, {});
  EXPECT_NEAR(seconds.flat / seconds.pipelined, 16, 1e-9);
}

TEST(Racks, OneRackIsOneServer) {
  const Racks rack = {
      .racks = 1, .workers_per_rack = 8, .worker_rate = 1e9, .server_rate = 4e9, .uplink_rate = 1e6};  // not used
  const RackSeconds seconds = rack_seconds(1e9, rack, {.slots = 1e9, .header_bytes = 0, .port_rate = 1e12});
  EXPECT_DOUBLE_EQ(seconds.flat, 1.75);       // 2 (N - 1) / N
  EXPECT_DOUBLE_EQ(seconds.hierarchical, 2);  // the server's link: 8 / 4
  EXPECT_DOUBLE_EQ(seconds.in_switches, 1);
}

}  // namespace
}  // namespace motley::planning
