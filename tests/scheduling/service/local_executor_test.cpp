// Processes of this machine: begun once, found again by another executor, asked to end, killed.
#include "motley/scheduling/executors/executors.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>

#include "motley/base/clock.h"
#include "motley/base/os/descriptor.h"
#include "motley/base/os/file.h"
#include "motley/base/os/process.h"
#include "motley/scheduling/executors/attempt_folder.h"
#include "tests/temporary_folder.h"

namespace motley::scheduling {
namespace {

using State = AttemptStatus::State;

class LocalExecutorTest : public ::testing::Test {
 protected:
  Attempt attempt(const std::string& script) {
    return {
        1, "job", 1, {"bash", "-c", script}, folder_.path.string(), folder_.path / "attempt", {{"n0", 2}, {"n1", 1}}};
  }
  AttemptStatus wait_for(Executor& executor, const Attempt& attempt, State state) {
    AttemptStatus status;
    for (const Deadline deadline = Deadline::after(20); !deadline.passed();) {
      status = *executor.look(attempt);
      if (status.state == state) return status;
      SteadyClock::instance().sleep_until(monotonic_seconds() + 0.01);
    }
    ADD_FAILURE() << "the attempt does not come to state " << static_cast<int>(state);
    return status;
  }
  std::string text(const std::string& name) { return read_file(folder_.path / name).value_or(""); }
  std::string wait_for_text(const std::string& name, const std::string& part) {
    for (const Deadline deadline = Deadline::after(20); !deadline.passed();) {
      if (text(name).find(part) != std::string::npos) return text(name);
      SteadyClock::instance().sleep_until(monotonic_seconds() + 0.01);
    }
    ADD_FAILURE() << name << " does not come to have '" << part << "': " << text(name);
    return {};
  }
  // Whether a blocked signal has come to a process that has not taken it yet.
  static bool is_pending(int process, int signal) {
    std::ifstream status(fmt::format("/proc/{}/status", process));
    for (std::string word; status >> word;) {
      if (word != "ShdPnd:") continue;
      status >> word;
      return (std::stoull(word, nullptr, 16) >> (signal - 1) & 1) != 0;
    }
    return false;
  }
  static void wait_until_over(int process) {
    const Deadline deadline = Deadline::after(20);
    while (process_state(process).value_or('Z') != 'Z' && !deadline.passed()) {
      SteadyClock::instance().sleep_until(monotonic_seconds() + 0.01);
    }
  }
  // Of processes whose numbers are lines of the file, those that run still: none that has ended, or is in the midst of
  // it.
  std::vector<int> alive(const std::string& name) {
    std::vector<int> alive;
    std::istringstream numbers(text(name));
    for (int number; numbers >> number;) {
      std::string word, state;
      unsigned flags = 0;
      std::ifstream("/proc/" + std::to_string(number) + "/stat") >> word >> word >> state >> word >> word >> word >>
          word >> word >> flags;
      constexpr unsigned kIsEnding = 4;  // PF_EXITING of the kernel
      if (!state.empty() && state != "Z" && (flags & kIsEnding) == 0) alive.push_back(number);
    }
    return alive;
  }

