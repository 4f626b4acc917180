// The servers multiply a gradient by its weight, so what was left out of one of weight v is v / w of what it is in one
// of weight w.
#include "motley/ps/client/wire_frames.h"

#include <algorithm>

#include "motley/kernels/update.h"

namespace motley::ps {

WireFrames::WireFrames(const DividedModel& model, const collective::WireForm& form,
                       const collective::WireForm& answer_form, std::byte* gradients, std::byte* answers)
    : model_(&model),
      form_(form),
      answer_form_(answer_form),
      gradients_(gradients),
      answers_(answers),
      weights_(model.buckets().size()) {}

Result<WireFrames> WireFrames::create(const DividedModel& model, const collective::WireForm& form,
                                      const collective::WireForm& answer_form, std::byte* gradients,
                                      std::byte* answers) {
  WireFrames frames(model, form, answer_form, gradients, answers);
  if (!frames.native()) {
    frames.push_offsets_ = model.frame_offsets(form);
    frames.answer_offsets_ = model.frame_offsets(answer_form);
    MOTLEY_ASSIGN(frames.push_frames_, Pages::allocate(frames.push_offsets_.back(), "gradients on the wire"));
    MOTLEY_ASSIGN(frames.answer_frames_, Pages::allocate(frames.answer_offsets_.back(), "weights on the wire"));
  }
  if (form.lossy()) {
    MOTLEY_ASSIGN(frames.left_out_, Pages::allocate(model.bytes(), "what pushes left out"));
  }
  return frames;
}

std::span<const std::byte> WireFrames::push(std::size_t index) const {
  const Segment& it = segment(index);
  return {native() ? gradients_ + model_->offset(it) : push_frames_.data() + push_offsets_[index],
          form_.frame_bytes(it.count)};
}

std::span<std::byte> WireFrames::answer(std::size_t index) const {
  const Segment& it = segment(index);
  return {native() ? answers_ + model_->offset(it) : answer_frames_.data() + answer_offsets_[index],
          answer_form_.frame_bytes(it.count)};
}

void WireFrames::begin(int bucket, double weight) {
  Weights& weights = weights_[static_cast<std::size_t>(bucket)];
  if (weights.now > 0) weights.left_out = weights.now;
  weights.now = weight;
}

void WireFrames::write_push(std::size_t index) {
  const Segment& it = segment(index);
  const Weights& weights = weights_[static_cast<std::size_t>(it.bucket)];
  if (native() || weights.now == 0) return;  // of no weight: whatever stands there is not used
  std::byte* frame = push_frames_.data() + push_offsets_[index];
  const std::size_t offset = model_->offset(it);
  const std::span<const float> gradient(reinterpret_cast<const float*>(gradients_ + offset), it.count);
  if (form_.lossy()) {
    const std::span left_out(left_out_.as<float>(offset), it.count);
    const auto factor = static_cast<float>(weights.left_out / weights.now);
    for (std::size_t e = 0; e < it.count; ++e) left_out[e] = gradient[e] + factor * left_out[e];
    form_.compress(left_out, frame);
  } else {
    kernels::write_format(form_.format(), gradient, frame);
  }
}

Status WireFrames::read_answer(std::size_t index, bool adds_up_only) {
  if (native()) return {};
  const Segment& it = segment(index);
  const std::byte* frame = answer_frames_.data() + answer_offsets_[index];
  const std::span to(reinterpret_cast<float*>(answers_ + model_->offset(it)), it.count);
  if (form_.lossy()) {
    if (adds_up_only) std::ranges::fill(to, 0.0F);
    if (!answer_form_.add(frame, 1, to)) {
      return fail(ErrorCode::kCorrupt, "segment {} came with an index beyond its {} values", index, it.count);
    }
    return {};
  }
  kernels::read_format(form_.format(), frame, to);
  return {};
}

}  // namespace motley::ps
