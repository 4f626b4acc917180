// SJF-BCO (Yu, Ji, Rajan, Liu, MobiHoc 2022, algorithms 1 to 3) for the least makespan of jobs with fixed numbers of
// workers.
//
// Jobs are taken by their number of workers, fewest first. One that asks for at most kappa gets the least used of all
// devices; a larger one the least used devices of as few servers as have enough of them, those with least use on
// average first, so that few rings meet. A device may be used no longer than a limit. For every kappa the limit is
// bisected to the least at which all jobs find devices, and the queues with the least makespan are kept: here of those
// that the simulator itself foresees, contention included.
#include <algorithm>
#include <numeric>

#include "motley/scheduling/policies/device_queues.h"
#include "motley/scheduling/policies/policies.h"

namespace motley::scheduling {
namespace {

constexpr int kBisections = 20;

std::size_t index(int number) {
  return static_cast<std::size_t>(number);
}

class SjfBco final : public DeviceQueues {
 public:
  std::string name() const override { return "sjf-bco"; }

 protected:
  Queues plan(const QueueInput& input) override {
    std::vector<int> order = input.waiting;
    std::ranges::stable_sort(order, {}, [&](int job) { return input.state.job(job).workers; });
    Queues best;
    double best_makespan = std::numeric_limits<double>::infinity();
    std::vector<int> kappas = {0};
    for (const int job : order) {
      if (input.state.job(job).workers != kappas.back()) kappas.push_back(input.state.job(job).workers);
    }
    for (const int kappa : kappas) {
      std::optional<Queues> queues = with_least_limit(input, order, kappa);
      const double makespan = makespan_of(input, *queues);
      if (makespan < best_makespan) {
        best_makespan = makespan;
        best = std::move(*queues);
      }
    }
    return best;
  }

 private:
  static std::optional<Queues> with_least_limit(const QueueInput& input, const std::vector<int>& order, int kappa) {
    double high = std::ranges::max(use_so_far(input));
    double low = 0;
    for (const int job : order) {
      high += input.state.left_seconds(job);
      low = std::max(low, input.state.left_seconds(job));
    }
    std::optional<Queues> queues = within(input, order, kappa, high);
    for (int step = 0; step < kBisections; ++step) {
      const double limit = (low + high) / 2;
      if (std::optional<Queues> found = within(input, order, kappa, limit)) {
        queues = std::move(found);
        high = limit;
      } else {
        low = limit;
      }
    }
    return queues;
  }

  // Nothing where a job does not find enough devices within the limit.
  static std::optional<Queues> within(const QueueInput& input, const std::vector<int>& order, int kappa, double limit) {
    std::vector<double> use = use_so_far(input);
    Queues queues;
    for (const int job : order) {
      const double seconds = input.state.left_seconds(job);
      const int workers = input.state.job(job).workers;
      std::vector<int> devices = workers <= kappa ? all_devices(input) : on_few_servers(input, use, workers);
      std::erase_if(devices, [&](int device) { return use[index(device)] + seconds > limit; });
      if (static_cast<int>(devices.size()) < workers) return std::nullopt;
      std::ranges::stable_sort(devices, {}, [&](int device) { return use[index(device)]; });
      devices.resize(index(workers));
      for (const int device : devices) use[index(device)] += seconds;
      queues.add(job, std::move(devices));
    }
    return queues;
  }

  static std::vector<int> all_devices(const QueueInput& input) {
    std::vector<int> devices(input.server_of.size());
    std::iota(devices.begin(), devices.end(), 0);
    return devices;
  }

  static std::vector<int> on_few_servers(const QueueInput& input, const std::vector<double>& use, int workers) {
    const std::vector<Server>& servers = input.state.machines->servers;
    std::vector<double> mean(servers.size());
    for (std::size_t device = 0; device < use.size(); ++device) {
      const int server = input.server_of[device];
      mean[index(server)] += use[device] / servers[index(server)].devices;
    }
    std::vector<int> order(servers.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, {}, [&](int server) { return mean[index(server)]; });
    std::vector<char> is_chosen(servers.size());
    int count = 0;
    for (auto server = order.begin(); count < workers && server != order.end(); ++server) {
      is_chosen[index(*server)] = 1;
      count += servers[index(*server)].devices;
    }
    std::vector<int> devices = all_devices(input);
    std::erase_if(devices, [&](int device) { return is_chosen[index(input.server_of[index(device)])] == 0; });
    return devices;
  }
};

}  // namespace

std::unique_ptr<Policy> make_sjf_bco(const PolicyOptions&) {
  return std::make_unique<SjfBco>();
}

}  // namespace motley::scheduling
