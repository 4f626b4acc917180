// Ranks as threads of one process, for tests of the algorithms alone: sessions that share a failure that the test may
// set, and connections over loopback TCP without a handshake.
#pragma once

#include <limits>
#include <map>
#include <mutex>

#include "motley/net/connection.h"
#include "motley/net/region.h"
#include "motley/net/session.h"
#include "motley/net/socket.h"

namespace motley::collective {

// What the sessions of one test share.
class Hub {
 public:
  explicit Hub(std::uint64_t session) : session_(session) {}
  std::uint64_t session() const { return session_; }

  Status health() const {
    std::lock_guard lock(mutex_);
    return health_;
  }
  void fail_with(const Error& error) {
    std::lock_guard lock(mutex_);
    if (health_) health_ = fail(error);
  }

  // One end of the connection of this name; the other end goes to the other who asks.
  Result<Descriptor> take_end(const std::string& name) {
    std::lock_guard lock(mutex_);
    if (const auto found = ends_.find(name); found != ends_.end()) {
      Descriptor end = std::move(found->second);
      ends_.erase(found);
      return end;
    }
    MOTLEY_ASSIGN(const auto listener, net::listen_at({"127.0.0.1", 0}));
    MOTLEY_ASSIGN(auto one, net::connect_to(net::local_endpoint(listener), Deadline::after(5)));
    net::wait_for(listener.get(), 1, 5000);
    ends_.emplace(name, net::accept_from(listener));
    return one;
  }

 private:
  const std::uint64_t session_;
  mutable std::mutex mutex_;
  Status health_;
  std::map<std::string, Descriptor> ends_;
};

class ThreadSession final : public net::Session {
 public:
  ThreadSession(Hub& hub, int rank, int size, bool one_host = true) : hub_(hub) {
    membership_.session = hub.session();
    membership_.epoch = 1;
    membership_.rank = rank;
    for (int other = 0; other < size; ++other) {
      membership_.members.push_back({one_host ? net::host_id() : fmt::format("host {}", other), "127.0.0.1"});
    }
  }
  const net::Membership& membership() const override { return membership_; }
  const net::SessionOptions& options() const override { return options_; }
  Result<std::unique_ptr<net::Connection>> connect(int peer, std::uint32_t purpose, const Deadline&) override {
    const int rank = membership_.rank;
    MOTLEY_ASSIGN(auto socket,
                  hub_.take_end(fmt::format("{} {} {}", std::min(rank, peer), std::max(rank, peer), purpose)));
    net::Identity identity;
    identity.rank = peer;
    identity.session = membership_.session;
    identity.epoch = membership_.epoch;
    identity.purpose = purpose;
    return std::make_unique<net::Connection>(std::move(socket), identity, false);
  }
  Status health() const override {
    if (forgets_failure_) return {};
    return hub_.health();
  }
  // This rank is on another machine, as far as this session knows.
  void move_elsewhere(int rank) { membership_.members[static_cast<std::size_t>(rank)].host_id = "elsewhere"; }
  // From now on this rank does not hear of others' failures.
  void forget_failure() { forgets_failure_ = true; }
  void set_job(const std::string& name) { options_.job = name; }
  void set_encryption(net::Encryption encryption) { options_.encryption = encryption; }
  void set_tenant(const std::string& name) { options_.tenant = name; }
  void set_silence(double seconds) { options_.silence_seconds = seconds; }
  void set_patience(double seconds) { patience_ = seconds; }
  double patience() const override { return patience_; }
  void abort(const Error& error) override {
    Error named = error;
    named.rank = membership_.rank;
    hub_.fail_with(named);
  }
  void set_phase(std::uint64_t, const char*) override {}
  std::string last_seen(int rank) const override { return fmt::format("phase of {}", rank); }
  void leave() override {}

 private:
  Hub& hub_;
  bool forgets_failure_ = false;
  double patience_ = std::numeric_limits<double>::infinity();
  net::Membership membership_;
  net::SessionOptions options_;
};

}  // namespace motley::collective
