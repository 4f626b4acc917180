// What is saved is there again, and one service at a time has it.
#include "motley/scheduling/service/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>

#include "motley/base/os/file.h"
#include "tests/temporary_folder.h"

namespace motley::scheduling {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

JobRecord make_record(int id, const std::string& name) {
  JobRecord record;
  record.id = id;
  record.job.name = name;
  record.job.command = {"sleep", "1"};
  record.job.directory = "/";
  return record;
}

TEST(Store, HasWhatWasSaved) {
  const TemporaryFolder folder;
  JobRecord first = make_record(1, "a");
  const JobRecord second = make_record(2, "b");
  {
    const auto store = Store::open(folder.path);
    ASSERT_TRUE(store) << store.error().message;
    ASSERT_TRUE((*store)->save({&first, &second}));
    first.state = JobState::kStopping;
    first.nodes = {{"n0", 2}, {"n1", 1}};
    first.is_killed = true;
    first.attempt_started = 1234567890.123456;
    first.changed = "shrunk for 'b'\n";
    ASSERT_TRUE((*store)->save({&first}));
    ASSERT_TRUE((*store)->save_drained("n1", true));
    ASSERT_TRUE((*store)->save_drained("n2", true));
    ASSERT_TRUE((*store)->save_drained("n2", false));
  }
  const auto store = Store::open(folder.path);
  ASSERT_TRUE(store) << store.error().message;
  const auto jobs = (*store)->jobs();
  ASSERT_TRUE(jobs) << jobs.error().message;
  ASSERT_EQ(jobs->size(), 2u);
  EXPECT_EQ(write_json((*jobs)[0]), write_json(first));
  EXPECT_EQ(write_json((*jobs)[1]), write_json(second));
  EXPECT_THAT(*(*store)->drained_nodes(), ElementsAre("n1"));
}

TEST(Store, BelongsToOneService) {
  const TemporaryFolder folder;
  const auto store = Store::open(folder.path);
  ASSERT_TRUE(store);
  const auto other = Store::open(folder.path);
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, ErrorCode::kRefused);
  EXPECT_THAT(other.error().message, HasSubstr(fmt::format("process {} is a service on this state", ::getpid())));
}

TEST(Store, RefusesTheVersionBeforeWithTheNamesOfNow) {
  const TemporaryFolder folder;
  ASSERT_TRUE(Store::open(folder.path));
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open((folder.path / "jobs.sqlite").c_str(), &database), SQLITE_OK);
  EXPECT_EQ(sqlite3_exec(database, "PRAGMA user_version = 1", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(database);
  const auto store = Store::open(folder.path);
  ASSERT_FALSE(store);
  EXPECT_THAT(store.error().message, HasSubstr("is of version 1; accepted: 2"));
  EXPECT_THAT(store.error().message, HasSubstr("waiting is now pending, done is now completed"));
}

TEST(Store, SaysThatAFileIsNoDatabase) {
  const TemporaryFolder folder;
  ASSERT_TRUE(write_file(folder.path / "jobs.sqlite", std::string(8192, 'x')));
  const auto store = Store::open(folder.path);
  ASSERT_FALSE(store);
  EXPECT_THAT(store.error().message, HasSubstr("jobs.sqlite"));
  EXPECT_THAT(store.error().message, HasSubstr("not a database"));
}

}  // namespace
}  // namespace motley::scheduling
