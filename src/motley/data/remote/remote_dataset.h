// A dataset whose samples a data server has: the same numbers as from the files, asked for ahead where it is told what
// will be read.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "motley/base/clock.h"
#include "motley/data/remote/protocol.h"
#include "motley/net/admission.h"
#include "motley/net/wait_set.h"

namespace motley::data {

struct DataServerAccess {
  net::Endpoint endpoint;
  std::function<Result<net::Secret>()> token;  // asked for when this worker connects
  net::Claim claim;                            // who reads; its purpose is filled in
  Set set = Set::kTraining;
  std::string keys;         // which data is meant (Open)
  double join_seconds = 0;  // that the node may take to let this worker in at the start
  double read_seconds = 0;  // that samples may take to come, the node's coming back included
  bool payload_checksum = true;
  net::Encryption encryption = net::Encryption::kAuto;
  std::function<bool()> cancelled = [] { return false; };  // asked a few times a second while waiting
};

// Any number of threads may read, one after the other; one thread at a time may expect. A connection that is lost is
// made anew, and what had been asked for is asked for again; a node that is not back by then, or has other data then,
// is an error that names it.
class RemoteDataset final : public data::Dataset {
 public:
  // Connects and asks what the data is.
  static Result<std::unique_ptr<RemoteDataset>> open(DataServerAccess access);
  // Of a description that another worker was given; connects at the first read.
  RemoteDataset(DataServerAccess access, Description description);
  ~RemoteDataset() override;

  const Description& description() const { return *description_; }

  std::uint32_t size() const override { return description_->size; }
  const std::vector<std::int64_t>& feature_shape() const override { return description_->feature_shape; }
  data::TargetKind target_kind() const override { return description_->target_kind; }
  std::uint32_t class_count() const override { return description_->class_count; }
  std::uint32_t target_width() const override { return description_->target_width; }
  std::uint32_t categories() const override { return description_->categories; }
  data::Skipped skipped() const override { return description_->skipped; }
  Status read(std::span<const std::uint32_t> samples, const data::ReadTarget& into) const override;
  void expect(std::span<const std::uint32_t> samples, data::Parts parts) const override;

 private:
  struct Request {
    Read read;
    bool wanted = true;  // else it was skipped, and only stands in the way
    bool asked = false;  // over the present connection
    bool done = false;
    std::size_t end = 0;  // answers of the present connection that come before its last one, itself included
    std::vector<std::byte> answer = {};
  };

  RemoteDataset(DataServerAccess access, std::optional<Description> description);
  std::string node() const;  // "data server at 10.0.0.5:29600"
  // These are of the reading thread.
  void take_expected() const;
  Request& request(std::span<const std::uint32_t> samples, data::Parts parts) const;
  Status connect(const Deadline& deadline) const;
  Result<Description> ask_for_description(net::Connection& connection, const Deadline& deadline) const;
  void ask(Request& request) const;
  Status fetch(const Request& request) const;
  std::optional<Error> ask_why(double seconds) const;
  Result<bool> move_bytes() const;
  Status unpack_answer(const Request& request, const data::ReadTarget& into) const;

  const DataServerAccess access_;
  mutable std::optional<Description> description_;  // set by open() and never changed after it

  mutable std::mutex expected_mutex_;
  mutable std::list<Request> expected_;  // that no reading thread has taken over
  mutable net::WaitSet waits_;           // which is woken when there are some

  mutable std::mutex reading_;  // guards all below
  mutable std::unique_ptr<net::Connection> connection_;
  mutable std::list<Request> requests_;  // in the order in which they were said
  mutable std::uint64_t next_tag_ = 1;
  mutable std::size_t posted_ = 0;  // answers that the present connection was told to expect
};

}  // namespace motley::data
