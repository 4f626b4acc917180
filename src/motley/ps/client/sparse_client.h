// A rank's side of sparse tables: pulls rows from the servers that have them and pushes gradients to them, several
// requests under way at once. docs/explanation/embeddings.md tells the protocol as a story.
//
// A step: start_pull and wait (rows of later steps may be asked for before, they come when they are due), push for each
// table, finish_step once. One thread calls all of it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "motley/base/clock.h"
#include "motley/net/connection.h"
#include "motley/net/handshake.h"
#include "motley/net/wait_set.h"
#include "motley/ps/client/server_options.h"
#include "motley/ps/client/server_watch.h"
#include "motley/ps/protocol/sparse_protocol.h"

namespace motley::ps {

struct SparseClientOptions {
  std::vector<ServerAddress> servers;
  std::vector<SparseTableOptions> tables;
  SparseMode mode = SparseMode::kSynchronous;
  // Where the job goes on: after this step, with the rows of its checkpoint, which that many servers wrote (0: with new
  // rows).
  std::int64_t step = 0;
  int written_by = 0;
  std::string job_suffix;    // of the job's name at the servers, for a client beside another
  std::string written_for;   // the job whose checkpoint it is; empty: this job's own
  int keep_checkpoints = 2;  // of this job, by each server: the latest
};

// What a rank has asked for and sent since it opened its tables. Bytes are those of whole frames.
struct SparseTraffic {
  std::uint64_t pulled_bytes = 0;  // requests and answers
  std::uint64_t pushed_bytes = 0;
  std::uint64_t pulled_rows = 0;  // asked for; a batch's equal ids are one row
};

class SparseClient {
 public:
  using Ticket = std::uint64_t;

  // Opens the tables on all servers; collective. The session must outlive the client.
  static Result<std::unique_ptr<SparseClient>> open(net::Session& session, SparseClientOptions options,
                                                    const Deadline& deadline);
  ~SparseClient();

  // This job's name at the servers.
  std::string job() const { return session_.options().job + options_.job_suffix; }
  // The last step that this rank has finished.
  std::int64_t step() const { return step_; }
  const SparseTableOptions& table(std::size_t index) const { return options_.tables[index]; }
  const SparseTraffic& traffic() const { return traffic_; }

  // Asks for the rows as they are once the gradients of all steps up to `after` are in; in synchronous mode, with after
  // = step(), that is the state of no other moment. An earlier `after` does not wait for the slowest rank; a later one
  // asks for what will be needed then, and brings it from the cold tier. Never blocks.
  Result<Ticket> start_pull(std::size_t table, std::span<const std::uint64_t> ids, std::int64_t after);
  // Writes the rows that the ticket stands for, in the order of its ids. Once for each ticket, in any order.
  Status wait(Ticket ticket, std::span<float> rows, const Deadline& deadline);
  // Both, after = step().
  Status pull(std::size_t table, std::span<const std::uint64_t> ids, std::span<float> rows, const Deadline& deadline);

  // Gradients of step() + 1, means over `weight` samples; ids may repeat. In synchronous mode a row's gradient is
  // sum(weight x gradient) over all pushes of all ranks, divided by the weights that they finish the step with; in
  // asynchronous mode it is the push's own. With weight 0 nothing is pushed, whatever the gradients are. Never blocks.
  Status push(std::size_t table, std::span<const std::uint64_t> ids, std::span<const float> gradients, double weight);
  // This rank has pushed all of step() + 1, and used so many samples in it. Returns when everything is on its way.
  Status finish_step(double weight, const Deadline& deadline);

  // Rank 0 only: all servers write the tables as they are after step(), while training goes on. One at a time.
  Status start_checkpoint();
  // What they wrote, all together. An error leaves earlier checkpoints and the job intact.
  Result<SparseSaved> wait_for_checkpoint(const Deadline& deadline);

 private:
  struct Server {
    std::string name;  // "server at 10.0.0.5:4711"
    std::unique_ptr<net::Connection> connection;
    bool opened = false;
    std::optional<Result<SparseSaved>> saved;
    std::optional<std::vector<int>> missing;  // its answer
  };
  // A batch's distinct ids, those of one server after those of another.
  struct Grouped {
    std::vector<std::uint64_t> ids;
    std::vector<std::size_t> begin;     // by server, and the end
    std::vector<std::uint32_t> row_of;  // by position in the batch
  };
  struct Pull {
    std::size_t table = 0;
    std::int64_t after = 0;
    std::vector<std::uint32_t> row_of;
    std::vector<float> rows;
    std::vector<std::size_t> to_come;  // frames, by server
  };
  struct Frame {  // that is to come
    Ticket ticket = 0;
    std::size_t first_row = 0;
    std::size_t rows = 0;
  };

  SparseClient(net::Session& session, SparseClientOptions options);
  Status connect(const Deadline& deadline);
  Grouped group(std::span<const std::uint64_t> ids) const;
  Status check_batch(std::size_t table, std::size_t ids, std::size_t floats) const;
  Status progress();
  Status receive_from(std::size_t server);
  Status handle(std::size_t server, const net::Message& message);
  Status lose(const Error& error);
  template <class Late>
  Status wait_until(const Deadline& deadline, const std::string& operation, const Late& late);
  Error timeout(std::size_t server, const std::string& operation, const Deadline& deadline);
  void wait_for_sockets(const Deadline& deadline);

  net::Session& session_;
  const SparseClientOptions options_;
  std::int64_t step_ = 0;
  std::int64_t saving_ = 0;  // the step of the last checkpoint
  SparseTraffic traffic_;
  std::vector<Server> servers_;
  ServerWatch watch_;
  net::WaitSet waits_;
  Ticket next_ticket_ = 1;
  std::uint64_t next_frame_ = 1;
  std::unordered_map<Ticket, Pull> pulls_;
  std::unordered_map<std::uint64_t, Frame> frames_;
  std::optional<Error> failure_;
};

}  // namespace motley::ps
