#include "motley/scheduling/trace/workload.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "motley/base/random.h"

namespace motley::scheduling {
namespace {

constexpr double kSecondsADay = 86400;

// What an iteration takes on a V100, and what its gradient has in fp32. Times of ResNets, Transformer and LSTM are
// those of Gavel's table (Narayanan et al., OSDI 2020), of VGG-16 PipeDream's profile (SOSP 2019); sizes are those of
// the models' parameters. Restarts grow with what is to be loaded.
struct Model {
  double compute_seconds;
  double gradient_bytes;
  double restart_seconds;
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

double load_of(const std::vector<Job>& jobs, const Machines& machines) {
  const double asked = std::transform_reduce(jobs.begin(), jobs.end(), 0.0, std::plus<>(),
                                             [](const Job& job) { return job.device_seconds(); });
  return asked / (machines.devices() * (jobs.back().arrival - jobs.front().arrival));
}

void set_load(std::vector<Job>& jobs, const Machines& machines, double load) {
  const double factor = load_of(jobs, machines) / load;
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
    Elastic elastic;
    elastic.least = (job.workers + kFewer - 1) / kFewer;
    elastic.most = job.workers * kFewer;
    elastic.compute_seconds = model.compute_seconds;
    elastic.gradient_bytes = model.gradient_bytes;
    elastic.restart_seconds = model.restart_seconds;
    job.elastic = elastic;
  }
}

}  // namespace motley::scheduling
