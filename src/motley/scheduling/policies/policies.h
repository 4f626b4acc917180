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

// --- Each on its own; where it is defined says how it decides

// Of jobs with fixed numbers of workers (ranked_policies.cpp).
std::unique_ptr<Policy> make_fifo(const PolicyOptions& options);     // by arrival, without preemption
std::unique_ptr<Policy> make_las(const PolicyOptions& options);      // least attained service, as Tiresias has it
std::unique_ptr<Policy> make_srtf(const PolicyOptions& options);     // shortest remaining time; knows durations
std::unique_ptr<Policy> make_gittins(const PolicyOptions& options);  // knows how long jobs take, not which one how long
std::unique_ptr<Policy> make_themis(const PolicyOptions& options);   // finish-time fairness, in slots; knows durations

// Elastic, in slots (elastic_policies.cpp).
std::unique_ptr<Policy> make_drf(const PolicyOptions& options);          // all have as nearly the same as can be
std::unique_ptr<Policy> make_optimus(const PolicyOptions& options);      // least time to go; knows durations
std::unique_ptr<Policy> make_elasticflow(const PolicyOptions& options);  // deadlines; knows durations

// GADGET's greedy choice, elastic, in slots (gadget.cpp). With the completion objective they know durations.
std::unique_ptr<Policy> make_gadget_exact(const PolicyOptions& options);
std::unique_ptr<Policy> make_gadget(const PolicyOptions& options);  // as it was published

// They solve programs, in slots (program_policies.cpp).
std::unique_ptr<Policy> make_gavel(const PolicyOptions& options);  // rigid; max-min, or with completion max-sum
std::unique_ptr<Policy> make_sia(const PolicyOptions& options);    // elastic; knows no durations

// No preemption, devices fixed at arrival; they know durations (queue_policies.cpp).
std::unique_ptr<Policy> make_sjf_bco(const PolicyOptions& options);
std::unique_ptr<Policy> make_list_scheduling(const PolicyOptions& options);  // the devices that are free first
std::unique_ptr<Policy> make_random_devices(const PolicyOptions& options);   // any devices

}  // namespace motley::scheduling
