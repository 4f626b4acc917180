// The simulator against closed forms, against the fixed point of the dependencies' recurrences on random plans, against
// the cost model, and its laws: nothing overlaps, nothing is lost, slower devices never make a step shorter.
#include "motley/planning/simulate/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "motley/base/random.h"
#include "motley/planning/cost/evaluation.h"

namespace motley::planning {
namespace {

using ::testing::HasSubstr;

// One layer a stage; times of a whole micro-batch on one device.
struct StageTimes {
  double forward = 1;
  double backward = 2;
  double transfer = 0;  // to the next stage, without latency
  double parameter_bytes = 0;
  std::int64_t replicas = 1;
};

struct Case {
  planning::Problem problem;
  planning::Plan plan;
};

// A stage a type, so that no two stages share a link.
Case make_case(const std::vector<StageTimes>& stages, std::int64_t micro_batches, planning::PipelineSchedule schedule) {
  constexpr std::int64_t kSamples = 16;  // of a micro-batch
  Case created;
  planning::Problem& problem = created.problem;
  planning::Plan& plan = created.plan;
  problem.model = plan.model = "hand-made";
  problem.cost_model = planning::CostModel::kPipeline;
  problem.batch = plan.batch = kSamples * micro_batches;
  problem.micro_batches = plan.micro_batches = micro_batches;
  problem.schedule = plan.schedule = schedule;
  plan.cost_model = "pipeline";
  const std::size_t count = stages.size();
  problem.cut_bytes.assign(count + 1, 0);
  for (std::size_t s = 0; s < count; ++s) {
    planning::Type type;
    type.name = fmt::format("type{}", s);
    type.count = stages[s].replicas;
    type.bytes_per_second = 1e3;
    problem.types.push_back(type);
    planning::LayerSize layer;
    layer.name = fmt::format("layer{}", s);
    layer.parameter_bytes = stages[s].parameter_bytes;
    problem.layers.push_back(layer);
    for (std::size_t t = 0; t < count; ++t) {
      problem.table.push_back({{0, stages[s].forward / kSamples}, {0, stages[s].backward / kSamples}});
      problem.links.push_back({1.0, 0});
    }
    if (s + 1 < count) {
      const auto streams = static_cast<double>(std::min(stages[s].replicas, stages[s + 1].replicas));
      problem.cut_bytes[s + 1] = stages[s].transfer * streams / kSamples;
    }
    plan.layers.push_back(layer.name);
    const auto index = static_cast<int>(s);
    plan.stages.push_back({index,
                           index,
                           {{type.name, stages[s].replicas, 1.0 / static_cast<double>(stages[s].replicas)}},
                           stages[s].replicas > 1 ? planning::GradientSync::kRing : planning::GradientSync::kNone});
  }
  return created;
}

Timeline run(const Case& created, const Options& options = {}) {
  auto timeline = simulate(created.problem, created.plan, options);
  EXPECT_TRUE(timeline) << timeline.error().message;
  return timeline.value_or(Timeline{});
}

constexpr auto kBoth = {planning::PipelineSchedule::kOneForwardOneBackward, planning::PipelineSchedule::kGPipe};

TEST(Simulate, BalancedPipelinesTakeTheClosedForm) {
  for (const planning::PipelineSchedule schedule : kBoth) {
    for (const int stages : {1, 2, 5, 16}) {
      for (const int micro_batches : {1, 3, 16, 50}) {
        const Timeline timeline =
            run(make_case(std::vector<StageTimes>(static_cast<std::size_t>(stages)), micro_batches, schedule));
        EXPECT_NEAR(timeline.step_seconds, 3.0 * (micro_batches + stages - 1), 1e-9);
        EXPECT_NEAR(timeline.communication_fraction, 0, 1e-12);
        EXPECT_EQ(timeline.event_count, 2 * stages * micro_batches + 2 * (stages - 1) * micro_batches);
        for (const Device& device : timeline.devices) {
          EXPECT_NEAR(device.bubble_fraction, (stages - 1.0) / (micro_batches + stages - 1), 1e-9);
        }
      }
    }
  }
}

TEST(Simulate, UpdatesOfWeightsFollowEachStagesLastBackward) {
  for (const planning::PipelineSchedule schedule : kBoth) {
    Case created = make_case(std::vector<StageTimes>(3), 4, schedule);
    const double before = run(created).step_seconds;
    for (planning::LayerOnType& time : created.problem.table) time.update_seconds = 0.5;
    const Timeline timeline = run(created);
    EXPECT_NEAR(timeline.step_seconds, before + 0.5, 1e-9);
    EXPECT_NEAR(timeline.critical.update, 0.5, 1e-9);
    EXPECT_EQ(std::ranges::count(timeline.events, Work::kUpdate, &Event::work), 3);
  }
}

// Of two replicas that take half a second forward, a second backward and half a second to update their weights.
TEST(Simulate, AStragglersUpdateIsAsSlowAsItsOtherWork) {
  Case created = make_case({{1, 2, 0, 0, 2}}, 1, planning::PipelineSchedule::kOneForwardOneBackward);
  for (planning::LayerOnType& time : created.problem.table) time.update_seconds = 0.5;
  Options options;
  options.stragglers = {{0, 1, 3}};
  const Timeline timeline = run(created, options);
  EXPECT_NEAR(timeline.step_seconds, 3 * (0.5 + 1 + 0.5), 1e-9);
  EXPECT_NEAR(timeline.critical.update, 3 * 0.5, 1e-9);
}

// The last stage exchanges for 8 seconds before it updates, and meanwhile the first one goes on.
TEST(Simulate, EventsAreByStartWithTheUpdatesOfWeightsToo) {
  Case created = make_case({{1, 2}, {1, 2, 0, 8000, 2}}, 3, planning::PipelineSchedule::kOneForwardOneBackward);
  for (planning::LayerOnType& time : created.problem.table) time.update_seconds = 0.5;
  const Timeline timeline = run(created);
  EXPECT_EQ(std::ranges::count(timeline.events, Work::kUpdate, &Event::work), 3);
  EXPECT_TRUE(std::ranges::is_sorted(timeline.events, {}, &Event::start));
}

TEST(Simulate, OneForwardOneBackwardWaitsForTheRoundTrip) {
  // Four stages hold four micro-batches: each fourth comes a round trip of 4 * 3 + 2 * 3 * 0.5 seconds after the last.
  std::vector<StageTimes> stages(4, {1, 2, 0.5});
  const Timeline timeline = run(make_case(stages, 1 + 4 * 10, planning::PipelineSchedule::kOneForwardOneBackward));
  EXPECT_NEAR(timeline.step_seconds, 15 * 11, 1e-9);
  EXPECT_NEAR(timeline.critical.transfer, 3 * 11, 1e-9);
}

TEST(Simulate, GpipeOfHeterogeneousStagesTakesTheFlowShopsClosedForm) {
  const std::vector<StageTimes> stages = {{1, 2, 0.3}, {4, 1, 5}, {0.5, 7, 0.1}, {2, 2}};
  const double once = 7.5 + 12 + 2 * 5.4;
  for (const int micro_batches : {1, 2, 9, 40}) {
    EXPECT_NEAR(run(make_case(stages, micro_batches, planning::PipelineSchedule::kGPipe)).step_seconds,
                once + (micro_batches - 1) * (5 + 7), 1e-9);
  }
}

TEST(Simulate, DataParallelIsTheSlowestDeviceAndThenGradientSynchronisation) {
  Case created = make_case({{1, 2, 0, 8000, 4}}, 1, planning::PipelineSchedule::kOneForwardOneBackward);
  // Equal shares take 3 / 4 s; the ring moves 2 * 3 / 4 of 8000 bytes at 1000 bytes a second.
  Timeline timeline = run(created);
  EXPECT_NEAR(timeline.step_seconds, 0.75 + 12, 1e-9);
  EXPECT_NEAR(timeline.communication_fraction, 12 / 12.75, 1e-9);
  EXPECT_EQ(timeline.event_count, 4 * 2 + 4);
  created.plan.stages[0].gradient_sync = planning::GradientSync::kParameterServer;
  EXPECT_NEAR(run(created).step_seconds, 0.75 + 8, 1e-9);  // both directions at once

  Options options;
  created.problem.layers[0].parameter_bytes = 0;
  options.stragglers = {{0, 2, 2}};
  timeline = run(created, options);
  EXPECT_NEAR(timeline.step_seconds, 1.5, 1e-9);
  EXPECT_NEAR(timeline.devices[2].bubble_fraction, 0, 1e-9);
  EXPECT_NEAR(timeline.devices[0].bubble_fraction, 0.5, 1e-9);
}

TEST(Simulate, HeterogeneousReplicasOfAStageGetTheirShares) {
  Case created = make_case({{1, 2}, {1, 2}}, 3, planning::PipelineSchedule::kGPipe);
  created.problem.table[1] = {{0, 2.0 / 16}, {0, 4.0 / 16}};  // the first layer on the second type: half as fast
  created.plan.stages = {{0, 1, {{"type0", 1, 2.0 / 3}, {"type1", 1, 1.0 / 3}}, planning::GradientSync::kRing}};
  created.problem.table[3] = {{0, 2.0 / 16}, {0, 4.0 / 16}};
  const Timeline timeline = run(created);
  EXPECT_NEAR(timeline.step_seconds, 3 * 6 * 2.0 / 3, 1e-9);
  EXPECT_NEAR(timeline.devices[0].bubble_fraction, 0, 1e-9);
  EXPECT_NEAR(timeline.devices[1].bubble_fraction, 0, 1e-9);
  EXPECT_EQ(timeline.devices[1].type, "type1");
}

TEST(Simulate, TransfersOverSharedLinksWaitForEachOther) {
  // Three stages of one type that compute in no time: each micro-batch crosses twice either way, in a second each time.
  Case created = make_case({{0, 0, 1}, {0, 0, 1}, {0, 0}}, 6, planning::PipelineSchedule::kGPipe);
  for (planning::Stage& stage : created.plan.stages) {
    stage.replicas[0].type = "type0";
  }
  EXPECT_NEAR(run(created, {.shared_links = true}).step_seconds, 4 * 6, 1e-9);
  EXPECT_NEAR(run(created).step_seconds, 2 * (6 + 1), 1e-9);
}

// A random problem and plan: heterogeneous replicas, shares, recomputation, sparse traffic, exchange.
Case random_case(std::uint64_t seed) {
  Random random(mix({seed, 77}));
  const auto between = [&](int low, int high) {
    return low + static_cast<int>(random.below(static_cast<std::uint64_t>(high - low + 1)));
  };
  Case created;
  planning::Problem& problem = created.problem;
  planning::Plan& plan = created.plan;
  problem.model = plan.model = "random";
  problem.cost_model = planning::CostModel::kPipeline;
  const int layers = between(1, 10), types = between(1, 3);
  problem.micro_batches = plan.micro_batches = between(1, 12);
  problem.batch = plan.batch = plan.micro_batches * between(8, 20);
  problem.schedule = plan.schedule =
      random.uniform() < 0.5 ? planning::PipelineSchedule::kGPipe : planning::PipelineSchedule::kOneForwardOneBackward;
  plan.cost_model = "pipeline";
  for (int t = 0; t < types; ++t) {
    planning::Type type;
    type.name = fmt::format("type{}", t);
    type.bytes_per_second = 50 + 100 * random.uniform();
    type.latency_seconds = 0.1 * random.uniform();
    problem.types.push_back(type);
  }
  problem.links.resize(static_cast<std::size_t>(types * types));
  for (int a = 0; a < types; ++a) {
    for (int b = a; b < types; ++b) {
      const planning::Link link{20 + 100 * random.uniform(), 0.1 * random.uniform()};
      problem.links[static_cast<std::size_t>(a * types + b)] = problem.links[static_cast<std::size_t>(b * types + a)] =
          link;
    }
  }
  if (between(0, 1) == 0)
    problem.distinct_lookups = {{2, 0.6 + 0.4 * random.uniform()}, {8, 0.2 + 0.3 * random.uniform()}};
  for (int l = 0; l < layers; ++l) {
    planning::LayerSize layer;
    layer.name = fmt::format("layer{}", l);
    layer.parameter_bytes = 100 * random.uniform();
    layer.sparse_bytes = random.uniform() < 0.3 ? 30 * random.uniform() : 0;
    problem.layers.push_back(layer);
    plan.layers.push_back(layer.name);
    for (int t = 0; t < types; ++t) {
      problem.table.push_back({{random.uniform(), 0.1 * random.uniform()}, {random.uniform(), 0.2 * random.uniform()}});
    }
    problem.cut_bytes.push_back(10 * random.uniform());
  }
  problem.cut_bytes.push_back(0);
  for (int first = 0; first < layers;) {
    const int last = std::min(layers - 1, first + between(0, 3));
    planning::Stage stage{first, last};
    stage.recompute = random.uniform() < 0.3;
    stage.gradient_sync = between(0, 1) == 0 ? planning::GradientSync::kRing : planning::GradientSync::kParameterServer;
    double weights = 0;
    for (int group = between(1, 2); group > 0; --group) {
      stage.replicas.push_back({fmt::format("type{}", between(0, types - 1)), between(1, 3), 0.2 + random.uniform()});
      weights += static_cast<double>(stage.replicas.back().count) * stage.replicas.back().share;
    }
    for (planning::Replicas& replicas : stage.replicas) {
      replicas.share /= weights;
    }
    plan.stages.push_back(std::move(stage));
    first = last + 1;
  }
  return created;
}

// In those of one sample: on straight lines through what was counted, where both axes are logarithmic.
double count_rows(const planning::Problem& problem, double samples) {
  if (samples <= 1 || problem.distinct_lookups.empty()) return samples;
  double x0 = 0, y0 = 0, x1 = 0, y1 = 0;
  for (const model::DistinctLookups& counted : problem.distinct_lookups) {
    if (x1 >= std::log(samples)) break;
    x0 = x1;
    y0 = y1;
    x1 = std::log(counted.batch);
    y1 = std::log(counted.batch * counted.share);
  }
  return std::exp(y0 + (std::log(samples) - x0) * (y1 - y0) / (x1 - x0));
}

// What all devices of one side, all of the other, and the links between as many of both let through.
double count_bytes_per_second(const planning::Problem& problem, int from, std::size_t senders, int to,
                              std::size_t receivers) {
  const double one = problem.types[static_cast<std::size_t>(from)].bytes_per_second * static_cast<double>(senders);
  const double other = problem.types[static_cast<std::size_t>(to)].bytes_per_second * static_cast<double>(receivers);
  const double links = problem.link(from, to).bytes_per_second * static_cast<double>(std::min(senders, receivers));
  return std::min({one, other, links});
}

// The recurrences, written down as a list of works with those that must end before each begins, and solved by sweeping
// over all of them until nothing moves. Every boundary has its own link each way.
struct Node {
  double seconds = 0;
  std::vector<std::size_t> after = {};
  double start = 0;
};
using Key = std::tuple<int, int, int, int>;  // work, stage, replica, micro-batch

std::map<Key, Node> fixed_point(const Case& created, const std::vector<Straggler>& stragglers) {
  const auto& [problem, plan] = created;
  const auto m = static_cast<int>(plan.micro_batches);
  const auto stage_count = static_cast<int>(plan.stages.size());
  const double u = static_cast<double>(plan.batch) / m;
  const auto find_type = [&](const std::string& name) {
    return static_cast<int>(std::find_if(problem.types.begin(), problem.types.end(),
                                         [&](const planning::Type& type) { return type.name == name; }) -
                            problem.types.begin());
  };
  std::vector<std::vector<std::pair<int, double>>> devices;  // type and share
  for (const planning::Stage& stage : plan.stages) {
    devices.emplace_back();
    for (const planning::Replicas& replicas : stage.replicas) {
      devices.back().insert(devices.back().end(), static_cast<std::size_t>(replicas.count),
                            {find_type(replicas.type), replicas.share});
    }
  }

  std::vector<Node> nodes;
  std::map<Key, std::size_t> index;
  const auto add = [&](Work work, int stage, int replica, int micro_batch, double seconds) {
    index[{static_cast<int>(work), stage, replica, micro_batch}] = nodes.size();
    nodes.push_back({seconds});
  };
  const auto find = [&](Work work, int stage, int replica, int micro_batch) {
    return index.at({static_cast<int>(work), stage, replica, micro_batch});
  };
  for (int s = 0; s < stage_count; ++s) {
    const planning::Stage& stage = plan.stages[static_cast<std::size_t>(s)];
    const auto& here = devices[static_cast<std::size_t>(s)];
    double transfer = 0;
    if (s + 1 < stage_count) {
      const auto& there = devices[static_cast<std::size_t>(s + 1)];
      for (const auto& [from, a] : here) {
        for (const auto& [to, b] : there) {
          const planning::Link& link = problem.link(from, to);
          const double rate = count_bytes_per_second(problem, from, here.size(), to, there.size());
          transfer =
              std::max(transfer, link.latency_seconds +
                                     u * problem.cut_bytes[static_cast<std::size_t>(stage.last_layer + 1)] / rate);
        }
      }
    }
    for (int i = 0; i < m; ++i) {
      for (std::size_t r = 0; r < here.size(); ++r) {
        const auto& [type, share] = here[r];
        double forward = 0, backward = 0, sparse = 0, slowdown = 1;
        for (int l = stage.first_layer; l <= stage.last_layer; ++l) {
          const planning::LayerOnType& times = problem.at(l, type);
          forward += times.forward.fixed + times.forward.per_sample * u * share;
          backward += times.backward.fixed + times.backward.per_sample * u * share;
          sparse += problem.layers[static_cast<std::size_t>(l)].sparse_bytes * count_rows(problem, u * share) /
                    problem.types[static_cast<std::size_t>(type)].bytes_per_second;
        }
        for (const Straggler& straggler : stragglers) {
          if (straggler.stage == s && straggler.replica == static_cast<int>(r)) {
            slowdown *= straggler.slowdown;
          }
        }
        const auto replica = static_cast<int>(r);
        add(Work::kForward, s, replica, i, slowdown * (forward + sparse));
        add(Work::kBackward, s, replica, i, slowdown * (backward + (stage.recompute ? forward : 0) + sparse));
      }
      if (s + 1 < stage_count) {
        add(Work::kSendForward, s, -1, i, transfer);
        add(Work::kSendBackward, s + 1, -1, i, transfer);
      }
    }
  }
  for (int s = 0; s < stage_count; ++s) {
    const auto replicas = static_cast<int>(devices[static_cast<std::size_t>(s)].size());
    const int held = plan.schedule == planning::PipelineSchedule::kGPipe ? m : std::min(m, stage_count - s);
    std::vector<std::pair<Work, int>> order;
    for (int i = 0; i < held; ++i) {
      order.emplace_back(Work::kForward, i);
    }
    for (int i = 0; i < m; ++i) {
      order.emplace_back(Work::kBackward, i);
      if (held + i < m) {
        order.emplace_back(Work::kForward, held + i);
      }
    }
    for (int r = 0; r < replicas; ++r) {
      for (std::size_t p = 0; p < order.size(); ++p) {
        const auto [work, i] = order[p];
        Node& node = nodes[find(work, s, r, i)];
        if (p > 0) {
          node.after.push_back(find(order[p - 1].first, s, r, order[p - 1].second));
        }
        if (work == Work::kForward && s > 0) {
          node.after.push_back(find(Work::kSendForward, s - 1, -1, i));
        }
        if (work == Work::kBackward && s + 1 < stage_count) {
          node.after.push_back(find(Work::kSendBackward, s + 1, -1, i));
        }
      }
    }
    for (int i = 0; i < m; ++i) {
      for (const auto& [send, work, there] : {std::tuple{Work::kSendForward, Work::kForward, s + 1 < stage_count},
                                              std::tuple{Work::kSendBackward, Work::kBackward, s > 0}}) {
        if (there) {
          Node& node = nodes[find(send, s, -1, i)];
          for (int r = 0; r < replicas; ++r) {
            node.after.push_back(find(work, s, r, i));
          }
          if (i > 0) {
            node.after.push_back(find(send, s, -1, i - 1));
          }
        }
      }
    }
  }
  for (bool moved = true; moved;) {
    moved = false;
    for (Node& node : nodes) {
      for (const std::size_t before : node.after) {
        if (nodes[before].start + nodes[before].seconds > node.start) {
          node.start = nodes[before].start + nodes[before].seconds;
          moved = true;
        }
      }
    }
  }
  std::map<Key, Node> solved;
  for (const auto& [key, i] : index) {
    solved[key] = nodes[i];
  }
  return solved;
}

TEST(Simulate, EqualsTheFixedPointOfTheRecurrencesOnRandomPlans) {
  std::size_t compared = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const Case created = random_case(seed);
    Options options;
    if (seed % 3 == 0) {
      options.stragglers = {{static_cast<int>(seed % created.plan.stages.size()), 0, 1.5}};
    }
    const Timeline timeline = run(created, options);
    const std::map<Key, Node> solved = fixed_point(created, options.stragglers);
    std::size_t gradient_syncs = 0;
    double end = 0;
    for (const Event& event : timeline.events) {
      end = std::max(end, event.end);
      if (event.work == Work::kGradientSync) {
        ++gradient_syncs;
        continue;
      }
      const Node& node = solved.at({static_cast<int>(event.work), event.stage, event.replica, event.micro_batch});
      ASSERT_NEAR(event.start, node.start, 1e-9) << "seed " << seed << " " << to_string(event.work) << " of stage "
                                                 << event.stage << " micro-batch " << event.micro_batch;
      ASSERT_NEAR(event.end, node.start + node.seconds, 1e-9);
    }
    compared += timeline.events.size() - gradient_syncs;
    EXPECT_EQ(timeline.events.size() - gradient_syncs, solved.size()) << "seed " << seed;
    EXPECT_EQ(timeline.step_seconds, end);
  }
  EXPECT_GT(compared, 20'000u);
}

// Gradients fill buckets from the last layer on; each is exchanged as soon as all that is in it is there and the one
// before it is done.
TEST(Simulate, ExchangesBeginAsSoonAsBucketsAreFull) {
  Random random(31);
  for (int trial = 0; trial < 200; ++trial) {
    const double first_bucket_bytes = 1 + 1000 * static_cast<double>(random.below(10));
    const double bucket_bytes = first_bucket_bytes + 1000 * static_cast<double>(random.below(10));
    Case created = make_case({{1, 2, 0, 0, 2}}, 1 + trial % 3, planning::PipelineSchedule::kOneForwardOneBackward);
    planning::Problem& problem = created.problem;
    problem.first_bucket_bytes = first_bucket_bytes;
    problem.bucket_bytes = bucket_bytes;
    problem.layers.clear();
    problem.table.clear();
    created.plan.layers.clear();
    const int layers = 1 + static_cast<int>(random.below(6));
    for (int layer = 0; layer < layers; ++layer) {
      problem.layers.push_back({.name = fmt::format("layer{}", layer), .parameter_bytes = 300.0 * random.below(40)});
      problem.table.push_back({{0, 0.1}, {random.uniform(), random.uniform()}});
      created.plan.layers.push_back(problem.layers.back().name);
    }
    problem.cut_bytes.assign(static_cast<std::size_t>(layers) + 1, 0);
    created.plan.stages[0].last_layer = layers - 1;
    const double backward_end = run(created, {.gradient_sync_overlaps = false}).critical.forward +
                                run(created, {.gradient_sync_overlaps = false}).critical.backward;
    double ready = backward_end, free = 0;
    for (const auto& time : problem.table) ready -= time.backward.at(8);
    double space = first_bucket_bytes;  // that the bucket has left
    double waiting = 0;                 // bytes in it
    for (int layer = layers - 1; layer >= 0; --layer) {
      ready += problem.table[static_cast<std::size_t>(layer)].backward.at(8);
      // A ring of two moves as many bytes as there are, at 1000 a second.
      for (double bytes = problem.layers[static_cast<std::size_t>(layer)].parameter_bytes; bytes > 0;) {
        const double taken = std::min(bytes, space);
        bytes -= taken;
        space -= taken;
        waiting += taken;
        if (space > 0) continue;
        free = std::max(free, ready) + waiting / 1000;
        waiting = 0;
        space = bucket_bytes;
      }
    }
    if (waiting > 0) free = std::max(free, ready) + waiting / 1000;
    EXPECT_NEAR(run(created).step_seconds, std::max(backward_end, free), 1e-9) << "trial " << trial;
    EXPECT_NEAR(evaluate_plan(problem, created.plan, {})->step_seconds, std::max(backward_end, free), 1e-9)
        << "trial " << trial;
  }
}

TEST(Simulate, EachStageExchangesOnceAfterItsLastBackward) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const Case created = random_case(seed);
    const Timeline timeline = run(created, {.gradient_sync_overlaps = false});
    for (std::size_t s = 0; s < created.plan.stages.size(); ++s) {
      double last_backward = 0;
      std::int64_t replicas = 0, gradient_syncs = 0;
      for (const Device& device : timeline.devices) {
        replicas += device.stage == static_cast<int>(s);
      }
      for (const Event& event : timeline.events) {
        if (event.stage == static_cast<int>(s) && event.work == Work::kBackward) {
          last_backward = std::max(last_backward, event.end);
        }
      }
      for (const Event& event : timeline.events) {
        if (event.stage == static_cast<int>(s) && event.work == Work::kGradientSync) {
          ++gradient_syncs;
          EXPECT_EQ(event.start, last_backward);
        }
      }
      EXPECT_EQ(gradient_syncs, replicas > 1 ? replicas : 0);
    }
  }
}

