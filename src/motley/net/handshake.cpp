#include "motley/net/handshake.h"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <string_view>

#include "motley/base/text.h"
#include "motley/net/connection.h"
#include "motley/net/message_fields.h"

namespace motley::net {
namespace {

constexpr std::uint32_t kHandshakeMagic = 0x484c544dU;  // "MTLH"
constexpr std::size_t kMaxReasonBytes = 1024;
constexpr std::size_t kMostDifferences = 3;  // of two jobs, that are told

std::span<const std::byte> as_raw_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// As it stands on the wire, before each body.
struct HeaderLayout {
  std::uint32_t magic = kHandshakeMagic;
  std::uint16_t version = kProtocolVersion;
  std::uint16_t kind = 0;
  std::uint32_t length = 0;
};
static_assert(sizeof(HeaderLayout) == kHandshakeHeaderBytes && std::endian::native == std::endian::little);

const char* to_string(HandshakeKind kind) {
  constexpr std::array kNames = {"", "hello", "challenge", "proof", "verdict", "demand for encryption"};
  return kNames.at(static_cast<std::size_t>(kind));
}

std::vector<std::byte> to_bytes(HandshakeKind kind, std::span<const std::byte> body) {
  const HeaderLayout header{.kind = static_cast<std::uint16_t>(kind),
                            .length = static_cast<std::uint32_t>(body.size())};
  std::vector<std::byte> bytes(sizeof header + body.size());
  std::ranges::copy(std::as_bytes(std::span(&header, 1)), bytes.begin());
  std::ranges::copy(body, bytes.begin() + sizeof header);
  return bytes;
}

}  // namespace

// Found by argument-dependent lookup, so not in the anonymous namespace.
template <class Archive>
static void fields(Archive& archive, Greeting& greeting) {
  Identity& identity = greeting.claim.identity;
  archive.required("nonce", greeting.nonce);
  archive.required("session", identity.session);
  archive.required("epoch", identity.epoch);
  archive.required("rank", identity.rank);
  archive.required("purpose", identity.purpose);
  archive.required("job", identity.job);
  archive.required("tenant", identity.tenant);
  archive.required("fingerprint", greeting.claim.fingerprint, NumberIs::between(0, kMaxFingerprintBytes));
}

template <class Archive>
static void fields(Archive& archive, Verdict& verdict) {
  auto code = static_cast<std::uint16_t>(verdict.code);
  archive.required("code", code, NumberIs::between(0, 2));
  archive.required("reason", verdict.reason, NumberIs::between(0, kMaxReasonBytes));
  archive.required("proof", verdict.proof);
  verdict.code = static_cast<VerdictCode>(code);
}

std::vector<std::byte> encryption_demand() {
  return to_bytes(HandshakeKind::kEncrypt, {});
}

Status check_handshake_magic(std::span<const std::byte> first) {
  std::uint32_t magic = 0;
  std::ranges::copy(first.first(sizeof magic), std::as_writable_bytes(std::span(&magic, 1)).begin());
  if (magic == kHandshakeMagic) return {};
  return fail(ErrorCode::kCorrupt, "what answers is not Motley: its first bytes are {:#010x}, {:#010x} was expected",
              magic, kHandshakeMagic);
}

Result<HandshakeHeader> decode_handshake_header(std::span<const std::byte, kHandshakeHeaderBytes> bytes) {
  MOTLEY_TRY(check_handshake_magic(bytes));
  HeaderLayout header;
  std::ranges::copy(bytes, std::as_writable_bytes(std::span(&header, 1)).begin());
  if (header.version != kProtocolVersion) {
    return fail(ErrorCode::kRefused, "the peer speaks protocol version {}; this side speaks version {}", header.version,
                kProtocolVersion);
  }
  if (header.kind < 1 || header.kind > 5) {
    return fail(ErrorCode::kCorrupt, "handshake message of unknown kind {}", header.kind);
  }
  const auto kind = static_cast<HandshakeKind>(header.kind);
  if (header.length > kMaxHandshakeBytes) {
    return fail(ErrorCode::kCorrupt, "a handshake {} of {} bytes; at most {} are accepted", to_string(kind),
                header.length, kMaxHandshakeBytes);
  }
  return HandshakeHeader{kind, header.length};
}

Result<Greeting> decode_greeting(std::span<const std::byte> body) {
  MOTLEY_ASSIGN(Greeting greeting, decode_message<Greeting>(body, "handshake greeting"));
  if (const Status plain = check_names(greeting.claim); !plain) {
    return fail(Error{ErrorCode::kRefused, plain.error().message, -1});
  }
  return greeting;
}

Result<Verdict> decode_verdict(std::span<const std::byte> body) {
  MOTLEY_ASSIGN(Verdict verdict, decode_message<Verdict>(body, "handshake verdict"));
  verdict.reason = escaped(verdict.reason);
  return verdict;
}

Handshake::Handshake(Role role, FindSecret find_secret, Claim own, Check check, std::span<const std::byte> binding)
    : role_(role),
      find_secret_(std::move(find_secret)),
      own_(std::move(own)),
      check_(std::move(check)),
      binding_(binding.begin(), binding.end()) {
  fill_random(nonce_);
  if (role_ == Role::kConnector) {
    hello_ = encode_message(Greeting{nonce_, own_});
    say(HandshakeKind::kHello, hello_);
    expected_ = HandshakeKind::kChallenge;
  } else {
    expected_ = HandshakeKind::kHello;
  }
}

void Handshake::say(HandshakeKind kind, std::span<const std::byte> body) {
  std::ranges::copy(to_bytes(kind, body), std::back_inserter(output_));
}

// The parts have a length in front of them in what is proved, so that no bytes can move from one to the next.
Proof Handshake::connector_proof() const {
  const std::array lengths = {static_cast<std::uint32_t>(hello_.size()), static_cast<std::uint32_t>(challenge_.size()),
                              static_cast<std::uint32_t>(binding_.size())};
  return prove(find_secret_(peer_), {as_raw_bytes("motley handshake 2 connector"), std::as_bytes(std::span(lengths)),
                                     hello_, challenge_, binding_});
}

// The connector's proof is over the rest.
Proof Handshake::acceptor_proof(std::span<const std::byte> verdict) const {
  return prove(find_secret_(peer_), {as_raw_bytes("motley handshake 2 acceptor"), connector_proof(), verdict});
}

Status Handshake::feed(std::span<const std::byte> bytes) {
  MOTLEY_INVARIANT(bytes.size() == wanted_ && !done_, "a handshake was fed {} bytes where it wanted {}", bytes.size(),
                   wanted_);
  if (!reading_header_) {
    reading_header_ = true;
    wanted_ = kHandshakeHeaderBytes;
    if (expected_ == HandshakeKind::kProof) return on_proof(bytes);
    return expected_ == HandshakeKind::kVerdict ? on_verdict(bytes) : on_greeting(bytes);
  }
  const auto decoded = decode_handshake_header(bytes.first<kHandshakeHeaderBytes>());
  if (!decoded) {
    if (expected_ == HandshakeKind::kHello && decoded.error().code == ErrorCode::kRefused) {
      say(HandshakeKind::kChallenge, {});  // whose header tells a connector of another version this side's
    }
    return fail(decoded.error());
  }
  const HandshakeHeader& header = *decoded;
  if (header.kind == HandshakeKind::kEncrypt && role_ == Role::kConnector) {
    return fail(ErrorCode::kRefused, "the peer takes nothing in the clear: set encryption to 'on' here ({})",
                kEncryptionSettings);
  }
  if (header.kind != expected_) {
    return fail(ErrorCode::kRefused, "the peer sent a handshake {} where a {} was expected", to_string(header.kind),
                to_string(expected_));
  }
  if (header.length == 0) return fail(ErrorCode::kCorrupt, "an empty handshake {}", to_string(header.kind));
  reading_header_ = false;
  wanted_ = header.length;
  return {};
}

Status Handshake::on_greeting(std::span<const std::byte> body) {
  MOTLEY_ASSIGN(Greeting greeting, decode_greeting(body));
  peer_ = std::move(greeting.claim);
  if (role_ == Role::kAcceptor) {
    hello_.assign(body.begin(), body.end());
    challenge_ = encode_message(Greeting{nonce_, own_});
    say(HandshakeKind::kChallenge, challenge_);
    expected_ = HandshakeKind::kProof;
  } else {
    challenge_.assign(body.begin(), body.end());
    say(HandshakeKind::kProof, connector_proof());
    expected_ = HandshakeKind::kVerdict;
  }
  return {};
}

Status Handshake::on_proof(std::span<const std::byte> body) {
  Status status;
  VerdictCode code = VerdictCode::kAccepted;
  if (!same_proof(body, connector_proof())) {
    code = VerdictCode::kSecretDiffers;
    status = secret_differs(find_secret_(peer_));
  } else {
    proved_ = true;
    status = check_(peer_);
    code = status ? VerdictCode::kAccepted : VerdictCode::kRefused;
  }
  auto verdict = encode_message(Verdict{code, code == VerdictCode::kRefused ? status.error().message : "", {}});
  if (proved_) {
    std::ranges::copy(acceptor_proof(std::span(verdict).first(verdict.size() - kProofBytes)),
                      verdict.end() - kProofBytes);
  }
  say(HandshakeKind::kVerdict, verdict);
  done_ = status.has_value();
  return status;
}

Status Handshake::on_verdict(std::span<const std::byte> body) {
  MOTLEY_ASSIGN(const Verdict verdict, decode_verdict(body));
  if (verdict.code == VerdictCode::kSecretDiffers ||
      !same_proof(verdict.proof, acceptor_proof(body.first(body.size() - kProofBytes)))) {
    return secret_differs(find_secret_(peer_));
  }
  proved_ = true;
  if (verdict.code == VerdictCode::kRefused) return fail(ErrorCode::kRefused, "refused: {}", verdict.reason);
  MOTLEY_TRY(check_(peer_));
  done_ = true;
  return {};
}

tl::unexpected<Error> secret_differs(const Secret& ours) {
  return fail(ErrorCode::kRefused,
              "the secret differs from ours, which is from {}: both sides must be given the same one, in a file (mode "
              "0600) or a variable",
              ours.source());
}

Status check_names(const Claim& claim) {
  using Name = std::pair<const char*, const std::string&>;
  for (const auto& [what, name] : {Name{"job", claim.identity.job}, Name{"tenant", claim.identity.tenant},
                                   Name{"fingerprint", claim.fingerprint}}) {
    const std::size_t most = &name == &claim.fingerprint ? kMaxFingerprintBytes : kMaxNameBytes;
    if (name.size() > most) {
      return fail(ErrorCode::kInvalidInput, "the {} has {} bytes; at most {} are accepted", what, name.size(), most);
    }
    if (!is_plain(name)) {
      return fail(ErrorCode::kInvalidInput,
                  "the {} '{}' has control characters or bytes that are not UTF-8; accepted: plain text", what,
                  escaped(name));
    }
  }
  return {};
}

// The fingerprint's keys and values. One that is no list of them, such as a checksum, is the value of the key
// "fingerprint".
static std::map<std::string, std::string> parse_fingerprint(std::string_view fingerprint) {
  constexpr std::string_view kSeparator = "; ";
  std::map<std::string, std::string> settings;
  while (!fingerprint.empty()) {
    const std::string_view setting = fingerprint.substr(0, fingerprint.find(kSeparator));
    fingerprint.remove_prefix(std::min(fingerprint.size(), setting.size() + kSeparator.size()));
    const std::size_t equals = setting.find('=');
    const bool is_setting = equals != std::string_view::npos;
    settings.emplace(is_setting ? setting.substr(0, equals) : "fingerprint",
                     is_setting ? setting.substr(equals + 1) : setting);
  }
  return settings;
}

Status check_same_job(const Claim& own, const Claim& peer) {
  std::map<std::string, std::string> ours = parse_fingerprint(own.fingerprint);
  std::map<std::string, std::string> theirs = parse_fingerprint(peer.fingerprint);
  for (auto& [settings, claim] : {std::pair(&ours, &own), std::pair(&theirs, &peer)}) {
    settings->emplace("the job", claim->identity.job);
    settings->emplace("the tenant", claim->identity.tenant);
  }
  std::vector<std::string> differences;
  const auto describe_value = [](const std::map<std::string, std::string>& settings, const std::string& key) {
    const auto found = settings.find(key);
    return found == settings.end() ? "its default" : fmt::format("'{}'", found->second);
  };
  const auto compare = [&](const std::string& key) {
    const std::string here = describe_value(ours, key), there = describe_value(theirs, key);
    if (here == there) return;
    differences.push_back(
        fmt::format("rank {} has {} {}, rank {} has {}", peer.identity.rank, key, there, own.identity.rank, here));
  };
  for (const auto& [key, value] : ours) compare(key);
  for (const auto& [key, value] : theirs) {
    if (!ours.contains(key)) compare(key);
  }
  if (differences.empty()) return {};
  if (differences.size() > kMostDifferences) differences.resize(kMostDifferences);
  return fail(ErrorCode::kRefused, "{}; all ranks must be started for the same job", fmt::join(differences, "; "));
}

}  // namespace motley::net
