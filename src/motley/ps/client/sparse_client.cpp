// Batches cut by server and into frames, and answers put together again.
#include "motley/ps/client/sparse_client.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "motley/collective/waiting.h"
#include "motley/collective/wire_form.h"
#include "motley/net/admission.h"
#include "motley/net/connection.h"
#include "motley/net/socket.h"
#include "motley/ps/protocol/row_index.h"
#include "motley/ps/protocol/server_protocol.h"

namespace motley::ps {
namespace {

constexpr double kSparseAnswerSeconds = 1;  // for a server to say whom it waits for, or to see that this rank leaves
constexpr double kLookSeconds = 0.05;       // between two looks at the session

// With room for so many bytes behind the ids.
template <class Head>
std::vector<std::byte> make_frame(const Head& head, std::span<const std::uint64_t> ids, std::size_t more = 0) {
  std::vector<std::byte> bytes(sizeof(Head) + ids.size_bytes() + more);
  std::memcpy(bytes.data(), &head, sizeof(Head));
  if (!ids.empty()) std::memcpy(bytes.data() + sizeof(Head), ids.data(), ids.size_bytes());
  return bytes;
}

}  // namespace

SparseClient::SparseClient(net::Session& session, SparseClientOptions options)
    : session_(session), options_(std::move(options)), step_(options_.step), watch_(session) {}

SparseClient::~SparseClient() {
  if (failure_) return;
  for (Server& server : servers_) {
    server.connection->post_owned(kServerLeave, 0, {});
  }
  // A socket that is closed over unread answers would take the word back that this rank leaves in order.
  const Deadline deadline = Deadline::after(kSparseAnswerSeconds);
  for (Server& server : servers_) {
    while (!deadline.passed() && server.connection->progress()) {
      const auto message = server.connection->try_receive();
      if (!message) break;
      if (!*message) wait_for_sockets(deadline);
    }
  }
}

Result<std::unique_ptr<SparseClient>> SparseClient::open(net::Session& session, SparseClientOptions options,
                                                         const Deadline& deadline) {
  std::set<std::string> names;
  for (const SparseTableOptions& table : options.tables) {
    if (table.name.empty() || table.dimension < 1 || table.dimension > kMaxSparseDimension) {
      return fail(ErrorCode::kInvalidInput, "table '{}': dimension is {}; accepted: a name, and 1 to {}", table.name,
                  table.dimension, kMaxSparseDimension);
    }
    if (!RowForm::accepts(table.wire)) {
      return fail(ErrorCode::kInvalidInput, "table '{}': rows as {}; accepted: float32, bfloat16, float16, int8",
                  table.name, to_string(collective::WireForm{table.wire}));
    }
    if (!names.insert(table.name).second) {
      return fail(ErrorCode::kInvalidInput, "two tables are named '{}'; accepted: names that differ", table.name);
    }
  }
  if (names.empty() || options.servers.empty()) {
    return fail(ErrorCode::kInvalidInput, "{} tables on {} servers; accepted: 1 or more of both", names.size(),
                options.servers.size());
  }
  std::unique_ptr<SparseClient> client(new SparseClient(session, std::move(options)));
  MOTLEY_TRY(client->connect(deadline));
  return client;
}

Status SparseClient::connect(const Deadline& deadline) {
  const net::SessionOptions& own = session_.options();
  const net::Membership& membership = session_.membership();
  net::Claim claim;
  claim.identity = {job(), own.tenant, membership.rank, membership.session, membership.epoch, kSparseConnection};
  claim.fingerprint = own.fingerprint;
  for (const ServerAddress& address : options_.servers) {
    Server server;
    server.name = describe_server(address);
    MOTLEY_ASSIGN(server.connection,
                  net::connect_to_host(address.endpoint, address.token, claim, deadline, own.payload_checksum,
                                       own.encryption, [&] { return !session_.health(); }));
    const SparseOpen open = {.size = membership.size(),
                             .shard = static_cast<int>(servers_.size()),
                             .shards = static_cast<int>(options_.servers.size()),
                             .mode = options_.mode,
                             .step = options_.step,
                             .written_by = options_.written_by,
                             .written_for = options_.written_for,
                             .keep_checkpoints = options_.keep_checkpoints,
                             .tables = options_.tables};
    server.connection->post_owned(kSparseOpen, 0, encode(open));
    watch_.add(address);
    servers_.push_back(std::move(server));
  }
  return wait_until(deadline, "opening sparse tables", [&] {
    return static_cast<std::size_t>(std::ranges::find(servers_, false, &Server::opened) - servers_.begin());
  });
}

SparseClient::Grouped SparseClient::group(std::span<const std::uint64_t> ids) const {
  Grouped grouped;
  grouped.row_of.resize(ids.size());
  std::vector<std::uint64_t> distinct;
  std::vector<std::uint32_t> server_of;
  std::vector<std::size_t> next(servers_.size() + 1, 0);
  RowIndex place;  // id -> index in distinct
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::uint64_t hash = hash_id(ids[i]);
    std::uint32_t at = place.find(ids[i], hash);
    if (at == RowIndex::kNone) {
      at = static_cast<std::uint32_t>(distinct.size());
      place.insert(ids[i], hash, at);
      distinct.push_back(ids[i]);
      server_of.push_back(static_cast<std::uint32_t>(find_shard(ids[i], servers_.size())));
      ++next[server_of.back() + 1];
    }
    grouped.row_of[i] = at;
  }
  for (std::size_t server = 0; server < servers_.size(); ++server) next[server + 1] += next[server];
  grouped.begin = next;
  grouped.ids.resize(distinct.size());
  std::vector<std::uint32_t> row_of_distinct(distinct.size());
  for (std::size_t i = 0; i < distinct.size(); ++i) {
    const std::size_t row = next[server_of[i]]++;
    grouped.ids[row] = distinct[i];
    row_of_distinct[i] = static_cast<std::uint32_t>(row);
  }
  for (std::uint32_t& row : grouped.row_of) row = row_of_distinct[row];
  return grouped;
}