  TemporaryFolder folder_;
};

TEST_F(LocalExecutorTest, TellsTheCommandWhereItIsAndHowItEnded) {
  const std::unique_ptr<Executor> executor = *make_local_executor();
  Attempt one =
      attempt("echo $MOTLEY_JOB $MOTLEY_ATTEMPT $MOTLEY_WORKERS $MOTLEY_NODES $MOTLEY_CPUS_PER_WORKER; pwd; exit 7");
  one.cpus_per_worker = 2.5;
  EXPECT_EQ(executor->look(one)->state, State::kUnknown);
  ASSERT_TRUE(executor->start(one));
  EXPECT_EQ(wait_for(*executor, one, State::kEnded).exit_code, 7);
  EXPECT_EQ(text("attempt/output"), "job 1 3 n0:2,n1:1 2.5\n" + folder_.path.string() + "\n");
}

TEST_F(LocalExecutorTest, BeginsOnceWhoeverStartsIt) {
  const std::unique_ptr<Executor> first = *make_local_executor();
  const std::unique_ptr<Executor> second = *make_local_executor();
  const Attempt one = attempt("echo begun >> " + (folder_.path / "begins").string() + "; sleep 0.2");
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(first->start(one));
    ASSERT_TRUE(second->start(one));
  }
  EXPECT_EQ(wait_for(*second, one, State::kEnded).exit_code, 0);
  ASSERT_TRUE(first->start(one));
  SteadyClock::instance().sleep_until(monotonic_seconds() + 0.3);
  EXPECT_EQ(text("begins"), "begun\n");
}

TEST_F(LocalExecutorTest, AnotherExecutorAsksItToEnd) {
  const std::unique_ptr<Executor> first = *make_local_executor();
  const Attempt one = attempt("trap 'echo saved; exit 3' TERM; echo ready; while true; do sleep 0.02; done");
  ASSERT_TRUE(first->start(one));
  for (const Deadline deadline = Deadline::after(20); text("attempt/output") != "ready\n" && !deadline.passed();) {
    SteadyClock::instance().sleep_until(monotonic_seconds() + 0.01);
  }
  const std::unique_ptr<Executor> second = *make_local_executor();
  EXPECT_EQ(second->look(one)->state, State::kRunning);
  ASSERT_TRUE(second->ask_to_end(one));
  EXPECT_EQ(wait_for(*second, one, State::kEnded).exit_code, 3);
  EXPECT_THAT(text("attempt/output"), ::testing::HasSubstr("saved"));
}

// As a service that was killed asks again. It has come, and so would have a second one, once the loop has gone on.
TEST_F(LocalExecutorTest, IsAskedToEndOnceHoweverOftenItIsAsked) {
  const std::unique_ptr<Executor> executor = *make_local_executor();
  const Attempt one =
      attempt("trap 'echo saved' TERM; trap 'exit 3' INT; while true; do echo >> rounds; sleep 0.01; done");
  ASSERT_TRUE(executor->start(one));
  wait_for_text("rounds", "\n\n");
  const int wrapper = std::stoi(text("attempt/begun"));
  const auto wait_for_rounds = [&] {
    const std::size_t rounds = text("rounds").size();
    wait_for_text("rounds", std::string(rounds + 3, '\n'));
  };
  for (int times = 0; times < 3; ++times) {
    ASSERT_TRUE(executor->ask_to_end(one));
    for (const Deadline deadline = Deadline::after(20); is_pending(wrapper, SIGTERM) && !deadline.passed();) {
      SteadyClock::instance().sleep_until(monotonic_seconds() + 0.01);
    }
    wait_for_text("attempt/output", "saved");
    wait_for_rounds();
  }
  const std::string output = text("attempt/output");
  EXPECT_EQ(output.find("saved"), output.rfind("saved")) << output;
  ASSERT_EQ(::kill(wrapper, SIGINT), 0);
  EXPECT_EQ(wait_for(*executor, one, State::kEnded).exit_code, 3);
}

TEST_F(LocalExecutorTest, PassesOnHowManyWorkersThereAreAndAreToBe) {
  const std::unique_ptr<Executor> executor = *make_local_executor();
  Attempt one = attempt(
      "cd $MOTLEY_ATTEMPT_FOLDER; echo rubbish > workers.json; touch ready; until [ -e workers ]; do "
      "sleep 0.02; done; echo '{\"workers\": 3, \"since\": 5, \"min_workers\": 1, \"max_workers\": 4, "
      "\"asked\": \"'$(cat workers)'\", \"refused\": \"\"}' > said; mv said workers.json; sleep 100");
  ASSERT_TRUE(executor->start(one));
  const auto wait_until = [&](const auto& holds) {
    for (const Deadline deadline = Deadline::after(20); !holds();
         SteadyClock::instance().sleep_until(monotonic_seconds() + 0.01)) {
      ASSERT_FALSE(deadline.passed());
    }
  };
  wait_until([&] { return std::filesystem::exists(one.folder / "ready"); });
  EXPECT_EQ(executor->look(one)->state, State::kRunning);
  EXPECT_FALSE(executor->look(one)->count);
  one.request = "3 7";
  ASSERT_TRUE(executor->resize(one));
  ASSERT_TRUE(executor->resize(one));
  wait_until([&] { return executor->look(one)->count.has_value(); });
  EXPECT_EQ(executor->look(one)->count,
            (train::WorkerCount{
                .workers = 3, .since = 5, .min_workers = 1, .max_workers = 4, .asked = "3 7", .refused = ""}));
  ASSERT_TRUE(executor->kill(one));
  wait_for(*executor, one, State::kLost);
}

TEST_F(LocalExecutorTest, WhatIsKilledIsLost) {
  const std::unique_ptr<Executor> executor = *make_local_executor();
  const Attempt one = attempt("trap '' TERM; echo ready; sleep 100");
  ASSERT_TRUE(executor->start(one));
  wait_for_text("attempt/output", "ready");
  ASSERT_TRUE(executor->ask_to_end(one));
  EXPECT_EQ(executor->look(one)->state, State::kRunning);
  ASSERT_TRUE(executor->kill(one));
  wait_for(*executor, one, State::kLost);
}

// A link to itself cannot be opened by anybody, root included.
TEST_F(LocalExecutorTest, ALockThatCannotBeOpenedIsAnErrorAndKillsNothing) {
  const std::unique_ptr<Executor> executor = *make_local_executor();
  const Attempt one = attempt("echo $$ > processes; echo ready; sleep 1000");
  ASSERT_TRUE(executor->start(one));
  wait_for_text("attempt/output", "ready");
  const std::filesystem::path lock = one.folder / "lock";
  std::filesystem::rename(lock, one.folder / "kept");
  std::filesystem::create_symlink("lock", lock);
  const auto status = executor->look(one);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kIo);
  EXPECT_THAT(status.error().message, ::testing::HasSubstr(lock.string()));
  std::filesystem::rename(one.folder / "kept", lock);
  EXPECT_EQ(executor->look(one)->state, State::kRunning);
  EXPECT_EQ(alive("processes").size(), 1u);
  ASSERT_TRUE(executor->kill(one));
  wait_for(*executor, one, State::kLost);
}

