// Two pinned threads, each with half of every array, take AdamW's step with our kernel and with PyTorch's, and pass
// over the same arrays with a plain stream of as many reads and writes, in turn. A pass takes the processor time of the
// thread that needed more: where others use the machine, it does not count how long a thread waited for a core.
#include "bench/server_adamw_bench.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <cmath>
#include <thread>

#include "bench/row_list.h"
#include "motley/base/os/memory.h"
#include "motley/base/units.h"
#include "motley/kernels/update.h"

namespace motley::bench {
namespace {

constexpr std::size_t kElements = 64 << 20;  // of each array, 256 MB: no cache holds them
constexpr std::size_t kSegment = 1 << 20;    // that a server's core takes at a time at most
constexpr int kThreads = 2;
constexpr double kBytes = 7.0 * sizeof(float);  // of an element: four are read and three written
constexpr kernels::UpdateOptions kAdamW = {.rule = kernels::UpdateRule::kAdamW,
                                           .learning_rate = 1e-3,
                                           .weight_decay = 1e-2,
                                           .beta1 = 0.9,
                                           .beta2 = 0.999,
                                           .epsilon = 1e-8,
                                           .step = 1};

double thread_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// A thread's half.
struct Half {
  float* gradient;
  float* weights;
  float* first;
  float* second;
  std::size_t count;
};

void take_our_step(const Half& half) {
  const float one = 1;
  for (std::size_t begin = 0; begin < half.count; begin += kSegment) {
    const kernels::WireInput input{half.gradient + begin};
    float* const state[] = {half.first + begin, half.second + begin};
    kernels::fused_update({&input, 1}, {&one, 1}, 1, kAdamW, half.weights + begin, state, nullptr,
                          kernels::WireFormat::kFloat32, std::min(kSegment, half.count - begin));
  }
}

void take_torch_step(const Half& half) {
  const at::NoGradGuard no_grad;
  const auto tensor = [&](float* values) { return at::from_blob(values, {static_cast<std::int64_t>(half.count)}); };
  const at::Tensor weights = tensor(half.weights);
  const at::Tensor gradient = tensor(half.gradient);
  const at::Tensor first = tensor(half.first);
  const at::Tensor second = tensor(half.second);
  const at::Tensor step = at::full({}, kAdamW.step);
  at::_fused_adamw_({weights}, {gradient}, {first}, {second}, {}, {step}, kAdamW.learning_rate, kAdamW.beta1,
                    kAdamW.beta2, kAdamW.weight_decay, kAdamW.epsilon, /*amsgrad=*/false, /*maximize=*/false);
}

#if defined(__x86_64__)
[[gnu::target_clones("avx512f", "avx2", "default")]]
#endif
void stream(const Half& half) {
  const float* __restrict gradient = half.gradient;
  float* __restrict weights = half.weights;
  float* __restrict first = half.first;
  float* __restrict second = half.second;
  for (std::size_t e = 0; e < half.count; ++e) {
    const float g = gradient[e];
    weights[e] += g;
    first[e] += g;
    second[e] += g;
  }
}

class ServerAdamW {
 public:
  explicit ServerAdamW(const BenchOptions& options) : rounds_(options.quick ? 11 : 31), rows_(options) {}

  Result<std::vector<BenchRow>> run() {
    for (Pages& pages : arrays_) {
      MOTLEY_ASSIGN(pages, Pages::allocate(kElements * sizeof(float), "an array of the optimizer's step"));
    }
    const int threads = at::get_num_threads();
    at::set_num_threads(1);  // of each of ours
    std::barrier barrier(kThreads);
    {
      std::vector<std::jthread> running;
      for (int thread = 0; thread < kThreads; ++thread) running.emplace_back([&, thread] { work(thread, barrier); });
    }
    at::set_num_threads(threads);
    add_row();
    return rows_.take();
  }

 private:
  using Pass = void (*)(const Half&);
  static constexpr Pass kPasses[] = {stream, take_our_step, take_torch_step};

  void work(int thread, std::barrier<>& barrier) {
    cpu_set_t core;
    CPU_ZERO(&core);
    CPU_SET(thread, &core);
    pthread_setaffinity_np(pthread_self(), sizeof(core), &core);
    constexpr std::size_t kCount = kElements / kThreads;
    const auto at = [&](int array) { return arrays_[array].as<float>() + thread * kCount; };
    const Half half{at(0), at(1), at(2), at(3), kCount};
    std::fill_n(half.gradient, kCount, 1e-3F);
    std::fill_n(half.weights, kCount, 1.0F);
    std::fill_n(half.first, kCount, 0.0F);
    std::fill_n(half.second, kCount, 0.0F);
    for (int round = 0; round <= rounds_; ++round) {  // the first one warms up
      for (std::size_t pass = 0; pass < std::size(kPasses); ++pass) {
        barrier.arrive_and_wait();
        const double began = thread_seconds();
        kPasses[pass](half);
        taken_[thread] = thread_seconds() - began;
        barrier.arrive_and_wait();
        if (thread == 0 && round > 0) seconds_[pass].push_back(*std::ranges::max_element(taken_));
      }
    }
  }

  void add_row() {
    std::vector<double> ours;
    std::vector<double> theirs;
    for (std::size_t round = 0; round < seconds_[0].size(); ++round) {
      ours.push_back(seconds_[0][round] / seconds_[1][round]);
      theirs.push_back(seconds_[0][round] / seconds_[2][round]);
    }
    const auto rate = [&](int pass) { return format_bytes(kBytes * kElements / median(seconds_[pass])) + "/s"; };
    rows_.add("server-adamw", "share_of_memory_bandwidth", median(ours), "", true, 0.85, 1.0, median(theirs),
              fmt::format("measured; two pinned threads, 256 MB an array, medians of {} in turn, processor time; {} of "
                          "four reads and three writes, a plain stream {}; the peer is PyTorch's fused AdamW, {}",
                          rounds_, rate(1), rate(0), rate(2)));
  }

  const int rounds_;
  std::array<Pages, 4> arrays_;
  std::array<double, kThreads> taken_{};
  std::array<std::vector<double>, std::size(kPasses)> seconds_;  // by pass, of each round
  RowList rows_;
};

}  // namespace

Result<std::vector<BenchRow>> server_adamw_bench(const BenchOptions& options) {
  return ServerAdamW(options).run();
}

}  // namespace motley::bench
