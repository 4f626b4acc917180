#include "motley/net/partial_session.h"

#include <algorithm>

#include "motley/base/random.h"

namespace motley::net {
namespace {

class PartialSession final : public Session {
 public:
  PartialSession(Session& whole, std::vector<int> ranks, std::uint16_t number)
      : whole_(whole), ranks_(std::move(ranks)), number_(number), membership_(whole.membership()) {
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
  const SessionOptions& options() const override { return whole_.options(); }
  int job_rank(int rank) const override {
    const bool known = rank >= 0 && rank < membership_.size();
    return known ? whole_.job_rank(ranks_[static_cast<std::size_t>(rank)]) : rank;
  }
  Result<std::unique_ptr<Connection>> connect(int peer, std::uint32_t purpose, const Deadline& deadline) override {
    return whole_.connect(ranks_.at(static_cast<std::size_t>(peer)), std::uint32_t{number_} << 16 | purpose, deadline);
  }
  Status health() const override { return whole_.health(); }
  void abort(const Error& error) override { whole_.abort(error); }
  void set_phase(std::uint64_t step, const char* phase) override { whole_.set_phase(step, phase); }
  std::string last_heard(int rank) const override {
    return whole_.last_heard(ranks_.at(static_cast<std::size_t>(rank)));
  }
  void leave() override {}

 private:
  Session& whole_;
  const std::vector<int> ranks_;
  const std::uint16_t number_;
  Membership membership_;
};

}  // namespace

std::unique_ptr<Session> make_partial_session(Session& whole, std::vector<int> ranks, std::uint16_t number) {
  return std::make_unique<PartialSession>(whole, std::move(ranks), number);
}

}  // namespace motley::net