// What the machine took with it when it went down is not the job's own failure. Versions before noted no boot.
TEST_F(LocalExecutorTest, WhatIsLostWithTheBootBeforeIsAFailureOfTheNode) {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  if (boot.empty()) GTEST_SKIP() << "needs a kernel that names its boots";
  const std::unique_ptr<Executor> executor = *make_local_executor();
  const Attempt one = attempt("echo ready; sleep 1000");
  ASSERT_TRUE(executor->start(one));
  wait_for_text("attempt/output", "ready");
  ASSERT_TRUE(executor->kill(one));
  EXPECT_FALSE(wait_for(*executor, one, State::kLost).node_failed);
  const std::string begun = text("attempt/begun");
  EXPECT_THAT(begun, ::testing::HasSubstr(" " + boot + " pid:["));

  const std::string process = begun.substr(0, begun.find(' '));
  for (const auto& [note, has_node_failed] :
       {std::pair(process + " 01234567-89ab-4cde-8f01-23456789abcd\n", true), std::pair(process + "\n", false),
        std::pair(process + " " + boot + "\n", false)}) {
    ASSERT_TRUE(write_file(one.folder / "begun", note));
    const auto status = executor->look(one);
    ASSERT_TRUE(status) << status.error().message;
    EXPECT_EQ(status->state, State::kLost) << note;
    EXPECT_EQ(status->node_failed, has_node_failed) << note;
  }
}

TEST_F(LocalExecutorTest, WhatIsToEndBeforeItBeginsNeverBegins) {
  const std::unique_ptr<Executor> executor = *make_local_executor();
  const Attempt one = attempt("echo begun > " + (folder_.path / "begins").string());
  ASSERT_TRUE(executor->ask_to_end(one));
  EXPECT_EQ(executor->look(one)->state, State::kLost);
  ASSERT_TRUE(executor->start(one));
  SteadyClock::instance().sleep_until(monotonic_seconds() + 0.3);
  EXPECT_EQ(executor->look(one)->state, State::kLost);
  EXPECT_EQ(text("begins"), "");
}

TEST_F(LocalExecutorTest, ACommandThatIsNotThereEndsAsInAShell) {
  const std::unique_ptr<Executor> executor = *make_local_executor();
  Attempt one = attempt("");
  one.command = {"no-such-program"};
  ASSERT_TRUE(executor->start(one));
  EXPECT_EQ(wait_for(*executor, one, State::kEnded).exit_code, 127);
}

