// Where a mix of CPU cores and GPUs is the cheapest way to train a CTR model, and by how much: HeterPS's four models
// over prices of a GPU (in those of a CPU core) and speeds of a CPU core (times that of examples/clicks/cluster.yaml,
// which says where they come from). In each cell the exact planner's cheapest plan under HeterPS's cost model at half
// of the throughput that all devices of that file together could reach, against the cheapest plan of one device type
// that reaches the same; neither is limited to the devices of the file. Nothing is run: all of it is computed. Offers
// of providers stand beside it by their prices; the V100's is HeterPS's own.
#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>
#include <optional>

#include "bench/parallel.h"
#include "bench/pipeline_bench.h"
#include "bench/planning_cases.h"
#include "bench/row_list.h"
#include "motley/base/os/file.h"
#include "motley/cluster/cluster.h"
#include "motley/model/tables.h"
#include "motley/planning/cost/problem.h"
#include "motley/planning/methods.h"
#include "motley/report/page/html.h"

namespace motley::bench {
namespace {

constexpr const char* kModels[] = {"matchnet", "ctrdnn-16", "2emb", "nce"};
constexpr double kSpeeds[] = {0.125, 0.25, 0.5, 1, 2, 4, 8};  // of a CPU core
constexpr double kPrices[] = {4, 8, 13, 20, 32, 45, 61, 77, 120, 240, 480};
constexpr const char* kGpu = "v100";
constexpr const char* kCpu = "cpu-core";
constexpr double kBatch = 4096;
constexpr double kMinThroughputShare = 0.5;
constexpr double kWins = 1.01;  // times as cheap
constexpr double kSeconds = 5;
constexpr std::int64_t kUnlimited = 100'000;
constexpr double kPublishedCost = 4.12;
constexpr double kPublishedThroughput = 14.5;

// What one costs per hour beside a CPU core of the same provider: of HeterPS's paper, and list prices (on demand,
// Linux, us-east-1) of machines with one such card beside a core of c5.
struct Offer {
  const char* name;
  double price;  // CPU cores
};
constexpr Offer kOffers[] = {{"V100 in HeterPS's paper: 2.42 to 0.04", 61},
                             {"T4 (g4dn.xlarge): 0.526 to 0.0425", 12.4},
                             {"V100 (p3.2xlarge): 3.06 to 0.0425", 72}};

struct Cell {
  std::optional<double> cost_ratio;  // to the cheapest single type; none: no plan in time
  double throughput_ratio = 0;       // of what all devices can do together, to all CPU cores
  bool hybrid = false;               // the plan has both
};

using Grid = std::array<std::array<Cell, std::size(kPrices)>, std::size(kSpeeds)>;

std::optional<planning::Answer> ask(const planning::Problem& problem, const planning::Objective& objective) {
  auto answer = planning::plan_exact({.problem = problem, .objective = objective, .seconds = kSeconds});
  if (!answer || !answer->best) return std::nullopt;
  return *answer;
}

// As many devices as it takes.
planning::Problem unlimited(planning::Problem problem) {
  for (planning::Type& type : problem.types) type.count = kUnlimited;
  return problem;
}

// Only devices of one type.
planning::Problem alone(planning::Problem problem, int type) {
  for (int other = 0; other < problem.type_count(); ++other) {
    if (other != type) problem.types[planning::index(other)].count = 0;
  }
  return problem;
}

// The file's CPU cores and one of its kinds of GPU.
Result<cluster::Cluster> read_two_types(const BenchOptions& options) {
  MOTLEY_ASSIGN(cluster::Cluster cluster,
                cluster::read_cluster(options.source_folder / "examples/clicks/cluster.yaml"));
  std::erase_if(cluster.device_types,
                [](const cluster::DeviceType& type) { return type.name != kCpu && type.name != kGpu; });
  std::erase_if(cluster.nodes, [&](const cluster::Node& node) {
    return std::ranges::any_of(node.devices, [](const auto& held) { return held.type != kCpu && held.type != kGpu; });
  });
  std::erase_if(cluster.links, [&](const cluster::Link& link) {
    const auto is_there = [&](const std::string& name) {
      return std::ranges::any_of(cluster.nodes, [&](const cluster::Node& node) { return node.name == name; });
    };
    return !is_there(link.from) || !is_there(link.to);
  });
  return cluster;
}

Result<Cell> compute(const cluster::Cluster& base, const model::Graph& graph, double speed, double price) {
  cluster::Cluster cluster = base;
  double core_price = 0;
  for (cluster::DeviceType& type : cluster.device_types) {
    if (type.name != kCpu) continue;
    core_price = type.price_per_hour;
    type.speed->flops_per_second *= speed;
    type.speed->memory_bytes_per_second *= speed;
    type.speed->lookups_per_second *= speed;
    type.speed->layer_overhead_seconds /= speed;
  }
  for (cluster::DeviceType& type : cluster.device_types) {
    if (type.name == kGpu) type.price_per_hour = price * core_price;
  }
  const model::Profile profile = model::estimate(graph, list_speeds(cluster), kBatch);
  MOTLEY_ASSIGN(const planning::Problem problem, planning::make_problem(profile, cluster,
                                                                        {.cost_model = planning::CostModel::kHeterps,
                                                                         .total_samples = 1e8,
                                                                         .batch = static_cast<std::int64_t>(kBatch)}));
  Cell cell;
  const planning::Objective fastest{.criterion = planning::Criterion::kMaxThroughput};
  const auto most = ask(problem, fastest);
  if (!most) return cell;
  const planning::Objective cheapest{.criterion = planning::Criterion::kMinCost,
                                     .min_throughput = kMinThroughputShare * most->evaluation.throughput};
  const planning::Problem rented = unlimited(problem);
  const auto plan = ask(rented, cheapest);
  double single = planning::kInfinity;
  for (int type = 0; type < problem.type_count(); ++type) {
    if (const auto answer = ask(alone(rented, type), cheapest)) single = std::min(single, answer->evaluation.cost);
    if (problem.type(type).name != kCpu) continue;
    if (const auto cores = ask(alone(problem, type), fastest)) {
      cell.throughput_ratio = most->evaluation.throughput / cores->evaluation.throughput;
    }
  }
  if (!plan || !std::isfinite(single)) return cell;
  cell.cost_ratio = single / plan->evaluation.cost;
  cell.hybrid = std::ranges::count_if(plan->evaluation.used, [](std::int64_t used) { return used > 0; }) > 1;
  return cell;
}

// A table, bold where the mix wins.
std::string draw(const Grid& grid) {
  std::vector<std::string> headings = {"speed of a core"};
  std::vector<std::size_t> numeric;
  for (const double price : kPrices) {
    numeric.push_back(headings.size());
    headings.push_back(fmt::format("{:g}", price));
  }
  std::vector<std::vector<std::string>> rows;
  for (std::size_t speed = 0; speed < std::size(kSpeeds); ++speed) {
    std::vector<std::string> row = {fmt::format("{:g}", kSpeeds[speed])};
    for (const Cell& cell : grid[speed]) {
      if (!cell.cost_ratio) {
        row.emplace_back("no plan");
        continue;
      }
      const std::string text = fmt::format("{:.2f}", *cell.cost_ratio);
      const bool wins = cell.hybrid && *cell.cost_ratio >= kWins;
      row.push_back(wins ? fmt::format("<strong>{}</strong>", text) : text);
    }
    rows.push_back(std::move(row));
  }
  return report::table(headings, rows, numeric);
}

}  // namespace

Result<std::vector<BenchRow>> pipeline_heterps_map(const BenchOptions& options) {
  RowList rows(options);
  MOTLEY_ASSIGN(const cluster::Cluster cluster, read_two_types(options));
  std::string body =
      "<header><h1>Where a mix of CPU cores and GPUs is the cheapest</h1></header>\n<main>\n<div class=\"cards\">";
  double largest = 0, most_throughput = 0;
  std::string where, where_throughput;
  int cells = 0, wins = 0, as_cheap = 0, as_fast = 0, without = 0;
  for (const char* name : kModels) {
    if (options.quick && name != kModels[0]) continue;
    MOTLEY_ASSIGN(const model::Graph graph, model::table(name));
    Grid grid;
    Status failed;
    std::mutex mutex;
    in_parallel(static_cast<int>(std::size(kSpeeds) * std::size(kPrices)), [&](int at) {
      const std::size_t speed = static_cast<std::size_t>(at) / std::size(kPrices);
      const std::size_t price = static_cast<std::size_t>(at) % std::size(kPrices);
      const Result<Cell> cell = compute(cluster, graph, kSpeeds[speed], kPrices[price]);
      const std::lock_guard lock(mutex);
      if (cell) {
        grid[speed][price] = *cell;
      } else {
        failed = fail(cell.error());
      }
    });
    MOTLEY_TRY(failed);
    double best = 0;
    int won = 0;
    for (std::size_t speed = 0; speed < std::size(kSpeeds); ++speed) {
      for (std::size_t price = 0; price < std::size(kPrices); ++price) {
        const Cell& cell = grid[speed][price];
        const std::string at =
            fmt::format("{}, a core {:g} times as fast, a GPU at {:g} cores", name, kSpeeds[speed], kPrices[price]);
        ++cells;
        if (!cell.cost_ratio) {
          ++without;
          continue;
        }
        const bool mix = cell.hybrid && *cell.cost_ratio >= kWins;
        won += mix ? 1 : 0;
        as_cheap += cell.hybrid && *cell.cost_ratio >= kPublishedCost ? 1 : 0;
        as_fast += cell.throughput_ratio >= kPublishedThroughput ? 1 : 0;
        best = std::max(best, *cell.cost_ratio);
        if (*cell.cost_ratio > largest) {
          largest = *cell.cost_ratio;
          where = at;
        }
        if (cell.throughput_ratio > most_throughput) {
          most_throughput = cell.throughput_ratio;
          where_throughput = at;
        }
      }
    }
    wins += won;
    rows.print(fmt::format("{}: the mix wins in {} of {} cells, by up to {:.2f}", name, won,
                           std::size(kSpeeds) * std::size(kPrices), best));
    body +=
        report::card(name,
                     "How many times as cheap the best plan is as the cheapest of one device type, by the price of a "
                     "GPU in those of a core (columns) and the speed of a core in that of the cluster file (rows). "
                     "Bold: a mix of both, at least 1 % cheaper.",
                     draw(grid), true);
  }
  std::string offers;
  for (const Offer& offer : kOffers)
    offers += fmt::format("<li>{}: {:g}</li>", report::escape(offer.name), offer.price);
  body += report::card("Offers", "Price of a GPU in those of a CPU core.", "<ul>" + offers + "</ul>");
  std::filesystem::create_directories(options.pages);
  MOTLEY_TRY(write_file(options.pages / "heterps-sweep.html",
                        report::document("Where a mix of devices is the cheapest", body + "</div></main>")));
  const std::string inputs =
      "computed, HeterPS's cost model; inputs: examples/clicks/cluster.yaml, which says where its numbers come from; "
      "half of the most throughput as minimum";
  rows.add("heterps-sweep", "largest_cost_ratio_to_best_single_type", largest, "ratio", true, {}, {}, {},
           fmt::format("{}; {}", where, inputs));
  rows.add("heterps-sweep", "share_of_cells_where_a_mix_wins", static_cast<double>(wins) / cells, "share", true, {}, {},
           {},
           fmt::format("{} of {} cells, {} without a plan in time; published to be {:g} times as cheap: reached in {}",
                       wins, cells, without, kPublishedCost, as_cheap));
  rows.add("heterps-sweep", "largest_throughput_ratio_to_cpu_only", most_throughput, "ratio", true, {}, {}, {},
           fmt::format("{}; all devices against all cores; published {:g}: reached in {} of {} cells", where_throughput,
                       kPublishedThroughput, as_fast, cells));
  return rows.take();
}

}  // namespace motley::bench
