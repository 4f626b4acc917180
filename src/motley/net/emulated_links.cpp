#include "motley/net/emulated_links.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstdint>

#include "motley/base/os/file.h"

namespace motley::net {
namespace {

class EmulatedLinks final : public Session {
 public:
  EmulatedLinks(std::unique_ptr<Session> session, std::vector<double> bytes_per_second)
      : session_(std::move(session)), bytes_per_second_(std::move(bytes_per_second)) {
    MOTLEY_INVARIANT(std::ssize(bytes_per_second_) == session_->membership().size(), "{} rates for {} ranks",
                     bytes_per_second_.size(), session_->membership().size());
  }

  const Membership& membership() const override { return session_->membership(); }
  const SessionOptions& options() const override { return session_->options(); }
  int job_rank(int rank) const override { return session_->job_rank(rank); }
  Result<std::unique_ptr<Connection>> connect(int peer, std::uint32_t purpose, const Deadline& deadline) override {
    MOTLEY_ASSIGN(auto connection, session_->connect(peer, purpose, deadline));
    const auto rate = static_cast<std::uint64_t>(bytes_per_second_.at(static_cast<std::size_t>(peer)));
    if (rate > 0 && ::setsockopt(connection->descriptor(), SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof(rate)) != 0) {
      return fail(Error{ErrorCode::kUnavailable,
                        fmt::format("the link to rank {} cannot be emulated: {}", peer, errno_text()), peer});
    }
    return connection;
  }
  Status health() const override { return session_->health(); }
  void abort(const Error& error) override { session_->abort(error); }
  void set_phase(std::uint64_t step, const char* phase) override { session_->set_phase(step, phase); }
  std::string last_seen(int rank) const override { return session_->last_seen(rank); }
  void leave() override { session_->leave(); }

 private:
  const std::unique_ptr<Session> session_;
  const std::vector<double> bytes_per_second_;
};

}  // namespace

std::unique_ptr<Session> emulate_links(std::unique_ptr<Session> session, std::vector<double> bytes_per_second) {
  return std::make_unique<EmulatedLinks>(std::move(session), std::move(bytes_per_second));
}

}  // namespace motley::net
