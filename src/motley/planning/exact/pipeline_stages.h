// What every possible stage of a synchronous pipeline takes: the equations of CostModel::kPipeline
// (motley/planning/cost/evaluation.h) put into tables, so that a search over stages need not sum over layers.
#pragma once

#include <cstdint>
#include <vector>

#include "motley/planning/cost/problem.h"

namespace motley::planning {

// What a stage may run on: 1 .. count devices of a type.
struct Kind {
  int type = 0;
  std::int64_t replicas = 1;
};

// Seconds of one micro-batch, or of one step where said so.
struct StageTimes {
  double forward = 0;
  double backward = 0;
  double recomputing_backward = 0;  // where activations are made once more
  double closing = 0;               // once a step: gradient synchronisation and the weights' update
  // So many micro-batches fit into a device's memory, at most micro_batches; 0: not even one, or not allowed.
  std::int64_t fitting = 0;
  std::int64_t fitting_recomputing = 0;
};

// A stage is named by the cuts around it: the layers first .. end - 1.
class PipelineStages {
 public:
  explicit PipelineStages(const planning::Problem& problem);

  const planning::Problem& problem() const { return problem_; }
  int layers() const { return problem_.layer_count(); }
  int kind_count() const { return static_cast<int>(kinds_.size()); }
  const Kind& kind(int kind) const { return kinds_[static_cast<std::size_t>(kind)]; }
  const StageTimes& at(int first, int end, int kind) const { return times_[place(first, end, kind)]; }
  // One micro-batch over a cut, in one direction.
  double transfer(int cut, int from, int to) const {
    const Way& way = ways_[static_cast<std::size_t>(from) * kinds_.size() + static_cast<std::size_t>(to)];
    return way.latency + cut_bytes_[static_cast<std::size_t>(cut)] * way.seconds_per_byte;
  }
  bool one_forward_one_backward() const {
    return problem_.schedule == planning::PipelineSchedule::kOneForwardOneBackward;
  }
  // Micro-batches that a stage holds which has so many stages from itself to the last.
  std::int64_t in_flight(std::int64_t stages) const;

 private:
  struct Way {  // from a stage of one kind to one of another
    double latency = 0;
    double seconds_per_byte = 0;
  };

  std::size_t place(int first, int end, int kind) const {
    return static_cast<std::size_t>(first * layers() + end - 1) * kinds_.size() + static_cast<std::size_t>(kind);
  }

  const planning::Problem& problem_;
  std::vector<Kind> kinds_;
  std::vector<StageTimes> times_;
  std::vector<Way> ways_;
  std::vector<double> cut_bytes_;  // of a micro-batch
};

}  // namespace motley::planning
