// The choice of a method against times worked out by hand.
#include "motley/collective/choose_method.h"

#include <gmock/gmock.h>

namespace motley::collective {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Four ranks behind links of 1 Gb/s, 46.8 MB, a server behind ten times as much.
MethodQuestion four_ranks() {
  MethodQuestion question;
  question.ranks = 4;
  question.bytes = 46.8e6;
  question.state_arrays = 1;
  question.rank_link = 125e6;
  question.rank_memory = 5 * 46.8e6 / 0.01;  // the step takes 10 ms
  question.servers = 1;
  question.rank_to_server_link = 125e6;
  question.server_link = 1250e6;
  return question;
}

double seconds_of(const MethodChoice& choice, Method method) {
  for (const MethodEstimate& estimate : choice.estimates) {
    if (estimate.method == method) return estimate.seconds;
  }
  return -1;
}

TEST(ChooseMethod, ServerWithAFatLinkBeatsTheRing) {
  const MethodChoice choice = choose_method(four_ranks());
  EXPECT_EQ(choice.method, Method::kParameterServer);
  EXPECT_NEAR(seconds_of(choice, Method::kParameterServer), 0.3744, 1e-9);
  EXPECT_NEAR(seconds_of(choice, Method::kTcpRing), 0.5616 + 0.010, 1e-9);
  EXPECT_EQ(choice.estimates.front().method, choice.method);
}

TEST(ChooseMethod, ServerBehindALinkLikeTheRanksLoses) {
  MethodQuestion question = four_ranks();
  question.server_link = 125e6;
  const MethodChoice choice = choose_method(question);
  EXPECT_EQ(choice.method, Method::kTcpRing);
  EXPECT_NEAR(seconds_of(choice, Method::kParameterServer), 4 * 0.3744, 1e-9);
  question.servers = 4;  // shared out among four of them it is the ranks' links again
  EXPECT_NEAR(seconds_of(choose_method(question), Method::kParameterServer), 0.3744, 1e-9);
}

TEST(ChooseMethod, SixteenBitsHalveWhatLinksCarryAndNotTheStep) {
  MethodQuestion question = four_ranks();
  question.wire_share = 0.5;
  const MethodChoice choice = choose_method(question);
  EXPECT_NEAR(seconds_of(choice, Method::kParameterServer), 0.1872, 1e-9);
  EXPECT_NEAR(seconds_of(choice, Method::kTcpRing), 0.2808 + 0.010, 1e-9);
}

TEST(ChooseMethod, MessagesCountForTheRing) {
  MethodQuestion question = four_ranks();
  question.server_link = 125e6 / 3;
  question.servers = 4;
  question.bytes = 4000;
  question.latency = 1e-3;
  // 6 messages of the ring against 2 of the server, which carries three times as long.
  const MethodChoice choice = choose_method(question);
  EXPECT_EQ(choice.method, Method::kParameterServer);
  EXPECT_NEAR(seconds_of(choice, Method::kParameterServer), 2e-3 + 96e-6, 1e-12);
}

TEST(ChooseMethod, OnOneHostMemoryDecides) {
  MethodQuestion question;
  question.ranks = 4;
  question.one_host = true;
  question.bytes = 1e9;
  question.state_arrays = 1;
  question.rank_memory = 5e9;  // of 20e9 for all four
  question.servers = 1;
  question.server_shares_memory = true;
  question.server_memory = 20e9;
  const MethodChoice choice = choose_method(question);
  EXPECT_EQ(choice.method, Method::kParameterServer);
  EXPECT_NEAR(seconds_of(choice, Method::kParameterServer), 8.0 / 20, 1e-9);  // N + 2 + 2 S = 8 times the model
  EXPECT_NEAR(seconds_of(choice, Method::kSharedMemory), 7.0 / 5, 1e-9);      // 2 + 3 + 2 S = 7 times, by each rank
  EXPECT_EQ(seconds_of(choice, Method::kTcpRing), -1);

  question.server_memory = 5e9;                                      // one core of four
  EXPECT_EQ(choose_method(question).method, Method::kSharedMemory);  // 8 / 5 against 7 / 5
  question.ranks = 2;
  EXPECT_EQ(choose_method(question).method, Method::kParameterServer);  // 6 / 5 against 7 / 5
}

TEST(ChooseMethod, ServerThatOnlySumsLeavesTheStepToRanks) {
  MethodQuestion question = four_ranks();
  question.server_steps = false;
  EXPECT_NEAR(seconds_of(choose_method(question), Method::kParameterServer), 0.3744 + 0.010, 1e-9);
}

TEST(ChooseMethod, WithoutAServerOrARingThereIsNoChoice) {
  MethodQuestion question = four_ranks();
  question.servers = 0;
  EXPECT_EQ(choose_method(question).method, Method::kTcpRing);
  question = four_ranks();
  question.ring_allowed = false;
  question.server_link = 1;
  EXPECT_EQ(choose_method(question).method, Method::kParameterServer);
}

TEST(ChooseMethod, ExplanationNamesBothWithTheirNumbers) {
  const std::string text = choose_method(four_ranks()).explanation();
  EXPECT_THAT(text, AllOf(HasSubstr("parameter-server: 374 ms"), HasSubstr("tcp-ring: 572 ms"), HasSubstr("125 MB/s")));
  EXPECT_LT(text.find("parameter-server"), text.find("tcp-ring"));
}

}  // namespace
}  // namespace motley::collective
