// Frame headers: what is written is read, and no flipped bit, other session or stale epoch gets through.
#include "motley/net/connection.h"

#include <gtest/gtest.h>

#include "motley/base/random.h"
#include "motley/net/messages.h"

namespace motley::net {
namespace {

Frame random_frame(Random& random) {
  return {.has_payload_checksum = random.below(2) == 1,
          .type = static_cast<std::uint16_t>(random.next()),
          .payload_checksum = static_cast<std::uint32_t>(random.next()),
          .session = random.next(),
          .epoch = random.next(),
          .tag = random.next(),
          .length = random.next()};
}

TEST(Frame, ReadsWhatWasWritten) {
  Random random(1);
  for (int i = 0; i < 1000; ++i) {
    const Frame frame = random_frame(random);
    const auto decoded = decode_frame(encode_frame(frame));
    ASSERT_TRUE(decoded.has_value());
    EXPECT_EQ(*decoded, frame);
  }
}

TEST(Frame, RefusesEveryFlippedBit) {
  Random random(2);
  for (int i = 0; i < 20; ++i) {
    const FrameBytes good = encode_frame(random_frame(random));
    for (std::size_t bit = 0; bit < 8 * kFrameBytes; ++bit) {
      FrameBytes bad = good;
      bad[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
      EXPECT_FALSE(decode_frame(bad).has_value()) << "bit " << bit;
    }
  }
}

TEST(Frame, NamesBothSessionsAndBothEpochs) {
  const Status session = check_frame({.session = 0xabc, .epoch = 3}, 0xdef, 3);
  ASSERT_FALSE(session.has_value());
  EXPECT_EQ(session.error().code, ErrorCode::kRefused);
  EXPECT_NE(session.error().message.find("0abc"), std::string::npos);
  EXPECT_NE(session.error().message.find("0def"), std::string::npos);
  const Status epoch = check_frame({.session = 1, .epoch = 17}, 1, 18);
  ASSERT_FALSE(epoch.has_value());
  EXPECT_NE(epoch.error().message.find("17"), std::string::npos);
  EXPECT_NE(epoch.error().message.find("18"), std::string::npos);
  EXPECT_TRUE(check_frame({.session = 1, .epoch = 18}, 1, 18).has_value());
}

TEST(Messages, TruncatedOrLongerOnesAreRefused) {
  Membership membership{.session = 5, .epoch = 1, .rank = 1, .members = {{"h", "a", 1, 2}, {"h", "b", 3, 4}}};
  const auto bytes = encode_message(membership);
  const auto back = decode_membership(bytes);
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->members[1].address, "b");
  EXPECT_EQ(back->rank, 1);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(decode_membership(std::span(bytes).first(size)).has_value()) << size;
  }
  auto longer = bytes;
  longer.push_back({});
  EXPECT_FALSE(decode_membership(longer).has_value());
  const auto abort = decode_message<AbortMessage>(
      encode_message(AbortMessage{3, {ErrorCode::kDiverged, "the loss is NaN", -1}}), "abort");
  ASSERT_TRUE(abort.has_value());
  EXPECT_EQ(abort->error.rank, -1);
  EXPECT_EQ(abort->error.code, ErrorCode::kDiverged);
}

}  // namespace
}  // namespace motley::net
