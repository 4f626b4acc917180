// Control messages read back as they were written; cut short, longer, or beyond their caps they are refused, and the
// refusal names the field.
#include "motley/net/messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>

#include "motley/base/random.h"
#include "motley/net/message_fields.h"

namespace motley::net {
namespace {

using testing::HasSubstr;

constexpr auto decode_join = [](std::span<const std::byte> bytes) {
  return decode_message<JoinMessage>(bytes, "join");
};
constexpr auto decode_waiting = [](std::span<const std::byte> bytes) {
  return decode_message<std::vector<int>>(bytes, "waiting", kRank);
};
constexpr auto decode_heartbeat = [](std::span<const std::byte> bytes) {
  return decode_message<std::vector<Heartbeat>>(bytes, "heartbeat");
};
constexpr auto decode_abort = [](std::span<const std::byte> bytes) {
  return decode_message<AbortMessage>(bytes, "abort");
};

std::string random_text(Random& random, std::size_t most) {
  std::string text(random.below(most + 1), ' ');
  for (char& c : text) c = static_cast<char>(random.below(256));
  return text;
}

Member random_member(Random& random) {
  return {random_text(random, 255), random_text(random, 255), static_cast<std::uint16_t>(random.below(65536)),
          static_cast<std::int64_t>(random.below(std::uint64_t{1} << 40)) - 5};
}

// What decodes must encode to the same bytes; no part of it decodes, nor does it with a byte more.
template <class Decode>
void expect_exact(const std::vector<std::byte>& bytes, Decode decode) {
  const auto read = decode(bytes);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(encode_message(*read), bytes);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const auto cut = decode(std::span(bytes).first(size));
    ASSERT_FALSE(cut) << size;
    EXPECT_EQ(cut.error().code, ErrorCode::kCorrupt);
  }
  std::vector<std::byte> longer = bytes;
  longer.push_back({});
  EXPECT_FALSE(decode(longer));
}

TEST(Messages, ReadBackAsWrittenAndInNoOtherLength) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Random random(seed);
    expect_exact(encode_message(JoinMessage{static_cast<int>(random.below(4096)), random_member(random)}), decode_join);
    std::vector<int> missing(random.below(5));
    for (int& rank : missing) rank = static_cast<int>(random.below(kMaxRanks));
    expect_exact(encode_message(missing), decode_waiting);
    Membership membership{random.below(1000), random.below(1000), 0, {}};
    for (std::uint64_t i = 0; i <= random.below(3); ++i) membership.members.push_back(random_member(random));
    membership.rank = static_cast<int>(random.below(membership.members.size()));
    expect_exact(encode_message(membership), decode_membership);
    std::vector<Heartbeat> heartbeats(random.below(4));
    for (Heartbeat& heartbeat : heartbeats) {
      heartbeat = {static_cast<int>(random.below(kMaxRanks)),
                   random.below(2) == 1 ? RankState::kLeft : RankState::kPresent, random.below(1000),
                   static_cast<double>(random.below(4096)) / 8, random_text(random, 63)};
    }
    expect_exact(encode_message(heartbeats), decode_heartbeat);
    expect_exact(encode_message(AbortMessage{1, Error{ErrorCode::kIo, random_text(random, 300), -1}}), decode_abort);
  }
}

TEST(Messages, WhatIsBeyondItsBoundsIsNamed) {
  const auto refusal = [](const auto& read) { return read ? "accepted" : read.error().message; };
  EXPECT_THAT(refusal(decode_waiting(encode_message(std::vector<int>{4096}))),
              HasSubstr("a malformed waiting message of 8 bytes: waiting is 4096; accepted is 0 to 4095"));
  EXPECT_THAT(refusal(decode_heartbeat(encode_message(std::vector<Heartbeat>{{.rank = -1}}))), HasSubstr("rank is -1"));
  auto bytes = encode_message(std::vector<Heartbeat>{{.rank = 1}});
  bytes[8] = std::byte{2};
  EXPECT_THAT(refusal(decode_heartbeat(bytes)), HasSubstr("state is 2; accepted is 0 to 1"));
  EXPECT_THAT(refusal(decode_abort(encode_message(AbortMessage{0, Error{ErrorCode::kIo, "", -2}}))),
              HasSubstr("rank is -2"));
  EXPECT_THAT(refusal(decode_abort(encode_message(AbortMessage{0, Error{static_cast<ErrorCode>(99), "", 0}}))),
              HasSubstr("code is 99"));
  Membership membership{0, 0, 2, std::vector<Member>(2)};
  EXPECT_THAT(refusal(decode_membership(encode_message(membership))), HasSubstr("rank 2 of 2"));
  EXPECT_THAT(refusal(decode_join({})), HasSubstr("it ends within size"));
  EXPECT_EQ(decode_heartbeat(encode_message(std::vector<Heartbeat>{{.phase = std::string(100, 'x')}}))->front().phase,
            std::string(63, 'x'))
      << "longer texts are cut off";
}

// A size that the bytes cannot hold is refused at their end, not believed.
TEST(Messages, NothingIsAllocatedForWhatIsNotThere) {
  ByteWriter writer;
  writer.put(std::uint32_t{0xffffffff});
  EXPECT_FALSE(decode_waiting(writer.take()));
  ByteWriter heartbeats;
  heartbeats.put(std::uint32_t{0xffffffff});
  EXPECT_FALSE(decode_heartbeat(heartbeats.take()));
}

struct Kinds {
  double real = 0;
  float single = 0;
  bool flag = false;
  std::optional<std::int64_t> maybe;
  std::array<std::byte, 3> raw{};
  bool operator==(const Kinds&) const = default;
};

template <class Archive>
void fields(Archive& archive, Kinds& kinds) {
  archive.required("real", kinds.real, NumberIs::kPositive);
  archive.required("single", kinds.single, NumberIs::kFinite);
  archive.required("flag", kinds.flag);
  archive.required("maybe", kinds.maybe, NumberIs::kFinite);
  archive.required("raw", kinds.raw);
}

TEST(Messages, EveryKindOfFieldReadsBack) {
  const Kinds kinds{1.5, -0.25F, true, -7, {std::byte{1}, std::byte{2}, std::byte{3}}};
  const auto read = decode_message<Kinds>(encode_message(kinds), "kinds");
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(*read, kinds);
  for (const double real : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    const auto refused = decode_message<Kinds>(encode_message(Kinds{.real = real}), "kinds");
    ASSERT_FALSE(refused) << real;
    EXPECT_THAT(refused.error().message, HasSubstr("real is "));
  }
  auto bytes = encode_message(kinds);
  bytes[12] = std::byte{2};
  EXPECT_THAT(decode_message<Kinds>(bytes, "kinds").error().message, HasSubstr("flag is 2; accepted is 0 to 1"));
}

}  // namespace
}  // namespace motley::net