// What link of the problem a transfer takes when all stages between two types share one: found from the slowest pair.
std::tuple<int, int, bool> find_link(const Case& created, const Event& event) {
  const auto& [problem, plan] = created;
  const int next = event.work == Work::kSendForward ? event.stage : event.stage - 1;
  const double u = static_cast<double>(plan.batch) / static_cast<double>(plan.micro_batches);
  const planning::Stage& here = plan.stages[static_cast<std::size_t>(next)];
  const planning::Stage& there = plan.stages[static_cast<std::size_t>(next + 1)];
  const auto count = [](const planning::Stage& stage) {
    return std::accumulate(stage.replicas.begin(), stage.replicas.end(), std::int64_t{0},
                           [](std::int64_t sum, const planning::Replicas& replicas) { return sum + replicas.count; });
  };
  std::tuple<double, int, int> slowest{-1, 0, 0};
  for (const planning::Replicas& a : here.replicas) {
    for (const planning::Replicas& b : there.replicas) {
      const int from = a.type.back() - '0', to = b.type.back() - '0';
      const double seconds = problem.link(from, to).latency_seconds +
                             u * problem.cut_bytes[static_cast<std::size_t>(here.last_layer + 1)] /
                                 count_bytes_per_second(problem, from, static_cast<std::size_t>(count(here)), to,
                                                        static_cast<std::size_t>(count(there)));
      if (seconds > std::get<0>(slowest)) {
        slowest = {seconds, from, to};
      }
    }
  }
  const auto [seconds, from, to] = slowest;
  const bool back = event.work == Work::kSendBackward;
  return back ? std::tuple{to, from, from == to} : std::tuple{from, to, false};
}

