// The optimizer's step, taken by parameter servers: what a training loop needs to know of it beside the reducer whose
// wait() brings the new weights.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "motley/base/clock.h"
#include "motley/base/result.h"

namespace motley::ps {

// What parameter servers hold: flat arrays in the order of the buckets.
struct ServerState {
  std::uint64_t updates = 0;                               // steps of the optimizer made so far
  std::vector<std::vector<float>> weights;                 // [bucket]
  std::vector<std::vector<std::vector<float>>> optimizer;  // [array][bucket]; no array: all zeros
};

// Part of a reducer (collective/gradient_reducer.h), and called by the same thread. The reducer's wait() for a bucket
// leaves new weights in weights(bucket), and nothing of use in its buffer.
class ServerOptimizer {
 public:
  virtual ~ServerOptimizer() = default;

  // The bucket's weights, not to be written: float32 values, 64-byte aligned. They change between the last rank's
  // start() and the return of wait().
  virtual std::span<const float> weights(int bucket) = 0;
  // Of all buckets started from now on; the same on all ranks for the same step.
  virtual void set_learning_rate(double learning_rate) = 0;
  // Whether ranks may be at different steps (ServerOptions::staleness). Then each rank's push updates the weights by
  // itself, as far as its weight is of a step's, and weights(bucket) are this rank's own copy, which changes between
  // its own start() and the return of its wait().
  virtual bool is_async() const = 0;
  // Of a job whose ranks come and go: the steps of the optimizer that all ranks have, so far; one more of them is, once
  // this rank knows that all ranks have its weights.
  virtual std::uint64_t updates() const = 0;
  virtual void commit() = 0;
  // After prepare(): those that have nothing of the epoch before, as "server at HOST:PORT". They get their part by
  // load().
  virtual std::vector<std::string> list_servers_without_state() const = 0;
  // The one that this rank has seen to be lost, where another one keeps its state; and how many cores each has; after
  // prepare().
  virtual std::optional<int> lost_server() = 0;
  virtual std::vector<int> server_cores() const = 0;
  // Whether each server's state is kept by the next one, too; the same.
  virtual bool has_replicas() const = 0;
  // Whether updates can be taken back (ServerOptions::reversible); after prepare(), the same on all ranks. Then
  // weights(bucket) are elsewhere after each update, and those of the one before stay as they were.
  virtual bool is_reversible() const = 0;
  // Where they can, after the bucket's wait(): the sum of the squares of its gradient, as the last update had it; the
  // same on all ranks.
  virtual double squares(int bucket) const = 0;
  // Where they can, after wait() for all buckets: the last update counts for nothing. The next start() of each makes it
  // again, of gradients that are as they were, times this factor; the same on all ranks.
  virtual void take_back(double factor) = 0;
  // The servers keep what they have, for those who go on; nothing is called after it but weights().
  virtual void hand_over() = 0;
  // Asynchronous, of all buckets started from now on: what the weights of all ranks add up to in a step, and whether
  // wait() is for all ranks' pushes of the step, so that all ranks then hold the same weights.
  virtual void begin_step(double total_weight, bool together) = 0;
  // After the reducer's prepare() and before the first step, collective. All ranks give the same weights and number of
  // updates; the optimizer's state is taken from rank 0.
  virtual Status load(const ServerState& state, const Deadline& deadline) = 0;
  // Between this rank's wait() for the last bucket of a step and its next start(). Rank 0 only where ranks may be at
  // different steps.
  virtual Result<ServerState> save(const Deadline& deadline) = 0;
};

}  // namespace motley::ps
