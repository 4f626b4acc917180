// Rows of a click network behind a slow link: CTRDNN trained with everything that saves bytes or waiting, and with all
// but one of it; and batches pulled and pushed at once, or category by category, or with every look-up sent.
#include <cmath>
#include <nlohmann/json.hpp>
#include <thread>
#include <unordered_map>

#include "bench/namespaced_job.h"
#include "bench/pipeline_bench.h"
#include "bench/row_list.h"
#include "bench/server_process.h"
#include "bench/temporary_folder.h"
#include "motley/base/clock.h"
#include "motley/base/os/file.h"
#include "motley/base/random.h"
#include "motley/base/units.h"
#include "motley/collective/sparse_client.h"
#include "motley/data/local/clicks.h"

namespace motley::bench {
namespace {

constexpr double kLink = 50e6 / 8;  // bytes a second, each way
constexpr std::uint32_t kSamples = 100'000;
constexpr std::uint64_t kValues = 200'000;
constexpr std::uint32_t kBatch = 512;
constexpr std::size_t kDimension = 16;
constexpr double kSeconds = 60;  // that anything of a client may take

// Everything, and what is left out of it.
struct Variant {
  std::string name;
  std::vector<std::string> flags;
};
const std::vector<Variant> kVariants = {{"full", {}},
                                        {"no prefetch", {"--tables.prefetch", "false"}},
                                        {"no cache", {"--tables.cache_rows", "0", "--tables.cache_steps", "0"}},
                                        {"float32", {"--tables.wire", "float32"}},
                                        {"int8", {"--tables.wire", "int8"}}};

// What the runs of a variant gave.
struct Runs {
  std::vector<double> seconds;  // a step, by round
  double bytes = 0;             // of rows, a step
  double auc = 0;
  std::string note;  // of its summary, where rows came from
};

class RowsBench {
 public:
  RowsBench(const BenchOptions& options, const NetworkNamespaces& network, std::filesystem::path folder)
      : options_(options), network_(network), folder_(std::move(folder)), rows_(options) {}

  Result<std::vector<BenchRow>> run() {
    MOTLEY_ASSIGN(auto server, ServerProcess::start(options_, 1, {network_.prefix(1), network_.address(1)},
                                                    {"--tables", (folder_ / "tables").string()}));
    server_.emplace(std::move(server));
    MOTLEY_TRY(train());
    MOTLEY_TRY(exchange_batches());
    return rows_.take();
  }

 private:
  Status train() {
    const int rounds = options_.quick ? 1 : 3;
    const int steps = options_.quick ? 60 : 120;
    for (int round = 0; round < rounds; ++round) {
      for (const Variant& variant : kVariants) MOTLEY_TRY(train_once(variant, steps));
    }
    const std::string ran = fmt::format(
        "CTRDNN, one worker and the server behind links of 50 Mb/s emulated with htb, {} steps of {} samples, rows of "
        "{}, median of {} alternating runs; full set: prefetch, 50,000 rows cached for up to 8 steps (so rows asked "
        "ahead lack the step under way), bfloat16",
        steps, kBatch, kDimension, rounds);
    compare("rows-prefetch", "full", "no prefetch", ran);
    compare("rows-cache", "full", "no cache", ran);
    compare("rows-compression-bfloat16", "full", "float32", ran);
    compare("rows-compression-int8", "int8", "float32", ran);
    return {};
  }

