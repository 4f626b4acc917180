// The thread that answers (see node.h).
#include "motley/data/remote/node.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <sstream>
#include <vector>

#include "motley/base/clock.h"
#include "motley/base/log.h"
#include "motley/base/units.h"
#include "motley/net/socket.h"

namespace motley::data {
namespace {

constexpr std::size_t kMostAnswers = 4;   // of a visitor, that are on their way
constexpr int kMostRequests = 4;          // of a visitor, until it is the next one's turn
constexpr double kLastWordsSeconds = 2;   // for one who was turned away to read why
constexpr double kSilentSeconds = 3600;   // after which a visitor is let go; a worker that comes back connects again
constexpr std::size_t kShownBytes = 200;  // of a key, in messages

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line.substr(0, kShownBytes));
  return lines;
}

// The lines of one that the other lacks.
std::string lines_beyond(const std::string& one, const std::string& other) {
  const std::vector<std::string> known = lines_of(other);
  std::string text;
  for (const std::string& line : lines_of(one)) {
    if (std::ranges::find(known, line) == known.end()) text += (text.empty() ? "" : ", ") + line;
  }
  return text.empty() ? "nothing else" : text;
}

// Only workers that read data are let in: who holds the token for something else has come to the wrong port.
Status is_reader(const net::Claim& claim) {
  if (claim.identity.purpose == kDataConnection) return {};
  return fail(ErrorCode::kRefused, "this is a data node (`motley data-node`), which serves nothing but samples");
}

}  // namespace

Result<std::unique_ptr<DataNode>> DataNode::start(const NodeOptions& options, const net::Secret& token, NodeData data) {
  data.keys.resize(std::min(data.keys.size(), kMaxKeysBytes));
  std::array<std::optional<Description>, 2> descriptions;
  MOTLEY_ASSIGN(descriptions[0], describe(*data.training));
  if (data.test) {
    MOTLEY_ASSIGN(descriptions[1], describe(*data.test));
  }
  MOTLEY_ASSIGN(net::Descriptor listener, net::listen_at(options.listen));
  return std::unique_ptr<DataNode>(
      new DataNode(options, token, std::move(data), std::move(descriptions), std::move(listener)));
}

DataNode::DataNode(const NodeOptions& options, const net::Secret& token, NodeData data,
                   std::array<std::optional<Description>, 2> descriptions, net::Descriptor listener)
    : options_(options),
      data_(std::move(data)),
      descriptions_(std::move(descriptions)),
      endpoint_(net::local_endpoint(listener)),
      acceptor_(std::move(listener), token, net::Claim{}, is_reader),
      stop_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

DataNode::~DataNode() {
  ::eventfd_write(stop_.get(), 1);
  thread_.join();
}

void DataNode::run() {
  for (eventfd_t stopped = 0; ::eventfd_read(stop_.get(), &stopped) != 0;) {
    for (auto visitor = visitors_.begin(); visitor != visitors_.end();) {
      const Status served = serve(*visitor);
      if (served) {
        ++visitor;
        continue;
      }
      const Served& had = visitor->served;
      if (!visitor->leave_at) {
        spdlog::info("job '{}': {}; it had read the inputs of {} and the targets of {} {} samples, {}",
                     visitor->connection->peer().job, served.error().message, had.inputs, had.targets,
                     visitor->set ? to_string(*visitor->set) : "unopened",
                     format_bytes(static_cast<double>(had.bytes)));
      }
      visitor = visitors_.erase(visitor);
    }
    for (net::Acceptor::Guest& guest : acceptor_.step()) admit(std::move(guest));
    wait_for_events();
  }
}

void DataNode::wait_for_events() {
  std::vector<pollfd> polled = {{stop_.get(), POLLIN, 0}};
  acceptor_.add_to(polled);
  for (const Visitor& visitor : visitors_) {
    const bool takes_requests = visitor.connection->pending_sends() < kMostAnswers;
    const int events = (takes_requests ? POLLIN : 0) | (visitor.connection->wants_to_write() ? POLLOUT : 0);
    polled.push_back({visitor.connection->descriptor(), static_cast<short>(events), 0});
  }
  ::poll(polled.data(), polled.size(), net::Acceptor::kTickMilliseconds);
}