// A child in a group of its own, one in a session of its own, and one without a variable of ours.
constexpr const char* kThreeChildren =
    "set -m; trap '' TERM; child='echo $$ >> children; exec sleep 1000'; "
    "bash -c \"$child\" & setsid bash -c \"$child\" & env -i bash -c \"$child\" & "
    "until [ \"$(cat children | wc -l)\" = 3 ]; do sleep 0.01; done; ";

TEST_F(LocalExecutorTest, IsLostOnlyOnceAllOfItsProcessesAreGone) {
  const Attempt one = attempt(std::string(kThreeChildren) + "echo $$ >> children; echo ready; wait");
  ASSERT_TRUE((*make_local_executor())->start(one));
  wait_for_text("attempt/output", "ready");
  ASSERT_EQ(alive("children").size(), 4u);
  ASSERT_EQ(::kill(std::stoi(text("attempt/begun")), SIGKILL), 0);
  wait_for(**make_local_executor(), one, State::kLost);
  EXPECT_THAT(alive("children"), ::testing::IsEmpty());
}

TEST_F(LocalExecutorTest, KillsProcessesOfOtherGroupsAndSessions) {
  const std::unique_ptr<Executor> executor = *make_local_executor();
  const Attempt one = attempt(std::string(kThreeChildren) + "echo ready; wait; sleep 1000");
  ASSERT_TRUE(executor->start(one));
  wait_for_text("attempt/output", "ready");
  ASSERT_TRUE(executor->kill(one));
  wait_for(*executor, one, State::kLost);
  EXPECT_THAT(alive("children"), ::testing::IsEmpty());
}

TEST_F(LocalExecutorTest, WhatACommandLeavesBehindEndsWithIt) {
  const std::unique_ptr<Executor> executor = *make_local_executor();
  const Attempt one = attempt(std::string(kThreeChildren) + "exit 3");
  ASSERT_TRUE(executor->start(one));
  EXPECT_EQ(wait_for(*executor, one, State::kEnded).exit_code, 3);
  EXPECT_THAT(alive("children"), ::testing::IsEmpty());
}

// Children without a variable or output of ours, whose parents have ended.
constexpr const char* kBare =
    "env -i PATH=$PATH FILE=$PWD/children bash -c 'echo $$ >> $FILE; exec sleep 1000' >/dev/null 2>&1";
constexpr const char* kBothBare = "until [ \"$(cat children | wc -l)\" = 2 ]; do sleep 0.01; done; ";

TEST_F(LocalExecutorTest, WhatACommandLeavesBehindInAnySessionEndsWithIt) {
  const std::unique_ptr<Executor> executor = *make_local_executor();
  const Attempt one = attempt(fmt::format("({0} &); (setsid {0} &); {1} exit 3", kBare, kBothBare));
  ASSERT_TRUE(executor->start(one));
  EXPECT_EQ(wait_for(*executor, one, State::kEnded).exit_code, 3);
  EXPECT_EQ(std::ranges::count(text("children"), '\n'), 2);
  EXPECT_THAT(alive("children"), ::testing::IsEmpty());
}

TEST_F(LocalExecutorTest, KillsWhatDescendsFromIt) {
  const std::unique_ptr<Executor> executor = *make_local_executor();
  const Attempt one = attempt(fmt::format("({0} &); (setsid {0} &); {1} echo ready; sleep 1000", kBare, kBothBare));
  ASSERT_TRUE(executor->start(one));
  wait_for_text("attempt/output", "ready");
  ASSERT_EQ(alive("children").size(), 2u);
  ASSERT_TRUE(executor->kill(one));
  wait_for(*executor, one, State::kLost);
  EXPECT_THAT(alive("children"), ::testing::IsEmpty());
}

// Its children are found by the session that they have in common.
TEST_F(LocalExecutorTest, IsLostOnlyOnceAllOfItsSessionAreGone) {
  const Attempt one = attempt(fmt::format("({0} &); ({0} &); {1} echo ready; exec sleep 1000", kBare, kBothBare));
  ASSERT_TRUE((*make_local_executor())->start(one));
  wait_for_text("attempt/output", "ready");
  ASSERT_EQ(::kill(std::stoi(text("attempt/begun")), SIGKILL), 0);
  wait_for(**make_local_executor(), one, State::kLost);
  EXPECT_EQ(std::ranges::count(text("children"), '\n'), 2);
  EXPECT_THAT(alive("children"), ::testing::IsEmpty());
}

