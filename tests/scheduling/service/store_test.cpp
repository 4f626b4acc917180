// What is saved is there again, and one service at a time has it.
#include "motley/scheduling/service/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

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
  EXPECT_THAT(store.error().message, HasSubstr("is of version 1; accepted: 4"));
  EXPECT_THAT(store.error().message, HasSubstr("waiting is now pending, done is now completed"));
}

// In which no two jobs had one name.
TEST(Store, TakesOverTheTablesOfVersionTwo) {
  const TemporaryFolder folder;
  ASSERT_TRUE(Store::open(folder.path));
  const std::string record = write_json(make_record(1, "a"));
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open((folder.path / "jobs.sqlite").c_str(), &database), SQLITE_OK);
  const std::string make_old =
      "DROP TABLE jobs; CREATE TABLE jobs (id INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL, record TEXT NOT NULL); "
      "INSERT INTO jobs VALUES (1, 'a', '" +
      record + "'); PRAGMA user_version = 2";
  EXPECT_EQ(sqlite3_exec(database, make_old.c_str(), nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(database);
  for (int opened = 0; opened < 2; ++opened) {
    const auto store = Store::open(folder.path);
    ASSERT_TRUE(store) << store.error().message;
    const JobRecord second = make_record(2, "a");
    ASSERT_TRUE((*store)->save({&second}));
    const auto jobs = (*store)->jobs();
    ASSERT_TRUE(jobs) << jobs.error().message;
    ASSERT_EQ(jobs->size(), 2u);
    EXPECT_EQ(write_json(jobs->front()), record);
  }
}

// In which no job had a tenant.
TEST(Store, TakesOverTheJobsOfVersionThree) {
  const TemporaryFolder folder;
  ASSERT_TRUE(Store::open(folder.path));
  auto record = nlohmann::json::parse(write_json(make_record(1, "a")));
  ASSERT_EQ(record.erase("tenant"), 1u);
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open((folder.path / "jobs.sqlite").c_str(), &database), SQLITE_OK);
  const std::string make_old = "INSERT INTO jobs VALUES (1, 'a', '" + record.dump() + "'); PRAGMA user_version = 3";
  EXPECT_EQ(sqlite3_exec(database, make_old.c_str(), nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(database);
  {
    const auto store = Store::open(folder.path);
    ASSERT_TRUE(store) << store.error().message;
    EXPECT_EQ((*store)->jobs()->front().tenant, kDefaultTenant);
  }
  ASSERT_EQ(sqlite3_open((folder.path / "jobs.sqlite").c_str(), &database), SQLITE_OK);
  int version = 0;
  const auto read = [](void* to, int, char** values, char**) {
    return *static_cast<int*>(to) = std::atoi(values[0]), 0;
  };
  EXPECT_EQ(sqlite3_exec(database, "PRAGMA user_version", read, &version, nullptr), SQLITE_OK);
  EXPECT_EQ(version, 4) << "a program before tenants would refuse what this one writes";
  sqlite3_close(database);
}

// Commands may be private, whoever made the folder, and whatever a version before left there.
TEST(Store, IsItsOwnersAlone) {
  const TemporaryFolder folder;
  ASSERT_TRUE(write_file(folder.path / "jobs.sqlite", ""));
  for (const auto& path : {folder.path, folder.path / "jobs.sqlite"}) {
    std::filesystem::permissions(path, std::filesystem::perms(0755));
  }
  const auto store = Store::open(folder.path);
  ASSERT_TRUE(store) << store.error().message;
  const JobRecord one = make_record(1, "a");
  ASSERT_TRUE((*store)->save({&one}));
  for (const auto& entry : std::filesystem::directory_iterator(folder.path)) {
    struct stat status{};
    ASSERT_EQ(::stat(entry.path().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, entry.is_directory() ? 0700U : 0600U) << entry.path();
  }
}

// What SQLite says of network file systems: no write-ahead log, which processes share by memory.
TEST(Store, HasNoWriteAheadLog) {
  const TemporaryFolder folder;
  const std::string file = (folder.path / "jobs.sqlite").string();
  sqlite3* database = nullptr;  // as a version before made it
  ASSERT_EQ(sqlite3_open(file.c_str(), &database), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(database, "PRAGMA journal_mode = WAL; CREATE TABLE t (a)", nullptr, nullptr, nullptr), 0);
  sqlite3_close(database);
  const auto store = Store::open(folder.path);
  ASSERT_TRUE(store) << store.error().message;
  const JobRecord one = make_record(1, "a");
  ASSERT_TRUE((*store)->save({&one}));
  EXPECT_FALSE(std::filesystem::exists(file + "-wal"));
  EXPECT_FALSE(std::filesystem::exists(file + "-shm"));
  const std::string header = read_file(file)->substr(0, 100);  // https://sqlite.org/fileformat2.html
  EXPECT_EQ(header[18], 1);
  EXPECT_EQ(header[19], 1);
}

TEST(Store, GoesOnOnceAFullDiskHasSpace) {
  const TemporaryFolder folder;
  if (::mount("none", folder.path.c_str(), "tmpfs", 0, "size=256k") != 0)
    GTEST_SKIP() << "needs root, to mount a small file system";
  auto store = Store::open(folder.path);
  ASSERT_TRUE(store) << store.error().message;
  std::ofstream(folder.path / "fill") << std::string(1 << 20, 'x');
  int saved = 0;
  const auto save = [&] {
    JobRecord one = make_record(saved + 1, fmt::format("job{}", saved));
    one.job.command.emplace_back(2000, 'x');
    const Status status = (*store)->save({&one});
    if (status) ++saved;
    return status;
  };
  while (save()) ASSERT_LT(saved, 1000);
  for (int again = 0; again < 3; ++again) EXPECT_THAT(save().error().message, HasSubstr("full"));
  std::filesystem::remove(folder.path / "fill");
  EXPECT_TRUE(save()) << save().error().message;
  store->reset();
  store = Store::open(folder.path);
  ASSERT_TRUE(store) << store.error().message;
  EXPECT_EQ((*store)->jobs()->size(), static_cast<std::size_t>(saved));
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
