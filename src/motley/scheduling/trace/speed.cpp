#include "motley/scheduling/trace/speed.h"

#include <algorithm>

namespace motley::scheduling {
namespace {

double bandwidth(const Elastic& job, const Network& network, const RingPlace& place) {
  if (place.nodes <= 1) return network.intra_node_bandwidth;
  if (job.reserve > 0) return job.reserve;
  const double rings = std::max(1.0, network.contention * place.contention);
  return network.inter_node_bandwidth / (rings + network.loss * (rings - 1));
}

}  // namespace

double iteration_seconds(const Elastic& job, const Network& network, const RingPlace& place) {
  const double passed = job.gradient_bytes * (place.workers - 1) / place.workers;
  return passed * (2 / bandwidth(job, network, place) + 1 / job.reduce_rate) + network.seconds_per_node * place.nodes +
         job.compute_seconds;
}

RingPlace ring_place(const ClusterTopology& topology, const Placement& placement) {
  return {count_workers(placement), static_cast<int>(placement.size()), 1, find_type(topology, placement)};
}

RingPlace on_fewest_nodes(int workers, int largest) {
  const int on_each = std::max(1, largest);
  return {workers, (workers + on_each - 1) / on_each};
}

double speed(const Job& job, const Network& network, const RingPlace& place) {
  const double on_type = job.speed_on(place.type);
  if (!job.elastic || on_type <= 0) return on_type;
  const double asked = iteration_seconds(*job.elastic, network, {job.workers});
  Elastic there = *job.elastic;
  there.compute_seconds /= on_type;
  const double now = iteration_seconds(there, network, place);
  return place.workers * asked / (job.workers * now);
}

}  // namespace motley::scheduling
