#include "motley/net/derived_session.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstdint>

#include "motley/base/os/file.h"
#include "motley/base/random.h"

namespace motley::net {
namespace {

class DerivedSession : public Session {
 public:
  explicit DerivedSession(Session& other) : other_(other) {}
  const Membership& membership() const override { return other_.membership(); }
  const SessionOptions& options() const override { return other_.options(); }
  int job_rank(int rank) const override { return other_.job_rank(rank); }
  Status health() const override { return other_.health(); }
  void abort(const Error& error) override { other_.abort(error); }
  void set_phase(std::uint64_t step, const char* phase) override { other_.set_phase(step, phase); }
  std::string last_seen(int rank) const override { return other_.last_seen(rank); }
  double patience() const override { return other_.patience(); }
  Result<std::vector<Epoch>> regroup(const Deadline& deadline) override { return other_.regroup(deadline); }
  void renew() override { other_.renew(); }
  void leave() override { other_.leave(); }

 protected:
  Session& other_;
};

class PartialSession final : public DerivedSession {
 public:
  PartialSession(Session& whole, std::vector<int> ranks, std::uint16_t number)
      : DerivedSession(whole), ranks_(std::move(ranks)), number_(number), membership_(whole.membership()) {
    membership_.session = mix({membership_.session, number});
    const auto own = std::ranges::find(ranks_, whole.membership().rank);
    MOTLEY_INVARIANT(own != ranks_.end() && number > 0, "rank {} is not in part {} of the session",
                     whole.membership().rank, number);
    membership_.rank = static_cast<int>(own - ranks_.begin());
    membership_.members.clear();
    for (const int rank : ranks_) {
      membership_.members.push_back(whole.membership().members[static_cast<std::size_t>(rank)]);
    }
  }

  const Membership& membership() const override { return membership_; }
  int job_rank(int rank) const override {
    const bool known = rank >= 0 && rank < membership_.size();
    return known ? other_.job_rank(ranks_[static_cast<std::size_t>(rank)]) : rank;
  }
  Result<std::unique_ptr<Connection>> connect(int peer, std::uint32_t purpose, const Deadline& deadline) override {
    return other_.connect(ranks_.at(static_cast<std::size_t>(peer)), std::uint32_t{number_} << 16 | purpose, deadline);
  }
  std::string last_seen(int rank) const override { return other_.last_seen(ranks_.at(static_cast<std::size_t>(rank))); }
  void leave() override {}

 private:
  const std::vector<int> ranks_;
  const std::uint16_t number_;
  Membership membership_;
};

class EmulatedLinks final : public DerivedSession {
 public:
  EmulatedLinks(std::unique_ptr<Session> session, std::vector<double> bytes_per_second)
      : DerivedSession(*session), session_(std::move(session)), bytes_per_second_(std::move(bytes_per_second)) {
    MOTLEY_INVARIANT(std::ssize(bytes_per_second_) == membership().size(), "{} rates for {} ranks",
                     bytes_per_second_.size(), membership().size());
  }

  Result<std::unique_ptr<Connection>> connect(int peer, std::uint32_t purpose, const Deadline& deadline) override {
    MOTLEY_ASSIGN(auto connection, other_.connect(peer, purpose, deadline));
    const auto rate = static_cast<std::uint64_t>(bytes_per_second_.at(static_cast<std::size_t>(peer)));
    if (rate > 0 && ::setsockopt(connection->descriptor(), SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof(rate)) != 0) {
      return fail(Error{ErrorCode::kUnavailable,
                        fmt::format("the link to rank {} cannot be emulated: {}", peer, errno_text()), peer});
    }
    return connection;
  }

 private:
  const std::unique_ptr<Session> session_;
  const std::vector<double> bytes_per_second_;
};

}  // namespace

std::unique_ptr<Session> make_partial_session(Session& whole, std::vector<int> ranks, std::uint16_t number) {
  return std::make_unique<PartialSession>(whole, std::move(ranks), number);
}

std::unique_ptr<Session> emulate_links(std::unique_ptr<Session> session, std::vector<double> bytes_per_second) {
  return std::make_unique<EmulatedLinks>(std::move(session), std::move(bytes_per_second));
}

}  // namespace motley::net
