#include "motley/train/loop/emulation_watch.h"

#include <fmt/format.h>

namespace motley::train {
namespace {

constexpr std::int64_t kCheckSteps = 20;  // the load is averaged over so many steps
constexpr double kLateFactor = 1.1;       // an emulated step that takes longer than this times its deadline is late
constexpr double kLateShare = 0.1;        // and so large a share of late steps is told

}  // namespace

EmulationWatch::EmulationWatch(std::vector<std::string> names, int cores, bool may_refuse)
    : names_(std::move(names)), cores_(cores), may_refuse_(may_refuse), lateness_(names_.size()) {}

Status EmulationWatch::check(const Step& step, std::span<const Report> reports) {
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
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
  add_load(reports);
  if (++steps_ < kCheckSteps) {
    return {};
  }
  const Status honest = cluster::check_emulation(loads_, cores_, seconds_);
  steps_ = 0;
  seconds_ = 0;
  loads_.clear();
  return honest;
}

void EmulationWatch::add_load(std::span<const Report> reports) {
  loads_.resize(reports.size());
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    cluster::WorkerLoad& load = loads_[rank];
    load.name = fmt::format("rank {} ({})", rank, names_[rank]);
    load.cpu_seconds += reports[rank].cpu / static_cast<double>(kCheckSteps);
    if (reports[rank].target >= 0 && may_refuse_) {
      load.emulated_seconds =
          load.emulated_seconds.value_or(0) + reports[rank].target / static_cast<double>(kCheckSteps);
    }
  }
  seconds_ += reports.front().total / static_cast<double>(kCheckSteps);
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
