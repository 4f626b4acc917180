// Measures a job's network on the devices of this machine: its layers one by one, whole steps of one and of two
// workers, and the link between them. Progress is shown on standard output. What `motley profile` writes.
#pragma once

#include <cstdint>
#include <stop_token>
#include <string>
#include <vector>

#include "motley/base/result.h"
#include "motley/model/profile.h"
#include "motley/train/job/job.h"

namespace motley::train {

struct ProfileJobOptions {
  std::vector<std::int64_t> batches = {1, 4, 16, 64};  // ascending
  double seconds = 40;                                 // about as long as it may take, starting processes not counted
  std::vector<std::string> scalings = {};              // "gpu=cpu*0.05": a gpu takes so much of what a cpu does
  std::string progress_prefix = {};                    // of what is shown meanwhile
  std::stop_token stop = {};
};

// One device of the profile for every device type of the job's cluster file, or "cpu" and, where there is one, "cuda".
// A type is, in this order: scaled as the options say; scaled to the pace that all its workers are emulated at, where
// that is one; measured here as the machine's device of its kind.
//
// Whole steps run in processes of their own, with a barrier between computation and exchange (gradient_sync.overlap
// false, over TCP). One worker's step, less its layers, is told as overheads of a step; two workers at once, where
// there are cores for them, tell the fraction of computation that several workers divide.
//
// Errors (kInvalidInput): of the job; a type that is not here and has no rule; several types of a kind without one.
// kInterrupted where it was stopped.
Result<model::Profile> profile_job(const Job& job, const ProfileJobOptions& options);

// The layers of a job's network with their sizes; nothing is measured. Errors (kInvalidInput): of the job or its data;
// a synthetic network.
Result<model::Graph> load_graph(const Job& job);

// Of the job's optimizer (model::Profile::state_arrays).
double count_state_arrays(const Job& job);

}  // namespace motley::train
