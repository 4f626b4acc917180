// Whole steps of real networks by `motley train` whose ranks stand behind links of 1 Gb/s, beside PyTorch's DDP on the
// same links. All workers compute on this machine's few cores at once, with one thread each; both sides do. Images are
// small (64 x 64), so that computation does not hide the exchange.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "bench/namespaced_job.h"
#include "bench/network_namespaces.h"
#include "bench/ps_groups.h"
#include "bench/temporary_folder.h"
#include "motley/base/os/file.h"
#include "motley/base/random.h"
#include "motley/base/units.h"
#include "motley/net/session.h"
#include "motley/train/records/metrics.h"

namespace motley::bench {
namespace {

constexpr int kRanks = 4;
constexpr int kSteps = 20;
constexpr int kFewSteps = 5;     // where a step takes long
constexpr int kSettledStep = 2;  // before the first that counts
constexpr int kStreams = 5;      // plain ones, of whose times the median counts
constexpr int kImages = 64;
constexpr int kSide = 64;
constexpr double kRunSeconds = 560;

struct Network {
  const char* name;
  double bytes;     // of its weights with 1000 classes and images of one channel
  int samples;      // a rank and step
  int alone_steps;  // that computation alone is measured over
};
constexpr Network kVgg11 = {"vgg11", 531.4e6, 1, kFewSteps};
constexpr Network kResNet18 = {"resnet18", 46.7e6, 2, kSteps};  // one sample is too few for its normalisation

// Medians over the steps that count.
struct Times {
  double step = 0;
  double forward = 0;  // of the slowest rank
  double compute = 0;  // forward and backward of the slowest rank
};

class PsTrain {
 public:
  PsTrain(const BenchOptions& options, std::filesystem::path folder)
      : options_(options), rows_(options), folder_(std::move(folder)) {}

  Result<std::vector<BenchRow>> run() {
    MOTLEY_TRY(write_inputs());
    {
      MOTLEY_TRY(connect(1));
      if (!network_) return rows_.take();
      MOTLEY_TRY(against_bound(kResNet18));
      MOTLEY_ASSIGN(const Times ours, against_bound(kVgg11));
      MOTLEY_TRY(against_ddp(ours));
    }
    MOTLEY_TRY(connect(0));
    MOTLEY_ASSIGN(const Times shaped, train(kVgg11, kFewSteps, "float32", true));
    rows_.add("train-vgg11-netns", "step_seconds_server_shaped", shaped.step, "s", false, {},
              kRanks * kVgg11.bytes / kLinkBytesPerSecond, {},
              "the server behind 1 Gb/s, too; limit: four models over its link");
    return rows_.take();
  }

 private:
  // Ranks behind shaped links, and the last place for the server.
  Status connect(int unshaped) {
    network_.reset();
    places_.clear();
    auto network = NetworkNamespaces::create(kRanks + 1 - unshaped, kLinkBytesPerSecond, unshaped);
    if (!network) {
      rows_.left_out("train-vgg11-netns and train-resnet18-netns", network.error().message);
      return {};
    }
    network_ = std::move(*network);
    for (int at = 0; at <= kRanks; ++at) places_.push_back({network_->host_prefix(at), network_->address(at)});
    return {};
  }

  // Images and classes as IDX files; the values do not matter.
  Status write_inputs() const {
    const auto header = [](std::vector<int> sizes) {
      std::string text{'\0', '\0', '\x08', static_cast<char>(sizes.size())};
      for (const int size : sizes) text += {'\0', '\0', static_cast<char>(size >> 8), static_cast<char>(size)};
      return text;
    };
    Random random(1);
    std::string images = header({kImages, kSide, kSide});
    for (int value = 0; value < kImages * kSide * kSide; ++value) images += static_cast<char>(random.below(256));
    std::string classes = header({kImages});
    for (int image = 0; image < kImages; ++image) classes += static_cast<char>(random.below(10));
    MOTLEY_TRY(write_file(folder_ / "images", images));
    MOTLEY_TRY(write_file(folder_ / "classes", classes));
    std::string hosts;
    for (int rank = 0; rank < kRanks; ++rank) hosts += fmt::format("10.77.0.{}:29400\n", rank + 1);
    return write_file(folder_ / "hosts", hosts);
  }

  Result<Times> train(const Network& network, int steps, const std::string& wire, bool overlap) {
    MOTLEY_ASSIGN(const ServerProcess server, ServerProcess::start(options_, kServerCores, places_[kRanks]));
    const std::filesystem::path run = folder_ / "run";
    const std::filesystem::path job = folder_ / "job.yaml";
    MOTLEY_TRY(write_file(
        job,
        fmt::format(
            "name: bench-train\nmodel:\n  name: {}\n  outputs: 1000\ndata:\n  name: idx\n  train: images\n"
            "  train_targets: classes\nglobal_batch_size: {}\nsteps: {}\nworkers: {}\nbatch_split:\n  mode: equal\n"
            "optimizer:\n  learning_rate: 0.001\ngradient_sync:\n  method: parameter-server\n  servers: {}\n  "
            "comm_dtype: {}\n"
            "  overlap: {}\ncheckpoint:\n  every: 0\nevaluate:\n  every_epochs: -1\ndeadline:\n  join: 120s\n"
            "  step: 120s\n",
            network.name, network.samples * kRanks, steps, kRanks, server.address(), wire, overlap)));
    std::vector<std::string> environment = server.environment();
    MOTLEY_TRY(net::Secret::generate().write(folder_ / "secret"));
    environment.push_back(fmt::format("{}={}", net::kSecretFileVariable, (folder_ / "secret").string()));
    std::vector<std::unique_ptr<ChildProcess>> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
      std::vector<std::string> command = places_[static_cast<std::size_t>(rank)].prefix;
      for (const std::string& word :
           {options_.motley.string(), std::string("train"), job.string(), std::string("--run-directory"), run.string(),
            std::string("--overwrite"), std::string("--quiet"), std::string("--hosts"), (folder_ / "hosts").string(),
            std::string("--rank"), std::to_string(rank)}) {
        command.push_back(word);
      }
      MOTLEY_ASSIGN(auto process, ChildProcess::start(command, environment));
      ranks.push_back(std::move(process));
    }
    const Deadline deadline = Deadline::after(kRunSeconds);
    for (const auto& rank : ranks) MOTLEY_TRY(rank->finish(deadline));
    return read_times(run, steps);
  }

