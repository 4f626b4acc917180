#include "motley/ps/embedding/sparse_service.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "motley/base/log.h"
#include "motley/base/os/signals.h"
#include "motley/net/socket.h"
#include "motley/ps/protocol/server_protocol.h"

namespace motley::ps {
namespace {

using net::Connection;
using net::Message;

constexpr double kTickSeconds = 0.25;
constexpr double kLastWordsSeconds = 2;
constexpr int kMaxRequests = 64;                // of a rank, until it is asked again whether the server is to stop
constexpr std::size_t kMaxAnswersUnsent = 64;   // frames; no more requests are read while they wait
constexpr std::size_t kMaxPullsWaiting = 4096;  // frames, for a step to come

// Says why the connection ends, and reads on until the other side has read that: a socket that is closed over unread
// data would take the words back.
void send_final_error(Connection& connection, const Error& error) {
  connection.post_owned(kServerFailed, 0, encode(error));
  const Deadline deadline = Deadline::after(kLastWordsSeconds);
  bool sent = false;
  while (!deadline.passed()) {
    if (!connection.progress()) return;
    if (!sent && !connection.wants_to_write()) {
      connection.finish_sending();
      sent = true;
    }
    const auto message = connection.try_receive();
    if (!message) return;
    if (!*message) {
      net::wait_for(connection.descriptor(), static_cast<short>(POLLIN | (connection.wants_to_write() ? POLLOUT : 0)),
                    50);
    }
  }
}

// A rank's connection from its first request to its end. Requests are answered in order; pulls of a later step wait
// aside.
class SparseConnection {
 public:
  SparseConnection(SparseJob& job, int rank, Connection& connection) : job_(job), rank_(rank), connection_(connection) {
    job_.enter(rank_, waits_);
  }
  ~SparseConnection() { job_.go(rank_); }

  void run(const std::atomic<bool>& stop) {
    for (;;) {
      if (stop) job_.fail_with({ErrorCode::kServerLost, "the server was told to stop", -1});
      if (const auto failure = job_.failure()) return send_final_error(connection_, *failure);
      const Result<bool> goes_on = step();
      if (!goes_on) {
        const Error& error = goes_on.error();
        job_.fail_with(error.code == ErrorCode::kPeerLost ? lost(": " + error.message) : error);
        continue;
      }
      if (!*goes_on) return;
      waits_.add(connection_, reads());
      waits_.add(connection_.descriptor(), POLLRDHUP);
      waits_.end_after(kTickSeconds);
      waits_.wait();
      // A rank keeps its connection open until it has been let go.
      const int events = waits_.events(connection_.descriptor());
      if (!reads() && (events & (POLLERR | POLLHUP | POLLRDHUP)) != 0) job_.fail_with(lost(""));
      if (events == 0) connection_.end_if_unanswered();
    }
  }

 private:
  struct Waiting {  // for a step to come
    Message pull;
    std::shared_ptr<void> memory;  // as its job's is counted
  };

  Error lost(const std::string& how) const {
    return {ErrorCode::kPeerLost, fmt::format("rank {} of job '{}' was lost{}", rank_, job_.name(), how), rank_};
  }

  // Does what can be done now. False once the rank has left in order.
  Result<bool> step() {
    if (job_.opened() && !acknowledged_open_) {
      connection_.post_owned(kSparseOpened, 0, {});
      acknowledged_open_ = true;
    }
    MOTLEY_TRY(answer_waiting());
    for (int taken = 0; taken < kMaxRequests; ++taken) {
      MOTLEY_TRY(connection_.progress());
      if (connection_.pending_sends() > kMaxAnswersUnsent) return true;
      if (!held_) {
        MOTLEY_ASSIGN(held_, connection_.try_receive());
        if (!held_) break;
      }
      if (held_->header.type == kServerLeave) {
        job_.leave(rank_);
        return false;
      }
      if (!is_due(*held_)) {
        if (held_->header.type == kSparseSave) {
          job_.fail_if_unreachable(rank_, static_cast<std::int64_t>(held_->header.tag));
        }
        break;
      }
      MOTLEY_TRY(handle(*std::exchange(held_, std::nullopt)));
    }
    if (rank_ == 0) {
      if (const auto saved = job_.saved()) {
        connection_.post_owned(kSparseSaved, static_cast<std::uint64_t>(saved->first), encode(saved->second));
      }
    }
    MOTLEY_TRY(connection_.progress());
    return true;
  }
  bool reads() const { return !held_ && connection_.pending_sends() <= kMaxAnswersUnsent; }

