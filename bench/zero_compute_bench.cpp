// Workers that compute nothing, as PHub's ZeroComputeEngine had them: what is left of a step is the exchange. Models
// are those of its evaluation, with the tensors of the model module's tables; a second table adds its times of
// computation as sleeps. Combinations that would not fit into memory are left out by name.
#include "bench/zero_compute_bench.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "bench/exchange_job.h"
#include "bench/row_list.h"
#include "bench/server_process.h"
#include "motley/base/os/file.h"
#include "motley/base/units.h"
#include "motley/model/tables.h"
#include "motley/report/page/chart.h"
#include "motley/report/page/html.h"

namespace motley::bench {
namespace {

constexpr double kMaxMemory = 16e9;        // bytes that all processes of a combination may take
constexpr double kBucketBytes = 4e6;       // as gradient_sync.bucket_size
constexpr double kBatchSeconds = 0.5;      // rounds of a batch take about this long
constexpr double kLongRoundSeconds = 0.5;  // one is enough then
constexpr const char* kLinks[] = {"10 Gb/s", "56 Gb/s"};

// What PHub (arXiv 1801.09805) was measured with: computation of a batch on its workers, and its speed-up over the
// parameter server of MXNet with 8 workers, read off its figures.
struct Published {
  const char* name;
  const char* table;
  double compute_milliseconds;
  double speed_up[2];  // by kLinks
};
constexpr Published kModels[] = {{"AlexNet", "alexnet", 16, {3.3, 7.7}},
                                 {"VGG-11", "vgg11", 121, {3.3, 5.7}},
                                 {"VGG-19", "vgg19", 268, {3.0, 4.1}},
                                 {"GoogleNet", "googlenet", 100, {2.7, 2.4}},
                                 {"Inception-v3", "inception-v3", 225, {2.5, 2.1}},
                                 {"ResNet-18", "resnet18", 54, {3.9, 3.3}},
                                 {"ResNet-50", "resnet50", 161, {3.2, 2.5}},
                                 {"ResNet-269", "resnet269", 350, {3.8, 3.5}}};

// A way of exchange: how it is started, and how often the model lies in memory at most: so often for each rank (at the
// server, too), and so often besides.
struct Way {
  const char* name;
  const char* method;  // of `motley-bench exchange-worker`, or Gloo's algorithm
  int servers;
  bool ours;
  int copies_a_rank;
  int copies;
};
constexpr Way kWays[] = {{"central, shared memory", "ps-memory", 1, true, 2, 2},
                         {"central, TCP", "ps-tcp", 1, true, 4, 2},
                         {"sharded, TCP", "ps-tcp", 2, true, 4, 2},
                         {"ring, TCP", "tcp-ring-step", 0, true, 3, 0},
                         {"Gloo ring", "ring-chunked", 0, false, 2, 0},
                         {"Gloo halving-doubling", "halving-doubling", 0, false, 2, 0},
                         {"Gloo allreduce", "allreduce", 0, false, 2, 0}};
constexpr std::size_t kWayCount = std::size(kWays);

struct Model {
  Published published;
  double bytes = 0;
  std::string buckets;  // sizes, last layer first
};

// Layers are gathered into buckets from the last to the first, as in training.
Result<Model> load_model(const Published& published) {
  MOTLEY_ASSIGN(const model::Graph graph, model::table(published.table));
  Model model{.published = published};
  double bucket = 0;
  const auto close = [&] {
    if (bucket > 0) model.buckets += fmt::format("{}{:.0f}", model.buckets.empty() ? "" : ",", bucket);
    bucket = 0;
  };
  for (auto layer = graph.layers.rbegin(); layer != graph.layers.rend(); ++layer) {
    bucket += 4 * layer->parameters;
    model.bytes += 4 * layer->parameters;
    if (bucket >= kBucketBytes) close();
  }
  close();
  return model;
}

// What the machine could give without taking it from others.
double available_memory() {
  std::istringstream lines(read_file("/proc/meminfo").value_or(""));
  std::string word;
  while (lines >> word) {
    if (double kilobytes = 0; word == "MemAvailable:" && lines >> kilobytes) return kilobytes * 1024;
  }
  return kMaxMemory;
}

// Seconds of a round; not a number where it was left out.
struct Cell {
  double gradient_sync = std::nan("");
  double with_compute = std::nan("");
};
struct Line {
  const Model* model;
  int ranks;
  Cell cells[kWayCount];
};

class ZeroCompute {
 public:
  explicit ZeroCompute(const BenchOptions& options) : options_(options), rows_(options) {}

