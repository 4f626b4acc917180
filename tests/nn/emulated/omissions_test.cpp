// Every wait, event and pin by which gradients and copies keep order with a device is needed: each that is left out is
// found, in every run.
#include "motley/nn/emulated/omissions.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <torch/torch.h>

#include <deque>
#include <map>
#include <numeric>

#include "motley/nn/emulated/emulated_accelerator.h"
#include "motley/nn/gradients/device_copy.h"
#include "motley/nn/gradients/gradient_buckets.h"
#include "motley/nn/runtime.h"

namespace motley::nn::emulated {
namespace {

constexpr std::int64_t kRows = 64;  // whole pages
constexpr std::int64_t kColumns = 256;
volatile int rounds = 2;  // so that the compiler makes no copies of a loop's body, each of which would be a place

class Omissions : public ::testing::Test {
 protected:
  void SetUp() override { runtime().collect_violations(true); }
  void TearDown() override {
    omit_place(nullptr);
    note_places(false);
    settle();
  }

  std::vector<std::string> settle() {
    for (int device = 0; device < 2; ++device) runtime().synchronize_device(device);
    return runtime().take_violations();
  }

  // What is found in one run of this work. Places are told apart by their nearest callers, which are the same in all
  // runs.
  template <class Work>
  [[gnu::noinline]] std::vector<std::string> run(const Work& work) {
    perform(work);
    return settle();
  }
  template <class Work>
  [[gnu::noinline]] void perform(const Work& work) {
    try {
      work(device_);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }

  // Leaves out one place after the other, and returns those that were not found in each of so many runs.
  template <class Work>
  std::vector<std::string> find_missed(const Work& work, std::map<Order, int>& places, int runs) {
    EXPECT_THAT(run(work), ::testing::IsEmpty()) << "nothing is left out";
    note_places(true);
    run(work);
    const std::vector<Place> all = noted_places();
    note_places(false);
    std::vector<std::string> missed;
    for (const Place& place : all) {
      ++places[place.order];
      omit_place(&place);
      for (int i = 0; i < runs; ++i) {
        if (run(work).empty()) {
          missed.push_back(place.text());
          break;
        }
      }
      omit_place(nullptr);
    }
    return missed;
  }

  const torch::Device device_{"emulated:0"};
};

// Values go to the device, are computed with and come back, several at a time; memory is let go as early as it may be.
void copy_beside_computation(torch::Device device) {
  const DeviceCopies copies = *DeviceCopies::create(device);
  std::deque<DeviceCopies::Arriving> arriving;
  for (int i = 0; i < 4; ++i) {
    torch::Tensor host = *copies.host_memory({kRows, kColumns}, torch::kFloat32);
    host.fill_(i);
    const torch::Tensor values = *copies.to_device(host) + 1;
    arriving.push_back(*copies.to_host(values));
  }
  EXPECT_TRUE(arriving.front().wait());
  arriving.front().values.sum();
  arriving.pop_front();
  while (!*arriving.back().has_come()) continue;
  arriving.back().values.sum();
}

// Blocks of memory are filled on the device, each of which the host writes again once it has been read.
void fill_beside_computation(torch::Device device) {
  const DeviceCopies copies = *DeviceCopies::create(device);
  torch::Tensor host = *copies.host_memory({kRows, kColumns}, torch::kFloat32);
  const c10::impl::VirtualGuardImpl guard(device.type());
  for (int i = 0; i < rounds; ++i) {
    host.fill_(i);
    torch::Tensor into = torch::empty({kRows, kColumns}, torch::device(device));
    guard.synchronizeStream(guard.getStream(device));
    EXPECT_TRUE(copies.fill({{host, into}}, [] {}));
    const auto filled = *copies.filled();
    into = torch::Tensor();
    filled->synchronize();
  }
  host.fill_(0);
}

// Two steps of training, in which the exchange writes other gradients into its memory, and one that is given up.
void train(torch::Device device, std::span<std::byte> memory) {
  torch::nn::Linear first(kColumns, kRows), second(kRows, kColumns);
  NamedTensors parameters;
  for (auto module : {first, second}) {
    module->to(device);
    for (const auto& named : module->named_parameters()) parameters.push_back({named.key(), named.value()});
  }
  const auto buckets = *GradientBuckets::create(parameters, kRows * kColumns * sizeof(float));
  std::vector<std::span<std::byte>> spans;
  for (const std::size_t elements : buckets->bucket_elements()) {
    spans.push_back(memory.subspan(0, elements * sizeof(float)));
    memory = memory.subspan(elements * sizeof(float));
  }
  ASSERT_TRUE(buckets->bind(spans));
  torch::optim::SGD optimizer(second->parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    buckets->zero();
    buckets->arm([&](int bucket) -> Status {
      if (step == 2) return fail(ErrorCode::kInterrupted, "the step is given up");
      auto* const values = reinterpret_cast<float*>(spans[static_cast<std::size_t>(bucket)].data());
      const auto count = spans[static_cast<std::size_t>(bucket)].size() / sizeof(float);
      for (std::size_t i = 0; i < count; ++i) values[i] *= 0.5F;
      return {};
    });
    const torch::Tensor inputs = torch::randn({8, kColumns}).to(device);
    second->forward(first->forward(inputs)).square().sum().backward();
    ASSERT_EQ(buckets->flush().has_value(), step < 2);
    if (step == 2) break;
    for (int bucket = 0; bucket < buckets->count(); ++bucket) ASSERT_TRUE(buckets->fetch(bucket));
    optimizer.step();
  }
}

void train_in_private_memory(torch::Device device) {
  std::vector<std::byte> memory(1 << 20);
  train(device, memory);
}

void train_in_shared_memory(torch::Device device) {
  constexpr std::size_t kBytes = 1 << 20;
  void* const memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  train(device, {static_cast<std::byte*>(memory), kBytes});
  ::munmap(memory, kBytes);
}

TEST_F(Omissions, AreFoundInEveryRun) {
  std::map<Order, int> places;
  for (const auto work :
       {copy_beside_computation, fill_beside_computation, train_in_private_memory, train_in_shared_memory}) {
    EXPECT_THAT(find_missed(work, places, 2), ::testing::IsEmpty());
  }
  for (const Order order :
       {Order::kWait, Order::kRecord, Order::kSynchronize, Order::kQuery, Order::kRecordStream, Order::kPin}) {
    EXPECT_GT(places[order], 0) << static_cast<int>(order);
  }
}

TEST_F(Omissions, HavePlacesThatAreReadBack) {
  const auto place = Place::parse("record_stream:1f00ba");
  ASSERT_TRUE(place);
  EXPECT_EQ(place->order, Order::kRecordStream);
  EXPECT_EQ(place->text(), "record_stream:1f00ba");
  EXPECT_FALSE(Place::parse("wait"));
  EXPECT_FALSE(Place::parse("hope:1"));
  EXPECT_FALSE(Place::parse("wait:xyz"));
}

}  // namespace
}  // namespace motley::nn::emulated
