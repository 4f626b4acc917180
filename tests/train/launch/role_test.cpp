// Where ranks meet through torchrun's store, with a store of the test's own.
#include "motley/train/launch/role.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <map>

#include "motley/base/os/descriptor.h"
#include "tests/temporary_folder.h"

namespace motley::train {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class TorchrunTest : public ::testing::Test {
 protected:
  struct Store : KeyValueStore {
    explicit Store(TorchrunTest& test) : test_(test) {}
    Status set(const std::string& key, const std::string& text) override {
      test_.texts_[key] = text;
      return {};
    }
    Result<std::string> get(const std::string& key) override {
      const auto found = test_.texts_.find(key);
      if (found == test_.texts_.end()) return fail(ErrorCode::kTimeout, "no such key");
      return found->second;
    }
    TorchrunTest& test_;
  };

  TorchrunTest() {
    for (const auto& [name, value] : environment_) ::setenv(name, value, 1);
  }
  ~TorchrunTest() override {
    for (const auto& [name, value] : environment_) ::unsetenv(name);
  }

  Result<net::Secret> meet(int rank, net::SessionOptions& options) {
    Role role;
    role.launcher = "torchrun";
    role.rank = rank;
    role.size = 2;
    role.job_id = "id";
    const OpenStore open = [this](const StoreAddress& address) -> Result<std::unique_ptr<KeyValueStore>> {
      EXPECT_EQ(address.endpoint.port, 1234);
      EXPECT_FALSE(address.is_server) << "the agent serves it";
      return std::make_unique<Store>(*this);
    };
    return find_rendezvous(role, "/nowhere", "", open, options);
  }

  const std::map<const char*, const char*> environment_ = {
      {"MASTER_PORT", "1234"}, {"MASTER_ADDR", "127.0.0.1"}, {"LOCAL_WORLD_SIZE", "2"}};
  std::map<std::string, std::string> texts_;
};

TEST_F(TorchrunTest, RankZeroTellsTheOthersWhereItIsAndTheSecret) {
  net::SessionOptions zero;
  const auto secret = meet(0, zero);
  ASSERT_TRUE(secret) << secret.error().message;
  ASSERT_TRUE(zero.publish);
  ASSERT_TRUE(zero.publish({"127.0.0.1", 4321}));
  EXPECT_EQ(texts_.count("motley/id"), 1u);
  // Anybody on this machine can read the store.
  EXPECT_THAT(texts_["motley/id"], Not(HasSubstr(secret->hex())));
  net::SessionOptions one;
  const auto told = meet(1, one);
  ASSERT_TRUE(told) << told.error().message;
  EXPECT_EQ(told->hex(), secret->hex());
  EXPECT_EQ(one.rendezvous.port, 4321);
  // Once they have met nothing of it is left.
  zero.publish = {};
  EXPECT_FALSE(meet(1, one));
}

// Where the secret is, is this user's own business: the store cannot name another file of the user.
TEST_F(TorchrunTest, WhoWritesIntoTheStoreCannotHaveAnotherFileRead) {
  const std::filesystem::path path = std::filesystem::temp_directory_path() / fmt::format("motley-own-{}", ::getpid());
  ASSERT_TRUE(net::Secret::generate().write(path));
  const Descriptor own(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::filesystem::remove(path);
  texts_["motley/id"] =
      fmt::format(R"({{"host":"127.0.0.1","port":4321,"job":"id","secret":"","process":{},"descriptor":{}}})",
                  ::getpid(), own.get());
  net::SessionOptions one;
  const auto told = meet(1, one);
  ASSERT_FALSE(told);
  EXPECT_THAT(told.error().message, HasSubstr("shares no secret"));
  for (const char* text : {"[]", "3", R"({"job":"id","host":5})", R"({"job":7})",
                           R"({"job":"id","host":"127.0.0.1","port":1,"secret":"","process":"x","descriptor":1})"}) {
    texts_["motley/id"] = text;
    EXPECT_EQ(meet(1, one).error().code, ErrorCode::kCorrupt) << text;
  }
}

// A process of another user, as any local one is.
TEST_F(TorchrunTest, AnotherUserCannotReadTheSecret) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  net::SessionOptions zero;
  ASSERT_TRUE(meet(0, zero));
  ASSERT_TRUE(zero.publish({"127.0.0.1", 4321}));
  const pid_t child = ::fork();
  if (child == 0) {
    net::SessionOptions one;
    const bool another = ::setresgid(65534, 65534, 65534) == 0 && ::setresuid(65534, 65534, 65534) == 0;
    ::_exit(another && !meet(1, one) ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(Rendezvous, RefusesWhatIsNoAddress) {
  const char* good = R"({"host":"127.0.0.1","port":4321,"secret":"0f","job":"id"})";
  EXPECT_EQ(*parse_rendezvous(good), (RendezvousPoint{"127.0.0.1", 4321, "id", "0f"}));
  for (const auto& [text, named] : std::map<std::string, std::string>{
           {"", "not JSON"},
           {"[]", "rendezvous.json"},
           {R"({"host":"127.0.0.1","port":4321,"secret":"0f","job":5})", "'job' is 5"},
           {R"({"host":"127.0.0.1","port":"a","secret":"0f","job":"id"})", "'port' is \"a\""},
           {R"({"host":"127.0.0.1","port":65536,"secret":"0f","job":"id"})", "'port' is 65536"},
           {R"({"host":"","port":1,"secret":"0f","job":"id"})", "host"},
           {R"({"host":"127.0.0.1","port":1,"secret":"0f"})", "field 'job' is missing"}}) {
    const auto refused = parse_rendezvous(text);
    ASSERT_FALSE(refused) << text;
    EXPECT_THAT(refused.error().message, ::testing::AllOf(HasSubstr("rendezvous.json"), HasSubstr(named)));
  }
}

// One that goes on where another one was killed meets in the same folder.
TEST(Rendezvous, IsRemovedByTheStartThatWroteIt) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder.path / "rendezvous.json";
  remove_rendezvous(file, "id");  // there is none
  ASSERT_TRUE(write_rendezvous(file, {"127.0.0.1", 4321, "id", "0f"}));
  remove_rendezvous(file, "former");
  EXPECT_TRUE(std::filesystem::exists(file));
  remove_rendezvous(file, "id");
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST_F(TorchrunTest, WhatIsWrongWithTheStoreIsSaid) {
  net::SessionOptions one;
  const auto nobody = meet(1, one);
  ASSERT_FALSE(nobody);
  EXPECT_EQ(nobody.error().code, ErrorCode::kTimeout);
  EXPECT_THAT(nobody.error().message,
              HasSubstr("rank 1 cannot meet rank 0 through torchrun's store at 127.0.0.1:1234: no such key"));
  texts_["motley/id"] = "not an address";
  EXPECT_EQ(meet(1, one).error().code, ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace motley::train