  Result<std::vector<BenchRow>> run() {
    for (const Published& published : kModels) {
      const bool small =
          std::string_view(published.table) == "resnet18" || std::string_view(published.table) == "googlenet";
      if (options_.quick && !small) continue;
      MOTLEY_ASSIGN(Model model, load_model(published));
      models_.push_back(std::move(model));
    }
    const std::vector<int> counts = options_.quick ? std::vector<int>{2} : std::vector<int>{1, 2, 4, 8};
    for (const Model& model : models_) {
      for (const int ranks : counts) MOTLEY_TRY(measure(model, ranks, ranks == counts.back()));
    }
    for (const Line& line : lines_) add_rows(line);
    MOTLEY_TRY(write_page());
    return rows_.take();
  }

 private:
  Status measure(const Model& model, int ranks, bool with_compute) {
    Line line{.model = &model, .ranks = ranks, .cells = {}};
    for (std::size_t at = 0; at < kWayCount; ++at) {
      const Way& way = kWays[at];
      if (ranks == 1 && way.servers == 0) continue;  // nothing to exchange
      const std::string name = fmt::format("{}, N={}, {}", model.published.name, ranks, way.name);
      const double memory = (way.copies_a_rank * ranks + way.copies) * model.bytes;
      if (memory > std::min(kMaxMemory, 0.8 * available_memory())) {
        rows_.left_out(name, fmt::format("it takes {} of memory", format_bytes(memory)));
        continue;
      }
      if (!way.ours) {
        if (const auto program = built_peer("gloo_collectives"); !program) {
          rows_.left_out(name, program.error().message);
          continue;
        }
      }
      MOTLEY_ASSIGN(line.cells[at], rounds(model, ranks, way, with_compute));
      rows_.print(fmt::format("{}: {}", name, format_seconds(line.cells[at].gradient_sync)));
    }
    lines_.push_back(line);
    return {};
  }

  Result<Cell> rounds(const Model& model, int ranks, const Way& way, bool with_compute) {
    std::vector<ServerProcess> servers;
    for (int server = 0; server < way.servers; ++server) {
      MOTLEY_ASSIGN(ServerProcess one, ServerProcess::start(options_, 2 / way.servers));
      servers.push_back(std::move(one));
    }
    MOTLEY_ASSIGN(ExchangeJob job, start(model, ranks, way, servers));
    const auto batch = [&](int count, double milliseconds) {
      return job.run(fmt::format("{}{} {:.0f}", way.ours ? "round 0 " : "", count, milliseconds));
    };
    Cell cell;
    MOTLEY_ASSIGN(const double first, batch(1, 0));
    const int count = std::clamp(static_cast<int>(kBatchSeconds / first), 1, 50);
    std::vector<double> seconds;
    const bool is_long = first > kLongRoundSeconds;
    for (int repeat = 0; repeat < (is_long ? 1 : 3); ++repeat) {
      MOTLEY_ASSIGN(const double one, batch(count, 0));
      seconds.push_back(one);
    }
    cell.gradient_sync = median(seconds);
    if (with_compute) {
      MOTLEY_ASSIGN(cell.with_compute, batch(is_long ? 1 : 2, model.published.compute_milliseconds));
    }
    return cell;
  }

  Result<ExchangeJob> start(const Model& model, int ranks, const Way& way,
                            const std::vector<ServerProcess>& servers) const {
    if (way.ours) {
      const std::vector<ExchangeJob::Place> places(static_cast<std::size_t>(ranks));
      return ExchangeJob::start(options_, way.method, model.buckets, places, ServerProcess::environment(servers));
    }
    MOTLEY_ASSIGN(const std::string program, built_peer("gloo_collectives"));
    return ExchangeJob::start_peer(
        {program, std::to_string(ranks), fmt::format("{:.0f}", model.bytes), std::string(way.method)});
  }

  // The least of the ways of one side; not a number where there is none.
  static double best(const Line& line, bool ours, double Cell::* seconds) {
    double least = std::nan("");
    for (std::size_t at = 0; at < kWayCount; ++at) {
      if (kWays[at].ours == ours) least = std::fmin(least, line.cells[at].*seconds);
    }
    return least;
  }

