#include "motley/data/remote/remote_dataset.h"

#include <algorithm>

#include "motley/base/log.h"
#include "motley/net/socket.h"

namespace motley::data {
namespace {

constexpr int kMaxLosses = 5;         // connections that one read may lose
constexpr double kWhySeconds = 5;     // for a server to say why it could not read
constexpr double kLookSeconds = 0.1;  // between two looks at whether the wait was cancelled

// A connection's errors name the service by its address, which the caller does in words of its own.
Error of_node(const net::Connection& connection, const Error& error) {
  const std::string name = connection.peer_name() + ": ";
  return {error.code, error.message.starts_with(name) ? error.message.substr(name.size()) : error.message, -1};
}

}  // namespace

RemoteDataset::RemoteDataset(DataServerAccess access, std::optional<Description> description)
    : access_(std::move(access)), description_(std::move(description)) {
  if (description_) preprocessing_.class_names = description_->class_names;
}

RemoteDataset::RemoteDataset(DataServerAccess access, Description description)
    : RemoteDataset(std::move(access), std::optional(std::move(description))) {}

RemoteDataset::~RemoteDataset() = default;

Result<std::unique_ptr<RemoteDataset>> RemoteDataset::open(DataServerAccess access) {
  const Deadline deadline = Deadline::after(access.join_seconds);
  std::unique_ptr<RemoteDataset> dataset(new RemoteDataset(std::move(access), std::nullopt));
  MOTLEY_TRY(dataset->connect(deadline));
  dataset->preprocessing_.class_names = dataset->description_->class_names;
  return dataset;
}

std::string RemoteDataset::node() const {
  return "data server at " + net::to_string(access_.endpoint);
}

void RemoteDataset::expect(std::span<const std::uint32_t> samples, data::Parts parts) const {
  {
    const std::lock_guard lock(expected_mutex_);
    expected_.push_back({.read = {parts, {samples.begin(), samples.end()}}});
  }
  waits_.wake();
}

Status RemoteDataset::read(std::span<const std::uint32_t> samples, const data::ReadTarget& into) const {
  check_room(samples, into);
  const data::Parts parts = {.inputs = !into.features.empty() || !into.ids.empty(),
                             .targets = !into.classes.empty() || !into.values.empty()};
  if (parts == data::Parts{false, false}) return {};
  const std::lock_guard lock(reading_);
  const Request& wanted = request(samples, parts);
  const Status fetched = fetch(wanted);
  if (!fetched) connection_.reset();  // which would write into the request
  const Status read = fetched ? unpack_answer(wanted, into) : fetched;
  std::erase_if(requests_, [&](const Request& other) { return &other == &wanted; });
  return read;
}

void RemoteDataset::take_expected() const {
  const std::lock_guard lock(expected_mutex_);
  requests_.splice(requests_.end(), expected_);
}

// The request that was expected for this, or a new one; those before it have been skipped.
RemoteDataset::Request& RemoteDataset::request(std::span<const std::uint32_t> samples, data::Parts parts) const {
  take_expected();
  auto found = std::ranges::find_if(requests_, [&](const Request& request) {
    return request.wanted && request.read.parts == parts && std::ranges::equal(request.read.samples, samples);
  });
  if (found == requests_.end()) {
    found = requests_.insert(found, {.read = {parts, {samples.begin(), samples.end()}}});
  }
  for (auto skipped = requests_.begin(); skipped != found; ++skipped) skipped->wanted = false;
  std::erase_if(requests_, [](const Request& other) { return !other.wanted && (other.done || !other.asked); });
  return *found;
}

Status RemoteDataset::connect(const Deadline& deadline) const {
  const auto named = [&](Status status) { return status ? status : fail(status.error().within(node())); };
  auto token = access_.token();
  if (!token) return named(fail(token.error()));
  net::Claim claim = access_.claim;
  claim.identity.purpose = kDataConnection;
  auto connection = net::connect_to_host(access_.endpoint, *token, claim, deadline, access_.payload_checksum,
                                         access_.encryption, access_.cancelled);
  if (!connection) return named(fail(connection.error()));
  auto description = ask_for_description(**connection, deadline);
  if (!description) return named(fail(of_node(**connection, description.error())));
  if (description_ && *description != *description_) {
    return named(fail(ErrorCode::kRefused, "it has other {} data than at the job's start ({} samples, {} then)",
                      to_string(access_.set), description->size, description_->size));
  }
  if (!description_) description_ = std::move(*description);
  connection_ = std::move(*connection);
  posted_ = 0;
  std::erase_if(requests_, [](const Request& request) { return !request.wanted; });
  for (Request& request : requests_) request.asked = request.done;
  return {};
}

Result<Description> RemoteDataset::ask_for_description(net::Connection& connection, const Deadline& deadline) const {
  const std::string what = "what its data is";
  MOTLEY_TRY(connection.send(kDataOpen, 0, encode(Open{access_.set, access_.keys}), deadline, what));
  std::vector<std::byte> bytes;
  for (;;) {
    MOTLEY_ASSIGN(const net::Message message, connection.receive(deadline, what));
    if (message.header.type == kDataFailed) {
      MOTLEY_ASSIGN(Error error, decode_failed(message.payload));
      return fail(std::move(error));
    }
    if (message.header.type != kDataOpened || bytes.size() + message.header.tag > kMaxDescriptionBytes) {
      return fail(ErrorCode::kRefused, "it answers with a frame of type {:#x}, tag {}: it is no data server",
                  message.header.type, message.header.tag);
    }
    bytes.insert(bytes.end(), message.payload.begin(), message.payload.end());
    if (message.header.tag == 0) return decode_description(bytes);
  }
}

// In pieces, each of which the node answers by itself.
void RemoteDataset::ask(Request& request) const {
  const std::span<const std::uint32_t> samples = request.read.samples;
  const std::size_t each = sample_bytes(*description_, request.read.parts);
  const std::size_t piece = samples_in_answer(*description_, request.read.parts);
  request.answer.resize(samples.size() * each);
  for (std::size_t begin = 0; begin < samples.size(); begin += piece) {
    const auto part = samples.subspan(begin, std::min(piece, samples.size() - begin));
    connection_->post_owned(kDataRead, next_tag_, encode_read(request.read.parts, part));
    connection_->post_receive(kDataSamples, next_tag_,
                              std::span(request.answer).subspan(begin * each, part.size() * each));
    ++next_tag_;
    ++posted_;
  }
  request.asked = true;
  request.end = posted_;
}

// Until the request's answer is there.
Status RemoteDataset::fetch(const Request& request) const {
  const auto given_up = [&] { return fail(ErrorCode::kPeerLost, "reading from the {} was given up", node()); };
  const Deadline deadline = Deadline::after(access_.read_seconds);
  Error lost;
  int losses = 0;
  while (!request.done) {
    if (!connection_) {
      if (Status connected = connect(deadline); !connected) {
        if (access_.cancelled()) return given_up();
        if (losses == 0) return connected;
        return fail(ErrorCode::kUnavailable, "the {} was lost: {}; {}", node(), lost.message,
                    connected.error().message);
      }
    }
    const auto moved = move_bytes();
    if (!moved) {
      lost = of_node(*connection_, moved.error());
      connection_.reset();
      if (lost.code != ErrorCode::kPeerLost || ++losses == kMaxLosses) {
        const auto why = lost.code == ErrorCode::kCorrupt ? ask_why(deadline.remaining()) : std::nullopt;
        if (why) return fail(why->within(node()));
        return fail(ErrorCode::kUnavailable, "the {} was lost: {}", node(), lost.message);
      }
      spdlog::warn("the {} was lost ({}); it has {:.3g} s to come back", node(), lost.message, deadline.remaining());
      continue;
    }
    if (access_.cancelled()) return given_up();
    if (deadline.passed()) {
      return fail(ErrorCode::kUnavailable, "the {} did not send {} samples within {:.3g} s", node(),
                  request.read.samples.size(), deadline.allowed());
    }
    if (*moved) continue;
    waits_.add(*connection_);
    waits_.end_at(deadline.at());
    waits_.end_after(kLookSeconds);
    waits_.wait();
  }
  return {};
}

// A server that cannot read samples says why in place of them, which is no answer that a request waits for. So each
// request is made once more, alone. Nothing: all can be answered now, or nobody says.
std::optional<Error> RemoteDataset::ask_why(double seconds) const {
  const Deadline deadline = Deadline::after(std::min(seconds, kWhySeconds));
  std::optional<Error> why;
  const auto ask_all = [&]() -> Status {
    MOTLEY_TRY(connect(deadline));
    for (const Request& request : requests_) {
      const std::span<const std::uint32_t> samples = request.read.samples;
      const std::size_t each = std::max<std::size_t>(1, sample_bytes(*description_, request.read.parts));
      const std::size_t piece = std::clamp<std::size_t>(net::kMaxReceiveBytes / each, 1,
                                                        samples_in_answer(*description_, request.read.parts));
      for (std::size_t begin = 0; !request.done && begin < samples.size(); begin += piece) {
        const auto part = samples.subspan(begin, std::min(piece, samples.size() - begin));
        const std::string what = "why samples cannot be read";
        MOTLEY_TRY(connection_->send(kDataRead, next_tag_++, encode_read(request.read.parts, part), deadline, what));
        MOTLEY_ASSIGN(const net::Message message, connection_->receive(deadline, what));
        if (message.header.type != kDataFailed) continue;
        MOTLEY_ASSIGN(why, decode_failed(message.payload));
        return {};
      }
    }
    return {};
  };
  static_cast<void>(ask_all());
  connection_.reset();
  return why;
}

// Asks for what is expected, and takes what has come.
Result<bool> RemoteDataset::move_bytes() const {
  take_expected();
  for (Request& request : requests_) {
    if (!request.asked) ask(request);
  }
  MOTLEY_ASSIGN(const bool moved, connection_->progress());
  const std::size_t answered = posted_ - connection_->pending_receives();
  for (Request& request : requests_) request.done = request.done || request.end <= answered;
  std::erase_if(requests_, [](const Request& request) { return !request.wanted && request.done; });
  return moved;
}

Status RemoteDataset::unpack_answer(const Request& request, const data::ReadTarget& into) const {
  const std::size_t count = request.read.samples.size();
  const std::size_t each = sample_bytes(*description_, request.read.parts);
  const std::size_t piece = samples_in_answer(*description_, request.read.parts);
  for (std::size_t begin = 0; begin < count; begin += piece) {
    const std::size_t size = std::min(piece, count - begin);
    const auto part = [&](auto all) {
      const std::size_t width = all.size() / count;
      return all.subspan(begin * width, size * width);
    };
    const Status unpacked =
        unpack(std::span(request.answer).subspan(begin * each, size * each), *description_, request.read.parts, size,
               {part(into.features), part(into.classes), part(into.values), part(into.ids)});
    if (!unpacked) return fail(unpacked.error().within(node()));
  }
  return {};
}

}  // namespace motley::data
