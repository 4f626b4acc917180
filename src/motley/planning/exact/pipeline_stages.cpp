// Fills the tables of all stages of a synchronous pipeline.
#include "motley/planning/exact/pipeline_stages.h"

#include <algorithm>

#include "motley/planning/cost/stage.h"

namespace motley::planning {
namespace {

// The most micro-batches, up to `most`, with which a device's memory is not exceeded.
std::int64_t fitting(planning::PipelineStage stage, double replicas, bool recompute, double memory, std::int64_t most) {
  const auto fits = [&](std::int64_t count) {
    stage.in_flight = static_cast<double>(count);
    return memory == 0 || stage.memory_bytes(replicas, recompute) <= memory * (1 + planning::kTolerance);
  };
  std::int64_t least = 0;
  while (least < most) {
    const std::int64_t middle = most - (most - least) / 2;
    if (fits(middle)) {
      least = middle;
    } else {
      most = middle - 1;
    }
  }
  return least;
}

}  // namespace

std::int64_t PipelineStages::in_flight(std::int64_t stages) const {
  return one_forward_one_backward() ? std::min(problem_.micro_batches, stages) : problem_.micro_batches;
}

PipelineStages::PipelineStages(const planning::Problem& problem) : problem_(problem) {
  for (int type = 0; type < problem.type_count(); ++type) {
    for (std::int64_t k = 1; k <= problem.max_replicas(type); ++k) {
      kinds_.push_back({type, k});
    }
  }
  const double samples = static_cast<double>(problem.batch) / static_cast<double>(problem.micro_batches);
  for (const double bytes : problem.cut_bytes) {
    cut_bytes_.push_back(samples * bytes);
  }
  for (const Kind& from : kinds_) {
    for (const Kind& to : kinds_) {
      const planning::Link& link = problem.link(from.type, to.type);
      ways_.push_back({link.latency_seconds,
                       1 / (link.bytes_per_second * static_cast<double>(std::min(from.replicas, to.replicas)))});
    }
  }

  times_.resize(static_cast<std::size_t>(layers() * layers()) * kinds_.size());
  for (int first = 0; first < layers(); ++first) {
    for (int end = first + 1; end <= layers(); ++end) {
      StageTimes* times = &times_[place(first, end, 0)];
      for (int type = 0; type < problem.type_count(); ++type) {
        const planning::PipelineStage stage = planning::pipeline_stage(problem, first, end - 1, type, -1, 0, 1);
        const planning::Type& devices = problem.types[static_cast<std::size_t>(type)];
        for (std::int64_t replicas = 1; replicas <= problem.max_replicas(type); ++replicas, ++times) {
          const auto k = static_cast<double>(replicas);
          times->forward = stage.forward_seconds(k);
          times->backward = stage.backward_seconds(k, false);
          times->recomputing_backward = stage.backward_seconds(k, true);
          times->closing = stage.closing_seconds(k);
          times->fitting = fitting(stage, k, false, devices.memory_bytes, problem.micro_batches);
          times->fitting_recomputing =
              problem.allow_recompute ? fitting(stage, k, true, devices.memory_bytes, problem.micro_batches) : 0;
        }
      }
    }
  }
}

}  // namespace motley::planning
