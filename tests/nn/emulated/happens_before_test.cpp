// Vector clocks and histories of accesses against the order itself: of random operations, events and waits, whether one
// comes after another is found by walking all ways from one to the other.
#include "motley/nn/emulated/happens_before.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace motley::nn::emulated {
namespace {

constexpr int kStreamCount = 4;

// Operations by number, and of each those that it comes right after.
class PlainOrder {
 public:
  int add(const std::vector<int>& after) {
    after_.push_back(after);
    return static_cast<int>(after_.size()) - 1;
  }
  bool is_before(int one, int other) const {
    if (one == other) return true;
    for (const int earlier : after_[static_cast<std::size_t>(other)]) {
      if (earlier >= one && is_before(one, earlier)) return true;
    }
    return false;
  }

 private:
  std::vector<std::vector<int>> after_;
};

struct Touch {
  int operation;
  std::uint64_t begin, end;
  bool writes;
};

TEST(AccessHistory, FindsWhatNothingOrders) {
  std::mt19937 random(7);
  const auto draw = [&](int below) { return static_cast<int>(random() % static_cast<unsigned>(below)); };
  int found = 0, clean = 0;
  for (int round = 0; round < 300; ++round) {
    PlainOrder order;
    std::vector<std::vector<int>> next(kStreamCount);  // what the stream's next operation comes right after
    std::vector<VectorClock> clocks(kStreamCount);
    AccessHistory history;
    std::vector<Touch> touches;
    for (int i = 0; i < 40; ++i) {
      const auto stream = static_cast<std::size_t>(draw(kStreamCount));
      if (draw(3) == 0) {  // it waits for what another has been given so far
        const auto other = static_cast<std::size_t>(draw(kStreamCount));
        clocks[stream].join(clocks[other]);
        next[stream].insert(next[stream].end(), next[other].begin(), next[other].end());
        continue;
      }
      const auto begin = static_cast<std::uint64_t>(draw(8));
      Touch touch{order.add(next[stream]), begin, begin + 1 + static_cast<std::uint64_t>(draw(6)), draw(2) == 0};
      next[stream] = {touch.operation};
      bool expected = false;
      for (const Touch& earlier : touches) {
        expected |= earlier.begin < touch.end && touch.begin < earlier.end && (earlier.writes || touch.writes) &&
                    !order.is_before(earlier.operation, touch.operation);
      }
      touches.push_back(touch);
      const std::uint64_t count = clocks[stream].advance(static_cast<int>(stream));
      const auto unordered =
          history.add({touch.begin, touch.end, static_cast<int>(stream), count, touch.writes}, clocks[stream]);
      ASSERT_EQ(unordered.has_value(), expected) << "round " << round << ", operation " << i;
      ++(expected ? found : clean);
    }
  }
  EXPECT_GT(found, 1000);
  EXPECT_GT(clean, 1000);
}

TEST(AccessHistory, ForgetsWhatLaterAccessesCover) {
  VectorClock clock;
  AccessHistory history;
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t count = clock.advance(0);
    EXPECT_FALSE(history.add({0, 10, 0, count, i % 3 == 0}, clock));
  }
  EXPECT_LE(history.accesses().size(), 2U);
}

}  // namespace
}  // namespace motley::nn::emulated
