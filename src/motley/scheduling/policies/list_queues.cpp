// What SJF-BCO is compared with: each job in the order of arrivals gets devices by one rule, whatever the contention.
#include <algorithm>
#include <numeric>

#include "motley/base/random.h"
#include "motley/scheduling/policies/device_queues.h"
#include "motley/scheduling/policies/policies.h"

namespace motley::scheduling {
namespace {

std::size_t index(int number) {
  return static_cast<std::size_t>(number);
}

class ListQueues : public DeviceQueues {
 protected:
  // A number for each device; those with the least are taken.
  virtual std::vector<double> ranks(const std::vector<double>& use) = 0;

  Queues plan(const QueueInput& input) final {
    std::vector<double> use = use_so_far(input);
    Queues queues;
    for (const int job : input.waiting) {
      const std::vector<double> rank = ranks(use);
      std::vector<int> devices(use.size());
      std::iota(devices.begin(), devices.end(), 0);
      std::ranges::stable_sort(devices, {}, [&](int device) { return rank[index(device)]; });
      devices.resize(index(input.state.job(job).workers));
      double ready = 0;
      for (const int device : devices) ready = std::max(ready, use[index(device)]);
      for (const int device : devices) use[index(device)] = ready + input.state.left_seconds(job);
      queues.add(job, std::move(devices));
    }
    return queues;
  }
};

class ListScheduling final : public ListQueues {
 public:
  std::string name() const override { return "list-scheduling"; }

 protected:
  std::vector<double> ranks(const std::vector<double>& use) override { return use; }
};

class RandomDevices final : public ListQueues {
 public:
  std::string name() const override { return "random-devices"; }

 protected:
  std::vector<double> ranks(const std::vector<double>& use) override {
    std::vector<double> ranks;
    for (std::size_t i = 0; i < use.size(); ++i) ranks.push_back(random_.uniform());
    return ranks;
  }

 private:
  Random random_{0};
};

}  // namespace

std::unique_ptr<Policy> make_list_scheduling(const PolicyOptions&) {
  return std::make_unique<ListScheduling>();
}

std::unique_ptr<Policy> make_random_devices(const PolicyOptions&) {
  return std::make_unique<RandomDevices>();
}

}  // namespace motley::scheduling
