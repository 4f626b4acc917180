// Where ranks meet through torchrun's store, with a store of the test's own.
#include "motley/train/launch/role.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <map>

namespace motley::train {
namespace {

using ::testing::HasSubstr;

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
  net::SessionOptions one;
  const auto told = meet(1, one);
  ASSERT_TRUE(told) << told.error().message;
  EXPECT_EQ(told->hex(), secret->hex());
  EXPECT_EQ(one.rendezvous.port, 4321);
}

TEST(Rendezvous, RefusesWhatIsNoAddress) {
  const char* good = R"({"host":"127.0.0.1","port":4321,"secret":"0f","job":"id"})";
  EXPECT_EQ(*parse_rendezvous(good), (RendezvousPoint{"127.0.0.1", 4321, "0f", "id"}));
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