TEST(Simulate, SharedLinksCarryOneTransferAtATimeInTheOrderOfReadiness) {
  int waited = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const Case created = random_case(seed);
    const Timeline timeline = run(created, {.shared_links = true});
    std::map<std::tuple<int, int, bool>, std::vector<std::pair<double, const Event*>>> links;
    for (const Event& event : timeline.events) {
      if (event.work != Work::kSendForward && event.work != Work::kSendBackward) {
        continue;
      }
      double ready = 0;
      for (const Event& other : timeline.events) {
        if (other.stage == event.stage && other.micro_batch == event.micro_batch &&
            other.work == (event.work == Work::kSendForward ? Work::kForward : Work::kBackward)) {
          ready = std::max(ready, other.end);
        }
      }
      links[find_link(created, event)].emplace_back(ready, &event);
    }
    for (auto& [link, transfers] : links) {
      std::stable_sort(transfers.begin(), transfers.end(),
                       [](const auto& a, const auto& b) { return a.second->start < b.second->start; });
      double free_at = 0, ready_before = 0;
      for (const auto& [ready, event] : transfers) {
        ASSERT_NEAR(event->start, std::max(ready, free_at), 1e-9) << "seed " << seed;
        ASSERT_GE(ready, ready_before);
        waited += event->start > ready + 1e-9;
        free_at = event->end;
        ready_before = ready;
      }
    }
    EXPECT_GE(timeline.step_seconds, run(created).step_seconds - 1e-9);
  }
  EXPECT_GT(waited, 300);
}

