// How many devices each stage gets, once it is known which layers are on which type.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "motley/planning/cost/evaluation.h"

namespace motley::planning {

struct Span {  // a stage without its count
  int first = 0;
  int last = 0;
  int type = 0;
  bool operator==(const Span&) const = default;
};

// The stages of an assignment of a type to every layer: longest runs of one type, cut too where cut_before[layer] is
// true (empty: nowhere; it has no effect under kHeterps).
std::vector<Span> list_stages(const Problem& problem, const std::vector<int>& type_of_layer,
                              const std::vector<bool>& cut_before = {});

enum class Provisioning {
  kExact,       // the best counts for the objective, exactly
  kNewton,      // HeterPS: all stages at one rate; Newton's method on that rate for the lowest cost, then rounded up
  kStaRatio,    // a static ratio of CPU to GPU devices
  kStaPsRatio,  // the same, and a static ratio of parameter-server cores to workers
};

struct ProvisioningOptions {
  Provisioning method = Provisioning::kExact;
  // kExact under kPipeline searches boxes of counts. Where there are more than this, the best so far is returned, which
  // is good but not proved: for searches that ask thousands of times. (The steady state needs no such limit.)
  std::int64_t max_boxes = std::numeric_limits<std::int64_t>::max();
  double cpu_per_gpu = 6;         // kStaRatio, kStaPsRatio; the original's values are not published
  double servers_per_cpu = 0.25;  // kStaPsRatio
};

// None where no counts within the limits meet the objective's limits.
std::optional<Candidate> provision(const Problem& problem, const std::vector<Span>& stages, const Objective& objective,
                                   const ProvisioningOptions& options = {});

// kExact, for each cost model.
std::optional<Candidate> exact_heterps_counts(const Problem& problem, const std::vector<Span>& stages,
                                              const Objective& objective);
std::optional<Candidate> exact_pipeline_counts(const Problem& problem, const std::vector<Span>& stages,
                                               const Objective& objective, std::int64_t max_boxes);

}  // namespace motley::planning
