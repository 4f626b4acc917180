#include "motley/scheduling/service/store.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "motley/base/clock.h"
#include "motley/base/guard.h"
#include "motley/base/os/descriptor.h"
#include "motley/base/os/file.h"
#include "motley/serial/renamed_keys.h"

namespace motley::scheduling {
namespace {

constexpr int kVersion = 4;         // of the tables below
constexpr int kNoTenants = 3;       // whose jobs are of kDefaultTenant
constexpr int kUniqueNames = 2;     // of tables in which no two jobs had one name
constexpr int kRenamedVersion = 1;  // whose JSON had other names
constexpr double kLockSeconds = 1;
// What version 1, and its JSON, called otherwise.
constexpr RenamedKey kRenamedKeys[] = {{"waiting", "pending"},
                                       {"done", "completed"},
                                       {"least", "min_workers"},
                                       {"most", "max_workers"},
                                       {"seconds", "estimated_duration"},
                                       {"restart_seconds", "restart_cost"},
                                       {"grace_seconds", "grace_period"},
                                       {"retries", "max_retries"}};

constexpr const char* kCreateJobs =
    "CREATE TABLE IF NOT EXISTS jobs (id INTEGER PRIMARY KEY, name TEXT NOT NULL, record TEXT NOT NULL)";

using Statement = std::unique_ptr<sqlite3_stmt, int (*)(sqlite3_stmt*)>;

Statement prepare(sqlite3* database, const char* sql) {
  sqlite3_stmt* statement = nullptr;
  sqlite3_prepare_v2(database, sql, -1, &statement, nullptr);
  return {statement, &sqlite3_finalize};
}

std::string format_text(sqlite3_stmt* statement, int column) {
  const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(statement, column));
  return text == nullptr ? "" : std::string(text, static_cast<std::size_t>(sqlite3_column_bytes(statement, column)));
}

void bind_text(sqlite3_stmt* statement, int place, const std::string& text) {
  sqlite3_bind_text(statement, place, text.data(), static_cast<int>(text.size()), SQLITE_TRANSIENT);
}

class SqliteStore final : public Store {
 public:
  static Result<std::unique_ptr<Store>> open(const std::filesystem::path& folder);
  Result<std::vector<JobRecord>> jobs() const override;
  Result<std::vector<std::string>> drained_nodes() const override;
  Status save(const std::vector<const JobRecord*>& records) override;
  Status save_drained(const std::string& node, bool is_drained) override;

 private:
  Status run(const char* sql) {
    if (sqlite3_exec(database_.get(), sql, nullptr, nullptr, nullptr) != SQLITE_OK) return problem(sql);
    return {};
  }
  tl::unexpected<Error> problem(const char* doing) const {
    return fail(ErrorCode::kIo, "{}: {}: {}", file_.string(), doing, sqlite3_errmsg(database_.get()));
  }

