// The cheapest pipeline where every second of a step, every device and every unit of price is charged for: a shortest
// path over stages, in milliseconds also for a thousand devices.
//
// A step takes, with w for the longest stage (f + g of a micro-batch), A for what is before it, there and back, R for
// the d stages behind it, m micro-batches, and X for what the first stage takes once a step (see pipeline_bounds.h),
//
//   at least A + R + m w + X                                 under GPipe,
//            A + R + m w - min(d, m - 1) min(f, g) + X       under 1F1B, where the stage waits for the first or for the
//                                                            last micro-batch to come back,
//            A + 2 R + m w - d w + X                         with fewer stages than micro-batches: it waits for both
//
// and where the longest is a transfer, all there and back and m - 1 times the longest. Instead of X may stand what the
// longest stage takes once a step, or the one behind a longest transfer: then what is before it counts only there, not
// back. So a path has three parts: up to the longest stage, from it on, and from a longest transfer on. Roughly, and
// several times faster, it has but one: a step takes at least A + R + w + (m - 1) max(f, g) + X. For min(f, g) stands
// the largest share that it has of any w between the bounds of the longest.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "motley/planning/exact/pipeline_bounds.h"

namespace motley::planning {

// What a pipeline is charged, and which ones count.
struct PathCharges {
  double second = 0;           // a second of a step
  double price = 0;            // a unit of the price an hour
  std::vector<double> device;  // a device of every type
  // Seconds of a micro-batch: the longest stage, forward and backward, or transfer, takes longer than `low`, and no
  // longer than `high`. Under GPipe those of both directions of a transfer count together.
  double low = 0;
  double high = kInfinity;
  int min_stages = 1;
  int max_stages = 0;  // 0: any number
  bool roughly = false;
  bool returns = false;       // by the last bound, where it holds
  bool longest_ends = false;  // what is once a step is that of the longest stage, not of the first; not roughly
};

// Not for several threads at a time.
class PipelinePaths {
 public:
  explicit PipelinePaths(const PipelineStages& stages);

  // What the cheapest pipeline is charged; infinity where there is none. No plan of the problem is charged less:
  // nothing limits the devices in use, and of a stage's memory is asked what it holds with few stages behind it.
  double shortest(const PathCharges& charges);
  // That pipeline.
  Candidate path() const;

 private:
  // A stage behind the longest transfer begins in the last of them.
  enum Part { kBefore, kFromStage, kFromTransfer, kAtTransfer, kParts };
  // Of a stage or transfer: all that it takes, what counts before the longest, that of the longest, and what counts
  // behind it; and of the stage behind a longest transfer.
  enum Charge { kWhole, kAhead, kLongest, kBehind, kFirstBehind, kCharges };
  using Charges = std::array<std::vector<double>, kCharges>;  // of every kind; of a transfer by each of a type's counts
  struct Place {
    int part = kBefore;
    int state = 0;  // stages so far, less one; the last one also stands for more where their number is not limited
    std::size_t kind = 0;
  };

  std::size_t row(int part, int state, int cut) const {
    return (index(part * states_ + state) * index(layers_ + 1) + index(cut)) * kinds_;
  }
  std::size_t stage(int first, int end) const { return stages_.place(first, end, 0); }
  bool is_open(int state) const { return charges_.max_stages == 0 && state + 1 == states_; }
  int parts() const { return charges_.roughly ? 1 : static_cast<int>(kParts); }
  double repeated(double seconds, double forward) const {  // of every further micro-batch at least
    return stages_.one_forward_one_backward() ? std::max(forward, seconds - forward) : seconds;
  }
  void set_charges(const PathCharges& charges);
  bool saves_at_once() const;
  double find_shorter() const;
  // Of a stage: seconds of a step that are charged for; infinity: not allowed.
  double stage_seconds(std::size_t stage, int from_part, int part) const;
  double longest_seconds(double seconds, double forward) const;
  void charge_stages(std::size_t stage);
  // What a transfer takes at least and at most of those that are charged alike: of a stage with fewer devices than the
  // one behind it to any with no fewer, else from any with more.
  struct Transfer {
    double least = 0;
    double most = 0;
  };
  Transfer find_transfer(int end, std::size_t from, std::size_t to) const;
  double transfer_seconds(const Transfer& transfer, int part) const;
  void end_stages(int end);
  void add_transfers(int end);
  template <class Visit>
  void visit_stages_before(int end, const Place& place, Visit visit) const;

  const PipelineStages& stages_;
  const int layers_;
  const std::size_t kinds_;
  std::vector<std::size_t> begins_;    // of each type's kinds, and their number
  std::vector<std::size_t> types_;     // [kind]: which of these it is in
  std::vector<double> seconds_;        // [stage][kind]: of a micro-batch; infinity: does not fit into memory
  std::vector<double> least_seconds_;  // [stage]: of all kinds, whether or not it fits: it grows with the stage
  std::vector<double> forward_;        // [stage][kind]: of a micro-batch
  std::vector<double> closing_;        // [stage][kind]: once a step
  PathCharges charges_;
  int states_ = 1;
  double shorter_ = 0;  // of the longest stages: the largest share of the shorter of both passes, under 1F1B
  double saved_ = 0;    // of w, by each stage behind the longest
  std::vector<double> kind_charges_;
  Charges stage_charges_;
  Charges few_charges_;         // from so many devices to no fewer
  Charges many_charges_;        // to so many, from more
  std::vector<double> ending_;  // by row(): the last stage before the cut is of the kind
  std::vector<double> before_;  // by row(): the stage behind the cut is of the kind
  std::vector<double> rest_;    // of one type's counts: the least from one on
};

}  // namespace motley::planning
