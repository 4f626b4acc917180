// Thousands of small jobs are submitted to a service that is killed (SIGKILL) at random moments and started again. A
// client that got no answer asks again. Each job writes its name into a file: every job that was acknowledged must be
// there once.
#include "bench/serve_bench.h"

#include <atomic>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "bench/child_process.h"
#include "bench/row_list.h"
#include "motley/base/clock.h"
#include "motley/base/random.h"
#include "motley/scheduling/service/client.h"

namespace motley::bench {
namespace {

using Json = scheduling::Client::Json;

constexpr int kBatch = 100;  // jobs in a request
constexpr double kMaxSeconds = 900;

class Killed {
 public:
  Killed(const BenchOptions& options, int jobs, int kills)
      : options_(options), jobs_(jobs), kills_(kills), deadline_(Deadline::after(kMaxSeconds)) {
    std::string name = (std::filesystem::temp_directory_path() / "motley-serve-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~Killed() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  Result<std::vector<BenchRow>> run() {
    RowList rows(options_);
    const double begin = monotonic_seconds();
    Status killing;
    std::thread killer([&] { killing = kill_again_and_again(); });
    const Status submitted = submit();
    const double submit_seconds = monotonic_seconds() - begin;
    const Status ended = submitted ? wait_for_all() : Status();
    const double seconds = monotonic_seconds() - begin;
    has_given_up_ = !submitted || !ended;
    killer.join();
    MOTLEY_TRY(submitted);
    MOTLEY_TRY(ended);
    MOTLEY_TRY(killing);
    MOTLEY_TRY(wait_for_all());  // after the last kill
    MOTLEY_ASSIGN(const int wrong, lost_or_doubled());
    service_.reset();
    rows.add(fmt::format("{}-jobs-{}-kills", jobs_, kills_), "lost_or_doubled", wrong, "jobs", false, 0, {}, {},
             fmt::format("submitted in {:.0f} s, all done in {:.0f} s; {} kills while jobs were not done; {} requests "
                         "repeated",
                         submit_seconds, seconds, kills_at_work_.load(), repeated_));
    return rows.take();
  }

 private:
  Status start() {
    MOTLEY_ASSIGN(service_,
                  ChildProcess::start({options_.motley.string(), "schedule", "serve", "--state-dir", folder_.string(),
                                       "--cluster", "4x8", "--listen", "127.0.0.1:0", "--policy", "fifo", "--quiet"}));
    return {};
  }

  Status kill_again_and_again() {
    Random random(1);
    MOTLEY_TRY(start());
    for (int kill = 0; kill < kills_ && !has_given_up_; ++kill) {
      SteadyClock::instance().sleep_until(monotonic_seconds() + 0.2 + 3 * random.uniform());
      if (!are_done_) ++kills_at_work_;
      service_->kill();
      MOTLEY_TRY(start());
    }
    return {};
  }

  // Asks until there is an answer.
  Result<Json> ask(const std::string& path, const std::string& body) {
    while (true) {
      auto client = scheduling::Client::of(folder_);
      if (client) {
        auto answer = body.empty() ? client->get(path) : client->post(path, body);
        if (answer || answer.error().code == ErrorCode::kInvalidInput) return answer;
      }
      if (deadline_.passed()) {
        return fail(ErrorCode::kTimeout, "the service did not answer within {} s", kMaxSeconds);
      }
      ++repeated_;
      SteadyClock::instance().sleep_until(monotonic_seconds() + 0.05);
    }
  }

  Status submit() {
    const std::string ran = (folder_ / "ran").string();
    for (int first = 0; first < jobs_; first += kBatch) {
      Json jobs = Json::array();
      for (int i = first; i < std::min(jobs_, first + kBatch); ++i) {
        jobs.push_back({{"name", fmt::format("job{}", i)},
                        {"command", {"sh", "-c", "echo $MOTLEY_JOB >> " + ran}},
                        {"directory", "/"},
                        {"workers", 1},
                        {"estimated_duration", 1},
                        {"restart_cost", 0},
                        {"grace_period", 30}});
      }
      MOTLEY_TRY(ask("/v1/jobs", Json{{"jobs", jobs}}.dump()));
    }
    return {};
  }

  Status wait_for_all() {
    while (true) {
      std::size_t open = 0;
      for (const char* state : {"pending", "running", "stopping"}) {
        MOTLEY_ASSIGN(const Json answer, ask(std::string("/v1/jobs?state=") + state, ""));
        open += answer["jobs"].size();
      }
      if (open == 0) break;
      if (deadline_.passed()) {
        return fail(ErrorCode::kTimeout, "{} jobs were not done within {} s", open, kMaxSeconds);
      }
      SteadyClock::instance().sleep_until(monotonic_seconds() + 0.5);
    }
    are_done_ = true;
    return {};
  }

  Result<int> lost_or_doubled() {
    std::map<std::string, int> ran;
    std::ifstream file(folder_ / "ran");
    for (std::string line; std::getline(file, line);) ++ran[line];
    MOTLEY_ASSIGN(const Json done, ask("/v1/jobs?state=completed", ""));
    std::map<std::string, int> known;
    for (const Json& job : done["jobs"]) ++known[job["name"].get<std::string>()];
    int wrong = 0;
    for (int i = 0; i < jobs_; ++i) {
      const std::string name = fmt::format("job{}", i);
      if (ran[name] != 1 || known[name] != 1) ++wrong;
    }
    return wrong;
  }

  const BenchOptions& options_;
  const int jobs_, kills_;
  const Deadline deadline_;
  std::filesystem::path folder_;
  std::unique_ptr<ChildProcess> service_;
  std::atomic<bool> are_done_ = false, has_given_up_ = false;
  std::atomic<int> kills_at_work_ = 0;
  int repeated_ = 0;
};

}  // namespace

Result<std::vector<BenchRow>> serve_bench(const BenchOptions& options) {
  return options.quick ? Killed(options, 500, 3).run() : Killed(options, 10000, 20).run();
}

}  // namespace motley::bench