  std::filesystem::path file_;
  Descriptor lock_;
  std::unique_ptr<sqlite3, int (*)(sqlite3*)> database_{nullptr, nullptr};
};

// Makes the file where it is not there; files that SQLite makes beside it have its mode. It is closed before SQLite
// opens it: a process that closes a file loses all locks that it has on it by another descriptor.
Status make_private(const std::filesystem::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (file.valid() && ::fchmod(file.get(), 0600) == 0) return {};
  return fail(ErrorCode::kIo, "{}: {}", path.string(), errno_text());
}

Result<std::unique_ptr<Store>> SqliteStore::open(const std::filesystem::path& folder) {
  // Commands and outputs may be private, also where the folder itself was there before.
  const std::filesystem::path jobs = folder / "jobs";
  const bool is_new = !std::filesystem::exists(folder);
  MOTLEY_TRY(make_folders(jobs));
  // A start that was killed may have made them, and not have got to this.
  for (std::filesystem::path made = jobs; MOTLEY_KEEPS("made-folder-fsync") && made.has_relative_path();) {
    made = made.parent_path();
    (void)sync_folder(made);  // those above may be unreadable
  }
  std::error_code problem;
  std::filesystem::permissions(is_new ? folder : jobs, std::filesystem::perms::owner_all, problem);
  if (problem) return fail(ErrorCode::kIo, "{}: {}", jobs.string(), problem.message());
  auto store = std::make_unique<SqliteStore>();
  store->file_ = folder / "jobs.sqlite";
  const std::string lock = (folder / "lock").string();
  store->lock_ = Descriptor(::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!store->lock_.valid()) return fail(ErrorCode::kIo, "{}: {}", lock, errno_text());
  // A service that was killed while it started a process may leave the lock to that process for a moment.
  const Deadline deadline = Deadline::after(kLockSeconds);
  while (::flock(store->lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      return fail(ErrorCode::kIo, "{}: it cannot be locked: {}", lock, errno_text());
    }
    if (!deadline.passed()) {
      SteadyClock::instance().sleep_until(monotonic_seconds() + 0.02);
      continue;
    }
    std::string holder = read_file(lock, 64).value_or("");
    while (!holder.empty() && holder.back() == '\n') holder.pop_back();
    return fail(ErrorCode::kRefused, "{}: process {} is a service on this state already; accepted: another folder",
                folder.string(), holder.empty() ? "another" : holder);
  }
  const std::string process = fmt::format("{}\n", ::getpid());
  if (::ftruncate(store->lock_.get(), 0) != 0 ||
      ::pwrite(store->lock_.get(), process.data(), process.size(), 0) != static_cast<ssize_t>(process.size())) {
    return fail(ErrorCode::kIo, "{}: {}", lock, errno_text());
  }
  MOTLEY_TRY(make_private(store->file_));
  sqlite3* database = nullptr;
  const int opened = sqlite3_open(store->file_.c_str(), &database);
  store->database_ = {database, &sqlite3_close};
  if (opened != SQLITE_OK) return store->problem("cannot be opened");
  // A write-ahead log would need memory that processes share, which file systems of a network do not give them; the
  // lock above keeps others away, the database's own in addition.
  MOTLEY_TRY(store->run("PRAGMA locking_mode = EXCLUSIVE"));
  MOTLEY_TRY(store->run("PRAGMA journal_mode = TRUNCATE"));
  MOTLEY_TRY(store->run(MOTLEY_KEEPS("store-synchronous") ? "PRAGMA synchronous = FULL" : "PRAGMA synchronous = OFF"));
  Statement version = prepare(database, "PRAGMA user_version");
  if (!version || sqlite3_step(version.get()) != SQLITE_ROW) return store->problem("is no database");
  const int found = sqlite3_column_int(version.get(), 0);
  version.reset();  // while it reads, no table can be replaced
  if (found != 0 && found != kVersion && found != kNoTenants && found != kUniqueNames) {
    return fail(
        ErrorCode::kInvalidInput, "{}: is of version {}; accepted: {}{}", store->file_.string(), found, kVersion,
        found == kRenamedVersion ? fmt::format(" (a new directory), in which {}", to_string(kRenamedKeys)) : "");
  }
  if (found == kUniqueNames) {
    MOTLEY_TRY(store->run(
        fmt::format("BEGIN IMMEDIATE; ALTER TABLE jobs RENAME TO former; {}; INSERT INTO jobs SELECT id, name, record "
                    "FROM former; DROP TABLE former; PRAGMA user_version = {}; COMMIT",
                    kCreateJobs, kVersion)
            .c_str()));
  }
  MOTLEY_TRY(store->run(kCreateJobs));
  MOTLEY_TRY(store->run("CREATE TABLE IF NOT EXISTS drained (node TEXT PRIMARY KEY)"));
  if (found == 0 || found == kNoTenants)
    MOTLEY_TRY(store->run(fmt::format("PRAGMA user_version = {}", kVersion).c_str()));
  return store;
}

Result<std::vector<JobRecord>> SqliteStore::jobs() const {
  const Statement statement = prepare(database_.get(), "SELECT id, record FROM jobs ORDER BY id");
  if (!statement) return problem("jobs cannot be read");
  std::vector<JobRecord> records;
  int step = sqlite3_step(statement.get());
  for (; step == SQLITE_ROW; step = sqlite3_step(statement.get())) {
    MOTLEY_ASSIGN(JobRecord record, parse_json<JobRecord>(format_text(statement.get(), 1),
                                                          fmt::format("{}: job {}", file_.string(),
                                                                      sqlite3_column_int(statement.get(), 0))));
    records.push_back(std::move(record));
  }
  if (step != SQLITE_DONE) return problem("jobs cannot be read");
  return records;
}

Result<std::vector<std::string>> SqliteStore::drained_nodes() const {
  const Statement statement = prepare(database_.get(), "SELECT node FROM drained ORDER BY node");
  if (!statement) return problem("drained nodes cannot be read");
  std::vector<std::string> nodes;
  while (sqlite3_step(statement.get()) == SQLITE_ROW) nodes.push_back(format_text(statement.get(), 0));
  return nodes;
}

Status SqliteStore::save(const std::vector<const JobRecord*>& records) {
  if (records.empty()) return {};
  MOTLEY_TRY(run("BEGIN IMMEDIATE"));
  const Statement statement =
      prepare(database_.get(), "INSERT OR REPLACE INTO jobs (id, name, record) VALUES (?1, ?2, ?3)");
  for (const JobRecord* record : records) {
    sqlite3_reset(statement.get());
    sqlite3_bind_int(statement.get(), 1, record->id);
    bind_text(statement.get(), 2, record->job.name);
    bind_text(statement.get(), 3, write_json(*record));
    if (!statement || sqlite3_step(statement.get()) != SQLITE_DONE) {
      const auto error = problem("a job cannot be written");
      sqlite3_reset(statement.get());
      (void)run("ROLLBACK");
      return error;
    }
  }
  sqlite3_reset(statement.get());
  const Status committed = run("COMMIT");
  if (!committed) (void)run("ROLLBACK");  // else no transaction could begin any more
  return committed;
}

Status SqliteStore::save_drained(const std::string& node, bool is_drained) {
  const Statement statement = prepare(database_.get(), is_drained ? "INSERT OR IGNORE INTO drained (node) VALUES (?1)"
                                                                  : "DELETE FROM drained WHERE node = ?1");
  if (!statement) return problem("a drained node cannot be written");
  bind_text(statement.get(), 1, node);
  if (sqlite3_step(statement.get()) != SQLITE_DONE) return problem("a drained node cannot be written");
  return {};
}

}  // namespace

Result<std::unique_ptr<Store>> Store::open(const std::filesystem::path& folder) {
  return SqliteStore::open(folder);
}

}  // namespace motley::scheduling