TEST(Simulate, NothingIsLostAndNothingOverlaps) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const Case created = random_case(seed);
    Options options;
    options.jitter = seed % 2 == 0 ? 0.3 : 0;
    options.seed = seed;
    const Timeline timeline = run(created, options);
    EXPECT_EQ(timeline.event_count, static_cast<std::int64_t>(timeline.events.size()));
    for (const Device& device : timeline.devices) {
      double busy = 0, free_at = 0;
      std::set<std::pair<Work, int>> done;
      for (const Event& event : timeline.events) {
        if (event.stage == device.stage && event.replica == device.replica) {
          EXPECT_GE(event.start, free_at);
          free_at = event.end;
          if (event.work != Work::kGradientSync) {
            busy += event.end - event.start;
            EXPECT_TRUE(done.emplace(event.work, event.micro_batch).second) << "done twice";
          }
        }
      }
      EXPECT_EQ(done.size(), 2 * static_cast<std::size_t>(created.plan.micro_batches));
      EXPECT_NEAR(device.busy_seconds, busy, 1e-9 * timeline.step_seconds);
      EXPECT_NEAR(device.busy_seconds + device.bubble_fraction * timeline.step_seconds, timeline.step_seconds,
                  1e-9 * timeline.step_seconds);
    }
    const Path& critical = timeline.critical;
    EXPECT_NEAR(critical.forward + critical.backward + critical.transfer + critical.gradient_sync + critical.update,
                timeline.step_seconds, 1e-9 * timeline.step_seconds)
        << "the critical path has no gap";
    EXPECT_TRUE(std::is_sorted(timeline.events.begin(), timeline.events.end(),
                               [](const Event& a, const Event& b) { return a.start < b.start; }));
    options.keep_events = false;
    const Timeline sums = run(created, options);
    EXPECT_TRUE(sums.events.empty());
    EXPECT_EQ(sums.event_count, timeline.event_count);
    EXPECT_EQ(sums.step_seconds, timeline.step_seconds);
  }
}