  static Result<Times> read_times(const std::filesystem::path& run, int steps) {
    MOTLEY_ASSIGN(const train::Metrics metrics, train::read_metrics(run / "metrics.jsonl"));
    std::vector<double> step_seconds;
    std::vector<double> compute_seconds;
    const std::int64_t last = metrics.steps.empty() ? 0 : metrics.steps.back().step;
    for (const train::StepMetrics& line : metrics.steps) {
      if (line.step <= kSettledStep) continue;
      step_seconds.push_back(line.step_seconds);
      compute_seconds.push_back(std::ranges::max(line.compute_seconds));
    }
    if (last != steps) return fail(ErrorCode::kInternal, "the job ended after {} of {} steps", last, steps);
    MOTLEY_ASSIGN(const double forward, slowest_forward(run / "logs", steps));
    return Times{median(step_seconds), forward, median(compute_seconds)};
  }

  // From the ranks' own records of what they did when.
  static Result<double> slowest_forward(const std::filesystem::path& logs, int steps) {
    std::vector<double> slowest(static_cast<std::size_t>(steps) + 1);
    for (int rank = 0; rank < kRanks; ++rank) {
      MOTLEY_ASSIGN(const std::string text, read_file(logs / fmt::format("timeline-rank-{}.json", rank)));
      const auto json = nlohmann::json::parse(text);
      for (const auto& span : json.at("spans")) {
        const int step = span.at(1);
        if (span.at(0) != "forward" || step > steps) continue;
        double& most = slowest[static_cast<std::size_t>(step)];
        most = std::max(most, span.at(3).get<double>() - span.at(2).get<double>());
      }
    }
    return median({slowest.begin() + kSettledStep + 1, slowest.end()});
  }

  // Nothing can be sent before the first gradient, which comes after the forward pass.
  Result<Times> against_bound(const Network& network) {
    MOTLEY_ASSIGN(const Times ours, train(network, kSteps, "float32", true));
    MOTLEY_ASSIGN(const Times alone, train(network, network.alone_steps, "float32", false));
    MOTLEY_ASSIGN(ExchangeJob streams,
                  ExchangeJob::start(options_, "tcp-ring", "4096", {places_.begin(), places_.begin() + kRanks}));
    std::vector<double> stream_seconds(kStreams);
    for (double& seconds : stream_seconds) {
      MOTLEY_ASSIGN(seconds, streams.run(fmt::format("stream {:.0f}", network.bytes)));
    }
    const double stream = median(stream_seconds);
    const double bound = std::max(alone.compute, alone.forward + stream);
    rows_.add(
        fmt::format("train-{}-netns", network.name), "share_of_bound", bound / ours.step, "", true, 0.93, 1.0, {},
        fmt::format("{} a step of {} x {} samples; computation alone {}, {} of it forward, a plain stream of {} {}; "
                    "bound: forward, and the stream; 1 Gb/s, the server's link unshaped",
                    format_seconds(ours.step), kRanks, network.samples, format_seconds(alone.compute),
                    format_seconds(alone.forward), format_bytes(network.bytes), format_seconds(stream)));
    return ours;
  }

  Result<double> ddp_step(const std::string& wire) const {
    return run_peer_in_namespaces(options_, *network_, kRanks, "ddp_train.py",
                                  {std::to_string(kSteps), std::to_string(kVgg11.samples), wire});
  }

  Status against_ddp(const Times& float32) {
    MOTLEY_ASSIGN(const Times bfloat16, train(kVgg11, kSteps, "bfloat16", true));
    const auto add = [&](const std::string& metric, const std::string& wire, const char* remark,
                         double ours) -> Status {
      MOTLEY_ASSIGN(const double peer, ddp_step(wire));
      rows_.add("train-vgg11-netns", metric, peer / ours, "", true, 1.25, {}, 1.0,
                fmt::format("{} a step, PyTorch's DDP on Gloo {}; {} on the wire of both{}", format_seconds(ours),
                            format_seconds(peer), wire, remark));
      return {};
    };
    MOTLEY_TRY(add("speedup_over_ddp_fp32", "fp32", "", float32.step));
    return add("speedup_over_ddp_bf16_hook", "bf16", "; DDP asks for NCCL by the hook's name, which is passed by here",
               bfloat16.step);
  }

  const BenchOptions& options_;
  RowList rows_;
  const std::filesystem::path folder_;
  std::unique_ptr<NetworkNamespaces> network_;
  std::vector<ExchangeJob::Place> places_;
};

}  // namespace

Result<std::vector<BenchRow>> ps_train_rows(const BenchOptions& options) {
  if (options.quick) {
    RowList(options).left_out("train-vgg11-netns and train-resnet18-netns", "they take minutes");
    return std::vector<BenchRow>();
  }
  MOTLEY_ASSIGN(const TemporaryFolder folder, TemporaryFolder::create());
  return PsTrain(options, folder.path()).run();
}

}  // namespace motley::bench
