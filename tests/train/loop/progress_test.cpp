// How progress is drawn in lines of different widths.
#include "motley/train/loop/progress.h"

#include <gtest/gtest.h>

namespace motley::train {
namespace {

TEST(DrawnProgress, ABarThatIsAsFullAsTheRunIsDone) {
  EXPECT_EQ(draw_progress({0, "step 0/8"}, 80, false), std::string(30, '-') + "    0 %  step 0/8");
  EXPECT_EQ(draw_progress({0.5, "step 4/8"}, 80, false),
            std::string(15, '#') + std::string(15, '-') + "   50 %  step 4/8");
  EXPECT_EQ(draw_progress({1, "step 8/8"}, 80, false), std::string(30, '#') + "  100 %  step 8/8");
  EXPECT_EQ(draw_progress({0.999, ""}, 20, true), "━━━━━━━━━─   99 %  ");
}

TEST(DrawnProgress, NeverLongerThanTheTerminalIsWide) {
  const std::string text = "step 400/1000  epoch 1.20  loss 0.3512  12,345 samples/s";
  for (int columns = 1; columns < 120; ++columns) {
    for (const double done : {-1.0, 0.0, 0.4, 1.0}) {
      EXPECT_LE(draw_progress({done, text}, columns, false).size(), std::max(1, columns - 1)) << columns;
    }
  }
}

// The bar ends and the text begins in the same columns, whatever the text's length.
TEST(DrawnProgress, TextsOfDifferentLengthsMoveNothing) {
  for (const int columns : {60, 80, 100, 120}) {
    std::size_t place = 0;
    for (const std::size_t length : {40U, 71U, 75U, 78U}) {
      std::string text(length, 't');
      text.front() = 'T';
      const std::string line = draw_progress({0.5, text}, columns, false, 78);
      place = place == 0 ? line.find('T') : place;
      EXPECT_EQ(line.find('T'), place) << columns << " columns, " << length << " characters";
    }
    EXPECT_EQ(place > 10, columns >= 100) << "with a bar where there is room for one";
  }
}

TEST(DrawnProgress, NoBarInNarrowLinesOrWithoutAFraction) {
  EXPECT_EQ(draw_progress({0.25, "step 1/4  loss 2"}, 30, false), " 25 %  step 1/4  loss 2");
  EXPECT_EQ(draw_progress({-1, "opening the data"}, 80, false), "opening the data");
}

}  // namespace
}  // namespace motley::train