// As where the wrapper ran in another container, or its number has been given to another process since.
TEST_F(LocalExecutorTest, ASessionOfTheSameNumberElsewhereIsLeftAlone) {
  const auto other = spawn({.words = {"sleep", "1000"}, .group = Program::Group::kOwnSession});
  ASSERT_TRUE(other);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  for (const Deadline deadline = Deadline::after(20); process_state(*other) != 'S' && !deadline.passed();) {
    SteadyClock::instance().sleep_until(monotonic_seconds() + 0.01);
  }
  const Attempt one = attempt("true");
  ASSERT_TRUE(make_folders(one.folder));
  const std::string here = std::filesystem::read_symlink("/proc/self/ns/pid").string();
  for (const std::string& numbering : {here, std::string("pid:[1]"), std::string()}) {
    ASSERT_TRUE(write_file(one.folder / "begun", fmt::format("{} {} {}\n", *other, boot, numbering)));
    EXPECT_EQ((*make_local_executor())->look(one)->state, State::kLost);
    EXPECT_EQ(process_state(*other).value_or('X'), 'S') << numbering;
  }
  ::kill(*other, SIGKILL);
  ::waitpid(*other, nullptr, 0);
}

// With so few descriptors that the lock can be opened, and nothing beside it: what has ended, and what runs still.
TEST_F(LocalExecutorTest, NothingIsLostWhereTooFewFilesCanBeOpenedToTell) {
  const std::unique_ptr<Executor> executor = *make_local_executor();
  const Attempt one = attempt("echo $$ >> processes; echo ready; exec sleep 1000");
  ASSERT_TRUE(executor->start(one));
  wait_for_text("attempt/output", "ready");
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const auto expect_not_lost = [&](const char* what) {
    const int next = Descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC)).get();
    for (const int more : {0, 1, 2}) {
      const rlimit few{static_cast<rlim_t>(next + more), before.rlim_max};
      ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
      const auto status = executor->look(one);
      ::setrlimit(RLIMIT_NOFILE, &before);
      if (status) {
        EXPECT_NE(status->state, State::kLost) << what << ", with room for " << more;
        EXPECT_NE(status->state, State::kUnknown) << what << ", with room for " << more;
      } else {
        EXPECT_THAT(status.error().message, ::testing::HasSubstr("Too many open files"));
      }
    }
  };
  expect_not_lost("it runs");
  const int wrapper = std::stoi(text("attempt/begun"));
  ASSERT_EQ(::kill(wrapper, SIGKILL), 0);
  wait_until_over(wrapper);
  expect_not_lost("the wrapper is gone");
  EXPECT_EQ(alive("processes").size(), 1u);
  ASSERT_TRUE(note_ended(one.folder, 7));
  expect_not_lost("it has ended");
  EXPECT_EQ(executor->look(one)->exit_code, 7);
  ASSERT_TRUE(kill_processes(one.folder));
}

