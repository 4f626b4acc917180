// Where gradients live between backward and the exchange: parameters grouped into buckets whose memory somebody else
// owns, each announced as soon as its last gradient is complete, so that the exchange runs while backward still does.
//
// Every .grad is a view of its bucket's memory from the first gradient that autograd gives it in a step, which is
// copied there; it is laid out in memory as the parameter is. On CUDA a bucket is a flat tensor on the device; it
// travels to and from that memory through pinned memory of its own, while backward still runs.
//
// Where what this worker has computed must outlive the exchange, which writes the reduced gradient over it, .grad stays
// the tensor that autograd made until fetch(), and is copied to the bucket's memory when it is complete.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "motley/base/result.h"
#include "motley/nn/gradients/named_tensors.h"

namespace motley::nn {

// One step: zero(); forward and backward of every micro-batch, with arm() before the backward of the last; flush(); the
// exchange; fetch() of each bucket; the optimizer. Where the number of samples is known only at the end (work pulling):
// backward of the sum's gradient unarmed, scale(1 / samples), then arm() and flush().
//
// Driven by one thread. The parameters must outlive this object, and the memory too until it is destroyed.
class GradientBuckets {
 public:
  static constexpr std::size_t kFirstBucketBytes = 1'000'000;

  // Told that a bucket's memory holds this worker's complete gradient. Called in ascending order of buckets, each once
  // a step, from within the armed backward or from flush; on CUDA always from flush, as backward returns before the
  // device has computed. An error stops further calls and is returned by flush.
  using OnReady = std::function<Status(int bucket)>;

  struct Options {
    bool overlaps = true;    // a device's gradients are copied while it computes
    bool keeps_own = false;  // this worker's gradients outlive the exchange; on the CPU only
  };

  // Groups the parameters, last first, into buckets of about `bucket_bytes` (at least one parameter each); the first
  // ends with the parameter that fills kFirstBucketBytes, so that the exchange starts early. All must have one type,
  // float32 or float64, and one device. No bucket where there are none, as in some parts of networks.
  static Result<std::unique_ptr<GradientBuckets>> create(const NamedTensors& parameters, std::size_t bucket_bytes,
                                                         const Options& options);
  static Result<std::unique_ptr<GradientBuckets>> create(const NamedTensors& parameters, std::size_t bucket_bytes) {
    return create(parameters, bucket_bytes, Options());
  }
  ~GradientBuckets();
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  int count() const;
  at::ScalarType dtype() const;
  // Values in each bucket: what the exchange's layout needs.
  std::vector<std::size_t> bucket_elements() const;

  // Where each parameter stands in the buckets, in the order of the parameters.
  struct Place {
    NamedTensor parameter;
    int bucket = 0;
    std::int64_t offset = 0;  // values before it
  };
  const std::vector<Place>& places() const;

  // Binds every parameter's .grad to this memory, one span a bucket of exactly its size, aligned to its type; gradients
  // become zero. `owner` is kept as long as a tensor sees the memory. With Options::keeps_own it may be called again:
  // gradients that are kept stay, and those that were fetched are to be taken back before (restore).
  Status bind(const std::vector<std::span<std::byte>>& memory, const std::shared_ptr<void>& owner = nullptr);

  // With Options::keeps_own: the parameters' gradients are this worker's again, as they were announced.
  void restore();
  // Likewise: this worker's gradients since zero(), as bytes by bucket; and such bytes of buckets of the same
  // parameters, times `factor`, as its gradients.
  std::vector<std::vector<std::byte>> own();
  void set_own(const std::vector<std::vector<std::byte>>& gradients, double factor);

  // Until it has a gradient again, or flush() or scale() gives it zeros, a parameter's .grad is undefined.
  void zero();
  // Multiplies all gradients, to turn a sum into a mean. Not after a bucket was announced.
  void scale(double factor);

  // From now on completed gradients are counted, and `on_ready` is called for each bucket whose parameters are all
  // complete, once all buckets before it are.
  void arm(OnReady on_ready);
  // Takes arm() back, unless a bucket was announced since: false then.
  bool disarm();
  // Announces what was not announced since arm() (parameters without a gradient count as zero) and disarms. On CUDA it
  // waits for the device, bucket by bucket. Returns the first error of on_ready; kInvalidInput where a parameter got
  // gradients from two backward passes while armed.
  Status flush();

  // After the exchange wrote the reduced gradient into the bucket's memory: makes it the parameters' gradient. Nothing
  // to do on the CPU, but for Options::keeps_own.
  Status fetch(int bucket);

 private:
  struct State;  // shared with the hooks, which the parameters own
  explicit GradientBuckets(std::shared_ptr<State> state);
  bool pin(c10::DeviceType type, const std::vector<std::span<std::byte>>& memory);
  std::shared_ptr<State> state_;
};

}  // namespace motley::nn