  Status train_once(const Variant& variant, int steps) {
    std::vector<std::string> flags = {"--data.samples",
                                      std::to_string(kSamples),
                                      "--data.values",
                                      std::to_string(kValues),
                                      "--batch",
                                      std::to_string(kBatch),
                                      "--steps",
                                      std::to_string(steps),
                                      "--tables.rows",
                                      "0",
                                      "--tables.dimension",
                                      std::to_string(kDimension),
                                      "--log_level",
                                      "warn",
                                      "--threads",
                                      "1"};
    std::vector<std::pair<std::string, std::string>> full = {
        {"--tables.wire", "bfloat16"}, {"--tables.cache_rows", "50000"}, {"--tables.cache_steps", "8"}};
    for (std::size_t i = 0; i < variant.flags.size(); i += 2) {
      std::erase_if(full, [&](const auto& flag) { return flag.first == variant.flags[i]; });
      full.emplace_back(variant.flags[i], variant.flags[i + 1]);
    }
    for (const auto& [key, value] : full) flags.insert(flags.end(), {key, value});
    MOTLEY_ASSIGN(
        const std::vector<double> seconds,
        train_in_namespaces(options_, network_, folder_, 1, options_.source_folder / "examples/clicks/job.yaml", flags,
                            server_->environment()));
    Runs& runs = runs_[variant.name];
    runs.seconds.push_back(median({seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 4), seconds.end()}));
    MOTLEY_ASSIGN(const std::string summary, read_file(folder_ / "run/summary.json"));
    for (const auto& row : nlohmann::json::parse(summary)) {
      if (row["metric"] == "test_auc") runs.auc = row["value"];
      if (row["metric"] == "row_bytes_per_step") {
        runs.bytes = row["value"];
        runs.note = row["note"];
      }
    }
    rows_.say(fmt::format("{}: {} a step, {} of rows, AUC {:.4f}", variant.name, format_seconds(runs.seconds.back()),
                          format_bytes(runs.bytes), runs.auc));
    return {};
  }

  void compare(const std::string& row, const std::string& with, const std::string& without, const std::string& ran) {
    const Runs& on = runs_.at(with);
    const Runs& off = runs_.at(without);
    std::vector<double> ratios;
    for (std::size_t i = 0; i < on.seconds.size(); ++i) ratios.push_back(off.seconds[i] / on.seconds[i]);
    rows_.add(row, "speedup", median(ratios), "ratio", true, {}, {}, {},
              fmt::format("{} a step; {}: {}; {}", format_seconds(median(on.seconds)), without,
                          format_seconds(median(off.seconds)), ran));
    rows_.add(row, "bytes_per_step", on.bytes, "bytes", false, {}, {}, {},
              fmt::format("of rows, on the wire; {}: {}; {}", without, format_bytes(off.bytes), on.note));
    rows_.add(row, "auc_difference", std::abs(on.auc - off.auc), "", false, {}, {}, {},
              fmt::format("test AUC {:.4f}; {}: {:.4f}", on.auc, without, off.auc));
  }

  // The client runs in a thread that alone is behind the worker's link.
  Status exchange_batches() {
    Status done;
    std::thread client([&] {
      done = [&]() -> Status {
        MOTLEY_TRY(network_.enter(0));
        return measure_client();
      }();
    });
    client.join();
    return done;
  }

  using Parts = std::vector<std::vector<std::uint64_t>>;  // a batch, by message

  struct Measured {
    double seconds = 0;  // a step
    double bytes = 0;
  };
  // `in_turn`: each part is waited for before the next one is asked for.
  Result<Measured> play(collective::SparseClient& client, const std::vector<Parts>& batches, bool in_turn) {
    const auto traffic = [&] { return client.traffic().pulled_bytes + client.traffic().pushed_bytes; };
    const std::uint64_t before = traffic();
    const double begin = monotonic_seconds();
    std::vector<float> values;
    for (const Parts& parts : batches) {
      std::vector<collective::SparseClient::Ticket> tickets;
      for (std::size_t i = 0; i < parts.size(); ++i) {
        while (tickets.size() < (in_turn ? i + 1 : parts.size())) {
          MOTLEY_ASSIGN(const auto ticket, client.start_pull(0, parts[tickets.size()], client.step()));
          tickets.push_back(ticket);
        }
        values.resize(parts[i].size() * kDimension);
        MOTLEY_TRY(client.wait(tickets[i], values, Deadline::after(kSeconds)));
      }
      for (const auto& ids : parts) {
        values.assign(ids.size() * kDimension, 0.01F);
        MOTLEY_TRY(client.push(0, ids, values, kBatch));
      }
      MOTLEY_TRY(client.finish_step(kBatch, Deadline::after(kSeconds)));
    }
    // The last push is done when a pull has seen it.
    values.resize(kDimension);
    MOTLEY_TRY(client.pull(0, std::span(batches[0][0]).first(1), values, Deadline::after(kSeconds)));
    const auto steps = static_cast<double>(batches.size());
    return Measured{(monotonic_seconds() - begin) / steps, static_cast<double>(traffic() - before) / steps};
  }

