#include "tests/simulation/network.h"

#include <arpa/inet.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace motley::simulation {
namespace {

constexpr std::size_t kWindowBytes = 64 << 10;  // sent and not yet read by the peer
constexpr double kLeastDelay = 20e-6;
constexpr double kMeanDelay = 200e-6;
constexpr double kLongDelayChance = 0.02;
constexpr double kLongDelay = 20e-3;
constexpr double kShortTransferChance = 0.1;  // of a call that moves fewer bytes than it could
constexpr std::size_t kSmallMessage = 1 << 10;
constexpr double kLostWordsChance = 0.5;  // of what is under way when a connection is reset

int fail_call(int error) {
  errno = error;
  return -1;
}

bool is_loopback(const sockaddr_in& address) {
  return (ntohl(address.sin_addr.s_addr) >> 24) == IN_LOOPBACKNET;
}

int find_host(const sockaddr_in& address, int own) {
  return is_loopback(address) ? own : static_cast<int>(ntohl(address.sin_addr.s_addr) & 0xff) - 1;
}

}  // namespace

sockaddr_in Network::address(int host, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(host == kLoopbackHost ? INADDR_LOOPBACK : 0x0a000001U + static_cast<unsigned>(host));
  return address;
}

Network::~Network() {
  for (const auto& weak : connected_) {
    if (const auto socket = weak.lock()) socket->peer_.reset();
  }
}

double Network::delay(int from, int to) {
  Random& random = simulator_.random();
  double seconds = kLeastDelay + random.exponential(kMeanDelay);
  if (simulator_.chance(kLongDelayChance)) seconds += random.exponential(kLongDelay);
  if (const auto slow = slow_.find({from, to}); slow != slow_.end() && simulator_.now() < slow->second.until) {
    seconds += random.exponential(slow->second.seconds);
  }
  return seconds;
}

double Network::silent_until(int from, int to) const {
  const auto found = silent_until_.find({from, to});
  return found == silent_until_.end() ? 0 : found->second;
}

void Network::hand_links_over(int from, int to) {
  const auto rename = [from, to](const auto& links) {
    auto all = links;
    for (const auto& [link, what] : links) {
      all.insert_or_assign({link.first == from ? to : link.first, link.second == from ? to : link.second}, what);
    }
    return all;
  };
  silent_until_ = rename(silent_until_);
  slow_ = rename(slow_);
}

void Network::reset(int one, int other) {
  for (const auto& weak : connected_) {
    const auto socket = weak.lock();
    if (!socket || !socket->is_connected() || !socket->peer_) continue;
    const auto ends = std::minmax(socket->process_, socket->peer_->process_);
    if (ends == std::minmax(one, other)) {
      socket->incoming_.under_way.clear();
      socket->fail_with(ECONNRESET);
    }
  }
}

short Socket::ready() const {
  short events = 0;
  switch (state_) {
    case State::kListening:
      return backlog_.empty() ? 0 : POLLIN;
    case State::kConnected:
      if (incoming_.waiting() > 0 || incoming_.has_ended) events |= POLLIN;
      if (incoming_.has_ended) events |= POLLRDHUP;
      if (incoming_.has_ended && ends_sending_) events |= POLLHUP;
      if (!peer_ || peer_->incoming_.waiting() + peer_->incoming_.bytes_under_way < kWindowBytes) events |= POLLOUT;
      return events;
    case State::kFailed:
      return POLLIN | POLLOUT | POLLERR | POLLHUP;
    default:
      return 0;
  }
}

int Socket::bind(const sockaddr_in& address) {
  local_ = address;
  if (local_.sin_port == 0) local_.sin_port = htons(static_cast<std::uint16_t>(network_.next_port_++));
  return network_.listeners_.contains({host_, ntohs(local_.sin_port)}) ? fail_call(EADDRINUSE) : 0;
}

int Socket::listen() {
  state_ = State::kListening;
  network_.listeners_[{host_, ntohs(local_.sin_port)}] = shared_from_this();
  return 0;
}

int Socket::connect(const sockaddr_in& address) {
  remote_ = address;
  local_ = Network::address(is_loopback(address) ? Network::kLoopbackHost : host_, network_.next_port_++);
  state_ = State::kConnecting;
  network_.simulator_.at(network_.simulator_.now() + network_.delay(process_, 0),
                         [own = shared_from_this()] { own->try_to_connect(); });
  return fail_call(EINPROGRESS);
}

void Socket::try_to_connect() {
  if (state_ != State::kConnecting) return;
  Simulator& simulator = network_.simulator_;
  const auto found = network_.listeners_.find({find_host(remote_, host_), ntohs(remote_.sin_port)});
  if (found == network_.listeners_.end()) return fail_with(ECONNREFUSED);
  Socket& listener = *found->second;
  const double heard =
      std::max(network_.silent_until(process_, listener.process_), network_.silent_until(listener.process_, process_));
  if (heard > simulator.now()) {
    return simulator.at(heard + network_.delay(process_, listener.process_),
                        [own = shared_from_this()] { own->try_to_connect(); });
  }
  auto accepted = std::make_shared<Socket>(network_, *simulator.find(listener.process_));
  accepted->state_ = state_ = State::kConnected;
  accepted->local_ = remote_;
  accepted->remote_ = local_;
  accepted->peer_ = shared_from_this();
  peer_ = accepted;
  network_.connected_.push_back(weak_from_this());
  network_.connected_.push_back(accepted);
  listener.backlog_.push_back(std::move(accepted));
  listener.changed.wake_all();
  changed.wake_all();
}

