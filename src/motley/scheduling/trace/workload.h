// Makes the workload of an experiment from a recorded trace. Published traces say when jobs came, how long they took
// and on how many devices; not which models they trained, nor on how many devices they could have.
#pragma once

#include <cstdint>
#include <vector>

#include "motley/scheduling/trace/job.h"
#include "motley/scheduling/trace/machines.h"

namespace motley::scheduling {

// Device-seconds that jobs ask for, of all that there are from the first arrival to the last.
double load_of(const std::vector<Job>& jobs, const Machines& machines);
// Moves arrivals closer together or farther apart until the load is this one. Jobs by arrival; at least two instants.
void set_load(std::vector<Job>& jobs, const Machines& machines, double load);

// The jobs of those `days` that are together busiest: of all windows that begin with an arrival, the one in which most
// device-seconds are asked for. The first arrives at 0.
std::vector<Job> busiest(const std::vector<Job>& jobs, double days);

// Gives each job that is not elastic the compute time, gradient and restart time of a well-known model, drawn by lot
// from ResNet-18, ResNet-50, VGG-16, Transformer, LSTM and BERT-large: it may have from a quarter to four times the
// workers that it asks for.
void make_elastic(std::vector<Job>& jobs, std::uint64_t seed);

}  // namespace motley::scheduling
