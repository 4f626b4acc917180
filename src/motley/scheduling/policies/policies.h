// The policies: by name, and each, in a file of its own.
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

// First in, first out: jobs start in the order of their arrivals with the workers they ask for, none before one that
// came earlier, and keep them to their end.
std::unique_ptr<Policy> make_fifo(const PolicyOptions& options);

// Least attained service, discretised in two dimensions (devices and time), as in Tiresias (Gu et al., NSDI 2019).
std::unique_ptr<Policy> make_las(const PolicyOptions& options);

// Shortest remaining time first; knows durations.
std::unique_ptr<Policy> make_srtf(const PolicyOptions& options);

// Dominant resource fairness: all jobs have as nearly the same number of workers as can be. Elastic, in slots.
std::unique_ptr<Policy> make_drf(const PolicyOptions& options);

// Optimus: workers go where they shorten the time to go most. Elastic, in slots; knows durations.
std::unique_ptr<Policy> make_optimus(const PolicyOptions& options);

// GADGET's greedy choice in every slot (Yu et al., INFOCOM 2022, algorithm 1), with the slot problem solved by
// solve_slot and so without ever exceeding what there is. Elastic; with the completion objective it knows durations.
std::unique_ptr<Policy> make_gadget_exact(const PolicyOptions& options);

// The Gittins index over device-seconds, as in Tiresias: the job runs that is likeliest to be done soon for what it has
// had. Knows how long jobs of the trace take, and not which takes how long.
std::unique_ptr<Policy> make_gittins(const PolicyOptions& options);

// Finish-time fairness: those farthest behind an equal part of the cluster first. In slots; knows durations.
std::unique_ptr<Policy> make_themis(const PolicyOptions& options);

// Policies that solve programs, in slots (motley/scheduling/policies/program.h).
//
// GADGET as it was published: relaxation and randomised rounding, without what does not fit. Elastic.
std::unique_ptr<Policy> make_gadget(const PolicyOptions& options);
// Gavel's max-min policy of rigid jobs; with the completion objective the one of most throughput.
std::unique_ptr<Policy> make_gavel(const PolicyOptions& options);
// Sia's: how many workers each job has by a mixed-integer program over its goodput, scaled up twice at most in a round.
// Elastic; knows no durations.
std::unique_ptr<Policy> make_sia(const PolicyOptions& options);

// ElasticFlow's: jobs with deadlines that can be met have the fewest workers that meet them; what is left goes where it
// saves most. Elastic, in slots; knows durations.
std::unique_ptr<Policy> make_elasticflow(const PolicyOptions& options);

// SJF-BCO and what it is compared with: no preemption, devices fixed at arrival. They know durations.
std::unique_ptr<Policy> make_sjf_bco(const PolicyOptions& options);
std::unique_ptr<Policy> make_list_scheduling(const PolicyOptions& options);  // the devices that are free first
std::unique_ptr<Policy> make_random_devices(const PolicyOptions& options);   // any devices

}  // namespace motley::scheduling
