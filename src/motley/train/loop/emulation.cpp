#include "motley/train/loop/emulation.h"

#include <fmt/format.h>

#include <algorithm>

namespace motley::train {
namespace {

constexpr double kNewWeight = 0.2;        // of the newest observation in the running means
constexpr std::int64_t kCheckSteps = 20;  // the load is averaged over so many steps
constexpr double kLateFactor = 1.1;       // an emulated step that takes longer than this times its deadline is late
constexpr double kLateShare = 0.1;        // and so large a share of late steps is told

void learn(double& mean, double observed) {
  mean = mean < 0 ? observed : (1 - kNewWeight) * mean + kNewWeight * observed;
}

}  // namespace

void EmulatedTiming::set_bucket_positions(std::vector<double> positions) {
  bucket_position_ = std::move(positions);
  learns_ = false;
}

void EmulatedTiming::begin(double target_seconds) {
  target_ = target_seconds;
  begin_ = clock_.now();
  slept_at_begin_ = slept_;
  bucket_work_.assign(bucket_position_.size(), -1.0);
}

double EmulatedTiming::worked_since_begin() const {
  return clock_.now() - begin_ - (slept_ - slept_at_begin_);
}

void EmulatedTiming::sleep_to(double share) {
  if (target_ < 0) {
    return;
  }
  const double before = clock_.now();
  const double until = begin_ + share * target_;
  if (until > before) {
    clock_.sleep_until(until);
    slept_ += clock_.now() - before;
  }
}

void EmulatedTiming::after_forward() {
  forward_work_ = worked_since_begin();
  sleep_to(forward_share_);
}

void EmulatedTiming::after_bucket(int bucket) {
  if (target_ < 0) {
    return;
  }
  const auto index = static_cast<std::size_t>(bucket);
  bucket_work_[index] = worked_since_begin();
  if (bucket_position_[index] >= 0) {
    sleep_to(std::max(forward_share_, bucket_position_[index]));
  }
}

void EmulatedTiming::after_backward() {
  const double work = worked_since_begin();
  if (target_ >= 0 && work > 0 && learns_) {
    learn(forward_share_, forward_work_ / work);
    for (std::size_t i = 0; i < bucket_work_.size(); ++i) {
      if (bucket_work_[i] >= 0) learn(bucket_position_[i], bucket_work_[i] / work);
    }
  }
  finish();
}

EmulationWatch::EmulationWatch(std::vector<std::string> names, int cores, bool may_refuse)
    : names_(std::move(names)),
      cores_(cores),
      may_refuse_(may_refuse),
      lateness_(names_.size()),
      was_there_(names_.size()) {}

Status EmulationWatch::check(const Step& step, std::span<const Report> reports) {
  std::vector<bool> is_cold(
      reports.size());  // in a first step, in which a process touches everything for the first time
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    const bool is_there = reports[rank].target >= 0;
    is_cold[rank] = is_there && !was_there_[rank];
    was_there_[rank] = is_there;
    const double took = (reports[rank].compute - reports[rank].waited) / reports[rank].target;
    if (reports[rank].target > 0) {
      lateness_[rank].steps += 1;
      lateness_[rank].late += took > kLateFactor ? 1 : 0;
      lateness_[rank].excess += took > kLateFactor ? took - 1 : 0;
    }
  }
  if (step.baseline) {
    return {};
  }
  constexpr double kSteps = kCheckSteps;
  loads_.resize(reports.size());
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    cluster::WorkerLoad& load = loads_[rank];
    load.name = fmt::format("rank {} ({})", rank, names_[rank]);
    if (is_cold[rank]) continue;
    load.cpu_seconds += reports[rank].cpu / kSteps;
    if (reports[rank].target >= 0 && may_refuse_) {
      load.emulated_seconds = load.emulated_seconds.value_or(0) + reports[rank].target / kSteps;
    }
  }
  seconds_ += std::ranges::max(reports, {}, &Report::total).total / kSteps;
  if (++steps_ < kCheckSteps) {
    return {};
  }
  const Status honest = cluster::check_emulation(loads_, cores_, seconds_);
  steps_ = 0;
  seconds_ = 0;
  loads_.clear();
  return honest;
}

std::vector<std::string> EmulationWatch::notes() const {
  std::vector<std::string> notes(lateness_.size());
  for (std::size_t rank = 0; rank < lateness_.size(); ++rank) {
    const auto& [steps, late, excess] = lateness_[rank];
    if (static_cast<double>(late) > kLateShare * static_cast<double>(steps)) {
      notes[rank] = fmt::format("{:.0f} % of its steps took {:.0f} % longer than that, as this machine was busy",
                                100.0 * static_cast<double>(late) / static_cast<double>(steps),
                                100 * excess / static_cast<double>(late));
    }
  }
  return notes;
}

}  // namespace motley::train