TEST(Simulate, ASlowerDeviceNeverMakesTheStepShorter) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const Case created = random_case(seed);
    Options options;
    const double as_profiled = run(created, options).step_seconds;
    for (const Device& device : run(created, options).devices) {
      double before = as_profiled;
      for (const double slowdown : {1.0, 1.2, 3.0, 50.0}) {
        options.stragglers = {{device.stage, device.replica, slowdown}};
        const double now = run(created, options).step_seconds;
        EXPECT_GE(now, before - 1e-9) << "seed " << seed;
        before = now;
      }
      EXPECT_GT(before, as_profiled);
      options.stragglers.clear();
    }
  }
}

TEST(Simulate, TheSeedFixesTheJitter) {
  const Case created =
      make_case({{1, 2, 0.1}, {1, 2, 0.1}, {1, 2}}, 400, planning::PipelineSchedule::kOneForwardOneBackward);
  Options options;
  options.jitter = 0.2;
  options.seed = 5;
  const Timeline first = run(created, options), again = run(created, options);
  ASSERT_EQ(first.events.size(), again.events.size());
  for (std::size_t i = 0; i < first.events.size(); ++i) {
    ASSERT_EQ(first.events[i].start, again.events[i].start);
    ASSERT_EQ(first.events[i].end, again.events[i].end);
  }
  options.seed = 6;
  EXPECT_NE(run(created, options).step_seconds, first.step_seconds);
  double sum = 0, squares = 0, count = 0;
  for (const Event& event : first.events) {
    if (event.work == Work::kForward || event.work == Work::kBackward) {
      const double factor = (event.end - event.start) / (event.work == Work::kForward ? 1 : 2);
      sum += factor;
      squares += factor * factor;
      ++count;
    }
  }
  EXPECT_NEAR(sum / count, 1, 0.02);
  EXPECT_NEAR(std::sqrt(squares / count - sum * sum / count / count), 0.2, 0.02);
}

