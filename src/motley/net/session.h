// The start of a job: ranks find each other at rank 0's address, prove the secret, learn the membership, and keep a
// control connection (rank 0 to each other rank) over which a lost rank is noticed at once and told to all.
#pragma once

#include <algorithm>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "motley/base/os/descriptor.h"
#include "motley/net/connection.h"
#include "motley/net/roster.h"

namespace motley::net {

struct Endpoint {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;  // 0: any free port (listen only)
};
Result<Endpoint> parse_endpoint(const std::string& text);  // "host:port", "[::1]:port"

class Certificates;

// Whether what goes between two processes is encrypted (TLS 1.3): unless both ends are loopback addresses, always, or
// never; and by which certificates they know each other beside the secret.
struct Encryption {
  enum Mode : std::uint8_t { kAuto, kOn, kOff };
  Encryption(Mode chosen = kAuto) : mode(chosen) {}  // NOLINT(google-explicit-constructor)
  Mode mode;
  std::shared_ptr<const Certificates> certificates = {};  // null: by the secret alone
};
// Where it is set, for messages.
inline constexpr const char* kEncryptionSettings =
    "network.encryption of a job or data server, --encryption of a parameter server, MOTLEY_ENCRYPTION for Python";
inline constexpr const char* kEncryptionVariable = "MOTLEY_ENCRYPTION";
// "auto", "on" or "off"; `what` is for errors.
Result<Encryption> parse_encryption(const std::string& text, const std::string& what);
// As the environment variable says, or auto, with the certificates that variables name (certificates.h).
Result<Encryption> encryption_from_environment();

// Environment variables that name a file (mode 0600) where no flag or key does: the secret that the ranks of a job
// share, and the token that a server's clients show.
inline constexpr const char* kSecretFileVariable = "MOTLEY_SECRET_FILE";
inline constexpr const char* kTokenFileVariable = "MOTLEY_TOKEN_FILE";

// The shared secret of a job: at least 16 bytes. Never logged, never in arguments.
class Secret {
 public:
  static Secret generate();                                  // 32 random bytes
  static Result<Secret> from_file(const std::string& path);  // must be mode 0600 or stricter and ours
  // The file that the path names or, where it is empty, the environment variable.
  static Result<Secret> from_file(const std::string& path, const char* variable);
  // Hex or text of at least 16 characters; `what` is for errors.
  static Result<Secret> from_text(const std::string& text, const std::string& what);
  std::string hex() const;
  // A file of mode 0600 that from_file reads back.
  Status write(const std::filesystem::path& path) const;
  // For other processes of this user on this machine: memory without a name, open as long as the descriptor is, and
  // read back from the process and the number of the descriptor there.
  Result<Descriptor> share() const;
  static Result<Secret> from_process(std::int64_t process, int descriptor);
  const std::string& bytes() const { return bytes_; }
  // Where it is from, for messages: "the file 'token'".
  const std::string& source() const { return source_; }

 private:
  Secret(std::string bytes, std::string source) : bytes_(std::move(bytes)), source_(std::move(source)) {}
  std::string bytes_;
  std::string source_;
};

struct Member {
  std::string host_id;  // equal for ranks that can share memory (same machine and same /dev/shm)
  std::string address;  // host of the data listener, as peers reach it
  std::uint16_t port = 0;
  std::int64_t process = 0;  // process id on its host, for messages and liveness checks
};

// Who takes part in a job right now, and the epoch that changes with every change.
struct Membership {
  std::uint64_t session = 0;  // random per job start; a frame of another session is refused
  std::uint64_t epoch = 0;    // grows by one with every change of members; a stale one is refused
  int rank = 0;               // this process
  std::vector<Member> members;

