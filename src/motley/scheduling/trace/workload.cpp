#include "motley/scheduling/trace/workload.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numeric>
#include <sstream>

#include "motley/base/random.h"
#include "motley/base/units.h"

namespace motley::scheduling {
namespace {

constexpr double kGigabit = 1e9 / 8;

struct Draw : Random {
  using Random::Random;
  double between(double low, double high) { return low + (high - low) * uniform(); }
  int whole(int low, int high) { return low + static_cast<int>(below(index(high - low + 1))); }
};

constexpr double kSecondsADay = 86400;

// What an iteration takes on a V100, and what its gradient has in fp32. Times of ResNets, Transformer and LSTM are
// those of Gavel's table (Narayanan et al., OSDI 2020), of VGG-16 PipeDream's profile (SOSP 2019); sizes are those of
// the models' parameters. Restarts grow with what is to be loaded.
struct Model {
  double compute_seconds;
  double gradient_bytes;
  double restart_cost_seconds;
};
constexpr std::array<Model, 6> kModels = {{
    {0.056, 47e6, 20},    // ResNet-18, batches of 128
    {0.228, 102e6, 25},   // ResNet-50, 64
    {0.330, 553e6, 30},   // VGG-16, 64
    {0.183, 240e6, 25},   // Transformer, 128
    {0.035, 52e6, 20},    // LSTM, 80
    {0.500, 1340e6, 60},  // BERT-large, 8
}};
constexpr int kFewer = 4;  // times as few workers as asked for, and as many

}  // namespace

Setting gadget_setting(int nodes, int jobs, std::uint64_t seed, int slots) {
  constexpr double kSlotSeconds = 600;  // so that limits of service in device-seconds are of the size of jobs
  Draw draw(seed);
  Setting setting;
  setting.slot_seconds = kSlotSeconds;
  setting.horizon = slots * kSlotSeconds;
  setting.topology.racks = std::min(nodes, draw.whole(2, 5));
  for (int rack = 0; rack < setting.topology.racks; ++rack) {
    setting.topology.rack_uplinks.push_back(draw.between(200, 3200) * kGigabit);
  }
  for (int node = 0; node < nodes; ++node) {
    setting.topology.nodes.push_back({fmt::format("node{}", node), 1 << draw.whole(0, 3), node % setting.topology.racks,
                                      draw.between(10, 100) * kGigabit});
  }
  std::vector<int> arrivals;
  for (int i = 0; i < jobs; ++i) arrivals.push_back(draw.whole(0, slots - 1));
  std::ranges::sort(arrivals);
  for (int i = 0; i < jobs; ++i) {
    Job job;
    job.name = fmt::format("job{}", i);
    job.arrival = arrivals[index(i)] * kSlotSeconds;
    Elastic elastic;
    elastic.max_workers = draw.whole(1, std::min(5, setting.topology.devices()));
    elastic.reserve = draw.between(0.1, 5) * kGigabit;
    job.workers = draw.whole(1, elastic.max_workers);
    job.iterations = draw.whole(1000, 6000);
    const double iterations_per_slot = draw.between(50, 500);
    job.duration = job.iterations / (iterations_per_slot * job.workers) * kSlotSeconds;
    elastic.compute_seconds = kSlotSeconds / iterations_per_slot;
    job.elastic = elastic;
    job.utility = {Utility::Shape::kSigmoid, draw.between(1, 100), draw.between(0, 1), draw.between(300, 3000)};
    setting.jobs.push_back(std::move(job));
  }
  return setting;
}

Setting gadget_contended_setting(int nodes, int jobs, std::uint64_t seed, int slots) {
  constexpr double kMoreWork = 50;
  Setting setting = gadget_setting(nodes, jobs, seed, slots);
  Draw draw(mix({seed, 1}));
  ClusterTopology& topology = setting.topology;
  topology.rack_uplinks.assign(index(topology.racks), 200 * kGigabit);
  topology.network.intra_node_bandwidth = 100 * kGigabit;  // PCIe 3.0 with 16 lanes
  topology.resources = {kCpus, kMemory};
  for (Node& node : topology.nodes) {
    node.uplink = 10 * kGigabit;
    node.resources = {8.0 * node.devices, 64e9 * node.devices};
  }
  for (Job& job : setting.jobs) {
    Elastic& elastic = *job.elastic;
    elastic.compute_seconds *= kMoreWork;
    elastic.gradient_bytes = draw.between(0.2, 2) * elastic.compute_seconds * elastic.reserve / 2;
    job.requests = {static_cast<double>(draw.whole(2, 14)), draw.between(16, 112) * 1e9};
    elastic.max_workers = std::min(elastic.max_workers, std::max(1, topology.workers(job.requests)));
    job.workers = std::min(job.workers, elastic.max_workers);
    job.duration = job.iterations * iteration_seconds(elastic, topology.network, {job.workers}) / job.workers;
  }
  return setting;
}

Setting sjf_bco_setting(int nodes, std::uint64_t seed) {
  constexpr std::pair<int, int> kSizes[] = {{80, 1}, {14, 2}, {26, 4}, {30, 8}, {8, 16}, {2, 32}};  // jobs, workers
  constexpr double kBetween = 1.25e9;  // bytes a second, 10 Gb/s
  Draw draw(seed);
  Setting setting;
  setting.slot_seconds = 1;
  setting.topology.network = {.intra_node_bandwidth = 20 * kBetween,
                              .inter_node_bandwidth = kBetween,
                              .contention = 0.5,
                              .loss = 0.1,
                              .seconds_per_node = 1e-5};
  for (int node = 0; node < nodes; ++node) {
    setting.topology.nodes.push_back({fmt::format("node{}", node), 4 << draw.whole(0, 3)});
  }
  for (const auto& [count, workers] : kSizes) {
    for (int i = 0; i < count; ++i) {
      Job job;
      job.workers = workers;
      job.iterations = draw.whole(1000, 6000);
      const double seconds = draw.between(0.01, 0.05);  // of an iteration
      Elastic elastic;
      elastic.min_workers = elastic.max_workers = workers;
      elastic.compute_seconds = seconds;
      elastic.gradient_bytes = draw.between(0.005, 0.02) * seconds * kBetween;  // alone: up to 4 % of the time
      job.elastic = elastic;
      job.duration = job.iterations * iteration_seconds(elastic, setting.topology.network, {workers});
      setting.jobs.push_back(std::move(job));
    }
  }
  // In no order of size.
  for (std::size_t i = setting.jobs.size(); i > 1; --i) {
    std::swap(setting.jobs[i - 1], setting.jobs[index(draw.whole(0, static_cast<int>(i) - 1))]);
  }
  for (std::size_t i = 0; i < setting.jobs.size(); ++i) setting.jobs[i].name = fmt::format("job{}", i);
  return setting;
}

Result<Setting> gavel_setting(const Throughputs& throughputs, int jobs, double per_hour, std::uint64_t seed) {
  Draw draw(seed);
  Setting setting;
  setting.slot_seconds = 360;
  MOTLEY_ASSIGN(setting.topology, parse_topology("9x4:v100,9x4:p100,9x4:k80"));
  setting.topology.racks = 1;
  for (Node& node : setting.topology.nodes) node.rack = 0;
  const std::vector<std::string>& types = setting.topology.types;
  double now = 0;
  for (int i = 0; i < jobs; ++i) {
    Job job;
    job.name = fmt::format("job{}", i);
    job.arrival = now;
    now += draw.exponential(3600 / per_hour);
    const double size = draw.between(0, 1);
    job.workers = size < 0.7 ? 1 : size < 0.8 ? 2 : size < 0.95 ? 4 : 8;
    job.duration = 60 * std::pow(10, draw.between(0, 1) < 0.8 ? draw.between(1.5, 3) : draw.between(3, 4));
    const std::vector<std::string> models = throughputs.models(types.front(), job.workers);
    if (models.empty()) {
      return fail(ErrorCode::kInvalidInput,
                  "the table of throughputs has no models on {} with {}; accepted: "
                  "a table such as Gavel's",
                  types.front(), format_count(job.workers, "worker"));
    }
    const std::string& model = models[index(draw.whole(0, static_cast<int>(models.size()) - 1))];
    const double rate = throughputs.steps_per_second(types.front(), model, job.workers);
    for (const std::string& type : types) {
      job.type_speeds.push_back(throughputs.steps_per_second(type, model, job.workers) / rate);
    }
    setting.jobs.push_back(std::move(job));
  }
  return setting;
}

Result<std::optional<Setting>> setting_named(const std::string& name, std::uint64_t seed,
                                             const Throughputs* throughputs) {
  const std::string kind = name.substr(0, name.find(':'));
  const bool is_known = kind == "gadget" || kind == "gadget-contended" || kind == "sjf-bco" || kind == "gavel";
  if (!is_known || kind.size() == name.size()) return std::nullopt;
  std::vector<double> numbers;  // 0: none that is accepted
  std::istringstream words(name.substr(kind.size() + 1));
  for (std::string word; std::getline(words, word, ':');) {
    double number = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    const bool may_be_part = kind == "gavel" && numbers.size() == 1;
    const bool is_good = error == std::errc() && end == word.data() + word.size() && number <= 10'000 &&
                         (may_be_part ? number >= 0.001 : number >= 1 && number == std::floor(number));
    numbers.push_back(is_good ? number : 0);
  }
  if (numbers.size() != (kind == "sjf-bco" ? 1U : 2U) || std::ranges::count(numbers, 0) > 0) {
    return fail(ErrorCode::kInvalidInput,
                "TRACE: '{}'; accepted: gadget:NODES:JOBS, gadget-contended:NODES:JOBS, sjf-bco:NODES or "
                "gavel:JOBS:JOBS_PER_HOUR, such as gadget:50:100, or a file",
                name);
  }
  if (kind.starts_with("gadget")) {
    const auto make = kind == "gadget" ? gadget_setting : gadget_contended_setting;
    return make(static_cast<int>(numbers[0]), static_cast<int>(numbers[1]), seed, 200);
  }
  if (kind == "sjf-bco") return sjf_bco_setting(static_cast<int>(numbers[0]), seed);
  if (throughputs == nullptr) {
    return fail(ErrorCode::kInvalidInput, "TRACE: '{}'; accepted: with a table of throughputs (--throughputs)", name);
  }
  return gavel_setting(*throughputs, static_cast<int>(numbers[0]), numbers[1], seed);
}

double utility_bound(const std::vector<Job>& jobs, const ClusterTopology& topology, double horizon) {
  double bound = 0;
  for (const Job& job : jobs) {
    const double fastest =
        speed(job, topology.network, {std::min(job.max_workers(), topology.devices())});  // of any type
    bound += job.utility_after(std::min(job.duration, std::max(0.0, horizon - job.arrival) * fastest));
  }
  return bound;
}

double compute_load(const std::vector<Job>& jobs, const ClusterTopology& topology) {
  const double asked = std::transform_reduce(jobs.begin(), jobs.end(), 0.0, std::plus<>(),
                                             [](const Job& job) { return job.device_seconds(); });
  return asked / (topology.devices() * (jobs.back().arrival - jobs.front().arrival));
}

void set_load(std::vector<Job>& jobs, const ClusterTopology& topology, double load) {
  const double factor = compute_load(jobs, topology) / load;
  for (Job& job : jobs) job.arrival *= factor;
}

std::vector<Job> busiest(const std::vector<Job>& jobs, double days) {
  double asked = 0;
  double most = -1;
  std::size_t end = 0;
  std::pair<std::size_t, std::size_t> best;
  for (std::size_t begin = 0; begin < jobs.size(); ++begin) {
    while (end < jobs.size() && jobs[end].arrival < jobs[begin].arrival + days * kSecondsADay) {
      asked += jobs[end++].device_seconds();
    }
    if (asked > most) {
      most = asked;
      best = {begin, end};
    }
    asked -= jobs[begin].device_seconds();
  }
  std::vector<Job> chosen(jobs.begin() + static_cast<std::ptrdiff_t>(best.first),
                          jobs.begin() + static_cast<std::ptrdiff_t>(best.second));
  const double first = chosen.empty() ? 0 : chosen.front().arrival;
  for (Job& job : chosen) job.arrival -= first;
  return chosen;
}

void make_elastic(std::vector<Job>& jobs, std::uint64_t seed) {
  Random random(seed);
  for (Job& job : jobs) {
    const Model& model = kModels[random.below(kModels.size())];
    if (job.elastic) continue;
    job.elastic = Elastic{.min_workers = (job.workers + kFewer - 1) / kFewer,
                          .max_workers = job.workers * kFewer,
                          .compute_seconds = model.compute_seconds,
                          .gradient_bytes = model.gradient_bytes,
                          .restart_cost_seconds = model.restart_cost_seconds};
  }
}

}  // namespace motley::scheduling
