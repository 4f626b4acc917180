// The policies: by name, and each.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "motley/scheduling/simulator/policy.h"

namespace motley::scheduling {

// The names that make_policy knows.
std::vector<std::string> policy_names();
// Those of them that take long traces as they come, and can run here.
std::vector<std::string> online_policy_names();
// Those that can run here and keep nothing in mind of which jobs run, so that they may be asked in the midst of things
// and what they decide may be refused.
std::vector<std::string> live_policy_names();
// Whether a policy can place jobs with speeds by type of devices.
bool knows_types(const std::string& policy);
// Errors: kInvalidInput for another name, kUnavailable for a policy that needs HiGHS where there is none.
Result<std::unique_ptr<Policy>> make_policy(const std::string& name, const PolicyOptions& options = {});

// Each on its own; where it is defined says how it decides.
using MakePolicy = std::unique_ptr<Policy>(const PolicyOptions& options);
MakePolicy make_fifo, make_fifo_backfill, make_smallest_first;       // ranked_policies.cpp
MakePolicy make_las, make_las_seconds, make_srtf, make_srsf;         // likewise
MakePolicy make_gittins, make_themis;                                // likewise
MakePolicy make_drf, make_optimus, make_elasticflow;                 // elastic_policies.cpp
MakePolicy make_elastic_srsf, make_afs;                              // likewise
MakePolicy make_gadget_exact, make_gadget;                           // gadget.cpp
MakePolicy make_gavel, make_sia;                                     // program_policies.cpp
MakePolicy make_sjf_bco, make_list_scheduling, make_random_devices;  // queue_policies.cpp

}  // namespace motley::scheduling
