#include "motley/train/loop/step.h"

#include <algorithm>
#include <cstring>

#include "motley/base/random.h"

namespace motley::train {

static constexpr std::size_t kReportValues = sizeof(Report) / sizeof(double);
static_assert(sizeof(Report) == kReportValues * sizeof(double));

double hash_samples(double hash, std::span<const std::uint32_t> samples) {
  constexpr std::uint64_t kBits = 52;  // that a double holds
  auto sum = static_cast<std::uint64_t>(hash);
  for (const std::uint32_t sample : samples) sum += mix({sample}) >> (64 - kBits);
  return static_cast<double>(sum & ((std::uint64_t{1} << kBits) - 1));
}

double last_compute(std::span<const Report> reports) {
  return std::ranges::max(reports, {}, &Report::compute).compute;
}

std::vector<data::Observation> observe(std::span<const Report> reports) {
  std::vector<data::Observation> observations;
  const double last = last_compute(reports);
  for (const Report& report : reports) {
    // What follows the slowest worker's computation is common to all: gradient synchronisation that is not hidden, and
    // the optimizer.
    const double common = std::max(0.0, report.total - last);
    observations.push_back({static_cast<std::uint32_t>(report.samples), report.compute - report.waited,
                            (last - report.compute) + report.waited + common});
  }
  return observations;
}

Result<AllReports> gather_reports(collective::Group& group, std::span<const FinishedStep> steps,
                                  const Deadline& deadline) {
  std::vector<double> own(steps.size() * kReportValues);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    std::memcpy(&own[i * kReportValues], &steps[i].report, sizeof(Report));
  }
  MOTLEY_ASSIGN(const std::vector<double> all, group.all_gather(own, deadline));
  AllReports reports(steps.size(), std::vector<Report>(all.size() / own.size()));
  for (std::size_t i = 0; i < steps.size(); ++i) {
    for (std::size_t rank = 0; rank < reports[i].size(); ++rank) {
      const double* values = &all[(rank * steps.size() + i) * kReportValues];
      std::memcpy(static_cast<void*>(&reports[i][rank]), values, sizeof(Report));
    }
  }
  return reports;
}

Result<std::string> broadcast_text(collective::Group& group, std::string text, int root, const Deadline& deadline) {
  auto bytes = static_cast<std::uint64_t>(text.size());
  MOTLEY_TRY(group.broadcast(std::as_writable_bytes(std::span(&bytes, 1)), root, deadline));
  text.resize(bytes);
  MOTLEY_TRY(group.broadcast(std::as_writable_bytes(std::span(text.data(), text.size())), root, deadline));
  return text;
}

}  // namespace motley::train