// The cost model's candidates, a type a stage.
planning::Evaluation evaluate(const Case& created) {
  planning::Candidate candidate;
  for (std::size_t s = 0; s < created.plan.stages.size(); ++s) {
    const auto index = static_cast<int>(s);
    candidate.push_back({index, index, index, created.plan.stages[s].replicas[0].count});
  }
  return planning::evaluate(created.problem, candidate, {});
}

TEST(Simulate, GpipeEqualsTheCostModel) {
  Random random(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<StageTimes> stages(1 + random.below(6));
    for (StageTimes& stage : stages) {
      stage = {random.uniform(), random.uniform(), random.uniform()};
    }
    const Case created =
        make_case(stages, 1 + static_cast<std::int64_t>(random.below(20)), planning::PipelineSchedule::kGPipe);
    EXPECT_NEAR(run(created).step_seconds / evaluate(created).step_seconds, 1, 1e-9);
  }
}

TEST(Simulate, BalancedOneForwardOneBackwardEqualsTheCostModel) {
  for (const int stages : {1, 2, 8}) {
    for (const std::int64_t replicas : {1, 4}) {
      const Case created =
          make_case(std::vector<StageTimes>(static_cast<std::size_t>(stages), {1, 2, 0.1, 5e3, replicas}),
                    1 + 4 * stages, planning::PipelineSchedule::kOneForwardOneBackward);
      EXPECT_NEAR(run(created).step_seconds / evaluate(created).step_seconds, 1, 1e-9);
    }
  }
}