  void add_rows(const Line& line) {
    const double ours = best(line, true, &Cell::gradient_sync);
    const double gloo = best(line, false, &Cell::gradient_sync);
    const auto figure = [](double value) { return std::isfinite(value) ? std::optional(value) : std::nullopt; };
    const std::string name = fmt::format("{}-N{}", line.model->published.table, line.ranks);
    if (std::isfinite(ours)) {
      std::string note = "of all workers together, best of ours; peer: best of Gloo";
      for (std::size_t at = 0; at < kWayCount; ++at) {
        if (std::isfinite(line.cells[at].gradient_sync)) {
          note += fmt::format("; {} {:.3g}", kWays[at].name, line.ranks / line.cells[at].gradient_sync);
        }
      }
      rows_.add(name, "exchanges_per_second", line.ranks / ours, "", true, {}, {}, figure(line.ranks / gloo), note);
    }
    const double speed_up = best(line, false, &Cell::with_compute) / best(line, true, &Cell::with_compute);
    if (std::isfinite(speed_up)) {
      const Published& published = line.model->published;
      rows_.add(name, "speedup_over_gloo_with_compute", speed_up, "", true, {}, {}, {},
                fmt::format("after a sleep of {:g} ms; PHub over MXNet's parameter server with 8 workers, published: "
                            "{:.1f} at {}, {:.1f} at {}",
                            published.compute_milliseconds, published.speed_up[0], kLinks[0], published.speed_up[1],
                            kLinks[1]));
    }
  }

  std::string exchanges_table() const {
    std::vector<std::string> headings = {"model", "MB", "workers"};
    std::vector<std::size_t> numeric = {1, 2};
    for (const Way& way : kWays) {
      numeric.push_back(headings.size());
      headings.emplace_back(way.name);
    }
    std::vector<std::vector<std::string>> cells;
    for (const Line& line : lines_) {
      std::vector<std::string> row = {report::escape(line.model->published.name),
                                      fmt::format("{:.0f}", line.model->bytes / 1e6), std::to_string(line.ranks)};
      for (const Cell& cell : line.cells) {
        row.push_back(std::isfinite(cell.gradient_sync) ? fmt::format("{:.3g}", line.ranks / cell.gradient_sync) : "–");
      }
      cells.push_back(std::move(row));
    }
    return report::table(headings, cells, numeric);
  }

  std::string compute_table() const {
    std::vector<std::vector<std::string>> cells;
    for (const Line& line : lines_) {
      const double ours = best(line, true, &Cell::with_compute);
      const double gloo = best(line, false, &Cell::with_compute);
      if (!std::isfinite(ours) || !std::isfinite(gloo)) continue;
      const Published& published = line.model->published;
      cells.push_back({report::escape(published.name), std::to_string(line.ranks),
                       fmt::format("{:g}", published.compute_milliseconds), format_seconds(ours), format_seconds(gloo),
                       fmt::format("{:.2f}", gloo / ours), fmt::format("{:.1f}", published.speed_up[0]),
                       fmt::format("{:.1f}", published.speed_up[1])});
    }
    return report::table({"model", "workers", "computation, ms", "a step, ours", "a step, Gloo", "speed-up over Gloo",
                          "PHub at 10 Gb/s", "PHub at 56 Gb/s"},
                         cells, {1, 2, 3, 4, 5, 6, 7});
  }

  std::string chart(const Model& model) const {
    report::LineChart chart{.title = model.published.name,
                            .summary = fmt::format("Exchanges a second against workers, {}", model.published.name),
                            .x_label = "workers",
                            .y_label = "exchanges/s, all workers",
                            .series = {},
                            .from_zero = true};
    for (std::size_t at = 0; at < kWayCount; ++at) {
      report::Series series{
          .name = kWays[at].name, .color = static_cast<int>(at), .style = report::LineStyle::kMarked, .x = {}, .y = {}};
      for (const Line& line : lines_) {
        if (line.model != &model || !std::isfinite(line.cells[at].gradient_sync)) continue;
        series.x.push_back(line.ranks);
        series.y.push_back(line.ranks / line.cells[at].gradient_sync);
      }
      chart.series.push_back(std::move(series));
    }
    return report::line_chart(chart);
  }

  Status write_page() const {
    std::filesystem::create_directories(options_.pages);
    std::string body =
        "<header><h1>Gradient synchronisation without computation</h1></header>\n<main>\n<div class=\"cards\">";
    body += report::card("Exchanges a second",
                         "Of all workers together, on one machine; float32. Ours takes the step of SGD with momentum, "
                         "Gloo only adds up.",
                         exchanges_table(), true);
    body += report::card("With computation",
                         "A step of the fastest way of each side after a sleep that stands for computation. PHub's "
                         "figures are published ones, over MXNet's parameter server, with other machines and links.",
                         compute_table(), true);
    for (const Model& model : models_) body += report::card(model.published.name, "", chart(model));
    return write_file(options_.pages / "zero-compute.html",
                      report::document("Gradient synchronisation without computation", body + "</div></main>"));
  }

  const BenchOptions& options_;
  RowList rows_;
  std::vector<Model> models_;
  std::vector<Line> lines_;
};

// The sharded parameter server over TCP against whichever is faster there: the parameter server ps-lite with as many
// servers, or Gloo; all alive at once and taking turns. Every rank is a machine of its own, which shares no memory with
// others: as where parameter servers are run beside workers, each has a server in its process. In a line beside it the
// servers are two processes by themselves.
class ShardedServer {
 public:
  explicit ShardedServer(const BenchOptions& options) : options_(options), rows_(options) {}

