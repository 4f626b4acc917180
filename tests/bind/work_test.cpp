// Operations that gloo carries out, against a work whose time of completion the test chooses.
#include "motley/bind/work.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <stdexcept>

namespace motley::bind {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::ThrowsMessage;

// Ends between a wait for it, which was in vain, and the next look at it.
class EndsAfterWait final : public c10d::Work {
 public:
  explicit EndsAfterWait(int waits, std::exception_ptr problem = nullptr) : waits_(waits), problem_(problem) {}

  bool wait(milliseconds timeout) override {
    if (isCompleted()) return Work::wait(timeout);
    if (--waits_ == 0) finish(problem_);
    throw std::runtime_error("Operation timed out!");
  }

 private:
  int waits_;
  const std::exception_ptr problem_;
};

c10::intrusive_ptr<DelegatedWork> delegate(c10::intrusive_ptr<c10d::Work> work, std::function<void()> unpack = {}) {
  return c10::make_intrusive<DelegatedWork>(std::move(work), "scatter", std::weak_ptr<net::Session>(), " (a group)",
                                            false, std::move(unpack));
}

TEST(DelegatedWork, IsDoneWhereItEndsAsAWaitForItDoes) {
  for (const int waits : {1, 3}) {
    for (const milliseconds timeout : {kNoTimeout, milliseconds(60'000)}) {
      int unpacked = 0;
      const auto work = delegate(c10::make_intrusive<EndsAfterWait>(waits), [&] { ++unpacked; });
      work->wait(timeout);
      EXPECT_TRUE(work->isCompleted());
      EXPECT_EQ(unpacked, 1);
    }
  }
}

TEST(DelegatedWork, SaysWhatItFailedOf) {
  const auto problem = std::make_exception_ptr(std::runtime_error("the connection was closed"));
  int unpacked = 0;
  const auto work = delegate(c10::make_intrusive<EndsAfterWait>(2, problem), [&] { ++unpacked; });
  EXPECT_THAT([&] { work->wait(kNoTimeout); },
              ThrowsMessage<c10::Error>(HasSubstr("motley: scatter (a group): the connection was closed")));
  EXPECT_EQ(unpacked, 0);
}

TEST(DelegatedWork, EndsAfterItsTime) {
  const auto work = delegate(c10::make_intrusive<EndsAfterWait>(1'000'000));
  EXPECT_THAT([&] { work->wait(milliseconds(1)); }, ThrowsMessage<c10::Error>(HasSubstr("Operation timed out!")));
}

// Has ended well, but what it gave cannot be had.
class FailsAfterwards final : public c10d::Work {
 public:
  FailsAfterwards() { finish(); }
  void synchronize() override { throw std::runtime_error("the device is lost"); }
};

TEST(DelegatedWork, FailsWhereItsResultCannotBeHad) {
  const auto work = delegate(c10::make_intrusive<FailsAfterwards>());
  EXPECT_THAT([&] { work->wait(kNoTimeout); }, ThrowsMessage<c10::Error>(HasSubstr("the device is lost")));
}

}  // namespace
}  // namespace motley::bind