std::shared_ptr<Socket> Socket::accept() {
  if (backlog_.empty()) return nullptr;
  auto socket = std::move(backlog_.front());
  backlog_.pop_front();
  return socket;
}

void Socket::fail_with(int error) {
  if (state_ == State::kClosed) return;
  state_ = State::kFailed;
  error_ = error;
  peer_.reset();
  changed.wake_all();
}

ssize_t Socket::send(const char* bytes, std::size_t count) {
  if (state_ == State::kFailed) return fail_call(error_ != 0 ? std::exchange(error_, 0) : EPIPE);
  if (state_ != State::kConnected || ends_sending_) return fail_call(EPIPE);
  if (!peer_) return fail_call(EPIPE);
  const Incoming& theirs = peer_->incoming_;
  const std::size_t used = theirs.waiting() + theirs.bytes_under_way;
  if (used >= kWindowBytes) return fail_call(EAGAIN);
  count = std::min(count, kWindowBytes - used);
  Simulator& simulator = network_.simulator_;
  const bool is_whole = network_.sends_small_messages_whole && count <= kSmallMessage;
  if (count > 1 && !is_whole && simulator.chance(kShortTransferChance)) count = 1 + simulator.random().below(count);
  peer_->enqueue({.bytes = std::string(bytes, count)});
  return static_cast<ssize_t>(count);
}

// From the peer, behind all that it has sent before.
void Socket::enqueue(Segment segment) {
  if (state_ != State::kConnected && state_ != State::kClosed) return;
  const int from = peer_ ? peer_->process_ : process_;
  Simulator& simulator = network_.simulator_;
  segment.at = simulator.now() + network_.delay(from, process_);
  if (!incoming_.under_way.empty()) segment.at = std::max(segment.at, incoming_.under_way.back().at);
  incoming_.bytes_under_way += segment.bytes.size();
  incoming_.under_way.push_back(std::move(segment));
  simulator.at(incoming_.under_way.back().at, [own = shared_from_this()] { own->deliver(); });
}

void Socket::deliver() {
  Simulator& simulator = network_.simulator_;
  if (state_ == State::kClosed) {
    // Nobody is there to take it.
    if (!incoming_.under_way.empty() && !incoming_.under_way.front().is_end) reset_peer();
    incoming_.under_way.clear();
    incoming_.bytes_under_way = 0;
    return;
  }
  if (state_ != State::kConnected || incoming_.under_way.empty()) return;
  const int from = peer_ ? peer_->process_ : process_;
  if (const double heard = network_.silent_until(from, process_); heard > simulator.now()) {
    return simulator.at(heard + network_.delay(from, process_), [own = shared_from_this()] { own->deliver(); });
  }
  while (!incoming_.under_way.empty() && incoming_.under_way.front().at <= simulator.now()) {
    Segment segment = std::move(incoming_.under_way.front());
    incoming_.under_way.pop_front();
    incoming_.bytes_under_way -= segment.bytes.size();
    incoming_.bytes.erase(0, std::exchange(incoming_.taken, 0));
    incoming_.bytes += segment.bytes;
    incoming_.has_ended = incoming_.has_ended || segment.is_end;
  }
  changed.wake_all();
}

ssize_t Socket::receive(char* bytes, std::size_t count) {
  if (state_ == State::kConnected || state_ == State::kFailed) {
    if (incoming_.waiting() > 0) {
      count = std::min(count, incoming_.waiting());
      Simulator& simulator = network_.simulator_;
      if (count > 1 && simulator.chance(kShortTransferChance)) count = 1 + simulator.random().below(count);
      std::memcpy(bytes, incoming_.bytes.data() + incoming_.taken, count);
      incoming_.taken += count;
      if (peer_) peer_->changed.wake_all();
      return static_cast<ssize_t>(count);
    }
    if (state_ == State::kFailed) return error_ != 0 ? fail_call(std::exchange(error_, 0)) : 0;
    return incoming_.has_ended ? 0 : fail_call(EAGAIN);
  }
  return fail_call(ENOTCONN);
}

void Socket::finish_sending() {
  if (state_ != State::kConnected || std::exchange(ends_sending_, true)) return;
  if (peer_) peer_->enqueue({.is_end = true});
}

// The peer's connection breaks; what was on its way to it may be lost.
void Socket::reset_peer() {
  const auto peer = std::exchange(peer_, nullptr);
  if (!peer) return;
  Simulator& simulator = network_.simulator_;
  if (simulator.chance(kLostWordsChance)) {
    peer->incoming_.under_way.clear();
    peer->incoming_.bytes_under_way = 0;
  }
  const double last = peer->incoming_.under_way.empty() ? 0 : peer->incoming_.under_way.back().at;
  const auto act = [this, own = shared_from_this(), peer](const auto& again) -> void {
    if (const double heard = network_.silent_until(process_, peer->process_); heard > network_.simulator_.now()) {
      return network_.simulator_.at(heard, [again] { again(again); });
    }
    if (peer->state_ == State::kConnected) peer->fail_with(ECONNRESET);
  };
  simulator.at(std::max(last, simulator.now() + network_.delay(process_, peer->process_)), [act] { act(act); });
}

void Socket::close() {
  if (state_ == State::kListening) {
    network_.listeners_.erase({host_, ntohs(local_.sin_port)});
    for (const auto& waiting : backlog_) waiting->close();
    backlog_.clear();
  }
  if (state_ == State::kConnected && incoming_.waiting() > 0) {
    state_ = State::kClosed;
    return reset_peer();
  }
  if (state_ == State::kConnected) finish_sending();
  state_ = State::kClosed;
}

}  // namespace motley::simulation