  Result<std::vector<BenchRow>> run() {
    for (const Published& published : kModels) {
      const std::string_view table = published.table;
      if (table != "resnet50" && table != "alexnet") continue;
      if (options_.quick && table != "resnet50") continue;
      MOTLEY_TRY(compare_model(published));
    }
    return rows_.take();
  }

 private:
  static constexpr int kRanks = 4;
  static constexpr int kServersApart = 2;

  // Whether two processes share memory is told by their /dev/shm.
  static ExchangeJob::Place machine() {
    return {{"unshare", "--mount", "sh", "-c", "mount -t tmpfs motley-bench /dev/shm && exec \"$@\"", "sh"}, ""};
  }

  Status compare_model(const Published& published) {
    const std::string name = fmt::format("{}-N{}-tcp-sharded", published.table, kRanks);
    MOTLEY_ASSIGN(const Model model, load_model(published));
    auto ours = ExchangeJob::start(options_, "ps-colocated", model.buckets, std::vector(kRanks, machine()));
    if (!ours) {
      rows_.left_out(name, ours.error().message);
      return {};
    }
    std::vector<ServerProcess> servers;
    for (int server = 0; server < kServersApart; ++server) {
      MOTLEY_ASSIGN(ServerProcess one, ServerProcess::start(options_, 1));
      servers.push_back(std::move(one));
    }
    MOTLEY_ASSIGN(ExchangeJob apart,
                  ExchangeJob::start(options_, "ps-tcp", model.buckets, std::vector<ExchangeJob::Place>(kRanks),
                                     ServerProcess::environment(servers)));
    std::vector<ExchangeJob> peers;
    std::vector<std::string> names;
    if (auto gloo = ExchangeJob::start_gloo_algorithms(kRanks, static_cast<std::size_t>(model.bytes)); gloo) {
      for (std::size_t i = 0; i < gloo->size(); ++i) {
        peers.push_back(std::move((*gloo)[i]));
        names.push_back(fmt::format("Gloo {}", kGlooAlgorithms[i]));
      }
    } else {
      rows_.left_out(name + " beside Gloo", gloo.error().message);
    }
    if (const auto program = built_peer("ps_lite_push_pull"); program) {
      MOTLEY_ASSIGN(ExchangeJob job, ExchangeJob::start_peer({*program, std::to_string(kRanks), std::to_string(kRanks),
                                                              fmt::format("{:.0f}", model.bytes)}));
      peers.push_back(std::move(job));
      names.emplace_back("ps-lite");
    } else {
      rows_.left_out(name + " beside ps-lite", program.error().message);
    }
    if (peers.empty()) return {};
    std::vector<double> seconds_apart;
    std::vector<std::vector<double>> seconds(peers.size());
    const auto run_peer = [&](int which) -> Result<double> {
      MOTLEY_ASSIGN(const double one, peers[static_cast<std::size_t>(which)].run("2 0"));
      seconds[static_cast<std::size_t>(which)].push_back(one);
      return one;
    };
    const auto run_ours = [&]() -> Result<double> {
      MOTLEY_ASSIGN(const double one, apart.run("round 0 2 0"));
      seconds_apart.push_back(one);
      return ours->run("round 0 2 0");
    };
    MOTLEY_ASSIGN(const Comparison comparison,
                  compare_with_best(options_.quick ? 3 : 9, run_ours, static_cast<int>(peers.size()), run_peer));
    std::string note = fmt::format(
        "of all workers together; a server in each worker's process, float32, {}; 2 (N - 1) times as many bytes as the "
        "model has go over one loopback, as in a ring; ours {:.3g} exchanges a second; with {} servers by themselves, "
        "over which 2 N times the bytes go, {:.3g}",
        format_bytes(model.bytes), kRanks / comparison.ours, kServersApart, kRanks / median(seconds_apart));
    for (std::size_t i = 0; i < peers.size(); ++i)
      note += fmt::format("; {} {:.3g}", names[i], kRanks / median(seconds[i]));
    rows_.add(name, "ratio_to_best_tcp_peer", 1 / comparison.ratio, "ratio", true, 1.0, {}, 1.0, note);
    return {};
  }

  const BenchOptions& options_;
  RowList rows_;
};

}  // namespace

Result<std::vector<BenchRow>> sharded_server_bench(const BenchOptions& options) {
  return ShardedServer(options).run();
}

Result<std::vector<BenchRow>> zero_compute_bench(const BenchOptions& options) {
  return ZeroCompute(options).run();
}

}  // namespace motley::bench
