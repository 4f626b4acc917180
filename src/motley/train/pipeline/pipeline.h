// A rank's part of a planned step: micro-batches go forward and backward through its stage in the order of the plan's
// schedule, their rows come from and go to the ranks of the neighbouring stages, and the step is flushed at its end, so
// that it computes what one worker would.
//
// A rank's gradient is that of the mean loss over its own samples, as everywhere; what a neighbour sends back is of the
// mean over the neighbour's. The receiver multiplies it by (the neighbour's samples) / (its own).
//
// Where a step was broken off, ranks have the gradients of some of its rows (StageLayout::Kept). The other rows go
// through all stages once more. A stage that has the gradient of its layers for them gives only that of its input, and
// where none before it lacks theirs, not even that. A rank's samples are all whose gradient it has in the end.
//
// Where the stage computes on a GPU, rows go through pinned memory on streams of their own
// (nn/gradients/device_copy.h): they are copied there while the micro-batch before is computed, and copied back and
// sent while the one after is.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "motley/base/result.h"
#include "motley/collective/stage_channels.h"
#include "motley/nn/gradients/device_copy.h"
#include "motley/nn/stage.h"
#include "motley/train/loop/stage_layout.h"
#include "motley/train/loop/timeline.h"

namespace motley::train {

class Pipeline {
 public:
  // What the worker does on the way. Rows are positions among this rank's rows of the step.
  struct Hooks {
    // The last stage's: the gradient that a micro-batch's outputs have; undefined where only the outputs are of
    // interest.
    std::function<Result<torch::Tensor>(data::Range rows, const torch::Tensor& outputs)> take_outputs;
    std::function<void(std::int64_t micro_batch, data::Range rows)> before_forward;
    std::function<void()> after_forward;  // and after take_outputs; before the outputs are sent
    std::function<void(data::Range rows)> before_backward;
    std::function<void()> before_last_backward;  // of those that add to the gradient
    // The gradient has these rows, which are these positions of the window, from now on.
    std::function<void(data::Range rows, data::Range positions)> added;
    std::function<Status()> after_backward;  // before gradients are sent
    // The first stage's, where its layers give the gradient of their input.
    std::function<Status(data::Range rows, const torch::Tensor& gradient)> take_input_gradient;
    std::function<void(Phase phase, double begin, double end)> record;
  };

  // Connects this rank with those of the neighbouring stages; collective. The session, the layout and the stage must
  // outlive this object. Shapes are those of one sample of the stage's input and output. Without `overlaps`, a GPU's
  // rows are copied while it waits.
  static Result<std::unique_ptr<Pipeline>> create(net::Session& session, const StageLayout& layout, nn::Stage& stage,
                                                  std::vector<std::int64_t> input_shape,
                                                  std::vector<std::int64_t> output_shape, bool overlaps,
                                                  const Deadline& deadline);

  // One step over the window, or what is left of it. The first stage gives its rows of all micro-batches, one after the
  // other. Adds the sums to the parameters' .grad. A rank without rows in the window has nothing to do, and calls no
  // hook.
  Status train(std::uint64_t step, data::Range window, const StageLayout::Kept& kept, const torch::Tensor& inputs,
               const Deadline& deadline, const Hooks& hooks);

  // The same without going backward, with the stage in evaluation mode. `number` tells passes over windows apart.
  Status evaluate(std::uint64_t number, data::Range window, const torch::Tensor& inputs, const Deadline& deadline,
                  const Hooks& hooks);

  double waited() const { return waited_; }  // seconds, in the last step, for rows from neighbours
  std::uint64_t bytes_sent() const { return stage_channels_->bytes_sent(); }

 private:
  // A tensor whose rows come from several ranks.
  struct Incoming {
    torch::Tensor values;
    struct Part {
      int rank;
      std::uint64_t number;  // of StageChannels
      data::Range rows;      // of `values`
    };
    std::vector<Part> parts;
  };
  enum class Kind : std::uint64_t { kForward, kBackward, kEvaluate };
  struct Step;

  static std::uint64_t make_tag(const Step& step, std::int64_t micro_batch, Kind kind);
  Pipeline(net::Session& session, const StageLayout& layout, nn::Stage& stage, nn::DeviceCopies copies,
           std::vector<std::int64_t> input_shape, std::vector<std::int64_t> output_shape);
  Step begin(std::uint64_t number, data::Range window, const StageLayout::Kept& kept, const torch::Tensor& inputs,
             const Deadline& deadline, const Hooks& hooks);
  void set_phase(const Step& step, const char* phase) const;
  Status forward(Step& step, std::int64_t micro_batch, Kind kind);
  Status backward(Step& step, std::int64_t micro_batch);
  Status expect(Step& step, std::int64_t micro_batch, Kind kind);
  Result<torch::Tensor> take(Step& step, std::int64_t micro_batch, Kind kind);
  Status send(Step& step, std::int64_t micro_batch, const torch::Tensor& values, Kind kind);
  Status finish_sends(Step& step);
  Status end(Step& step, Status done);

  net::Session& session_;
  const StageLayout& layout_;
  nn::Stage& stage_;
  const nn::DeviceCopies copies_;
  const int rank_;
  const std::vector<std::int64_t> input_shape_;
  const std::vector<std::int64_t> output_shape_;
  std::vector<Incoming> unclaimed_;  // memory of a step that has failed, into which rows may still come
  std::unique_ptr<collective::StageChannels> stage_channels_;
  double waited_ = 0;
};

}  // namespace motley::train
