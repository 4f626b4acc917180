// Gradient synchronisation through a parameter server, which takes the optimizer's step on the way: the worker's side.
// Where one server and all ranks are on one host, gradients and weights stay in shared memory and only counters move;
// else segments go over the channels. See docs/explanation/parameter-server.md for the protocol.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "motley/base/os/pages.h"
#include "motley/collective/channel_driver.h"
#include "motley/collective/gradient_reducer.h"
#include "motley/net/handshake.h"
#include "motley/net/region.h"
#include "motley/net/tcp_connection.h"
#include "motley/ps/client/server_optimizer.h"
#include "motley/ps/client/server_options.h"
#include "motley/ps/protocol/chunk_map.h"
#include "motley/ps/protocol/server_protocol.h"

namespace motley::ps {

class ServerReducer final : public collective::GradientReducer, public ServerOptimizer, private collective::Channels {
 public:
  // kInvalidInput where the options name no server. The session must outlive the exchange.
  static Result<std::unique_ptr<ServerReducer>> create(net::Session& session, const ServerOptions& options);
  ~ServerReducer() override;

  Status prepare(const collective::Layout& layout, const Deadline& deadline) override;
  std::span<std::byte> buffer(int bucket) override;
  Status start(std::uint64_t step, int bucket, double weight) override;
  Result<collective::Outcome> wait(int bucket, const Deadline& deadline) override;
  void abort(const Error& error) override;
  std::string name() const override { return "parameter-server"; }
  std::uint64_t bytes_sent() const override;
  bool in_memory() const { return own_ != nullptr; }                // after prepare
  int cores() const { return static_cast<int>(map_.load.size()); }  // of all servers, after prepare

  // Whether the servers take the optimizer's step; else they only add up, and the following is of no use.
  bool updates_weights() const { return options_.update.rule != kernels::UpdateRule::kSum; }
  std::span<const float> weights(int bucket) override;
  void set_learning_rate(double learning_rate) override { learning_rate_ = learning_rate; }
  bool is_async() const override { return options_.staleness.has_value(); }
  void begin_step(double total_weight, bool together) override;
  Status load(const ServerState& state, const Deadline& deadline) override;
  Result<ServerState> save(const Deadline& deadline) override;

 private:
  ServerReducer(net::Session& session, const ServerOptions& options);

  struct Bucket {
    std::size_t elements = 0;
    std::size_t offset = 0;   // bytes in gradients and in weights
    std::size_t first = 0;    // of its segments
    std::size_t last = 0;     // one past
    std::size_t to_come = 0;  // frames that have not come yet, over channels
    std::uint32_t round = 0;  // how often it was started
    std::uint64_t step = 0;
    double total_weight = 0;
    std::uint32_t ahead = 0;            // rounds, asynchronous
    std::vector<std::uint32_t> rounds;  // of each rank in the weights, asynchronous and over channels
    bool under_way = false;
    double weight = 0;       // of this rank, in this round
    double left_weight = 1;  // of the gradient that left_out_ belongs to
    collective::ChannelDriver::Patience patience;
  };
  struct Server {
    std::string name;  // "server at 10.0.0.5:4711"
    std::string host_id;
    int first_bin = 0;
    int cores = 1;
    std::unique_ptr<net::TcpConnection> control;
  };
  struct Expected {
    int bucket;
    const Segment*
        segment;  // whose weights are to come; null: the answer to the announcement, asynchronous: the rounds
  };
  struct Channel {  // one per bin
    std::unique_ptr<net::TcpConnection> connection;
    std::deque<Expected> expected;      // in order
    std::deque<std::uint64_t> sending;  // numbers of the frames that the connection has, and maybe of some before
    std::vector<Announcement> answers;  // by bucket
    std::vector<std::vector<std::uint32_t>> rounds;  // by bucket, asynchronous
  };

  struct Outgoing {
    int channel;
    std::uint16_t type;
    std::uint64_t tag;
    std::span<const std::byte> payload;
    std::vector<std::byte> owned;  // instead
    const Segment* segment;        // whose gradient it is; null: an announcement
  };

  net::Claim claim(std::uint32_t purpose) const;
  Status choose_servers();
  Status connect_control(const Deadline& deadline);
  Status join(const Deadline& deadline);
  Status connect_channels(const Deadline& deadline);
  void cut(int bins);
  Result<net::Message> receive_from(Server& server, std::uint16_t type, const Deadline& deadline, const char* what);
  Status check_servers();
  std::vector<int> ask_for_missing();
  Status check_wait_in_memory(int bucket, const Deadline& deadline);
  void ring();
  Announcement announcement(const Bucket& bucket, double weight) const;
  collective::Outcome outcome(int bucket) const;
  Status start_in_memory(int bucket, double weight);
  Status start_over_channels(int bucket, double weight);
  void post_in_order();
  Result<bool> advance() override;
  bool idle() const override;
  void list_descriptors(std::vector<pollfd>& descriptors) const override;
  void write_push(const Segment& segment);
  Status take(const Expected& expected);
  std::size_t byte_at(const Segment& segment, std::size_t width) const;

  net::Session& session_;
  const ServerOptions options_;
  const int rank_;
  const int size_;
  const collective::WireForm wire_;
  const collective::WireForm answer_;
  double learning_rate_ = 0;
  double step_weight_ = 1;   // asynchronous: of all ranks in a step
  std::uint32_t ahead_ = 0;  // asynchronous: rounds that a rank may be ahead
  std::uint64_t loaded_updates_ = 0;
  std::vector<std::uint64_t> bucket_elements_;
  ChunkMap map_;
  std::vector<Bucket> buckets_;
  std::vector<double> bin_speeds_;
  RackPlan racks_;                        // empty: none
  std::vector<ServerAddress> addresses_;  // of the servers that this rank talks to
  std::vector<Server> servers_;
  int next_bucket_ = 0;

  // On one host: this rank's gradients, and what the server made for the job.
  std::unique_ptr<net::Region> own_;
  std::unique_ptr<net::Region> shared_;
  ServerRegion region_;
  bool may_spin_ = false;
  std::atomic<bool> failed_ = false;  // then servers are not told that this rank leaves in order

  // Over channels.
  Pages gradients_;
  Pages weights_;
  Pages outgoing_;  // gradients, and
  Pages incoming_;  // weights, in the wire's form where that is not float32
  std::vector<std::size_t> outgoing_at_;
  std::vector<std::size_t> incoming_at_;
  Pages left_out_;  // of pushes so far, in float32
  std::mutex control_mutex_;
  std::optional<Error> verdict_;  // what a server said, or its loss: whoever asks again hears the same
  double controls_checked_ = 0;
  std::vector<Channel> channels_;
  std::deque<Outgoing> outbox_;                        // in the order of all ranks
  std::uint64_t frames_posted_ = 0;                    // to connections
  std::size_t unanswered_bytes_ = 0;                   // of pushes
  double answered_ = 0;                                // when the last answer came
  collective::ChannelDriver driver_{session_, *this};  // last: its helper ends first
};

}  // namespace motley::ps