  int size() const { return static_cast<int>(members.size()); }
  bool on_one_host() const {
    return std::ranges::all_of(members, [this](const Member& member) { return member.host_id == members[0].host_id; });
  }
};

struct SessionOptions {
  std::string job = "job";
  std::string tenant = "local";
  int rank = 0;
  int size = 1;
  int starting = 0;                     // of an elastic session: so many ranks, from 0, begin it; 0: all
  Endpoint rendezvous;                  // rank 0 listens here, others connect here
  std::string bind_host = "127.0.0.1";  // that the data listener is bound to; anything but loopback needs given_secret
  bool given_secret = false;            // the user configured the secret (a generated one is only good on loopback)
  double join_seconds = 60;             // how long ranks may take to appear
  double silence_seconds = 30;          // a rank whose control connection is silent for longer counts as lost
  // So does a rank of an elastic session that computes while others wait, without progress for longer; 0: than ten
  // seconds and twenty of the last steps.
  double progress_seconds = 0;
  double recording_seconds = 0;  // one that records a step, on a disk that may stall, for longer than this; 0: never
  std::string fingerprint;       // of the effective job; ranks that differ are refused, with both values in the message
  bool payload_checksum = true;  // CRC-32C over payloads between hosts, where they are not encrypted
  Encryption encryption = Encryption::kAuto;
  // What may follow from another failure, such as a closed connection, is held back until that is known, or for a
  // moment. Not where the ranks go on whatever it was.
  bool seeks_cause = true;
  // The others go on where ranks are lost: see Session::regroup.
  bool is_elastic = false;
  // The rank joins a job that runs, of which `rendezvous` is a member that listens: join() then only asks who is there,
  // and the first regroup() enters.
  bool is_newcomer = false;
  // Rank 0 only, optional: called with the address really bound before others are waited for (to publish it). What it
  // holds on to is of no use once all have joined.
  std::function<Status(const Endpoint&)> publish;

  int first_ranks() const { return starting > 0 ? starting : size; }
};

class Session {
 public:
  // Blocks until all ranks have joined or join_seconds have passed; the error then names the ranks that are missing and
  // the address that was tried. Every rank leaves with the same membership.
  static Result<std::unique_ptr<Session>> join(const SessionOptions& options, const Secret& secret);
  virtual ~Session() = default;

  virtual const Membership& membership() const = 0;
  virtual const SessionOptions& options() const = 0;

  // What a rank is called in messages: its number in the job, where this session is of some of its ranks.
  virtual int job_rank(int rank) const { return rank; }

  // A new authenticated connection between this rank and `peer` (lower rank accepts, higher rank connects); both sides
  // call it with the same purpose, in any order among purposes. Blocks until the deadline.
  virtual Result<std::unique_ptr<Connection>> connect(int peer, std::uint32_t purpose, const Deadline& deadline) = 0;

  // The first failure known of any rank (an Error with .rank set), or success. What follows from a failure, such as a
  // closed connection, is held back for a moment, so that a rank's own word about the cause comes first. Cheap enough
  // for every poll of a wait: reads an atomic. A background thread watches control connections and heartbeats (1 s).
  virtual Status health() const = 0;
  // Tells all ranks that this rank gives up and why; their health() then returns this error with this rank's number.
  virtual void abort(const Error& error) = 0;
  // Says what this rank is doing ("step 12, backward"), for other ranks' messages when it stops answering. Cheap.
  // `phase` is a string literal, or lives as long as the session.
  virtual void set_phase(std::uint64_t step, const char* phase) = 0;
  // What a rank was last seen doing: "step 12, backward, 3.2 s ago".
  virtual std::string last_seen(int rank) const = 0;
  // Seconds for which whoever works for this rank may make no progress before it counts as lost, although it gives
  // signs of life: SessionOptions::progress_seconds, or what stands for it. Without end where the ranks do not go on
  // without it, or this one does not know yet how long a step takes.
  virtual double patience() const { return std::numeric_limits<double>::infinity(); }
  // In an elastic session, where health() says that ranks were lost: waits until those who are left agree who they are,
  // and returns the epochs that were installed since the last call, in order; the last one is now that of connections.
  // Ranks keep their numbers. health() is good again, until the next loss; a rank's own error (abort) is final. On one
  // host a lost rank's process has ended by then. A newcomer that is ready for its first step calls it to be taken in;
  // the others' health() then says that the ranks have changed. kUnavailable where a rank has left in order, or nobody
  // is there any more: those who are left never agree then. kRefused where this rank goes on with nobody: it was put
  // out, or there is no majority. Never kPeerLost.
  virtual Result<std::vector<Epoch>> regroup(const Deadline& deadline);
  // In an elastic session that is well: something else than a rank was lost, without which the ranks cannot go on as
  // they are. All of them then have another epoch, and regroup. Nothing elsewhere.
  virtual void renew() {}
  // Leaves in order: peers do not take the closed connections for a failure.
  virtual void leave() = 0;
};

// For whoever saw an operation with a peer fail: waits up to a second for the session to learn the cause, and returns
// that, or else what was seen.
Error first_cause(const Session& session, const Error& seen);

}  // namespace motley::net