// Heterogeneous stages with one link much slower than the others: the rate of a long step is exactly the cost model's
// W, and only the few micro-batches that GPipe keep the whole step from it.
TEST(Simulate, TheRateOfLongStepsIsTheCostModels) {
  Random random(9);
  int inner = 0;
  for (int round = 0; round < 60; ++round) {
    std::vector<StageTimes> stages(2 + random.below(5));
    for (StageTimes& stage : stages) {
      stage = {0.5 + random.uniform(), 0.5 + 2 * random.uniform(), 0.3 * random.uniform()};
    }
    stages[random.below(stages.size() - 1)].transfer = 1 + 2 * random.uniform();
    const auto step = [&](std::int64_t micro_batches) {
      const Case created = make_case(stages, micro_batches, planning::PipelineSchedule::kOneForwardOneBackward);
      return std::pair(run(created).step_seconds, evaluate(created).step_seconds);
    };
    constexpr int kPeriods = 60;  // of a run of any number of stages up to six
    const auto [simulated, predicted] = step(100);
    const auto [simulated_longer, predicted_longer] = step(100 + kPeriods);
    const double interval = (predicted_longer - predicted) / kPeriods;
    EXPECT_NEAR((simulated_longer - simulated) / kPeriods, interval, 1e-9 * interval);
    EXPECT_NEAR(simulated, predicted, static_cast<double>(stages.size()) * interval);
    // No stage and no round trip to the last stage takes as long.
    double round_trip = 0, slowest = 0;
    for (std::size_t s = stages.size(); s-- > 0;) {
      const double seconds = stages[s].forward + stages[s].backward;
      round_trip += seconds + (s + 1 < stages.size() ? 2 * stages[s].transfer : 0);
      slowest = std::max({slowest, seconds, round_trip / static_cast<double>(stages.size() - s)});
    }
    inner += interval > 1.01 * slowest;
  }
  EXPECT_GT(inner, 15);
}