Status SparseClient::check_batch(std::size_t table, std::size_t ids, std::size_t floats) const {
  MOTLEY_INVARIANT(table < options_.tables.size(), "there is no table {}", table);
  const SparseTableOptions& it = options_.tables[table];
  if (floats != ids * it.dimension || ids >= RowIndex::kNone) {
    return fail(ErrorCode::kInvalidInput, "table '{}': {} ids came with {} values; accepted: {} values an id", it.name,
                ids, floats, it.dimension);
  }
  return {};
}

Result<SparseClient::Ticket> SparseClient::start_pull(std::size_t table, std::span<const std::uint64_t> ids,
                                                      std::int64_t after) {
  MOTLEY_INVARIANT(table < options_.tables.size(), "there is no table {}", table);
  const std::size_t dimension = options_.tables[table].dimension;
  const Ticket ticket = next_ticket_++;
  Grouped grouped = group(ids);
  Pull pull = {table, after, std::move(grouped.row_of), std::vector<float>(grouped.ids.size() * dimension),
               std::vector<std::size_t>(servers_.size())};
  for (std::size_t server = 0; server < servers_.size() && !failure_; ++server) {
    for (std::size_t row = grouped.begin[server]; row < grouped.begin[server + 1];) {
      const std::size_t count = std::min(rows_in_frame(dimension), grouped.begin[server + 1] - row);
      const SparsePull head = {.after = after, .table = static_cast<std::uint32_t>(table)};
      std::vector<std::byte> frame = make_frame(head, std::span(grouped.ids).subspan(row, count));
      traffic_.pulled_bytes += net::kFrameBytes + frame.size();
      traffic_.pulled_rows += count;
      servers_[server].connection->post_owned(kSparsePull, next_frame_, std::move(frame));
      frames_[next_frame_++] = {ticket, row, count};
      ++pull.to_come[server];
      row += count;
    }
  }
  pulls_.emplace(ticket, std::move(pull));
  MOTLEY_TRY(progress());
  return ticket;
}

Status SparseClient::wait(Ticket ticket, std::span<float> rows, const Deadline& deadline) {
  const auto found = pulls_.find(ticket);
  MOTLEY_INVARIANT(found != pulls_.end(), "ticket {} is not of a pull under way", ticket);
  const Pull& pull = found->second;
  MOTLEY_TRY(check_batch(pull.table, pull.row_of.size(), rows.size()));
  const SparseTableOptions& table = options_.tables[pull.table];
  MOTLEY_TRY(wait_until(
      deadline, fmt::format("table '{}', pull of {} rows after step {}", table.name, pull.row_of.size(), pull.after),
      [&] {
        const auto late = std::ranges::find_if(pull.to_come, [](std::size_t frames) { return frames > 0; });
        return static_cast<std::size_t>(late - pull.to_come.begin());
      }));
  for (std::size_t i = 0; i < pull.row_of.size(); ++i) {
    std::memcpy(rows.data() + i * table.dimension, pull.rows.data() + pull.row_of[i] * table.dimension,
                table.dimension * sizeof(float));
  }
  pulls_.erase(found);
  return {};
}