  // A step is finished after its pulls are answered, so that they cannot see more than they asked for; a checkpoint is
  // begun when its step is applied.
  bool is_due(const Message& message) const {
    const auto step = static_cast<std::int64_t>(message.header.tag);
    if (message.header.type == kSparseSave) return job_.reached(step);
    if (message.header.type != kSparseFinish) return true;
    return std::ranges::none_of(waiting_, [&](const Waiting& waiting) { return after(waiting.pull) < step; });
  }

  static std::int64_t after(const Message& pull) {
    SparsePull head;
    std::memcpy(&head, pull.payload.data(), sizeof(head));
    return head.after;
  }

  Status answer_waiting() {
    for (auto waiting = waiting_.begin(); waiting != waiting_.end();) {
      if (!job_.reached(after(waiting->pull))) {
        job_.fail_if_unreachable(rank_, after(waiting->pull));
        ++waiting;
        continue;
      }
      MOTLEY_TRY(answer(waiting->pull));
      waiting = waiting_.erase(waiting);
    }
    return {};
  }

  Status answer(const Message& message) {
    MOTLEY_ASSIGN(const PullFrame frame, read_pull(message.payload, job_.tables()));
    const RowForm form = job_.tables()[frame.head.table].form();
    rows_.resize(frame.ids.size() * form.dimension);
    MOTLEY_TRY(job_.pull(frame.head.table, frame.ids, rows_));
    std::vector<std::byte> answer(frame.ids.size() * form.row_bytes());
    form.write(rows_, answer.data());
    connection_.post_owned(kSparseRows, message.header.tag, std::move(answer));
    return {};
  }

  Status handle(Message message) {
    const auto wrong = [&](const char* why) {
      return fail(ErrorCode::kCorrupt, "rank {} of job '{}' sent a frame of type {:#x} with tag {} and {} bytes: {}",
                  rank_, job_.name(), message.header.type, message.header.tag, message.header.length, why);
    };
    const bool about_tables = message.header.type >= kSparsePull && message.header.type <= kSparseSaved;
    if (about_tables && !job_.opened()) return wrong("the tables are not open");
    switch (message.header.type) {
      case kSparseOpen: {
        MOTLEY_ASSIGN(const SparseOpen open, decode_sparse_open(message.payload));
        return job_.open(rank_, open);
      }
      case kSparsePull: {
        MOTLEY_ASSIGN(const PullFrame frame, read_pull(message.payload, job_.tables()));
        if (job_.reached(frame.head.after)) return answer(message);
        if (waiting_.size() >= kMaxPullsWaiting) return wrong("too many pulls wait for a later step");
        MOTLEY_ASSIGN(auto memory, job_.hold_pull(message.payload.size()));
        job_.prefetch(frame.head.table, frame.ids);
        waiting_.push_back({std::move(message), std::move(memory)});
        return {};
      }
      case kSparsePush: {
        MOTLEY_ASSIGN(const PushFrame frame, read_push(message.payload, job_.tables()));
        return job_.push(rank_, frame);
      }
      case kSparseFinish: {
        SparseFinish finish;
        if (message.payload.size() != sizeof(finish)) return wrong("it has no weight");
        std::memcpy(&finish, message.payload.data(), sizeof(finish));
        return job_.finish(rank_, static_cast<std::int64_t>(message.header.tag), finish.weight);
      }
      case kSparseSave:
        return job_.save(rank_, static_cast<std::int64_t>(message.header.tag));
      case kServerMissing:
        connection_.post_owned(kServerMissing, 0, copy_bytes(job_.missing_ranks()));
        return {};
      default:
        return wrong("no such frame is known");
    }
  }

