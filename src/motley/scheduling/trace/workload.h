// Jobs for experiments: clusters and jobs as published experiments describe them, drawn at random, and what is made of
// a recorded trace. Published traces say when jobs came, how long they took and on how many devices; not which models
// they trained, nor on how many devices they could have.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "motley/scheduling/trace/cluster_topology.h"
#include "motley/scheduling/trace/job.h"
#include "motley/scheduling/trace/throughputs.h"

namespace motley::scheduling {

struct Setting {
  ClusterTopology topology;
  std::vector<Job> jobs;
  double horizon = std::numeric_limits<double>::infinity();  // seconds
  double slot_seconds = 0;                                   // the papers count in slots
};

// GADGET (Yu et al., INFOCOM 2022, section VI): nodes of 1, 2, 4 or 8 devices and uplinks of 10 to 100
// Gb/s, in two to five racks with uplinks of 200 to 3,200 Gb/s; jobs of 1 to 5 workers at most, 1,000 to 6,000
// iterations, 50 to 500 iterations a worker and slot, 0.1 to 5 Gb/s reserved, and sigmoid utilities of 1 to 100.
// Arrivals, which the paper takes from a trace of Google's, are even over the slots here; rigid policies, which it
// gives any number of workers, give a job one from 1 to its most. All stop once they have done their iterations.
Setting gadget_setting(int nodes, int jobs, std::uint64_t seed, int slots = 200);

// The same jobs and nodes where jobs compete; with the printed ranges 100 jobs together ask for a twentieth of what
// there is.
// - Work: a slot does a fiftieth of the iterations, so that 40 jobs ask for about all device-seconds that there are,
// and
//   100 for two and a half times as many.
// - Links: a ring's gradients take 0.2 to 2 times as long as its computation over the bandwidth that it reserves, as
//   ResNet-50's to VGG-16's do at some Gb/s, and nodes have uplinks of 10 Gb/s in racks of 200 Gb/s, the least of the
//   printed ranges, so that a node's uplink has room for a few rings.
// - Resources, of which the paper has a formula and no figures: 8 CPUs and 64 GB a device, of which a worker takes 2 to
//   14 and 16 to 112.
Setting gadget_contended_setting(int nodes, int jobs, std::uint64_t seed, int slots = 200);

// SJF-BCO (Yu, Ji, Rajan, Liu, MobiHoc 2022, section 7): 160 jobs that are all there at the begin, with Philly's sizes
// of 1 to 32 devices, 1,000 to 6,000 iterations of 0.01 to 0.05 slots each, on nodes of 4, 8, 16 or 32 devices.
// Contention and overhead stay within 15 % of a job's time. A slot is a second here.
Setting sjf_bco_setting(int nodes, std::uint64_t seed);

// Gavel (Narayanan et al., OSDI 2020, section 7, with its generator's distributions): 36 devices each of three types,
// on nodes of four; jobs that arrive at random, so many an hour on average; models at random from a table of
// throughputs; 70 % on one device, 10 % on two, 15 % on four, 5 % on eight; four in five take 10^1.5 to 10^3 minutes on
// the first type, the others up to 10^4, their logarithms even. Errors: kInvalidInput where the table lacks one of
// "v100", "p100" and "k80".
Result<Setting> gavel_setting(const Throughputs& throughputs, int jobs, double per_hour, std::uint64_t seed);

// By name: "gadget:50:100" and "gadget-contended:50:100" (nodes, jobs), "sjf-bco:20" (nodes) and "gavel:400:1.5" (jobs,
// jobs an hour; with a table of throughputs). Nothing for what begins otherwise. Errors: kInvalidInput.
Result<std::optional<Setting>> setting_named(const std::string& name, std::uint64_t seed,
                                             const Throughputs* throughputs);

// What no schedule's utility exceeds: each job alone on the cluster, until the horizon.
double utility_bound(const std::vector<Job>& jobs, const ClusterTopology& topology, double horizon);

// --- Of a recorded trace

// Device-seconds that jobs ask for, of all that there are from the first arrival to the last.
double compute_load(const std::vector<Job>& jobs, const ClusterTopology& topology);
// Moves arrivals closer together or farther apart until the load is this one. Jobs by arrival; at least two instants.
void set_load(std::vector<Job>& jobs, const ClusterTopology& topology, double load);

// The jobs of those `days` that are together busiest: of all windows that begin with an arrival, the one in which most
// device-seconds are asked for. The first arrives at 0.
std::vector<Job> busiest(const std::vector<Job>& jobs, double days);

// Gives each job that is not elastic the compute time, gradient and restart time of a well-known model, drawn at random
// from ResNet-18, ResNet-50, VGG-16, Transformer, LSTM and BERT-large: it may have from a quarter to four times the
// workers that it asks for.
void make_elastic(std::vector<Job>& jobs, std::uint64_t seed);

}  // namespace motley::scheduling
