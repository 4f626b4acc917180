#include "tests/simulation/observer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>
#include <utility>

#include "motley/base/random.h"
#include "tests/simulation/simulator.h"

namespace motley::simulation {
namespace {

constexpr std::int64_t kNoStep = -2;  // of one that has no weights yet

std::uint64_t hash_weights(std::span<const double> weights) {
  std::uint64_t hash = 0;
  for (const double weight : weights) hash = (hash ^ std::bit_cast<std::uint64_t>(weight)) * 0x100000001b3ULL;
  return hash;
}

constexpr std::size_t kFeatures = 8;

double feature(std::uint32_t sample, std::size_t element) {
  return static_cast<double>(mix({sample, element % kFeatures}) >> 59) / 16 - 1;
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
  const std::size_t count = bucket_elements.front();
  std::array<double, kFeatures> features;
  for (std::size_t i = 0; i < kFeatures; ++i) features[i] = feature(sample, i);
  double residual = static_cast<double>(sample % 7) - 3;
  for (std::size_t i = 0; i < count; ++i) residual += weights[i] * features[i % kFeatures];
  for (std::size_t i = 0; i < count; ++i) gradient[i] += residual * features[i % kFeatures];
  const double parts[] = {-residual, 0, residual};
  std::size_t part = count % 3;
  for (std::size_t i = count; i < gradient.size(); ++i) {
    gradient[i] += parts[part];
    part = part == 2 ? 0 : part + 1;
  }
}

Observer::Observer(const LinearJob& job)
    : job_(job),
      initial_(std::make_shared<Reference>(Reference{job.initial_weights(), std::vector<double>(job.elements())})) {
  auto ledger = *data::Ledger::open(job.fresh_ledger());
  windows_.emplace_back();
  for (std::int64_t step = 1; step <= job.steps; ++step) {
    const data::Range window = ledger.next(job.batch);
    const auto samples = ledger.samples(window);
    windows_.emplace_back(samples.begin(), samples.end());
    std::ranges::sort(windows_.back());
    if (!ledger.commit(window)) violate(kOnce, "the ledger refuses its own window");
  }
}

bool Observer::is_close(double value, double expected) const {
  return std::abs(value - expected) <= job_.tolerance * (1 + std::abs(expected));
}

std::shared_ptr<const Observer::Reference> Observer::follow(const Reference& before, std::int64_t step,
                                                            std::span<const double> weights) {
  const std::vector<std::uint32_t>& samples = windows_[static_cast<std::size_t>(step)];
  std::vector<double> gradient(before.weights.size());
  for (const std::uint32_t sample : samples) job_.add_gradient(sample, before.weights, gradient);
  auto after = std::make_shared<Reference>(before);
  const std::vector<std::vector<double>>& replaced = replaced_[step - 1];
  bool is_wrong = false;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double mean = gradient[i] / static_cast<double>(samples.size());
    const auto distance = [&](double momentum) {
      const double moved = LinearJob::kLearningRate * (job_.momentum * momentum + mean);
      return std::abs(before.weights[i] - moved - weights[i]);
    };
    double momentum = before.momentum[i];
    for (const auto& other : replaced) {
      if (distance(other[i]) < distance(momentum)) momentum = other[i];
    }
    after->momentum[i] = job_.momentum * momentum + mean;
    after->weights[i] = before.weights[i] - LinearJob::kLearningRate * after->momentum[i];
    if (is_close(weights[i], after->weights[i]) || std::exchange(is_wrong, true)) continue;
    violate(kSameWeights, fmt::format("after step {} weight {} is {}, of one rank alone it is {}", step, i, weights[i],
                                      after->weights[i]));
  }
  return after;
}

void Observer::begin_generation() {
  ++generation_;
  finished_ = finished_workers_ = 0;
  contributions_.clear();
  steps_.clear();
  endings_.clear();
  awaited_.clear();
  lives_.clear();
  ended_.clear();
  epochs_.clear();
  has_committed_ = has_replaced_momentum_ = false;
  first_step_ = 1;
  committed_step_ = 0;
  committed_workers_ = 0;
  restored_.reset();
  began_with_ = initial_;
  references_.clear();
}

void Observer::begin_life(int rank) {
  if (++lives_[rank] > 1) steps_[rank] = kNoStep;
}

void Observer::violate(const char* invariant, const std::string& text) {
  violations_.push_back(fmt::format("{}: {}", invariant, text));
  Simulator::instance().note("VIOLATED: " + violations_.back());
}

// A list that only those who have ended have installed has had no effect: a step takes all members.
bool Observer::has_only_dead(const Members& members) const {
  return std::ranges::all_of(members.lives, [this](const auto& installed) { return ended_.contains(installed); });
}

void Observer::install(std::uint64_t epoch, const std::vector<int>& members, int rank) {
  Members& known = epochs_[epoch];
  if (known.ranks != members && has_only_dead(known)) {
    known = {};
    known.ranks = members;
    Simulator::instance().note(fmt::format("epoch {} is of ranks {}", epoch, fmt::join(members, ", ")));
  }
  known.lives[rank] = lives_[rank];
  if (known.ranks != members) {
    violate(kOneEpoch, fmt::format("epoch {} is of ranks {} by rank {}, and of {} by another one", epoch,
                                   fmt::join(members, ", "), rank, fmt::join(known.ranks, ", ")));
  }
  act_on([&](const Awaited& awaited) { return awaited.concerns(rank) && awaited.epoch > 0 && awaited.epoch <= epoch; });
}

void Observer::follow_writer(std::uint64_t epoch, int rank, int writer) {
  std::optional<int>& known = epochs_[epoch].writer;
  if (!known) known = writer;
  if (*known == writer) return;
  violate(kOneEpoch, fmt::format("in epoch {} rank {} writes the run's files by rank {}, and rank {} by another one",
                                 epoch, writer, rank, *known));
}

void Observer::act_on(const std::function<bool(const Awaited&)>& is_due) {
  while (true) {
    const auto found = std::ranges::find_if(awaited_, is_due);
    if (found == awaited_.end()) return;
    const auto act = std::move(found->act);
    awaited_.erase(found);
    act();
  }
}

void Observer::at_epoch(std::uint64_t epoch, int rank, std::function<void()> act) {
  awaited_.push_back({.epoch = epoch, .rank = rank, .act = std::move(act)});
}

void Observer::at_step(std::int64_t step, int rank, std::function<void()> act) {
  awaited_.push_back({.step = step, .rank = rank, .act = std::move(act)});
}

void Observer::contribute(std::uint64_t epoch, std::int64_t step, int rank, std::vector<std::uint32_t> samples) {
  contributions_[{epoch, step}][rank] = std::move(samples);
}

// Whether the process that has committed a step in an epoch is there in a later one. Who is not has been put out, or
// has ended, before any other did so.
bool Observer::goes_on(const Commit& commit, std::uint64_t epoch) {
  const Members& members = epochs_[epoch];
  const auto installed = members.lives.find(commit.rank);
  const int life = installed == members.lives.end() ? lives_[commit.rank] : installed->second;
  return life == commit.life && std::ranges::binary_search(members.ranks, commit.rank);
}

void Observer::commit(std::uint64_t epoch, std::int64_t step, int rank, std::span<const double> weights) {
  if (step < 1 || step > job_.steps) return violate(kOnce, fmt::format("rank {} commits step {}", rank, step));
  const auto before = steps_.emplace(rank, first_step_ - 1).first;
  if (before->second + 1 != step) {
    violate(kOnce, fmt::format("rank {} commits step {} after step {}", rank, step, before->second));
  }
  before->second = step;
  has_committed_ = true;
  act_on([&](const Awaited& awaited) { return awaited.concerns(rank) && awaited.step > 0 && awaited.step <= step; });

  std::vector<Version>& versions = committed_[{generation_, step}];
  const std::vector<int>& members = epochs_[epoch].ranks;
  if (step > committed_step_) {
    committed_step_ = step;
    committed_workers_ = static_cast<int>(members.size());
  }
  const std::uint64_t hash = hash_weights(weights);
  const Commit own{rank, lives_[rank], epoch};
  if (const auto known = std::ranges::find(versions, hash, &Version::hash); known != versions.end()) {
    known->commits.push_back(own);
    references_[rank] = known->reference;
    return;
  }
  for (const Version& version : versions) {
    for (const Commit& other : version.commits) {
      const bool differ =
          epoch == other.epoch || (other.epoch < epoch ? goes_on(other, epoch) : goes_on(own, other.epoch));
      if (differ)
        violate(kSameWeights,
                fmt::format("after step {} rank {} has other weights than rank {}", step, rank, other.rank));
    }
  }
  versions.push_back({hash, {own}, nullptr});
  Simulator::instance().note(fmt::format("step {} is committed, first by rank {} in epoch {}", step, rank, epoch));

  std::vector<std::uint32_t> used;
  for (const int member : members) {
    std::ranges::copy(contributions_[{epoch, step}][member], std::back_inserter(used));
  }
  std::ranges::sort(used);
  const auto index = static_cast<std::size_t>(step);
  if (used != windows_[index]) {
    violate(kOnce, fmt::format("step {} has used {} samples, not each of its {} once", step, used.size(),
                               windows_[index].size()));
  }
  auto& reference = references_.try_emplace(rank, began_with_).first->second;
  versions.back().reference = reference = follow(*reference, step, weights);
}

void Observer::save(std::int64_t step) {
  if (step <= saved_) return;
  saved_ = step;
  Simulator::instance().note(fmt::format("the checkpoint of step {} counts as written", step));
}

// A rank that is put out may have written last.
void Observer::check_progress(std::int64_t step) {
  if (step < noted_ && generation_ > 1 && step == 0) violate(kRestored, "the file of the progress is gone");
}

// The writer may be lost as soon as others have what it has read: whoever is first says what this generation begins
// with.
void Observer::restore(int rank, std::int64_t step, std::span<const double> weights) {
  const std::uint64_t hash = hash_weights(weights);
  if (restored_) {
    if (first_step_ != step + 1 || *restored_ != hash) {
      violate(kSameWeights,
              fmt::format("rank {} begins after step {}, with other weights than the first rank", rank, step));
    }
    return;
  }
  restored_ = hash;
  first_step_ = step + 1;
  Simulator::instance().note(fmt::format("generation {} goes on after step {}", generation_, step));
  const std::int64_t least = saved_ - (may_be_damaged_ ? job_.steps_per_checkpoint : 0);
  if (step < least)
    violate(kRestored, fmt::format("step {} was restored, step {} had counted as written", step, saved_));
  bool is_known = step == 0 && hash == hash_weights(initial_->weights);
  for (const auto& [key, versions] : committed_) {
    const auto known = std::ranges::find(versions, hash, &Version::hash);
    if (key.second != step || known == versions.end()) continue;
    is_known = true;
    began_with_ = known->reference;
  }
  if (!is_known) violate(kRestored, fmt::format("what was restored as step {} was never committed", step));
}

void Observer::take_over(std::uint64_t epoch, std::int64_t step, int rank, std::span<const double> weights) {
  Simulator::instance().note(fmt::format("rank {} has joined after step {}, in epoch {}", rank, step, epoch));
  const std::uint64_t hash = hash_weights(weights);
  steps_[rank] = step;
  references_[rank] = began_with_;
  if (step < first_step_ && restored_ == hash) return;
  std::vector<Version>& versions = committed_[{generation_, step}];
  const auto known = std::ranges::find(versions, hash, &Version::hash);
  if (known == versions.end())
    return violate(kSameWeights, fmt::format("rank {} has joined with weights of its own", rank));
  known->commits.push_back({rank, lives_[rank], epoch});
  references_[rank] = known->reference;
}

void Observer::replace_momentum(std::int64_t step, std::int64_t checkpoint, std::vector<double> momentum) {
  Simulator::instance().note(
      fmt::format("after step {} servers get the optimizer's state of the checkpoint of step {}", step, checkpoint));
  has_replaced_momentum_ = true;
  if (checkpoint < saved_ - (may_be_damaged_ ? job_.steps_per_checkpoint : 0) || checkpoint > step) {
    violate(kServersKeep,
            fmt::format("after step {} servers get the state of step {}, that of step {} had counted as written", step,
                        checkpoint, saved_));
  }
  const auto is_known = [&](const Reference& reference) {
    const std::vector<std::vector<double>>& replaced = replaced_[checkpoint];
    for (std::size_t i = 0; i < momentum.size(); ++i) {
      const auto is_it = [&](const std::vector<double>& other) { return is_close(momentum[i], other[i]); };
      if (!is_it(reference.momentum) && std::ranges::none_of(replaced, is_it)) return false;
    }
    return true;
  };
  const bool is_good = std::ranges::any_of(committed_, [&](const auto& committed) {
    return committed.first.second == checkpoint &&
           std::ranges::any_of(committed.second, [&](const Version& version) { return is_known(*version.reference); });
  });
  if (!is_good && !(checkpoint == 0 && is_known(*initial_))) {
    violate(kServersKeep,
            fmt::format("the optimizer's state of the checkpoint of step {} is not that of the step", checkpoint));
  }
  replaced_[step].push_back(std::move(momentum));
}

void Observer::finish(int rank, const Status& done, std::int64_t step) {
  if (done) {
    ++finished_;
    Simulator::instance().note(fmt::format("rank {} is done", rank));
    if (step != job_.steps) violate(kOnce, fmt::format("rank {} is done after step {}", rank, step));
    return;
  }
  const Error& error = done.error();
  const bool is_member = !epochs_.empty() && std::ranges::binary_search(epochs_.rbegin()->second.ranks, rank);
  if (error.code == ErrorCode::kUnavailable && error.rank >= 0 && is_member) {
    violate(kGoesOn, fmt::format("rank {} has left before rank {} had done all", error.rank, rank));
  }
  check_ending(fmt::format("rank {}", rank), error);
}

void Observer::note_late(int rank, const Error& error) {
  Simulator::instance().note(fmt::format("rank {} comes too late: {}", rank, error.message));
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
    case ErrorCode::kInterrupted:
    case ErrorCode::kLeft:
      break;
    default:
      violate(kWaitsEnd, text);
  }
}

}  // namespace motley::simulation
