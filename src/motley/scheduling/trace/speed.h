// How fast a job trains with so many workers in such places.
#pragma once

#include "motley/scheduling/trace/cluster_topology.h"
#include "motley/scheduling/trace/job.h"

namespace motley::scheduling {

// Where a ring runs, as far as its speed depends on it.
struct RingPlace {
  int workers = 1;
  int nodes = 1;
  int contention = 1;  // rings, itself among them, at the node where most meet that leave their nodes
  int type = kAnyType;
};

// Seconds of an iteration: GADGET (Yu et al., INFOCOM 2022), equation (1), with the bandwidth that contention leaves
// and the overhead of spread rings as in SJF-BCO (Yu et al., MobiHoc 2022):
//
//     d (w - 1) / w (2 / B + 1 / G) + seconds_a_server * nodes + compute_seconds
//
// where B is the bandwidth inside a node on one, the job's reserve if it has one, and between / f(k) otherwise, with
// k = max(1, meeting share * rings that share a link).
double iteration_seconds(const Elastic& job, const Network& network, const RingPlace& place);

// Of a ring that meets no other.
RingPlace ring_place(const ClusterTopology& topology, const Placement& placement);

// So many workers on as few nodes as can be, with nobody else, where the largest node has `largest` devices.
RingPlace on_fewest_nodes(int workers, int largest);

// Seconds of its duration that a job does in a second: 1 with the workers it asks for on one node, and for jobs that
// are not elastic, where devices are those for which its times hold; where they are not, computation goes at the pace
// of their type (Job::type_speeds).
double speed(const Job& job, const Network& network, const RingPlace& place);

}  // namespace motley::scheduling
