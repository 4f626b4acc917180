#include "motley/base/os/memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace motley {
namespace {

std::size_t count_resident_bytes(const Pages& pages) {
  const auto page_bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> states(pages.size() / page_bytes);
  EXPECT_EQ(::mincore(pages.data(), pages.size(), states.data()), 0);
  const auto resident = std::ranges::count_if(states, [](unsigned char state) { return (state & 1) != 0; });
  return static_cast<std::size_t>(resident) * page_bytes;
}

// As a server among several uses its arrays: huge pages would take all of them.
TEST(Pages, TakeNoMoreThanIsUsedOfThem) {
  constexpr std::size_t kParts = 32;
  constexpr std::size_t kPartBytes = 256 << 10;
  const auto pages = Pages::allocate(kParts * kHugePage, "a test", false);
  ASSERT_TRUE(pages) << pages.error().message;
  for (std::size_t part = 0; part < kParts; ++part) std::memset(pages->data() + part * kHugePage, 1, kPartBytes);
  EXPECT_LE(count_resident_bytes(*pages), kParts * kPartBytes * 11 / 10);
}

}  // namespace
}  // namespace motley
