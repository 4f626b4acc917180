#include "tests/simulation/observer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "motley/base/random.h"
#include "tests/simulation/simulator.h"

namespace motley::simulation {
namespace {

constexpr double kTolerance = 1e-9;  // between sums in different orders, relative

std::uint64_t hash_weights(std::span<const double> weights) {
  std::uint64_t hash = 0;
  for (const double weight : weights) hash = (hash ^ std::bit_cast<std::uint64_t>(weight)) * 0x100000001b3ULL;
  return hash;
}

double feature(std::uint32_t sample, std::size_t element) {
  return static_cast<double>(mix({sample, element % 8}) >> 59) / 16 - 1;
}

}  // namespace

std::size_t LinearJob::elements() const {
  return std::accumulate(bucket_elements.begin(), bucket_elements.end(), std::size_t{0});
}

std::vector<double> LinearJob::initial_weights() const {
  std::vector<double> weights(elements());
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<double>(i % 5) / 4;
  return weights;
}

// Of the squared error of the first features; the other elements follow it.
void LinearJob::add_gradient(std::uint32_t sample, std::span<const double> weights, std::span<double> gradient) const {
  double residual = static_cast<double>(sample % 7) - 3;
  for (std::size_t i = 0; i < bucket_elements.front(); ++i) residual += weights[i] * feature(sample, i);
  for (std::size_t i = 0; i < bucket_elements.front(); ++i) gradient[i] += residual * feature(sample, i);
  for (std::size_t i = bucket_elements.front(); i < gradient.size(); ++i) {
    gradient[i] += residual * (static_cast<double>(i % 3) - 1);
  }
}

Observer::Observer(const LinearJob& job) : job_(job) {
  auto ledger = *data::Ledger::open(job.fresh_ledger());
  std::vector<double> weights = job.initial_weights();
  expected_.push_back(weights);
  windows_.emplace_back();
  for (std::int64_t step = 1; step <= job.steps; ++step) {
    const data::Range window = ledger.next(job.batch);
    const auto samples = ledger.samples(window);
    std::vector<double> gradient(weights.size());
    for (const std::uint32_t sample : samples) job.add_gradient(sample, weights, gradient);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      weights[i] -= LinearJob::kLearningRate * gradient[i] / static_cast<double>(samples.size());
    }
    windows_.emplace_back(samples.begin(), samples.end());
    std::ranges::sort(windows_.back());
    expected_.push_back(weights);
    if (!ledger.commit(window)) violate("the ledger refuses its own window");
  }
}

void Observer::begin_generation() {
  ++generation_;
  finished_ = finished_workers_ = 0;
  contributions_.clear();
  steps_.clear();
  endings_.clear();
  awaited_.clear();
  first_step_ = 1;
}

void Observer::violate(const std::string& text) {
  violations_.push_back(text);
  Simulator::instance().note("VIOLATED: " + text);
}

void Observer::install(std::uint64_t epoch, const std::vector<int>& members, int rank) {
  const auto [known, is_new] = members_.emplace(std::pair(generation_, epoch), members);
  if (is_new) Simulator::instance().note(fmt::format("epoch {} is of ranks {}", epoch, fmt::join(members, ", ")));
  if (known->second != members) {
    violate(fmt::format("epoch {} is of ranks {} by rank {}, and of {} by another one", epoch, fmt::join(members, ", "),
                        rank, fmt::join(known->second, ", ")));
  }
  const auto is_due = [&](const Awaited& awaited) { return awaited.rank == rank && awaited.epoch <= epoch; };
  while (true) {
    const auto found = std::ranges::find_if(awaited_, is_due);
    if (found == awaited_.end()) return;
    const auto act = std::move(found->act);
    awaited_.erase(found);
    act();
  }
}

void Observer::at_epoch(std::uint64_t epoch, int rank, std::function<void()> act) {
  awaited_.push_back({epoch, rank, std::move(act)});
}

void Observer::contribute(std::uint64_t epoch, std::int64_t step, int rank, std::vector<std::uint32_t> samples) {
  contributions_[{epoch, step}][rank] = std::move(samples);
}

