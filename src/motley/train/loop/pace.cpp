#include "motley/train/loop/pace.h"

#include <algorithm>

namespace motley::train {
namespace {

constexpr double kNewWeight = 0.2;  // of the newest observation in the running means

void learn(double& mean, double observed) {
  mean = mean < 0 ? observed : (1 - kNewWeight) * mean + kNewWeight * observed;
}

}  // namespace

void Pace::set_bucket_positions(std::vector<double> positions) {
  bucket_position_ = std::move(positions);
  learns_ = false;
}

void Pace::begin(double target_seconds) {
  target_ = target_seconds;
  begin_ = clock_.now();
  slept_at_begin_ = slept_;
  bucket_work_.assign(bucket_position_.size(), -1.0);
}

double Pace::worked_since_begin() const {
  return clock_.now() - begin_ - (slept_ - slept_at_begin_);
}

void Pace::sleep_to(double share) {
  const double before = clock_.now();
  const double until = begin_ + share * target_;
  if (until > before) {
    clock_.sleep_until(until);
    slept_ += clock_.now() - before;
  }
}

void Pace::after_forward() {
  if (target_ < 0) {
    return;
  }
  forward_work_ = worked_since_begin();
  sleep_to(forward_share_);
}

void Pace::after_bucket(int bucket) {
  if (target_ < 0) {
    return;
  }
  const auto index = static_cast<std::size_t>(bucket);
  bucket_work_[index] = worked_since_begin();
  if (bucket_position_[index] >= 0) {
    sleep_to(std::max(forward_share_, bucket_position_[index]));
  }
}

void Pace::after_backward() {
  if (target_ < 0) {
    return;
  }
  const double work = worked_since_begin();
  if (work > 0 && learns_) {
    learn(forward_share_, forward_work_ / work);
    for (std::size_t i = 0; i < bucket_work_.size(); ++i) {
      if (bucket_work_[i] >= 0) {
        learn(bucket_position_[i], bucket_work_[i] / work);
      }
    }
  }
  finish();
}

void Pace::finish() {
  if (target_ >= 0) {
    sleep_to(1);
  }
}

}  // namespace motley::train
