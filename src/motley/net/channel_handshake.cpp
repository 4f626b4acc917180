#include "motley/net/channel_handshake.h"

#include <algorithm>

namespace motley::net {
namespace {

// Of a handshake within TLS, which takes a fifth of that.
constexpr std::size_t kMaxReceivedBytes = 16 << 10;
constexpr std::size_t kMaxReceivedWithCertificates = 64 << 10;

}  // namespace

ChannelHandshake::ChannelHandshake(Role role, Handshake::FindSecret find_secret, Claim own, Handshake::Check check,
                                   Terms terms)
    : role_(role),
      find_secret_(std::move(find_secret)),
      own_(std::move(own)),
      check_(std::move(check)),
      terms_(std::move(terms)),
      begun_(role == Role::kConnector) {
  if (role == Role::kAcceptor) return;
  const Encryption& encryption = terms_.encryption;
  if (encryption.mode == Encryption::kOn || (encryption.mode == Encryption::kAuto && !terms_.over_loopback)) {
    tls_ = encryption.certificates ? Tls::connector(encryption.certificates)
                                   : Tls::connector(find_secret_(own_), own_.identity.tenant);
  } else {
    start_inner({});
  }
}

void ChannelHandshake::start_inner(std::span<const std::byte> binding) {
  Handshake::Check check = check_;
  if (role_ == Role::kAcceptor && tls_ && terms_.encryption.certificates) {
    check = [this, &tls = *tls_](const Claim& peer) -> Status {
      MOTLEY_TRY(tls.check_peer_speaks_for(peer.identity.tenant));
      return check_(peer);
    };
  }
  inner_.emplace(role_, find_secret_, own_, std::move(check), binding);
}

std::size_t ChannelHandshake::wanted() const {
  if (!begun_) return kTlsHeaderBytes;
  if (!tls_) return inner_->wanted() - held_.size();
  return record_left_ > 0 ? record_left_ : kTlsHeaderBytes;
}

std::vector<std::byte> ChannelHandshake::take_output() {
  if (tls_) {
    const auto bytes = tls_->output();
    output_.insert(output_.end(), bytes.begin(), bytes.end());
    tls_->sent(bytes.size());
  } else if (inner_) {
    std::ranges::copy(inner_->take_output(), std::back_inserter(output_));
  }
  return std::exchange(output_, {});
}

Status ChannelHandshake::feed(std::span<const std::byte> bytes) {
  MOTLEY_INVARIANT(bytes.size() == wanted() && !done(), "a handshake was fed {} bytes where it wanted {}", bytes.size(),
                   wanted());
  if (!begun_) MOTLEY_TRY(begin(bytes));
  if (tls_) return feed_tls(bytes);
  held_.insert(held_.end(), bytes.begin(), bytes.end());
  if (held_.size() < inner_->wanted()) return {};
  return inner_->feed(std::exchange(held_, {}));
}

// What the connector speaks, from its first bytes.
Status ChannelHandshake::begin(std::span<const std::byte> first) {
  begun_ = true;
  const bool speaks_tls = first.front() == kTlsHandshakeRecord;
  const Encryption& encryption = terms_.encryption;
  if (speaks_tls && encryption.mode == Encryption::kOff) {
    std::ranges::copy(tls_refusal(), std::back_inserter(output_));
    return fail(ErrorCode::kRefused,
                "the peer encrypts, and encryption is 'off' here: set it to 'auto' here, or to "
                "'off' there ({})",
                kEncryptionSettings);
  }
  if (speaks_tls && encryption.certificates) {
    tls_ = Tls::acceptor(encryption.certificates);
    return {};
  }
  if (speaks_tls) {
    tls_ = Tls::acceptor([find_secret = find_secret_](const std::string& tenant) {
      return find_secret(Claim{.identity = {.tenant = tenant}, .fingerprint = {}});
    });
    return {};
  }
  start_inner({});
  const bool takes_plain =
      encryption.mode == Encryption::kOff || (encryption.mode == Encryption::kAuto && terms_.over_loopback);
  return takes_plain ? Status() : refuse_plain(first);
}

Status ChannelHandshake::refuse_plain(std::span<const std::byte> first) {
  MOTLEY_TRY(check_handshake_magic(first));
  std::ranges::copy(encryption_demand(), std::back_inserter(output_));
  return fail(
      ErrorCode::kRefused,
      "the peer does not encrypt, and this side takes nothing in the clear{}: set encryption to 'on' there ({})",
      terms_.encryption.mode == Encryption::kOn ? "" : " from another host", kEncryptionSettings);
}

Status ChannelHandshake::feed_tls(std::span<const std::byte> bytes) {
  const bool has_certificates = terms_.encryption.certificates != nullptr;
  const std::size_t most = has_certificates ? kMaxReceivedWithCertificates : kMaxReceivedBytes;
  received_ += bytes.size();
  if (received_ > most) return fail(ErrorCode::kCorrupt, "a handshake of more than {} bytes", most);
  held_.insert(held_.end(), bytes.begin(), bytes.end());
  if (record_left_ == 0) {
    MOTLEY_ASSIGN(record_left_, decode_tls_header(bytes.first<kTlsHeaderBytes>(), has_certificates));
    return {};
  }
  record_left_ = 0;
  const std::vector<std::byte> record = std::exchange(held_, {});
  MOTLEY_TRY(tls_->feed(record));
  if (!tls_->established()) return {};
  return talk_within_tls();
}

Status ChannelHandshake::talk_within_tls() {
  if (!inner_) {
    if (role_ == Role::kConnector && terms_.encryption.certificates) {
      MOTLEY_TRY(tls_->check_peer_speaks_for(own_.identity.tenant));
    }
    start_inner(tls_->exporter());
    MOTLEY_TRY(tls_->write(inner_->take_output()));
  }
  while (!inner_->done()) {
    const std::size_t had = said_.size();
    said_.resize(inner_->wanted());
    const auto got = tls_->read(std::span(said_).subspan(had));
    said_.resize(had + got.value_or(0));
    if (!got) return fail(got.error());
    if (*got == 0) return {};
    if (said_.size() < inner_->wanted()) continue;
    const Status fed = inner_->feed(std::exchange(said_, {}));
    MOTLEY_TRY(tls_->write(inner_->take_output()));
    MOTLEY_TRY(fed);
  }
  return {};
}

}  // namespace motley::net