  Status measure_client() {
    MOTLEY_ASSIGN(const auto endpoint, net::parse_endpoint(server_->address()));
    const net::SessionOptions alone;
    MOTLEY_ASSIGN(const auto session, net::Session::join(alone, net::Secret::generate()));
    collective::SparseTableOptions table;
    table.dimension = kDimension;
    MOTLEY_ASSIGN(const auto client, collective::SparseClient::open(
                                         *session, {.servers = {{endpoint, ServerProcess::token()}}, .tables = {table}},
                                         Deadline::after(kSeconds)));
    const int steps = 8;
    MOTLEY_ASSIGN(const auto clicks, data::make_clicks({.samples = kBatch * steps, .rows = kValues}));
    std::vector<Parts> merged, by_category, repeated;
    for (std::uint32_t step = 0; step < steps; ++step) {
      std::vector<std::uint32_t> samples(kBatch);
      for (std::uint32_t i = 0; i < kBatch; ++i) samples[i] = step * kBatch + i;
      std::vector<float> features(kBatch * clicks->feature_count());
      std::vector<std::int64_t> classes(kBatch);
      std::vector<std::uint64_t> ids(kBatch * clicks->categories());
      MOTLEY_TRY(clicks->read(samples, {features, classes, {}, ids}));
      Parts categories(clicks->categories());
      std::vector<std::uint64_t> others = ids;
      std::unordered_map<std::uint64_t, std::uint64_t> seen;
      for (std::size_t i = 0; i < ids.size(); ++i) {
        categories[i % categories.size()].push_back(ids[i]);
        if (const std::uint64_t times = seen[ids[i]]++; times > 0) others[i] = mix({ids[i], times});
      }
      merged.push_back({ids});
      by_category.push_back(std::move(categories));
      repeated.push_back({std::move(others)});
    }
    std::vector<Measured> at_once, in_turn, together, undropped;
    for (int round = 0; round < (options_.quick ? 3 : 7); ++round) {
      for (const auto& [measured, batches, waits] : {std::tuple{&at_once, &merged, false},
                                                     {&in_turn, &by_category, true},
                                                     {&together, &by_category, false},
                                                     {&undropped, &repeated, false}}) {
        MOTLEY_ASSIGN(const Measured one, play(*client, *batches, waits));
        measured->push_back(one);
      }
    }
    const auto typical = [](const std::vector<Measured>& all) {
      std::vector<double> seconds;
      for (const Measured& one : all) seconds.push_back(one.seconds);
      return fmt::format("{} and {} a step", format_seconds(median(seconds)), format_bytes(all.back().bytes));
    };
    const auto add = [&](const std::string& row, const std::vector<Measured>& other, const std::string& what) {
      std::vector<double> ratios;
      for (std::size_t i = 0; i < other.size(); ++i) ratios.push_back(other[i].seconds / at_once[i].seconds);
      const std::string note = fmt::format(
          "rows of {} samples pulled and pushed, nothing computed, nothing ahead, float32, the same links: {}; {}",
          kBatch, typical(at_once), what);
      rows_.add(row, "speedup", median(ratios), "ratio", true, {}, {}, {}, note);
      rows_.add(row, "bytes_per_step", at_once.back().bytes, "bytes", false, {}, {}, {}, note);
    };
    add("rows-merging", in_turn,
        fmt::format(
            "a pull for each of the 26 categories, each waited for before the next: {}; all of them under way at "
            "once: {}",
            typical(in_turn), typical(together)));
    add("rows-repeated-ids", undropped,
        fmt::format("each look-up sent, repeats stood in for by other ids: {}", typical(undropped)));
    return {};
  }

  const BenchOptions& options_;
  const NetworkNamespaces& network_;
  const std::filesystem::path folder_;
  std::optional<ServerProcess> server_;
  std::unordered_map<std::string, Runs> runs_;
  RowList rows_;
};

}  // namespace

Result<std::vector<BenchRow>> pipeline_rows(const BenchOptions& options) {
  const auto network = NetworkNamespaces::create(2, kLink);
  if (!network) {
    RowList(options).left_out("rows-prefetch, rows-cache, rows-compression, rows-merging, rows-repeated-ids",
                              network.error().message);
    return std::vector<BenchRow>();
  }
  MOTLEY_ASSIGN(const TemporaryFolder folder, TemporaryFolder::create());
  return RowsBench(options, **network, folder.path()).run();
}

}  // namespace motley::bench
