// One job's dense weights on a server: the memory of all its cores, and what one core does with its part. Over channels
// a core owns its segments; in shared memory it claims one at a time, as it is free. Either way nobody else touches a
// segment's weights, state or pushes meanwhile, so that there are no locks. docs/explanation/parameter-server.md tells
// the whole.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "motley/base/os/memory.h"
#include "motley/net/region.h"
#include "motley/ps/dense/aggregation_thread.h"
#include "motley/ps/dense/dense_metrics.h"
#include "motley/ps/protocol/chunk_map.h"
#include "motley/ps/protocol/server_protocol.h"

namespace motley::ps {

class DenseJob {
 public:
  // Frames of a rank that a core of a server has room for: what is sent beyond waits in the socket. So few that what
  // has come is still in the core's cache when the last rank's comes, and is summed.
  static constexpr std::size_t kPushSlots = 4;

  // `join`: of any rank, they agree. `regions`: by rank, none of those whose values come over channels. `in_memory`:
  // whether all ranks' gradients are there and all map a region of this server as well.
  static Result<std::shared_ptr<DenseJob>> create(const ServerJoin& join, int cores,
                                                  std::vector<std::unique_ptr<net::Region>> regions, bool in_memory);

  bool in_memory() const { return region_ != nullptr; }
  bool is_async() const { return join_.is_async; }
  // Whether cores take segments as they are free, where otherwise each has its own.
  bool claimed() const { return in_memory() && !is_async(); }
  std::size_t region_bytes() const {
    return region_
               ? ServerRegion::bytes(join_.bucket_elements, cores_, join_.size, join_.is_async, reversible_segments())
               : 0;
  }
  net::RegionAddress region_address() const { return region_ ? region_->address() : net::RegionAddress(); }
  // Memory that a job of this form takes here, in bytes; of no more segments than a server bears (service.cpp).
  static std::size_t bytes_needed(const ServerJoin& join, int cores, bool in_memory);

  // The part of the state, for the service's thread while no round is under way; empty if there is no such part here,
  // nor kept here for another server.
  std::span<float> part(const StatePart& part);
  // The segment of this part was given to this server.
  void mark_given(const StatePart& part);
  // The state is whole; so many updates were made before.
  void begin(std::uint64_t updates);
  // Instead, of an elastic job: takes over the state of its epoch before, on which nobody works any more, as it was
  // after so many updates. A segment may be one update ahead, which counts for nothing. False if a segment is not
  // there: then the state is given to this server anew.
  bool take_over(DenseJob& before, std::uint64_t updates);
  bool has_begun() const { return has_begun_; }
  // Whether it keeps what was before each update, and may keep another server's state.
  bool keeps() const { return !counts_.empty(); }
  int cores() const { return cores_; }
  // How long the state is kept where nobody works on it.
  double kept_seconds() const { return join_.elastic.kept_seconds; }

  // How it stands, over channels and in memory; from any thread.
  struct Standing {
    std::uint64_t progress = 0;  // grows with everything that comes and is done
    std::uint64_t waiting = 0;   // segments of a claimed job that all ranks have brought and no core has claimed
    bool waits = false;          // something has come that has not had its effect or its answer yet
    std::vector<int> missing;    // ranks that are waited for
    std::uint64_t step = 0;      // of what waits
    std::uint64_t bucket = 0;
  };
  Standing standing() const;
  const std::shared_ptr<JobMetrics>& metrics() const { return metrics_; }

 private:
  friend class ShardTask;
  friend class DenseShardTask;
  friend class AsyncShardTask;
  friend class ReplicaTask;
  void divide(const ServerJoin& join, int cores);
  std::size_t largest_push() const;  // bytes of a frame, on whole lines of cache
  bool is_here(const Segment& segment) const {
    return segment.bin >= join_.first_bin && segment.bin < join_.first_bin + cores_;
  }
  // Whether its state is another server's, and kept here.
  bool is_kept(const Segment& segment) const { return join_.elastic.kept.contains(segment.bin); }
  bool is_reversible() const { return in_memory() && join_.is_reversible; }
  std::size_t reversible_segments() const { return join_.is_reversible ? model_.segments().size() : 0; }
  // A segment's weights (0) or the optimizer's state (1 and on); where updates can be taken back, as they are after
  // this one.
  float* array(std::size_t index, const Segment& segment) const { return array_after(0, index, segment); }
  float* array_after(std::uint64_t update, std::size_t index, const Segment& segment) const;
  // Of an elastic job, before an update of these values: keeps them as they are.
  void keep(const Segment& segment, std::size_t begin, std::size_t count) const;
  // And after the segment's update of this round.
  void record_update(std::size_t segment, std::uint32_t round);
  // The same of another server's segment. Where nothing was kept of it, it is there once what is before an update is.
  void record_kept(std::size_t segment, std::uint32_t round, bool is_known);
  // Over channels: one of the places at this core for frames that the rank pushes.
  std::byte* push_slot(int core, std::size_t rank, std::size_t slot) const {
    return pushes_[static_cast<std::size_t>(core)].data() + (rank * kPushSlots + slot) * push_bytes_;
  }

  ServerJoin join_;
  int cores_ = 1;
  DividedModel model_;
  std::uint64_t updates_ = 0;
  bool has_begun_ = false;

  std::unique_ptr<net::Region> region_;
  ServerRegion shared_;
  std::vector<std::unique_ptr<net::Region>> gradients_;  // by rank; over channels none of some, or with weights
  std::vector<Pages> pushes_;                            // by core: slots by rank, in the wire's form
  std::size_t push_bytes_ = 0;                           // of a slot
  Pages weights_;
  collective::WireForm answer_form_;
  Pages answers_;  // where they are not the weights themselves
  std::vector<std::size_t> answer_at_;
  Pages acknowledged_;         // lossy forms: weights as workers have them; without an optimizer what answers left out
  std::vector<Pages> copies_;  // asynchronous and over channels: weights on their way to each rank, in the wire's form
  std::vector<Pages> state_;   // where updates can be taken back twice: after even updates, then after odd ones
  std::vector<std::uint64_t> made_;    // where updates can be taken back: how many, by segment
  std::vector<Pages> kept_;            // elastic: the weights and the state before each segment's last update
  std::vector<std::uint64_t> counts_;  // elastic: the updates of each segment that were made, or kNotThere
  std::vector<std::atomic<std::uint64_t>> received_;  // frames, by core and rank
  std::vector<std::atomic<std::uint32_t>> claimed_;   // segments, by bucket, over all rounds
  std::shared_ptr<JobMetrics> metrics_;
};

// A core's part of a job of either kind. `channels`: by rank, of this core.
// `replica`: a connection to the server that keeps the core's state, or null.
std::unique_ptr<AggregationTask> make_shard_task(std::shared_ptr<DenseJob> job, int core, Channels channels,
                                                 std::unique_ptr<net::Connection> replica, TellLost lost);

}  // namespace motley::ps