Status SparseClient::pull(std::size_t table, std::span<const std::uint64_t> ids, std::span<float> rows,
                          const Deadline& deadline) {
  MOTLEY_ASSIGN(const Ticket ticket, start_pull(table, ids, step_));
  return wait(ticket, rows, deadline);
}

Status SparseClient::push(std::size_t table, std::span<const std::uint64_t> ids, std::span<const float> gradients,
                          double weight) {
  MOTLEY_TRY(check_batch(table, ids.size(), gradients.size()));
  MOTLEY_INVARIANT(weight >= 0, "the weight {} of a push is negative or not a number", weight);
  if (failure_) return fail(*failure_);
  if (weight == 0) return {};
  const std::size_t dimension = options_.tables[table].dimension;
  const RowForm form = options_.tables[table].form();
  const Grouped grouped = group(ids);
  std::vector<float> sums(grouped.ids.size() * dimension);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    float* sum = sums.data() + grouped.row_of[i] * dimension;
    for (std::size_t e = 0; e < dimension; ++e) sum[e] += gradients[i * dimension + e];
  }
  for (std::size_t server = 0; server < servers_.size(); ++server) {
    const std::size_t end = grouped.begin[server + 1];
    for (std::size_t row = grouped.begin[server]; row < end;) {
      const std::size_t count = std::min(rows_in_frame(dimension), end - row);
      const SparsePush head = {.step = step_ + 1,
                               .weight = weight,
                               .table = static_cast<std::uint32_t>(table),
                               .more = row + count < end ? 1U : 0U};
      std::vector<std::byte> frame =
          make_frame(head, std::span(grouped.ids).subspan(row, count), count * form.row_bytes());
      form.write(std::span<const float>(sums).subspan(row * dimension, count * dimension),
                 frame.data() + frame.size() - count * form.row_bytes());
      traffic_.pushed_bytes += net::kFrameBytes + frame.size();
      servers_[server].connection->post_owned(kSparsePush, 0, std::move(frame));
      row += count;
    }
  }
  return progress();
}

Status SparseClient::finish_step(double weight, const Deadline& deadline) {
  MOTLEY_INVARIANT(weight >= 0, "the weight {} of a step is negative or not a number", weight);
  if (failure_) return fail(*failure_);
  ++step_;
  const SparseFinish finish = {weight};
  for (Server& server : servers_) {
    server.connection->post_owned(kSparseFinish, static_cast<std::uint64_t>(step_), make_frame(finish, {}));
  }
  return wait_until(deadline, fmt::format("sending the gradients of step {}", step_), [&] {
    const auto late =
        std::ranges::find_if(servers_, [](const Server& server) { return server.connection->pending_sends() > 0; });
    return static_cast<std::size_t>(late - servers_.begin());
  });
}

Status SparseClient::start_checkpoint() {
  MOTLEY_INVARIANT(session_.membership().rank == 0, "only rank 0 asks for checkpoints");
  if (failure_) return fail(*failure_);
  saving_ = step_;
  for (Server& server : servers_) {
    server.saved.reset();
    server.connection->post_owned(kSparseSave, static_cast<std::uint64_t>(step_), {});
  }
  return progress();
}

Result<SparseSaved> SparseClient::wait_for_checkpoint(const Deadline& deadline) {
  MOTLEY_TRY(wait_until(deadline, fmt::format("the checkpoint of sparse tables after step {}", saving_), [&] {
    const auto late = std::ranges::find_if(servers_, [](const Server& server) { return !server.saved; });
    return static_cast<std::size_t>(late - servers_.begin());
  }));
  SparseSaved total;
  for (const Server& server : servers_) {
    if (!*server.saved) return fail(server.saved->error().within(server.name));
    total.rows += (*server.saved)->rows;
    total.bytes += (*server.saved)->bytes;
  }
  return total;
}

