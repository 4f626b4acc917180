// Sessions among threads and among real processes: who joins, who is missed, and who is named when one dies.
#include "motley/net/session.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <thread>

#include "motley/base/random.h"
#include "motley/net/derived_session.h"
#include "motley/net/socket.h"
#include "motley/net/watched_session.h"

extern char** environ;

namespace motley::net {
namespace {

using Joined = Result<std::unique_ptr<Session>>;

// A port that was free a moment ago, and that the system hands to nobody who asks for any: tests run side by side.
std::uint16_t free_port() {
  static auto next = static_cast<std::uint32_t>(::getpid()) * 64;
  while (true) {
    const auto port = static_cast<std::uint16_t>(10000 + next++ % 20000);
    if (listen_at({"127.0.0.1", port})) return port;
  }
}

SessionOptions options_for(int rank, int size, std::uint16_t port) {
  SessionOptions options;
  options.rank = rank;
  options.size = size;
  options.rendezvous.port = port;
  options.join_seconds = 20;
  return options;
}

std::vector<Joined> join_all(std::vector<SessionOptions> all, const Secret& secret, std::uint64_t seed = 1) {
  std::vector<Joined> joined;
  for (std::size_t i = 0; i < all.size(); ++i) {
    joined.emplace_back(fail(ErrorCode::kInternal, "did not run"));
  }
  std::vector<std::thread> threads;
  for (const auto index : permutation(static_cast<std::uint32_t>(all.size()), seed)) {
    threads.emplace_back([&, index] { joined[index] = Session::join(all[index], secret); });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  return joined;
}

std::vector<Joined> join_all(int size, const Secret& secret = Secret::generate(), std::uint64_t seed = 1) {
  const auto port = free_port();
  std::vector<SessionOptions> all;
  for (int rank = 0; rank < size; ++rank) {
    all.push_back(options_for(rank, size, port));
  }
  return join_all(std::move(all), secret, seed);
}

// Waits for the session to fail; the test ends with an error if it does not.
Error await_failure_of_session(const Session& session) {
  const Deadline deadline = Deadline::after(20);
  while (session.health() && !deadline.passed()) {
    SteadyClock::instance().sleep_until(monotonic_seconds() + 0.005);
  }
  return session.health() ? Error{ErrorCode::kInternal, "no failure", -3} : session.health().error();
}

void each_in_thread(std::vector<Joined>& sessions, const std::function<void(Session&)>& what) {
  std::vector<std::thread> threads;
  for (auto& session : sessions) {
    threads.emplace_back([&] { what(**session); });
  }
  for (auto& thread : threads) {
    thread.join();
  }
}

TEST(Session, RanksJoinInAnyOrderAndTalk) {
  for (int size = 1; size <= 8; ++size) {
    auto sessions = join_all(size, Secret::generate(), static_cast<std::uint64_t>(size));
    for (int rank = 0; rank < size; ++rank) {
      ASSERT_TRUE(sessions[rank].has_value()) << sessions[rank].error().message;
      const Membership& membership = (*sessions[rank])->membership();
      EXPECT_EQ(membership.rank, rank);
      EXPECT_EQ(membership.size(), size);
      EXPECT_EQ(membership.session, (*sessions[0])->membership().session);
      EXPECT_TRUE(membership.on_one_host());
    }
    // Every pair, two purposes, asked for in opposite orders on the two sides.
    each_in_thread(sessions, [size](Session& session) {
      const int rank = session.membership().rank;
      std::vector<std::unique_ptr<Connection>> connections;
      for (int peer = 0; peer < size; ++peer) {
        const std::uint32_t first = rank < peer ? 0 : 1;
        for (const std::uint32_t purpose : {first, 1 - first}) {
          if (peer != rank) {
            auto connection = session.connect(peer, purpose, Deadline::after(20));
            ASSERT_TRUE(connection.has_value()) << connection.error().message;
            EXPECT_EQ((*connection)->peer().rank, peer);
            EXPECT_EQ((*connection)->peer().purpose, purpose);
            const std::uint64_t tag = static_cast<std::uint64_t>(100 * rank) + purpose;
            ASSERT_TRUE((*connection)->send(1, tag, {}, Deadline::after(20), "hello"));
            connections.push_back(std::move(*connection));
          }
        }
      }
      for (auto& connection : connections) {
        const auto message = connection->receive(Deadline::after(20), "hello");
        ASSERT_TRUE(message.has_value()) << message.error().message;
        EXPECT_EQ(message->header.tag,
                  static_cast<std::uint64_t>(100 * connection->peer().rank) + connection->peer().purpose);
      }
      session.leave();
      EXPECT_TRUE(session.health().has_value());
    });
  }
}

TEST(EmulatedLinks, HoldConnectionsToTheRateOfTheirPeer) {
  auto sessions = join_all(3);
  for (auto& session : sessions) {
    ASSERT_TRUE(session.has_value()) << session.error().message;
    session = emulate_links(std::move(*session), {0, 2e6, 5e6});
  }
  each_in_thread(sessions, [](Session& session) {
    for (int peer = 0; peer < 3; ++peer) {
      if (peer == session.membership().rank) continue;
      auto connection = session.connect(peer, 7, Deadline::after(20));
      ASSERT_TRUE(connection.has_value()) << connection.error().message;
      std::uint64_t rate = 0;
      socklen_t size = sizeof(rate);
      ASSERT_EQ(::getsockopt((*connection)->descriptor(), SOL_SOCKET, SO_MAX_PACING_RATE, &rate, &size), 0);
      constexpr std::uint64_t kNoLimit = ~std::uint64_t{0};
      EXPECT_EQ(rate, peer == 1 ? 2'000'000U : peer == 2 ? 5'000'000U : kNoLimit);
    }
    session.leave();
  });
}

TEST(Session, AMissingRankIsNamedOnAllSides) {
  const auto port = free_port();
  std::vector<SessionOptions> all{options_for(0, 3, port), options_for(1, 3, port)};
  for (auto& options : all) {
    options.join_seconds = 1;
  }
  const auto joined = join_all(all, Secret::generate());
  for (const auto& session : joined) {
    ASSERT_FALSE(session.has_value());
    EXPECT_NE(session.error().message.find("rank 2"), std::string::npos) << session.error().message;
    EXPECT_EQ(session.error().code, ErrorCode::kTimeout);
  }
  auto alone = options_for(1, 2, port);
  alone.join_seconds = 0.3;
  const auto nobody = Session::join(alone, Secret::generate());
  ASSERT_FALSE(nobody.has_value());
  EXPECT_NE(nobody.error().message.find("127.0.0.1:" + std::to_string(port)), std::string::npos);
  EXPECT_EQ(nobody.error().rank, 0);
}

TEST(Session, EncryptedRanksJoinConnectAndLearnWhoIsLost) {
  const auto port = free_port();
  std::vector<SessionOptions> all;
  for (int rank = 0; rank < 3; ++rank) {
    all.push_back(options_for(rank, 3, port));
    all.back().encryption = Encryption::kOn;
  }
  auto joined = join_all(all, Secret::generate());
  for (const auto& session : joined) ASSERT_TRUE(session.has_value()) << session.error().message;
  const Deadline deadline = Deadline::after(20);
  Result<std::unique_ptr<Connection>> far = fail(ErrorCode::kInternal, "did not run");
  std::thread thread([&] { far = (*joined[2])->connect(1, 5, deadline); });
  auto near = (*joined[1])->connect(2, 5, deadline);
  thread.join();
  ASSERT_TRUE(near && far);
  EXPECT_TRUE((*near)->is_encrypted() && (*far)->is_encrypted());
  const std::vector<std::byte> word(100'000, std::byte{7});
  ASSERT_TRUE((*near)->send(1, 2, word, deadline, "a word"));
  const auto heard = (*far)->receive(deadline, "a word");
  ASSERT_TRUE(heard.has_value()) << heard.error().message;
  EXPECT_EQ(heard->payload, word);
  (*joined[2])->abort({ErrorCode::kDiverged, "the loss is not finite", 2});
  for (const auto& session : joined) {
    const Error error = await_failure_of_session(**session);
    EXPECT_EQ(error.rank, 2);
    EXPECT_EQ(error.message, "rank 2 failed: the loss is not finite");
  }
}

TEST(Session, WrongSecretFingerprintSizeAndBusyPort) {
  const Secret secret = Secret::generate();
  const auto join_two = [&](SessionOptions other, const Secret& its_secret) {
    const auto port = free_port();
    auto first = options_for(0, 2, port);
    first.join_seconds = 3;
    first.fingerprint = "f00d";
    other.rendezvous.port = port;
    Joined zero = fail(ErrorCode::kInternal, "did not run");
    std::thread thread([&] { zero = Session::join(first, secret); });
    Joined one = Session::join(other, its_secret);
    thread.join();
    return std::pair(zero ? Error{} : zero.error(), one ? Error{} : one.error());
  };
  auto other = options_for(1, 2, 0);
  other.fingerprint = "f00d";
  for (const Encryption encryption : {Encryption::kAuto, Encryption::kOn}) {
    other.encryption = encryption;  // which rank 0 takes over loopback, whether it asks for it or not
    const auto by_secret = join_two(other, Secret::generate());
    EXPECT_EQ(by_secret.first.code, ErrorCode::kRefused);
    EXPECT_EQ(by_secret.second.code, ErrorCode::kRefused);
    EXPECT_NE(by_secret.first.message.find("secret differs"), std::string::npos) << by_secret.first.message;
    EXPECT_NE(by_secret.second.message.find("secret differs"), std::string::npos);
  }
  other.encryption = Encryption::kAuto;
  other.fingerprint = "beef";
  const auto by_fingerprint = join_two(other, secret);
  for (const Error& error : {by_fingerprint.first, by_fingerprint.second}) {
    EXPECT_EQ(error.code, ErrorCode::kRefused);
    EXPECT_NE(error.message.find("beef"), std::string::npos) << error.message;
    EXPECT_NE(error.message.find("f00d"), std::string::npos) << error.message;
  }
  other.fingerprint = "f00d";
  other.size = 3;
  const auto by_size = join_two(other, secret);
  EXPECT_EQ(by_size.first.code, ErrorCode::kRefused) << by_size.first.message;
  EXPECT_EQ(by_size.second.code, ErrorCode::kRefused) << by_size.second.message;

  for (const auto& [name, shown] : {std::pair("job\x01", "job\\x01"), std::pair("\xff", "\\xff")}) {
    auto strange = options_for(0, 1, 0);
    strange.job = name;
    const auto refused = Session::join(strange, secret);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidInput);
    EXPECT_NE(refused.error().message.find(fmt::format("the job '{}'", shown)), std::string::npos)
        << refused.error().message;
  }

  const auto taken = listen_at({"127.0.0.1", 0});
  const auto port = local_endpoint(*taken).port;
  const auto busy = Session::join(options_for(0, 1, port), secret);
  ASSERT_FALSE(busy.has_value());
  EXPECT_NE(busy.error().message.find("port " + std::to_string(port) + " is in use"), std::string::npos);

  auto open = options_for(0, 1, 0);
  open.bind_host = "0.0.0.0";
  const auto refused = Session::join(open, secret);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidInput);
  open.given_secret = true;
  EXPECT_TRUE(Session::join(open, secret).has_value());
}

TEST(Session, UnauthenticatedPeersDoNotDisturb) {
  const auto port = free_port();
  const Secret secret = Secret::generate();
  Joined zero = fail(ErrorCode::kInternal, "did not run");
  std::thread first([&] { zero = Session::join(options_for(0, 2, port), secret); });
  // Silent ones, talkative ones and one that leaves in the middle, all before the real rank.
  std::vector<Descriptor> unauthenticated;
  Random random(5);
  for (int i = 0; i < 40; ++i) {
    Result<Descriptor> socket = fail(ErrorCode::kInternal, "");
    for (const Deadline deadline = Deadline::after(10); !socket && !deadline.passed();) {
      socket = connect_to({"127.0.0.1", port}, deadline);
    }
    ASSERT_TRUE(socket.has_value());
    std::string noise(i % 2 ? 0 : random.below(3000), '\0');
    for (char& c : noise) {
      c = static_cast<char>(random.next());
    }
    if (i % 4 == 0) {
      noise.replace(0, std::min<std::size_t>(8, noise.size()), std::string("MTLH\x01\0\x01\0", 8));
    }
    (void)::send(socket->get(), noise.data(), noise.size(), MSG_NOSIGNAL);
    if (i % 3 != 0) {
      unauthenticated.push_back(std::move(*socket));
    }
  }
  Joined one = Session::join(options_for(1, 2, port), secret);
  first.join();
  ASSERT_TRUE(zero.has_value()) << zero.error().message;
  ASSERT_TRUE(one.has_value()) << one.error().message;
}

TEST(Session, WhereRanksCannotChangeNobodyIsToldWhoIsThere) {
  const Secret secret = Secret::generate();
  const auto sessions = join_all(2, secret);
  for (const auto& session : sessions) ASSERT_TRUE(session.has_value()) << session.error().message;
  const Session& asker = **sessions[1];
  const Member& asked = asker.membership().members[0];
  const Claim claim = own_claim(asker.options(), asker.membership(), kQuestionPurpose);
  const auto answer = connect_and_authenticate(
      {asked.address, asked.port}, secret, claim, [](const Claim&) { return Status(); }, asker.options().encryption,
      Deadline::after(20), {}, [](const Error& error) { return error.code == ErrorCode::kRefused; });
  ASSERT_FALSE(answer.has_value());
  EXPECT_EQ(answer.error().code, ErrorCode::kRefused);
  EXPECT_NE(answer.error().message.find("this session's ranks cannot change"), std::string::npos)
      << answer.error().message;
  for (const auto& session : sessions) EXPECT_TRUE((*session)->health());
}

TEST(Session, TheFirstCauseIsToldByAll) {
  auto sessions = join_all(4);
  for (auto& session : sessions) {
    ASSERT_TRUE(session.has_value()) << session.error().message;
  }
  // Rank 1 sees the consequence before rank 2 says what happened.
  std::thread consequence([&] { (*sessions[1])->abort({ErrorCode::kPeerLost, "rank 2 closed its connection", 2}); });
  (*sessions[2])->abort({ErrorCode::kDiverged, "the loss is NaN", -1});
  consequence.join();
  for (auto& session : sessions) {
    const Error error = await_failure_of_session(**session);
    EXPECT_EQ(error.rank, 2);
    EXPECT_EQ(error.code, ErrorCode::kDiverged);
    EXPECT_EQ(error.message, "rank 2 failed: the loss is NaN");
  }
}

TEST(Session, AReportAboutAnotherRankBlamesThatRank) {
  auto sessions = join_all(3);
  (*sessions[1])->abort({ErrorCode::kPeerLost, "rank 2 closed its connection", 2});
  for (auto& session : sessions) {
    const Error error = await_failure_of_session(**session);
    EXPECT_EQ(error.rank, 2);
    EXPECT_NE(error.message.find("rank 2 closed its connection"), std::string::npos);
  }
}

TEST(Session, ARankThatEndsWithoutLeavingIsNamed) {
  auto sessions = join_all(3);
  (*sessions[2])->set_phase(12, "backward");
  sessions[2]->reset();
  for (int rank = 0; rank < 2; ++rank) {
    const Error error = await_failure_of_session(**sessions[rank]);
    EXPECT_EQ(error.rank, 2);
    EXPECT_EQ(error.code, ErrorCode::kPeerLost);
    EXPECT_NE(error.message.find("rank 2 ended"), std::string::npos) << error.message;
  }
}

TEST(Session, TheLossOfRankZeroIsNamed) {
  auto sessions = join_all(3);
  sessions[0]->reset();
  for (int rank = 1; rank < 3; ++rank) {
    EXPECT_EQ(await_failure_of_session(**sessions[rank]).rank, 0);
  }
}

// Ranks as processes, of which one gets a signal; what the others say.
std::vector<std::string> find_survivors(int size, int victim, int signal, double silence) {
  const std::string port = std::to_string(free_port());
  const std::string secret_file = fmt::format("{}/session-{}.secret", ::testing::TempDir(), ::getpid());
  EXPECT_TRUE(Secret::generate().write(secret_file));
  ::setenv(kSecretFileVariable, secret_file.c_str(), 1);
  std::vector<pid_t> processes;
  std::vector<FILE*> outputs;
  for (int rank = 0; rank < size; ++rank) {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    std::string words[] = {RANK_PROCESS, std::to_string(rank), std::to_string(size), port, std::to_string(silence)};
    char* arguments[] = {words[0].data(), words[1].data(), words[2].data(), words[3].data(), words[4].data(), nullptr};
    pid_t process = 0;
    EXPECT_EQ(::posix_spawn(&process, RANK_PROCESS, &actions, nullptr, arguments, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    processes.push_back(process);
    outputs.push_back(::fdopen(ends[0], "r"));
  }
  char line[1024];
  for (FILE* output : outputs) {
    EXPECT_NE(std::fgets(line, sizeof line, output), nullptr);
    EXPECT_STREQ(line, "joined\n");
  }
  ::kill(processes[victim], signal);
  std::vector<std::string> lines;
  for (int rank = 0; rank < size; ++rank) {
    if (rank != victim && std::fgets(line, sizeof line, outputs[rank]) != nullptr) {
      lines.emplace_back(line);
    }
  }
  ::kill(processes[victim], SIGKILL);
  for (int rank = 0; rank < size; ++rank) {
    std::fclose(outputs[rank]);
    ::waitpid(processes[rank], nullptr, 0);
  }
  return lines;
}

TEST(Session, AKilledProcessIsNamedByEverySurvivor) {
  for (const int victim : {0, 2}) {
    const auto lines = find_survivors(4, victim, SIGKILL, 30);
    ASSERT_EQ(lines.size(), 3U);
    for (const std::string& words : lines) {
      EXPECT_TRUE(words.starts_with(fmt::format("{} rank {} ended", victim, victim))) << words;
    }
  }
}

TEST(Session, AStoppedProcessIsNamedAfterItsSilence) {
  const auto lines = find_survivors(3, 1, SIGSTOP, 2);
  ASSERT_EQ(lines.size(), 2U);
  for (const std::string& words : lines) {
    EXPECT_TRUE(words.starts_with("1 rank 1 has been silent")) << words;
  }
}

struct ElasticJob {
  Secret secret = Secret::generate();
  SessionOptions options;
  std::vector<Joined> sessions;
  // `starting`: so many of them begin it; 0: all.
  explicit ElasticJob(int size, int starting = 0) {
    const auto port = free_port();
    std::vector<SessionOptions> all;
    for (int rank = 0; rank < (starting > 0 ? starting : size); ++rank) {
      options = options_for(rank, size, port);
      options.starting = starting;
      options.is_elastic = true;
      options.silence_seconds = 5;
      all.push_back(options);
    }
    sessions = join_all(std::move(all), secret);
  }
  Session& operator[](int rank) { return **sessions[static_cast<std::size_t>(rank)]; }
};

// Those who are left agree, and what they open from then on is of the new epoch.
void expect_to_go_on(std::vector<Joined>& sessions, const std::vector<int>& left, std::uint64_t epoch,
                     int newcomer = -1) {
  std::vector<std::thread> threads;
  for (const int rank : left) {
    threads.emplace_back([&, rank] {
      Session& session = **sessions[static_cast<std::size_t>(rank)];
      if (rank != newcomer) {
        EXPECT_EQ(await_failure_of_session(session).code, ErrorCode::kPeerLost);
      }
      const auto epochs = session.regroup(Deadline::after(20));
      ASSERT_TRUE(epochs) << epochs.error().message;
      EXPECT_EQ(epochs->back(), (Epoch{epoch, left}));
      EXPECT_TRUE(session.health());
      for (const int peer : left) {
        if (peer == rank) continue;
        const auto connection = session.connect(peer, 3, Deadline::after(20));
        ASSERT_TRUE(connection) << connection.error().message;
        EXPECT_EQ((*connection)->peer().epoch, epoch);
        ASSERT_TRUE((*connection)->send(1, static_cast<std::uint64_t>(rank), {}, Deadline::after(20), "hello"));
        const auto message = (*connection)->receive(Deadline::after(20), "hello");
        ASSERT_TRUE(message) << message.error().message;
        EXPECT_EQ(message->header.tag, static_cast<std::uint64_t>(peer));
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(ElasticSession, GoesOnWithThoseWhoAreLeft) {
  ElasticJob job(5);
  auto& sessions = job.sessions;
  for (const auto& session : sessions) ASSERT_TRUE(session) << session.error().message;
  sessions[0]->reset();
  expect_to_go_on(sessions, {1, 2, 3, 4}, 2);
  sessions[3]->reset();
  expect_to_go_on(sessions, {1, 2, 4}, 3);
}

// Three ranks, which may be busy for so long while others wait.
std::vector<Joined> join_with_patience(double progress_seconds, double recording_seconds) {
  const auto port = free_port();
  std::vector<SessionOptions> all;
  for (int rank = 0; rank < 3; ++rank) {
    SessionOptions options = options_for(rank, 3, port);
    options.is_elastic = true;
    options.silence_seconds = 5;
    options.progress_seconds = progress_seconds;
    options.recording_seconds = recording_seconds;
    all.push_back(std::move(options));
  }
  return join_all(std::move(all), Secret::generate());
}

// As where its disk stalls. It is looked at before the other one.
TEST(ElasticSession, OneThatRecordsAStepMayTakeLongerThanOneThatComputes) {
  auto sessions = join_with_patience(0.1, 1000);
  for (const auto& session : sessions) ASSERT_TRUE(session) << session.error().message;
  (*sessions[0])->set_phase(5, "recording");
  (*sessions[2])->set_phase(5, "backward");
  (*sessions[1])->set_phase(5, "gradient synchronisation");
  const Error lost = await_failure_of_session(**sessions[1]);
  EXPECT_EQ(lost.rank, 2) << lost.message;
  EXPECT_NE(lost.message.find("has computed for more than 0.1 s"), std::string::npos) << lost.message;
}

TEST(ElasticSession, OneThatRecordsAStepForTooLongIsLost) {
  auto sessions = join_with_patience(1000, 0.1);
  for (const auto& session : sessions) ASSERT_TRUE(session) << session.error().message;
  (*sessions[0])->set_phase(5, "backward");  // it waits for nobody
  (*sessions[2])->set_phase(5, "recording");
  (*sessions[1])->set_phase(5, "gradient synchronisation");
  const Error lost = await_failure_of_session(**sessions[1]);
  EXPECT_EQ(lost.rank, 2) << lost.message;
  EXPECT_NE(lost.message.find("has recorded a step for more than 0.1 s"), std::string::npos) << lost.message;
}

TEST(ElasticSession, ARanksOwnErrorEndsItForAll) {
  ElasticJob job(3);
  auto& sessions = job.sessions;
  for (const auto& session : sessions) ASSERT_TRUE(session) << session.error().message;
  (*sessions[1])->abort({ErrorCode::kDiverged, "the loss is nan", 1});
  for (auto& session : sessions) {
    EXPECT_EQ(await_failure_of_session(**session).code, ErrorCode::kDiverged);
    const auto epochs = (*session)->regroup(Deadline::after(20));
    ASSERT_FALSE(epochs);
    EXPECT_NE(epochs.error().message.find("the loss is nan"), std::string::npos);
  }
}

TEST(ElasticSession, WhereOneHasLeftInOrderNobodyAgrees) {
  ElasticJob job(3);
  auto& sessions = job.sessions;
  for (const auto& session : sessions) ASSERT_TRUE(session) << session.error().message;
  std::thread leaver([&] { (*sessions[2])->leave(); });
  sessions[0]->reset();
  const auto epochs = (*sessions[1])->regroup(Deadline::after(20));
  ASSERT_FALSE(epochs);
  EXPECT_EQ(epochs.error().code, ErrorCode::kUnavailable) << epochs.error().message;
  sessions[1]->reset();
  leaver.join();
}

// Joins at a member that listens, and is to be taken in by regroup().
Joined join_running(const Session& member, int rank, const SessionOptions& options, const Secret& secret) {
  SessionOptions own = options;
  own.rank = rank;
  own.is_newcomer = true;
  const Member& listens = member.membership().members[static_cast<std::size_t>(member.membership().rank)];
  own.rendezvous = {listens.address, listens.port};
  return Session::join(own, secret);
}

TEST(ElasticSession, ANewcomerTakesThePlaceOfALostRank) {
  ElasticJob job(4);
  for (const auto& session : job.sessions) ASSERT_TRUE(session) << session.error().message;
  std::uint64_t epoch = 1;
  for (const int rank : {0, 2, 3}) {
    job.sessions[static_cast<std::size_t>(rank)]->reset();
    std::vector<int> left;
    for (int other = 0; other < 4; ++other) {
      if (other != rank) left.push_back(other);
    }
    expect_to_go_on(job.sessions, left, ++epoch);
    Session& member = job[left.back()];
    auto newcomer = join_running(member, rank, job.options, job.secret);
    ASSERT_TRUE(newcomer) << newcomer.error().message;
    // It is nobody yet.
    EXPECT_TRUE(member.health());
    job.sessions[static_cast<std::size_t>(rank)] = std::move(newcomer);
    expect_to_go_on(job.sessions, {0, 1, 2, 3}, ++epoch, rank);
  }
}

TEST(ElasticSession, RanksJoinThatWereNotThereAtTheStart) {
  for (const int starting : {1, 2}) {
    ElasticJob job(4, starting);
    std::vector<int> there;
    for (const auto& session : job.sessions) {
      ASSERT_TRUE(session) << session.error().message;
      EXPECT_EQ((*session)->membership().size(), 4);
      EXPECT_TRUE((*session)->membership().on_one_host());
      there.push_back(static_cast<int>(there.size()));
    }
    std::uint64_t epoch = 1;
    for (int rank = starting; rank < 4; ++rank) {
      job.sessions.push_back(join_running(job[0], rank, job.options, job.secret));
      ASSERT_TRUE(job.sessions.back()) << job.sessions.back().error().message;
      there.push_back(rank);
      expect_to_go_on(job.sessions, there, ++epoch, rank);
    }
    job.sessions.back()->reset();  // and goes again
    there.pop_back();
    expect_to_go_on(job.sessions, there, ++epoch);
  }
  SessionOptions options = options_for(0, 2, free_port());
  options.starting = 1;
  const Joined refused = Session::join(options, Secret::generate());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message, "1 of 2 ranks cannot begin a job");
}

// Whoever connects to the port of this process from now on is sent little at a time.
void shrink_send_buffers(std::uint16_t port) {
  const int bytes = 16 << 10;
  for (int number = 0; number < 1024; ++number) {
    const Descriptor same(::dup(number));
    if (local_endpoint(same).port == port) ::setsockopt(number, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
  }
}

TEST(ElasticSession, SaysWhoIsThereHoweverManyPlacesItHas) {
  constexpr int kPlaces = kMaxRanks;
  ElasticJob job(kPlaces, 1);
  ASSERT_TRUE(job.sessions[0]) << job.sessions[0].error().message;
  const Member& asked = job[0].membership().members[0];
  shrink_send_buffers(asked.port);
  const auto running = ask_who_is_there({asked.address, asked.port}, job.options, job.secret, Deadline::after(20));
  ASSERT_TRUE(running) << running.error().message;
  EXPECT_EQ(running->membership.size(), kPlaces);
  EXPECT_EQ(running->present, std::vector<int>{0});
}

TEST(ElasticSession, ANewcomerThatGoesAgainCostsNobodyAnything) {
  ElasticJob job(3);
  for (const auto& session : job.sessions) ASSERT_TRUE(session) << session.error().message;
  job.sessions[1]->reset();
  expect_to_go_on(job.sessions, {0, 2}, 2);
  for (int i = 0; i < 3; ++i) {
    auto newcomer = join_running(job[0], 1, job.options, job.secret);
    ASSERT_TRUE(newcomer) << newcomer.error().message;
    if (i == 1) (*newcomer)->abort({ErrorCode::kIo, "no data here", 1});
    newcomer->reset();
  }
  EXPECT_TRUE(job[0].health());
  EXPECT_TRUE(job[2].health());
}

TEST(ElasticSession, NobodyTakesAPlaceThatIsTakenNorOneOfAnotherJob) {
  ElasticJob job(3);
  for (const auto& session : job.sessions) ASSERT_TRUE(session) << session.error().message;
  auto twin = join_running(job[0], 2, job.options, job.secret);
  ASSERT_TRUE(twin) << twin.error().message;
  const auto refused = (*twin)->regroup(Deadline::after(5));
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("there is a rank 2 already"), std::string::npos) << refused.error().message;
  SessionOptions other = job.options;
  other.fingerprint = "another";
  other.join_seconds = 5;
  const auto stranger = join_running(job[0], 2, other, job.secret);
  ASSERT_FALSE(stranger);
  EXPECT_NE(stranger.error().message.find("another"), std::string::npos) << stranger.error().message;
  EXPECT_FALSE(join_running(job[0], 2, job.options, Secret::generate()));
  for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(job[rank].health());
}

TEST(ElasticSession, ANewcomerAtTheEndFindsNobody) {
  ElasticJob job(2);
  for (const auto& session : job.sessions) ASSERT_TRUE(session) << session.error().message;
  job.sessions[1]->reset();
  ASSERT_TRUE(await_failure_of_session(job[0]).code == ErrorCode::kPeerLost);
  auto newcomer = join_running(job[0], 1, job.options, job.secret);
  ASSERT_TRUE(newcomer) << newcomer.error().message;
  job[0].leave();
  job.sessions[0]->reset();
  const auto epochs = (*newcomer)->regroup(Deadline::after(20));
  ASSERT_FALSE(epochs);
  EXPECT_EQ(epochs.error().code, ErrorCode::kUnavailable) << epochs.error().message;
}

TEST(ElasticSession, OthersCannotRegroup) {
  auto sessions = join_all(2);
  EXPECT_EQ((*sessions[0])->regroup(Deadline::after(1)).error().code, ErrorCode::kUnavailable);
}

TEST(Secret, FromFileMustBePrivate) {
  const std::string path = testing::TempDir() + "secret-" + std::to_string(::getpid());
  const Secret secret = Secret::generate();
  FILE* file = std::fopen(path.c_str(), "w");
  std::fputs((secret.hex() + "\n").c_str(), file);
  std::fclose(file);
  ::chmod(path.c_str(), 0644);
  EXPECT_FALSE(Secret::from_file(path).has_value());
  ::chmod(path.c_str(), 0600);
  const auto read = Secret::from_file(path);
  ASSERT_TRUE(read.has_value()) << read.error().message;
  EXPECT_EQ(read->bytes(), secret.bytes());
  ::unlink(path.c_str());
}

TEST(Endpoint, Parses) {
  EXPECT_EQ(parse_endpoint("node1:29400")->host, "node1");
  EXPECT_EQ(parse_endpoint("[::1]:5")->host, "::1");
  for (const char* bad : {"", "node1", "node1:", ":5", "::1:5", "node1:65536", "node1:5x", "[]:5"}) {
    EXPECT_FALSE(parse_endpoint(bad).has_value()) << bad;
  }
}

}  // namespace
}  // namespace motley::net