void DataNode::admit(net::Acceptor::Guest guest) {
  if (!guest.accepted) {
    spdlog::warn("{} was turned away: {}", guest.address, guest.accepted.error().message);
    return;
  }
  const net::Identity& peer = guest.claim.identity;
  const bool checksum = options_.payload_checksum && !guest.address.starts_with("127.");
  Visitor visitor;
  visitor.name = fmt::format("rank {} of job '{}' at {}", peer.rank, peer.job, guest.address);
  visitor.connection = std::make_unique<net::TcpConnection>(std::move(guest.socket), peer, checksum);
  visitor.heard_at = monotonic_seconds();
  visitors_.push_back(std::move(visitor));
}

Status DataNode::serve(Visitor& visitor) {
  net::TcpConnection& connection = *visitor.connection;
  const double now = monotonic_seconds();
  for (int taken = 0; taken < kMostRequests && connection.pending_sends() < kMostAnswers; ++taken) {
    MOTLEY_ASSIGN(const auto message, connection.try_receive());
    if (!message) break;
    visitor.heard_at = now;
    if (visitor.leave_at) continue;
    if (const Status handled = handle(visitor, *message); !handled) {
      spdlog::warn("{} was turned away: {}", visitor.name, handled.error().message);
      connection.post_owned(kDataFailed, 0, encode(handled.error()));
      visitor.leave_at = now + kLastWordsSeconds;
    }
  }
  MOTLEY_TRY(connection.progress());
  if (now > visitor.leave_at.value_or(visitor.heard_at + kSilentSeconds)) {
    return fail(ErrorCode::kTimeout, "{}: it has said nothing for a while", connection.peer_name());
  }
  return {};
}

Status DataNode::handle(Visitor& visitor, const net::Message& message) {
  if (message.header.type == kDataOpen && !visitor.set) {
    MOTLEY_ASSIGN(const Open wanted, decode_open(message.payload));
    return open(visitor, wanted);
  }
  if (message.header.type != kDataRead || !visitor.set) {
    return fail(ErrorCode::kCorrupt, "a frame of type {:#x} with {} bytes came when it was not its turn",
                message.header.type, message.header.length);
  }
  const Description& own = *description(*visitor.set);
  MOTLEY_ASSIGN(const Read read, decode_read(message.payload, own));
  MOTLEY_ASSIGN(std::vector<std::byte> samples, pack(dataset(*visitor.set), own, read));
  visitor.served.inputs += read.parts.inputs ? read.samples.size() : 0;
  visitor.served.targets += read.parts.targets ? read.samples.size() : 0;
  visitor.served.bytes += samples.size();
  visitor.connection->post_owned(kDataSamples, message.header.tag, std::move(samples));
  return {};
}

Status DataNode::open(Visitor& visitor, const Open& wanted) {
  if (wanted.keys != data_.keys) {
    return fail(ErrorCode::kInvalidInput, "the job has other data: the job has {}; the node has {}",
                lines_beyond(wanted.keys, data_.keys), lines_beyond(data_.keys, wanted.keys));
  }
  if (!description(wanted.set)) {
    return fail(ErrorCode::kInvalidInput, "there is no {} data here", to_string(wanted.set));
  }
  visitor.set = wanted.set;
  const std::vector<std::byte> bytes = encode(*description(wanted.set));
  for (std::size_t begin = 0; begin < bytes.size(); begin += kDescriptionPieceBytes) {
    const std::size_t end = std::min(begin + kDescriptionPieceBytes, bytes.size());
    visitor.connection->post_owned(
        kDataOpened, bytes.size() - end,
        {bytes.begin() + static_cast<std::ptrdiff_t>(begin), bytes.begin() + static_cast<std::ptrdiff_t>(end)});
  }
  return {};
}

}  // namespace motley::data