void Observer::commit(std::uint64_t epoch, std::int64_t step, int rank, std::span<const double> weights) {
  if (step < 1 || step > job_.steps) return violate(fmt::format("rank {} commits step {}", rank, step));
  const auto before = steps_.emplace(rank, first_step_ - 1).first;
  if (before->second + 1 != step) {
    violate(fmt::format("rank {} commits step {} after step {}", rank, step, before->second));
  }
  before->second = step;

  std::vector<Version>& versions = committed_[{generation_, step}];
  const std::vector<int>& members = members_[{generation_, epoch}];
  const std::uint64_t hash = hash_weights(weights);
  if (const auto known = std::ranges::find(versions, hash, &Version::hash); known != versions.end()) {
    known->commits.emplace(rank, epoch);
    return;
  }
  for (const Version& version : versions) {
    for (const auto& [other, other_epoch] : version.commits) {
      // Who has committed in an earlier epoch and is not in the later one has been put out before any other did so.
      const bool goes_on =
          epoch == other_epoch ||
          (other_epoch < epoch ? std::ranges::binary_search(members, other)
                               : std::ranges::binary_search(members_[{generation_, other_epoch}], rank));
      if (goes_on) violate(fmt::format("after step {} rank {} has other weights than rank {}", step, rank, other));
    }
  }
  versions.push_back({hash, {{rank, epoch}}});
  Simulator::instance().note(fmt::format("step {} is committed, first by rank {} in epoch {}", step, rank, epoch));

  std::vector<std::uint32_t> used;
  for (const int member : members) {
    std::ranges::copy(contributions_[{epoch, step}][member], std::back_inserter(used));
  }
  std::ranges::sort(used);
  const auto index = static_cast<std::size_t>(step);
  if (used != windows_[index]) {
    violate(
        fmt::format("step {} has used {} samples, not each of its {} once", step, used.size(), windows_[index].size()));
  }
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (std::abs(weights[i] - expected_[index][i]) <= kTolerance * (1 + std::abs(expected_[index][i]))) continue;
    violate(fmt::format("after step {} weight {} is {}, of one rank alone it is {}", step, i, weights[i],
                        expected_[index][i]));
    break;
  }
}

void Observer::save(std::int64_t step) {
  if (step <= saved_) return;
  saved_ = step;
  Simulator::instance().note(fmt::format("the checkpoint of step {} counts as written", step));
}

// A rank that is put out may have written last.
void Observer::check_progress(std::int64_t step) {
  if (step < noted_ && generation_ > 1 && step == 0) violate("the file of the progress is gone");
}

void Observer::restore(std::int64_t step, std::span<const double> weights) {
  first_step_ = step + 1;
  Simulator::instance().note(fmt::format("generation {} goes on after step {}", generation_, step));
  const std::int64_t least = saved_ - (may_be_damaged_ ? job_.steps_per_checkpoint : 0);
  if (step < least) violate(fmt::format("step {} was restored, step {} had counted as written", step, saved_));
  const std::uint64_t hash = hash_weights(weights);
  const bool is_known =
      step == 0 ? hash == hash_weights(expected_[0]) : std::ranges::any_of(committed_, [&](const auto& committed) {
        return committed.first.second == step && std::ranges::count(committed.second, hash, &Version::hash) > 0;
      });
  if (!is_known) violate(fmt::format("what was restored as step {} was never committed", step));
}

void Observer::finish(int rank, const Status& done, std::int64_t step) {
  if (done) {
    ++finished_;
    Simulator::instance().note(fmt::format("rank {} is done", rank));
    if (step != job_.steps) violate(fmt::format("rank {} is done after step {}", rank, step));
    return;
  }
  check_ending(fmt::format("rank {}", rank), done.error());
}

void Observer::finish_worker(int rank, const Status& done) {
  if (!done) return check_ending(fmt::format("worker {} of the server's job", rank), done.error());
  ++finished_workers_;
  Simulator::instance().note(fmt::format("worker {} of the server's job is done", rank));
}

// What a fault may lead to, and nothing else.
void Observer::check_ending(const std::string& who, const Error& error) {
  const std::string text = fmt::format("{} ends ({}): {}", who, to_string(error.code), error.message);
  Simulator::instance().note(text);
  endings_.push_back(text);
  switch (error.code) {
    case ErrorCode::kPeerLost:
    case ErrorCode::kServerLost:
    case ErrorCode::kTimeout:
    case ErrorCode::kUnavailable:
    case ErrorCode::kRefused:
    case ErrorCode::kIo:
      break;
    default:
      violate(text);
  }
}

}  // namespace motley::simulation
