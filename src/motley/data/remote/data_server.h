// The data server: has the files of a job's data in memory and serves their samples to workers that have none, of as
// many jobs on the same data as come.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "motley/data/local/dataset.h"
#include "motley/data/remote/protocol.h"
#include "motley/net/admission.h"
#include "motley/net/connection.h"

namespace motley::data {

struct ServedData {
  std::unique_ptr<data::Dataset> training;
  std::unique_ptr<data::Dataset> test;  // null: none
  std::string keys;                     // lines "key: value" that a worker's must equal (Open)
};

struct DataServerOptions {
  net::Endpoint listen;          // port 0: any free one
  bool payload_checksum = true;  // over what is sent to other hosts in the clear
  net::Encryption encryption = net::Encryption::kAuto;
  std::size_t max_connections = 4096;  // of a tenant, where certificates tell them apart, else of all together
};

// One thread serves all. Of each worker a few answers of 4 MiB at most (or one sample) lie in memory.
class DataServer {
 public:
  static Result<std::unique_ptr<DataServer>> start(const DataServerOptions& options, const net::Secret& token,
                                                   ServedData data);
  ~DataServer();

  const net::Endpoint& endpoint() const { return endpoint_; }  // really listening at
  // None where there is no such data.
  const std::optional<Description>& description(Set set) const { return descriptions_[static_cast<std::size_t>(set)]; }

 private:
  struct Served {
    std::uint64_t inputs = 0;   // samples
    std::uint64_t targets = 0;  // samples
    std::uint64_t bytes = 0;
  };
  struct Client {
    std::unique_ptr<net::Connection> connection;
    std::string name;        // "rank 0 of job 'x' at 10.0.0.5:4711"
    std::optional<Set> set;  // that it has opened
    Served served;
    double received_at = 0;          // monotonic seconds
    std::optional<double> leave_at;  // it was turned away, and is given until then to read why
  };

  DataServer(const DataServerOptions& options, const net::Secret& token, ServedData data,
             std::array<std::optional<Description>, 2> descriptions, Descriptor listener);
  void run();
  bool wait_for_events();
  Status judge(const net::Claim& claim) const;
  void admit(net::Acceptor::PendingConnection pending);
  // An error ends the visit.
  Status serve(Client& client);
  Status handle(Client& client, const net::Message& message);
  Status open(Client& client, const Open& wanted);
  const data::Dataset& dataset(Set set) const { return set == Set::kTraining ? *data_.training : *data_.test; }

  const DataServerOptions options_;
  const ServedData data_;
  const std::array<std::optional<Description>, 2> descriptions_;  // by Set
  const net::Endpoint endpoint_;
  net::Acceptor acceptor_;
  std::list<Client> clients_;
  net::WaitSet waits_;  // which is woken to stop
  std::thread thread_;
};

}  // namespace motley::data
