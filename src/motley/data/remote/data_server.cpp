#include "motley/data/remote/data_server.h"

#include <algorithm>
#include <sstream>
#include <utility>
#include <vector>

#include "motley/base/clock.h"
#include "motley/base/log.h"
#include "motley/base/os/signals.h"
#include "motley/base/units.h"
#include "motley/net/socket.h"

namespace motley::data {
namespace {

constexpr std::size_t kMaxAnswers = 4;    // of a visitor, that are on their way
constexpr int kMaxRequests = 4;           // of a visitor, until it is the next one's turn
constexpr double kLastWordsSeconds = 2;   // for one who was turned away to read why
constexpr double kSilentSeconds = 3600;   // after which a visitor is let go; a worker that comes back connects again
constexpr std::size_t kShownBytes = 200;  // of a key, in messages

// The lines of one that the other lacks.
std::string lines_beyond(const std::string& one, const std::string& other) {
  std::string text;
  std::istringstream stream(one);
  for (std::string line; std::getline(stream, line);) {
    if (("\n" + other + "\n").find("\n" + line + "\n") != std::string::npos) continue;
    text += (text.empty() ? "" : ", ") + line.substr(0, kShownBytes);
  }
  return text.empty() ? "nothing else" : text;
}

}  // namespace

Result<std::unique_ptr<DataServer>> DataServer::start(const DataServerOptions& options, const net::Secret& token,
                                                      ServedData data) {
  data.keys.resize(std::min(data.keys.size(), kMaxKeysBytes));
  std::array<std::optional<Description>, 2> descriptions;
  MOTLEY_ASSIGN(descriptions[0], describe(*data.training));
  if (data.test) {
    MOTLEY_ASSIGN(descriptions[1], describe(*data.test));
  }
  MOTLEY_ASSIGN(Descriptor listener, net::listen_at(options.listen));
  return std::unique_ptr<DataServer>(
      new DataServer(options, token, std::move(data), std::move(descriptions), std::move(listener)));
}

DataServer::DataServer(const DataServerOptions& options, const net::Secret& token, ServedData data,
                       std::array<std::optional<Description>, 2> descriptions, Descriptor listener)
    : options_(options),
      data_(std::move(data)),
      descriptions_(std::move(descriptions)),
      endpoint_(net::local_endpoint(listener)),
      acceptor_(
          std::move(listener), token, net::Claim{}, [this](const net::Claim& claim) { return judge(claim); },
          options.encryption) {
  thread_ = start_thread([this] { run(); });
}

DataServer::~DataServer() {
  waits_.wake();
  thread_.join();
}

void DataServer::run() {
  while (wait_for_events()) {
    for (auto client = clients_.begin(); client != clients_.end();) {
      const Status served = serve(*client);
      if (served) {
        ++client;
        continue;
      }
      const Served& had = client->served;
      if (!client->leave_at) {
        spdlog::info("job '{}': {}; it had read the inputs of {} and the targets of {} {} samples, {}",
                     client->connection->peer().job, served.error().message, had.inputs, had.targets,
                     client->set ? to_string(*client->set) : "unopened", format_bytes(static_cast<double>(had.bytes)));
      }
      client = clients_.erase(client);
    }
    acceptor_.step([this](net::Acceptor::PendingConnection pending) { admit(std::move(pending)); });
  }
}

// False where the server is to stop.
bool DataServer::wait_for_events() {
  acceptor_.add_to(waits_);
  for (const Client& client : clients_) {
    waits_.add(*client.connection, client.connection->pending_sends() < kMaxAnswers);
  }
  return !waits_.wait();
}

// Only workers that read data are let in: who holds the token for something else has come to the wrong port.
Status DataServer::judge(const net::Claim& claim) const {
  if (claim.identity.purpose != kDataConnection) {
    return fail(ErrorCode::kRefused, "this is a data server (`motley data-server`), which serves nothing but samples");
  }
  const std::string& tenant = claim.identity.tenant;
  const bool knows_tenants = options_.encryption.certificates != nullptr;
  const auto is_of_tenant = [&](const Client& client) {
    return !knows_tenants || client.connection->peer().tenant == tenant;
  };
  const auto count = std::ranges::count_if(clients_, is_of_tenant);
  if (std::cmp_less(count, options_.max_connections)) return {};
  return fail(ErrorCode::kRefused, "{} have {} connections here; a data server lets them have {}",
              knows_tenants ? fmt::format("clients of tenant '{}'", tenant) : "clients with this token", count,
              options_.max_connections);
}

void DataServer::admit(net::Acceptor::PendingConnection pending) {
  if (!pending.accepted) return;
  const net::Identity& peer = pending.claim.identity;
  const bool checksum = options_.payload_checksum && !pending.address.starts_with("127.");
  Client client;
  client.name = fmt::format("rank {} of job '{}' at {}", peer.rank, peer.job, pending.address);
  client.connection = std::make_unique<net::Connection>(std::move(pending.channel), peer, checksum);
  client.received_at = monotonic_seconds();
  clients_.push_back(std::move(client));
}

Status DataServer::serve(Client& client) {
  net::Connection& connection = *client.connection;
  const double now = monotonic_seconds();
  for (int taken = 0; taken < kMaxRequests && connection.pending_sends() < kMaxAnswers; ++taken) {
    MOTLEY_ASSIGN(const auto message, connection.try_receive());
    if (!message) break;
    client.received_at = now;
    if (client.leave_at) continue;
    if (const Status handled = handle(client, *message); !handled) {
      spdlog::warn("{} was turned away: {}", client.name, handled.error().message);
      connection.post_owned(kDataFailed, 0, encode(handled.error()));
      client.leave_at = now + kLastWordsSeconds;
    }
  }
  MOTLEY_TRY(connection.progress());
  if (now > client.leave_at.value_or(client.received_at + kSilentSeconds)) {
    return fail(ErrorCode::kTimeout, "{}: it has said nothing for a while", connection.peer_name());
  }
  return {};
}

Status DataServer::handle(Client& client, const net::Message& message) {
  if (message.header.type == kDataOpen && !client.set) {
    MOTLEY_ASSIGN(const Open wanted, decode_open(message.payload));
    return open(client, wanted);
  }
  if (message.header.type != kDataRead || !client.set) {
    return fail(ErrorCode::kCorrupt, "a frame of type {:#x} with {} bytes came when it was not its turn",
                message.header.type, message.header.length);
  }
  const Description& own = *description(*client.set);
  MOTLEY_ASSIGN(const Read read, decode_read(message.payload, own));
  MOTLEY_ASSIGN(std::vector<std::byte> samples, pack(dataset(*client.set), own, read));
  client.served.inputs += read.parts.inputs ? read.samples.size() : 0;
  client.served.targets += read.parts.targets ? read.samples.size() : 0;
  client.served.bytes += samples.size();
  client.connection->post_owned(kDataSamples, message.header.tag, std::move(samples));
  return {};
}

Status DataServer::open(Client& client, const Open& wanted) {
  if (wanted.keys != data_.keys) {
    return fail(ErrorCode::kInvalidInput, "the job has other data: the job has {}; the data server has {}",
                lines_beyond(wanted.keys, data_.keys), lines_beyond(data_.keys, wanted.keys));
  }
  if (!description(wanted.set)) {
    return fail(ErrorCode::kInvalidInput, "there is no {} data here", to_string(wanted.set));
  }
  client.set = wanted.set;
  const std::vector<std::byte> bytes = encode(*description(wanted.set));
  for (std::size_t begin = 0; begin < bytes.size(); begin += kDescriptionPieceBytes) {
    const std::size_t end = std::min(begin + kDescriptionPieceBytes, bytes.size());
    client.connection->post_owned(
        kDataOpened, bytes.size() - end,
        {bytes.begin() + static_cast<std::ptrdiff_t>(begin), bytes.begin() + static_cast<std::ptrdiff_t>(end)});
  }
  return {};
}

}  // namespace motley::data