// Until late() names no server that something is still to come from.
template <class Late>
Status SparseClient::wait_until(const Deadline& deadline, const std::string& operation, const Late& late) {
  for (;;) {
    MOTLEY_TRY(progress());
    const std::size_t server = late();
    if (server == servers_.size()) return {};
    if (const Status health = session_.health(); !health) return lose(health.error().within(operation));
    if (deadline.passed()) return lose(timeout(server, operation, deadline));
    if (const Status there = watch_.check(); !there) return lose(there.error().within(operation));
    wait_for_sockets(deadline);
  }
}

// Names the server, and the ranks that it waits for if it answers.
Error SparseClient::timeout(std::size_t index, const std::string& operation, const Deadline& deadline) {
  Server& server = servers_[index];
  server.missing.reset();
  server.connection->post_owned(kServerMissing, 0, {});
  const Deadline answer = Deadline::after(kSparseAnswerSeconds);
  while (!server.missing && !answer.passed() && progress()) {
    wait_for_sockets(answer);
  }
  if (!server.missing) {
    if (const Status there = watch_.ask(); !there) return there.error().within(operation);
  }
  const std::vector<int> ranks = server.missing.value_or(std::vector<int>());
  return {ErrorCode::kTimeout,
          fmt::format("{}: {}: timeout after {:.3g} s of waiting for {}", server.name, operation, deadline.allowed(),
                      ranks.empty() ? "the server" : collective::describe_ranks(session_, ranks)),
          ranks.empty() ? -1 : ranks.front()};
}

void SparseClient::wait_for_sockets(const Deadline& deadline) {
  for (const Server& server : servers_) waits_.add(*server.connection);
  waits_.end_at(deadline.at());
  waits_.end_after(kLookSeconds);
  waits_.wait();
}

// An error is final: the servers see this rank go, and end the job for all.
Status SparseClient::lose(const Error& error) {
  if (!failure_) {
    failure_ = error;
    for (Server& server : servers_) server.connection->close();
  }
  return fail(*failure_);
}

Status SparseClient::progress() {
  if (failure_) return fail(*failure_);
  for (std::size_t server = 0; server < servers_.size(); ++server) {
    if (const Status status = receive_from(server); !status) return lose(status.error());
  }
  return {};
}

Status SparseClient::receive_from(std::size_t index) {
  Server& server = servers_[index];
  const auto lost = [&](const Error& error) {
    return fail(ErrorCode::kServerLost, "the {} was lost: {}", server.name,
                error.code == ErrorCode::kPeerLost ? "it has ended, or a link is down" : error.message);
  };
  // What the server has said is read before it may be noticed, in writing, that it is gone.
  for (;;) {
    const auto message = server.connection->try_receive();
    if (!message) return lost(message.error());
    if (!*message) break;
    MOTLEY_TRY(handle(index, **message));
  }
  const auto moved = server.connection->progress();
  return moved ? Status() : lost(moved.error());
}

Status SparseClient::handle(std::size_t index, const net::Message& message) {
  Server& server = servers_[index];
  const auto unexpected = [&] {
    return fail(ErrorCode::kCorrupt, "{}: an unexpected frame of type {:#x} with tag {} and {} bytes", server.name,
                message.header.type, message.header.tag, message.header.length);
  };
  switch (message.header.type) {
    case kSparseOpened:
      server.opened = true;
      return {};
    case kSparseRows: {
      const auto frame = frames_.find(message.header.tag);
      if (frame == frames_.end()) return unexpected();
      const auto [ticket, first_row, rows] = frame->second;
      Pull& pull = pulls_.at(ticket);
      const RowForm form = options_.tables[pull.table].form();
      if (message.payload.size() != rows * form.row_bytes() || pull.to_come[index] == 0) return unexpected();
      form.read(message.payload.data(),
                std::span(pull.rows).subspan(first_row * form.dimension, rows * form.dimension));
      traffic_.pulled_bytes += net::kFrameBytes + message.payload.size();
      --pull.to_come[index];
      frames_.erase(frame);
      return {};
    }
    case kSparseSaved:
      if (message.header.tag == static_cast<std::uint64_t>(saving_)) {
        server.saved = decode_sparse_saved(message.payload);
      }
      return {};
    case kServerMissing:
      server.missing = decode_missing_ranks(message.payload, session_.membership().size());
      return {};
    case kServerFailed: {
      MOTLEY_ASSIGN(const Error error, decode_server_failed(message.payload));
      return fail(error.within(server.name));
    }
    default:
      return unexpected();
  }
}

}  // namespace motley::ps