// A process of another user stands for one that the system holds, where the wrapper has no right to kill it.
TEST_F(LocalExecutorTest, TheExitCodeIsNotedOnceWhatCouldNotBeKilledIsGone) {
  std::vector<std::string> words = {"setpriv", "--bounding-set=-kill", "--inh-caps=-kill"};
  std::vector<std::string> tried = words;
  tried.emplace_back("true");
  const auto may = run_program({.words = tried}, Deadline::after(20));
  if (::geteuid() != 0 || !may || !may->is_good()) GTEST_SKIP() << "needs root, and the program setpriv";
  const Attempt one = attempt(
      "setpriv --reuid=65534 bash -c 'echo left $$; exec sleep 1000' & "
      "until grep -q left attempt/output; do sleep 0.01; done; exit 5");
  ASSERT_TRUE(make_folders(one.folder));
  const Descriptor output(::open((one.folder / "output").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  std::ranges::copy(wrapped_command(*find_wrapper(), one, false), std::back_inserter(words));
  const auto wrapper =
      spawn({.words = words, .output = output.get(), .errors = output.get(), .group = Program::Group::kOwnSession});
  ASSERT_TRUE(wrapper) << wrapper.error().message;
  const std::string said = wait_for_text("attempt/output", "left ");
  const int left = std::stoi(said.substr(said.find("left ") + 5));
  std::error_code hidden;
  (void)std::filesystem::read_symlink(fmt::format("/proc/{}/fd/1", left), hidden);
  const auto says_so = [&] { return text("attempt/output").find("have not ended") != std::string::npos; };
  bool has_ended = false;
  for (const Deadline deadline = Deadline::after(40); !hidden && !says_so() && !has_ended && !deadline.passed();) {
    SteadyClock::instance().sleep_until(monotonic_seconds() + 0.05);
    has_ended = ::waitpid(*wrapper, nullptr, WNOHANG) != 0;
  }
  const bool could_be_killed = ::kill(left, SIGKILL) != 0;
  const AttemptStatus status = wait_for(**make_local_executor(), one, State::kEnded);
  if (!has_ended) ::waitpid(*wrapper, nullptr, 0);
  if (hidden || could_be_killed) GTEST_SKIP() << "the wrapper does not see the process, or may kill it";
  EXPECT_EQ(status.exit_code, 5);
  EXPECT_TRUE(says_so());
}

TEST_F(LocalExecutorTest, AnEndThatCannotBeNotedYetIsNotedLater) {
  const std::unique_ptr<Executor> executor = *make_local_executor();
  const Attempt one = attempt("mkdir attempt/ended; exit 5");
  ASSERT_TRUE(executor->start(one));
  wait_for_text("attempt/output", "attempt/ended");
  EXPECT_EQ(executor->look(one)->state, State::kRunning);
  ASSERT_TRUE(std::filesystem::remove(one.folder / "ended"));
  EXPECT_EQ(wait_for(*executor, one, State::kEnded).exit_code, 5);
}

TEST_F(LocalExecutorTest, AnEmptyNoteIsNone) {
  const std::unique_ptr<Executor> executor = *make_local_executor();
  const Attempt one = attempt("true");
  ASSERT_TRUE(make_folders(one.folder));
  ASSERT_TRUE(write_file(one.folder / "begun", ""));
  ASSERT_TRUE(write_file(one.folder / "ended", ""));
  EXPECT_EQ(executor->look(one)->state, State::kLost);
}

// A disk that is full when an attempt is to begin: it begins once there is room, and once only.
TEST_F(LocalExecutorTest, BeginsOnceAFullDiskHasSpace) {
  if (::mount("none", folder_.path.c_str(), "tmpfs", 0, "size=256k") != 0)
    GTEST_SKIP() << "needs root, to mount a small file system";
  const std::unique_ptr<Executor> executor = *make_local_executor();
  std::ofstream(folder_.path / "fill") << std::string(1 << 20, 'x');
  const Attempt one = attempt("exit 6");
  (void)executor->start(one);
  wait_for(*executor, one, State::kUnknown);
  std::filesystem::remove(folder_.path / "fill");
  AttemptStatus status;
  for (const Deadline deadline = Deadline::after(20); status.state != State::kEnded && !deadline.passed();) {
    (void)executor->start(one);
    SteadyClock::instance().sleep_until(monotonic_seconds() + 0.1);
    status = *executor->look(one);
  }
  EXPECT_EQ(status.exit_code, 6);
}

TEST_F(LocalExecutorTest, ACommandThatCannotBeStartedSaysWhy) {
  const std::unique_ptr<Executor> executor = *make_local_executor();
  Attempt one = attempt("");
  one.command = {"true", std::string(200'000, 'x')};
  (void)executor->start(one);
  const AttemptStatus status = wait_for(*executor, one, State::kEnded);
  EXPECT_EQ(status.exit_code, 126);
}

TEST_F(LocalExecutorTest, TheWrapperIsLookedForBesideTheProgram) {
  const auto missing = find_wrapper(folder_.path);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(missing.error().message, ::testing::HasSubstr((folder_.path / "motley-run-attempt").string()));
  EXPECT_TRUE(find_wrapper());
}

}  // namespace
}  // namespace motley::scheduling
