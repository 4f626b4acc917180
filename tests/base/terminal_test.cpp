// Colours and widths of what output goes to; a pseudo-terminal stands for a terminal.
#include "motley/base/os/terminal.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>

namespace motley {
namespace {

class TerminalTest : public ::testing::Test {
 protected:
  void SetUp() override {
    winsize size{.ws_row = 24, .ws_col = 61, .ws_xpixel = 0, .ws_ypixel = 0};
    ASSERT_EQ(::openpty(&own_, &terminal_, nullptr, nullptr, &size), 0);
    ::setenv("TERM", "xterm", 1);
    ::unsetenv("NO_COLOR");
  }
  void TearDown() override {
    ::close(own_);
    ::close(terminal_);
    ::unsetenv("NO_COLOR");
  }
  int own_ = -1, terminal_ = -1;
};

TEST_F(TerminalTest, ColorsAreForTerminalsOnly) {
  EXPECT_EQ(colored("met", TextColor::kGood, terminal_), "\x1b[32mmet\x1b[0m");
  const int file = ::open("/dev/null", O_WRONLY);
  EXPECT_FALSE(is_terminal(file));
  EXPECT_EQ(colored("met", TextColor::kGood, file), "met");
  ::close(file);
}

TEST_F(TerminalTest, NoColorKeepsTextPlain) {
  forbid_color();
  EXPECT_TRUE(is_terminal(terminal_));
  EXPECT_EQ(colored("met", TextColor::kGood, terminal_), "met");
}

TEST_F(TerminalTest, ADumbTerminalCountsAsNone) {
  ::setenv("TERM", "dumb", 1);
  EXPECT_FALSE(is_terminal(terminal_));
}

TEST_F(TerminalTest, ItsWidth) {
  EXPECT_EQ(terminal_columns(terminal_), 61);
  const int file = ::open("/dev/null", O_WRONLY);
  EXPECT_EQ(terminal_columns(file), 80);
  ::close(file);
}

TEST_F(TerminalTest, TheFirstVariableOfTheLocaleDecides) {
  ::setenv("LC_ALL", "C", 1);
  ::setenv("LANG", "de_DE.UTF-8", 1);
  EXPECT_FALSE(shows_utf8());
  ::unsetenv("LC_ALL");
  ::unsetenv("LC_CTYPE");
  EXPECT_TRUE(shows_utf8());
  ::unsetenv("LANG");
  EXPECT_FALSE(shows_utf8());
}

}  // namespace
}  // namespace motley
