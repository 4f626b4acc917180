// What stands on the wire between a rank and its servers: pushes in the job's form, and the answers to them. Where the
// form is not float32, every segment has a frame of its own on either side; what a lossy push leaves out is kept and
// added to the next one (error feedback).
#pragma once

#include <span>
#include <vector>

#include "motley/base/os/memory.h"
#include "motley/collective/wire_form.h"
#include "motley/ps/protocol/divided_model.h"

namespace motley::ps {

class WireFrames {
 public:
  // Of segments whose gradients are at `gradients` and whose answers belong to `answers`, both laid out as in the
  // model, which must outlive this. `form` is that of pushes, `answer_form` that of answers.
  static Result<WireFrames> create(const DividedModel& model, const collective::WireForm& form,
                                   const collective::WireForm& answer_form, std::byte* gradients, std::byte* answers);

  // The memory of segment `index`'s frames.
  std::span<const std::byte> push(std::size_t index) const;
  std::span<std::byte> answer(std::size_t index) const;

  // A bucket's gradients of this weight stand ready.
  void begin(int bucket, double weight);
  // Fills the frame of a push.
  void write_push(std::size_t index);
  // Applies an answer that stands in its frame. Answers to lossy pushes are differences: `add_up` says that they are
  // gradients, which take the place of what was there. kCorrupt names an index outside.
  Status read_answer(std::size_t index, bool adds_up_only);

 private:
  WireFrames(const DividedModel& model, const collective::WireForm& form, const collective::WireForm& answer_form,
             std::byte* gradients, std::byte* answers);
  bool native() const { return form_.type == collective::WireType::kNative; }
  const Segment& segment(std::size_t index) const { return model_->segments()[index]; }

  struct Weights {        // of a bucket
    double now = 0;       // of the gradient that stands ready
    double left_out = 1;  // of the gradient that left_out_ belongs to
  };

  const DividedModel* model_;
  collective::WireForm form_;
  collective::WireForm answer_form_;
  std::byte* gradients_;
  std::byte* answers_;
  Pages push_frames_;
  Pages answer_frames_;
  std::vector<std::size_t> push_offsets_;  // by segment
  std::vector<std::size_t> answer_offsets_;
  Pages left_out_;  // of lossy pushes so far, in float32
  std::vector<Weights> weights_;
};

}  // namespace motley::ps