  SparseJob& job_;
  const int rank_;
  Connection& connection_;
  net::WaitSet waits_;
  bool acknowledged_open_ = false;
  std::optional<Message> held_;  // read, and not due yet
  std::deque<Waiting> waiting_;  // pulls
  std::vector<float> rows_;      // of the answer that is being made
};

}  // namespace

SparseService::~SparseService() {
  stop_ = true;
  for (Line& line : lines_) line.thread.join();
}

template <class Work>
Status SparseService::start_line(Work work) {
  Line& line = lines_.emplace_back();
  auto thread = try_start_thread([&line, work = std::move(work)]() mutable {
    work();
    line.over = true;
  });
  if (!thread) {
    lines_.pop_back();
    return fail(std::move(thread).error());
  }
  line.thread = std::move(*thread);
  return {};
}

Status SparseService::admit(const net::Claim& claim, std::unique_ptr<Connection>& connection) {
  const auto& [job_name, tenant, rank, session, epoch, purpose] = claim.identity;
  const std::lock_guard lock(mutex_);
  if (rank < 0 || rank >= kMaxRanks) {
    return fail(ErrorCode::kRefused, "rank {} is not one from 0 to {}", rank, kMaxRanks - 1);
  }
  const std::string name = tenant + "/" + job_name;
  const auto found = jobs_.find(name);
  std::shared_ptr<SparseJob> job = found == jobs_.end() ? nullptr : found->second.job.lock();
  const bool is_new = !job || found->second.session != session;
  if (job && is_new && !job->over()) {
    return fail(ErrorCode::kRefused, "a job '{}' has sparse tables here already; give this one another name", name);
  }
  if (!is_new && found->second.ranks.contains(rank)) {
    return fail(ErrorCode::kRefused, "rank {} of job '{}' is here already", rank, name);
  }
  std::shared_ptr<void> place;
  if (found == jobs_.end()) {
    MOTLEY_ASSIGN(place, use_.take(tenant, {{&TenantCounts::jobs, 1}}));
  }
  // Nothing is changed before there is a thread.
  std::promise<std::pair<std::shared_ptr<SparseJob>, std::unique_ptr<Connection>>> given;
  MOTLEY_TRY(start_line([this, rank = rank, taken = given.get_future()]() mutable {
    const auto [own, channel] = taken.get();  // the job goes with its last line
    SparseConnection(*own, rank, *channel).run(stop_);
  }));
  Known& known = jobs_[name];
  if (is_new) {
    SparseLimits limits = limits_;
    limits.tenant_quota_bytes = tenants_.find(tenant).quota_bytes;
    limits.use = &use_;
    job = std::make_shared<SparseJob>(claim.identity, limits, memory_, known.end);
    known = {.session = session,
             .job = job,
             .end = job->end(),
             .ranks = {},
             .place = place ? std::move(place) : std::move(known.place)};
  }
  known.ranks.insert(rank);
  given.set_value({std::move(job), std::move(connection)});
  return {};
}

void SparseService::reap() {
  lines_.remove_if([](Line& line) {
    if (!line.over) return false;
    line.thread.join();
    return true;
  });
  const std::lock_guard lock(mutex_);
  std::erase_if(jobs_, [](const auto& entry) {
    const Known& known = entry.second;
    return known.job.expired() &&
           (!known.end.valid() || known.end.wait_for(std::chrono::seconds(0)) == std::future_status::ready);
  });
}

std::vector<SparseJobMetrics> SparseService::metrics() const {
  std::vector<std::shared_ptr<SparseJob>> jobs;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, known] : jobs_) {
      if (auto job = known.job.lock()) jobs.push_back(std::move(job));
    }
  }
  std::vector<SparseJobMetrics> metrics;
  for (const auto& job : jobs) metrics.push_back(job->metrics());
  return metrics;
}

}  // namespace motley::ps