// The cost model is the replay, whatever the number of micro-batches; what planners give plans up by is no more.
TEST(Simulate, IsTheCostModelsStep) {
  int as_long = 0;
  Random random(12);
  for (int round = 0; round < 2000; ++round) {
    std::vector<StageTimes> stages(1 + random.below(8));
    const double spread = random.uniform();
    for (StageTimes& stage : stages) {
      const double forward = std::exp(spread * random.normal());
      stage = {forward, forward * (1 + 2 * random.uniform()), random.uniform()};
    }
    stages[random.below(stages.size())].transfer *= round % 2 == 0 ? 4 : 1;
    const auto micro_batches = static_cast<std::int64_t>(1 + random.below(48));
    const Case created = make_case(stages, micro_batches, planning::PipelineSchedule::kOneForwardOneBackward);
    const double simulated = run(created).step_seconds;
    const planning::Evaluation evaluation = evaluate(created);
    EXPECT_NEAR(evaluation.step_seconds, simulated, 1e-9 * simulated);
    const double least = least_step_seconds(created.problem, evaluation.stages);
    EXPECT_LE(least, simulated * (1 + 1e-12));
    as_long += least > simulated * (1 - 1e-9);
  }
  EXPECT_GT(as_long, 1000);
}

TEST(Simulate, TraceHasEveryEventOnAThreadOfItsOwn) {
  const Case created = random_case(11);
  const Timeline timeline = run(created);
  const auto trace = nlohmann::json::parse(to_chrome_trace(timeline, created.plan));
  std::map<std::pair<int, int>, double> free_at;
  std::set<std::pair<int, int>> named;
  std::size_t events = 0;
  for (const auto& event : trace.at("traceEvents")) {
    const std::pair thread(event.at("pid").get<int>(), event.at("tid").get<int>());
    if (event.at("ph") == "M") {
      if (event.at("name") == "thread_name") {
        EXPECT_TRUE(named.insert(thread).second);
      }
      continue;
    }
    ++events;
    EXPECT_TRUE(named.count(thread)) << thread.first << " " << thread.second;
    EXPECT_GE(event.at("ts").get<double>(), free_at[thread] - 1e-3);
    free_at[thread] = event.at("ts").get<double>() + event.at("dur").get<double>();
  }
  EXPECT_EQ(events, timeline.events.size());
}

TEST(Simulate, ErrorsNameFieldAndValue) {
  const Case good = make_case({{1, 2, 0.5, 100, 2}, {1, 2}}, 4, planning::PipelineSchedule::kOneForwardOneBackward);
  const auto message = [](const Case& created, const Options& options = {}) -> std::string {
    const auto timeline = simulate(created.problem, created.plan, options);
    if (timeline) {
      return "no error";
    }
    EXPECT_EQ(timeline.error().code, ErrorCode::kInvalidInput);
    return timeline.error().message;
  };

  EXPECT_EQ(message(good), "no error");
  Case created = good;
  created.plan.model = "other";
  EXPECT_THAT(message(created), HasSubstr("model is 'other', but the profile is of 'hand-made'"));
  created = good;
  created.plan.layers[1] = "other";
  EXPECT_THAT(message(created), HasSubstr("layers[1] is 'other'"));
  created = good;
  created.plan.stages[1].replicas[0].type = "abacus";
  EXPECT_THAT(message(created), HasSubstr("stages[1].replicas[0].type is 'abacus'; accepted are"));
  created = good;
  created.plan.batch = 4;
  EXPECT_THAT(message(created), HasSubstr("stages[0] has 2 replicas, but a micro-batch has 1 sample ("));
  created = good;
  created.plan.batch = created.plan.micro_batches = 1'000'000'000;
  created.plan.stages[0].replicas[0] = {"type0", 1, 1};
  EXPECT_THAT(message(created), HasSubstr("micro_batches is 1000000000"));
  created = good;
  created.problem.links[1].bytes_per_second = 0;
  EXPECT_THAT(message(created), HasSubstr("stages[0]: its transfer to the next stage would take inf seconds"));
  Options options;
  options.stragglers = {{0, 0, 1}, {2, 0, 1}};
  EXPECT_THAT(message(good, options), HasSubstr("stragglers[1].stage is 2; the plan has stages 0 to 1"));
  options.stragglers = {{0, 2, 1}};
  EXPECT_THAT(message(good, options), HasSubstr("stragglers[0].replica is 2; stage 0 has replicas 0 to 1"));
  options.stragglers = {{0, 0, 0.5}};
  EXPECT_THAT(message(good, options), HasSubstr("stragglers[0].slowdown is 0.5"));
  options = {};
  options.jitter = -1;
  EXPECT_THAT(message(good, options), HasSubstr("jitter is -1"));
}

}  // namespace
}  // namespace motley::planning
