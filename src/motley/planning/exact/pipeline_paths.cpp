#include "motley/planning/exact/pipeline_paths.h"

#include <algorithm>

namespace motley::planning {
namespace {

constexpr double kMostSeconds = 1e300;   // of what fits into memory
constexpr double kLeastCharge = 1e-200;  // of a second, so that what takes for ever is not for nothing

}  // namespace

PipelinePaths::PipelinePaths(const PipelineStages& stages)
    : stages_(stages), layers_(stages.layers()), kinds_(index(stages.kind_count())) {
  seconds_.resize(index(layers_ * (layers_ + 1) / 2) * kinds_);
  forward_.resize(seconds_.size());
  closing_.resize(seconds_.size());
  for (int first = 0; first < layers_; ++first) {
    for (int end = first + 1; end <= layers_; ++end) {
      double least = kInfinity;
      const std::int64_t in_flight = stages.in_flight(end == layers_ ? 1 : 2);
      for (std::size_t kind = 0; kind < kinds_; ++kind) {
        const StageTimes& times = stages.at(first, end, static_cast<int>(kind));
        const bool kept = times.fitting >= in_flight;
        const bool fits = kept || times.fitting_recomputing >= in_flight;
        const double backward = kept ? times.backward : times.recomputing_backward;
        const std::size_t place = stage(first, end) + kind;
        seconds_[place] = fits ? times.forward + backward : kInfinity;
        forward_[place] = times.forward;
        closing_[place] = times.closing;
        least = std::min(least, times.forward + times.backward);
      }
      least_seconds_.push_back(least);
    }
  }
  for (std::size_t kind = 0; kind < kinds_; ++kind) {
    if (stages.kind(static_cast<int>(kind)).replicas == 1) begins_.push_back(kind);
    types_.push_back(begins_.size() - 1);
  }
  begins_.push_back(kinds_);
  kind_charges_.resize(kinds_);
  for (Charges* charges : {&stage_charges_, &few_charges_, &many_charges_}) {
    for (std::vector<double>& of_kinds : *charges) of_kinds.resize(kinds_);
  }
}

void PipelinePaths::set_charges(const PathCharges& charges) {
  const Problem& problem = stages_.problem();
  const bool is_same_class = charges.low == charges_.low && std::min(charges.high, kMostSeconds) == charges_.high;
  charges_ = charges;
  charges_.high = std::min(charges.high, kMostSeconds);
  if (!is_same_class) shorter_ = find_shorter();
  charges_.second = std::max(charges.second, kLeastCharge);
  states_ = charges.max_stages > 0 ? charges.max_stages : charges.min_stages;
  for (std::size_t kind = 0; kind < kinds_; ++kind) {
    const Kind& devices = stages_.kind(static_cast<int>(kind));
    const double price = problem.type(devices.type).price_per_hour;
    kind_charges_[kind] =
        static_cast<double>(devices.replicas) * (charges.price * price + charges.device[index(devices.type)]);
  }
  const bool are_fewer = charges.max_stages > 0 && charges.max_stages < problem.micro_batches;
  charges_.returns = charges.returns && are_fewer && stages_.one_forward_one_backward();
  charges_.longest_ends = charges.longest_ends && !charges.roughly;
  saved_ = charges_.returns ? 1 : saves_at_once() ? 0 : shorter_;
}

// With no fewer stages than micro-batches (m - 1) min(f, g), wherever the longest stage is.
bool PipelinePaths::saves_at_once() const {
  const std::int64_t all = stages_.problem().micro_batches;
  return charges_.min_stages >= all && (charges_.max_stages == 0 || charges_.max_stages > all);
}

double PipelinePaths::find_shorter() const {
  double most = 0;
  for (std::size_t stage = 0; stage < seconds_.size(); ++stage) {
    const double seconds = seconds_[stage];
    if (!(seconds > charges_.low && seconds <= charges_.high)) continue;
    most = std::max(most, 1 - repeated(seconds, forward_[stage]) / seconds);
  }
  return most;
}

double PipelinePaths::stage_seconds(std::size_t stage, int from_part, int part) const {
  const double seconds = seconds_[stage];
  const bool is_longest = from_part == kBefore && part == kFromStage;
  if (seconds > charges_.high || (is_longest && seconds <= charges_.low)) return kInfinity;
  const double closing = charges_.longest_ends ? closing_[stage] : 0;
  if (is_longest) return longest_seconds(seconds, forward_[stage]) + closing;
  if (from_part == kAtTransfer) return seconds + closing;
  if (part == kBefore && charges_.longest_ends) return forward_[stage];
  return part == kFromStage ? (charges_.returns ? 2 : 1) * seconds - saved_ * charges_.low : seconds;
}

double PipelinePaths::longest_seconds(double seconds, double forward) const {
  const std::int64_t all = stages_.problem().micro_batches;
  if (saves_at_once()) return seconds + static_cast<double>(all - 1) * repeated(seconds, forward);
  const std::int64_t behind = (charges_.max_stages > 0 ? std::min<std::int64_t>(charges_.max_stages, all) : all) - 1;
  return static_cast<double>(all) * seconds - saved_ * static_cast<double>(behind) * (seconds - charges_.low);
}

// stage_charges_ of every kind.
void PipelinePaths::charge_stages(std::size_t stage) {
  const double second = charges_.second;
  const double high = charges_.high;
  const double* seconds = &seconds_[stage];
  for (std::size_t kind = 0; kind < kinds_; ++kind) {
    stage_charges_[kWhole][kind] = seconds[kind] > high ? kInfinity : second * seconds[kind];
  }
  if (charges_.roughly) return;
  const double low = charges_.low;
  const double* forward = &forward_[stage];
  const double share = charges_.returns ? 2 : 1;
  for (std::size_t kind = 0; kind < kinds_; ++kind) {
    const double longest = longest_seconds(seconds[kind], forward[kind]);
    stage_charges_[kBehind][kind] = seconds[kind] > high ? kInfinity : second * (share * seconds[kind] - saved_ * low);
    stage_charges_[kLongest][kind] = seconds[kind] > high || seconds[kind] <= low ? kInfinity : second * longest;
  }
  if (!charges_.longest_ends) return;
  const double* closing = &closing_[stage];
  for (std::size_t kind = 0; kind < kinds_; ++kind) {
    const double once = second * closing[kind];
    stage_charges_[kAhead][kind] = seconds[kind] > high ? kInfinity : second * forward[kind];
    stage_charges_[kLongest][kind] += once;
    stage_charges_[kFirstBehind][kind] = stage_charges_[kWhole][kind] + once;
  }
}

PipelinePaths::Transfer PipelinePaths::find_transfer(int end, std::size_t from, std::size_t to) const {
  const std::size_t senders = begins_[types_[from]];
  const std::size_t receivers = begins_[types_[to]];
  const auto seconds = [&](std::size_t one, std::size_t other) {
    return stages_.transfer(end, static_cast<int>(one), static_cast<int>(other));
  };
  // As the more devices take part on either side, the less it takes.
  if (from - senders <= to - receivers) {
    return {seconds(from, begins_[types_[to] + 1] - 1), seconds(from, receivers + (from - senders))};
  }
  return {seconds(begins_[types_[from] + 1] - 1, to), seconds(senders + (to - receivers), to)};
}

double PipelinePaths::transfer_seconds(const Transfer& transfer, int part) const {
  const double directions = stages_.one_forward_one_backward() ? 1 : 2;
  const double least = directions * transfer.least;
  const double both = charges_.longest_ends ? 1 : 2;  // of those before
  if (least > charges_.high || (part == kAtTransfer && directions * transfer.most <= charges_.low)) return kInfinity;
  if (part == kAtTransfer) {
    const double longest = std::max(least, charges_.low);
    return (both / directions + static_cast<double>(stages_.problem().micro_batches - 1)) * longest;
  }
  if (part == kBefore) return both * transfer.least;
  return (part == kFromStage && charges_.returns ? 4 : 2) * transfer.least;
}

double PipelinePaths::shortest(const PathCharges& charges) {
  set_charges(charges);
  ending_.assign(row(parts(), 0, 0), kInfinity);
  before_.assign(ending_.size(), kInfinity);
  for (int end = 1; end <= layers_; ++end) {
    end_stages(end);
    if (end < layers_) add_transfers(end);
  }
  double least = kInfinity;
  for (int part = parts() > 1 ? kFromStage : kBefore; part < std::min<int>(parts(), kAtTransfer); ++part) {
    for (int state = charges_.min_stages - 1; state < states_; ++state) {
      const auto ending = ending_.begin() + static_cast<std::ptrdiff_t>(row(part, state, layers_));
      least = std::min(least, *std::min_element(ending, ending + static_cast<std::ptrdiff_t>(kinds_)));
    }
  }
  if (!charges_.roughly) return least;
  const auto further = static_cast<double>(stages_.problem().micro_batches - 1);
  return least + charges_.second * further * (1 - shorter_) * charges_.low;
}

// All stages that end before the cut, of every kind.
void PipelinePaths::end_stages(int end) {
  const Charges& charges = stage_charges_;
  const std::vector<double>& before_longest = charges_.longest_ends ? charges[kAhead] : charges[kWhole];
  const std::vector<double>& at_transfer = charges_.longest_ends ? charges[kFirstBehind] : charges[kWhole];
  const auto relax = [this](const std::vector<double>& own, const double* from, double* to) {
    for (std::size_t kind = 0; kind < kinds_; ++kind) to[kind] = std::min(to[kind], from[kind] + own[kind]);
  };
  for (int first = end - 1; first >= 0; --first) {
    if (least_seconds_[stage(first, end) / kinds_] > charges_.high) break;  // as does all that is longer
    charge_stages(stage(first, end));
    if (first == 0) {
      const double* closing = &closing_[stage(first, end)];
      const auto begin_with = [&](const std::vector<double>& own, double* ending) {
        for (std::size_t kind = 0; kind < kinds_; ++kind) {
          const double once = charges_.longest_ends ? 0 : charges_.second * closing[kind];
          ending[kind] = std::min(ending[kind], own[kind] + once);
        }
      };
      begin_with(before_longest, &ending_[row(kBefore, 0, end)]);
      if (parts() > 1) begin_with(charges[kLongest], &ending_[row(kFromStage, 0, end)]);
      continue;
    }
    for (int state = 0; state < states_; ++state) {
      for (const int before : {state - 1, state}) {
        if (before < 0 || (before == state && !is_open(state))) continue;
        const auto from = [&](int part) { return &before_[row(part, before, first)]; };
        const auto to = [&](int part) { return &ending_[row(part, state, end)]; };
        relax(before_longest, from(kBefore), to(kBefore));
        if (parts() == 1) continue;
        relax(charges[kLongest], from(kBefore), to(kFromStage));
        relax(charges[kBehind], from(kFromStage), to(kFromStage));
        relax(at_transfer, from(kAtTransfer), to(kFromTransfer));
        relax(charges[kWhole], from(kFromTransfer), to(kFromTransfer));
      }
    }
  }
  for (int part = 0; part < parts(); ++part) {
    for (int state = 0; state < states_; ++state) {
      double* ending = &ending_[row(part, state, end)];
      for (std::size_t kind = 0; kind < kinds_; ++kind) ending[kind] += kind_charges_[kind];
    }
  }
}

// A transfer's bytes go over as many links as the stage with fewer devices has, and what it takes is charged by that
// stage's devices alone. So of the counts of one type before the cut only the least charge up to the count behind it
// matters, and the least beyond.
void PipelinePaths::add_transfers(int end) {
  for (std::size_t from = 0; from + 1 < begins_.size(); ++from) {
    const std::size_t counts = begins_[from + 1] - begins_[from];
    for (std::size_t to = 0; to + 1 < begins_.size(); ++to) {
      const std::size_t behind = begins_[to + 1] - begins_[to];
      const auto charge = [&](Charges& charges, std::size_t i, const Transfer& transfer) {
        charges[kAhead][i] = charges_.second * transfer_seconds(transfer, kBefore);
        charges[kLongest][i] = charges_.second * transfer_seconds(transfer, kAtTransfer);
        charges[kBehind][i] = charges_.second * transfer_seconds(transfer, kFromStage);
        charges[kWhole][i] = charges_.second * transfer_seconds(transfer, kFromTransfer);
      };
      for (std::size_t i = 0; i < behind; ++i) {
        if (i < counts) charge(few_charges_, i, find_transfer(end, begins_[from] + i, begins_[to] + i));
        if (i + 1 < counts) charge(many_charges_, i, find_transfer(end, begins_[from] + i + 1, begins_[to] + i));
      }
      for (int state = 0; state < states_; ++state) {
        const auto relax = [&](const std::vector<double>& few, const std::vector<double>& many, int from_part,
                               int part) {
          const double* own = &ending_[row(from_part, state, end) + begins_[from]];
          double* before = &before_[row(part, state, end) + begins_[to]];
          rest_.assign(std::max(counts, behind) + 1, kInfinity);
          for (std::size_t i = counts; i-- > 0;) rest_[i] = std::min(rest_[i + 1], own[i]);
          double up_to = kInfinity;
          for (std::size_t i = 0; i < behind; ++i) {
            if (i < counts) up_to = std::min(up_to, own[i] + few[i]);
            before[i] = std::min(before[i], up_to);
            if (i + 1 < counts) before[i] = std::min(before[i], rest_[i + 1] + many[i]);
          }
        };
        relax(few_charges_[kAhead], many_charges_[kAhead], kBefore, kBefore);
        if (parts() == 1) continue;
        relax(few_charges_[kLongest], many_charges_[kLongest], kBefore, kAtTransfer);
        relax(few_charges_[kBehind], many_charges_[kBehind], kFromStage, kFromStage);
        relax(few_charges_[kWhole], many_charges_[kWhole], kFromTransfer, kFromTransfer);
      }
    }
  }
}

// Where a stage that ends before the cut may begin: visit(first, place behind the stage before it, charge).
template <class Visit>
void PipelinePaths::visit_stages_before(int end, const Place& place, Visit visit) const {
  for (int first = 0; first < end; ++first) {
    for (const int part : {static_cast<int>(kBefore), static_cast<int>(kAtTransfer), place.part}) {
      if (part == kBefore && place.part == kFromTransfer) continue;
      if (part == kAtTransfer && place.part != kFromTransfer) continue;
      const double seconds = stage_seconds(stage(first, end) + place.kind, part, place.part);
      if (seconds == kInfinity) continue;
      if (first == 0) {
        const double closing = charges_.longest_ends ? 0 : closing_[stage(first, end) + place.kind];
        if (place.state == 0 && part == kBefore) visit(first, Place{}, charges_.second * (seconds + closing));
        continue;
      }
      for (const int state : {place.state - 1, place.state}) {
        if (state < 0 || (state == place.state && !is_open(state))) continue;
        visit(first, Place{part, state, place.kind},
              before_[row(part, state, first) + place.kind] + charges_.second * seconds);
      }
    }
  }
}

// Whatever led to the least is looked for again: that is little work beside finding it.
Candidate PipelinePaths::path() const {
  Candidate stages;
  Place place;
  double least = kInfinity;
  for (int part = parts() > 1 ? kFromStage : kBefore; part < std::min<int>(parts(), kAtTransfer); ++part) {
    for (int state = charges_.min_stages - 1; state < states_; ++state) {
      for (std::size_t kind = 0; kind < kinds_; ++kind) {
        const double charge = ending_[row(part, state, layers_) + kind];
        if (charge >= least) continue;
        least = charge;
        place = {part, state, kind};
      }
    }
  }
  if (least == kInfinity) return {};
  for (int end = layers_;;) {
    int begin = 0;
    Place behind;
    least = kInfinity;
    visit_stages_before(end, place, [&](int first, const Place& before, double charge) {
      if (charge >= least) return;
      least = charge;
      begin = first;
      behind = before;
    });
    const auto kind = static_cast<int>(place.kind);
    const bool kept = stages_.at(begin, end, kind).fitting >= stages_.in_flight(end == layers_ ? 1 : 2);
    stages.push_back({begin, end - 1, stages_.kind(kind).type, stages_.kind(kind).replicas, !kept});
    if (begin == 0) break;
    end = begin;
    least = kInfinity;
    const int part = behind.part == kAtTransfer ? static_cast<int>(kBefore) : behind.part;
    for (std::size_t one = 0; one < kinds_; ++one) {
      const double seconds = transfer_seconds(find_transfer(end, one, place.kind), behind.part);
      if (seconds == kInfinity) continue;
      const double charge = ending_[row(part, behind.state, end) + one] + charges_.second * seconds;
      if (charge >= least) continue;
      least = charge;
      place = {part, behind.state, one};
    }
  }
  std::ranges::reverse(stages);
  return stages;
}

}  // namespace motley::planning
