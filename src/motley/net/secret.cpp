#include "motley/net/secret.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "motley/base/os/descriptor.h"
#include "motley/base/os/file.h"

namespace motley::net {
namespace {

constexpr std::size_t kMinSecretBytes = 16;
constexpr std::size_t kMaxSecretBytes = 4096;
constexpr const char* kSharedName = "motley-secret";

// Hex of at least 16 bytes is decoded; anything else is taken as it is.
std::string decode(const std::string& text) {
  const bool is_hex = std::ranges::all_of(text, [](unsigned char c) { return std::isxdigit(c) != 0; });
  if (text.size() < 2 * kMinSecretBytes || text.size() % 2 != 0 || !is_hex) return text;
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

}  // namespace

Secret Secret::generate() {
  std::string bytes(32, '\0');
  fill_random(std::as_writable_bytes(std::span(bytes)));
  return Secret(std::move(bytes), "this process, which made it");
}

Result<std::string> read_private_file(const std::filesystem::path& file, std::size_t limit) {
  const std::string path = file.string();
  const Descriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status{};
  if (!descriptor.valid() || ::fstat(descriptor.get(), &status) != 0) {
    return fail(ErrorCode::kInvalidInput, "cannot read the secret file '{}': {}", path, errno_text());
  }
  if (!S_ISREG(status.st_mode)) return fail(ErrorCode::kInvalidInput, "the secret '{}' is not a regular file", path);
  if (status.st_uid != ::geteuid() || (status.st_mode & 077) != 0) {
    return fail(
        ErrorCode::kInvalidInput,
        "the secret file '{}' has mode {:04o} and belongs to user {}; it must be readable by user {} alone (chmod "
        "0600)",
        path, status.st_mode & 07777, status.st_uid, ::geteuid());
  }
  std::string text(limit + 1, '\0');
  const ssize_t got = ::read(descriptor.get(), text.data(), text.size());
  if (got < 0) return fail(ErrorCode::kIo, "cannot read the secret file '{}': {}", path, errno_text());
  if (static_cast<std::size_t>(got) > limit) {
    return fail(ErrorCode::kInvalidInput, "the secret file '{}' holds more than {} bytes", path, limit);
  }
  text.resize(static_cast<std::size_t>(got));
  return text;
}

Result<Secret> Secret::from_file(const std::string& path) {
  MOTLEY_ASSIGN(std::string text, read_private_file(path, kMaxSecretBytes));
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  if (text.size() < kMinSecretBytes || text.size() > kMaxSecretBytes) {
    return fail(ErrorCode::kInvalidInput, "the secret file '{}' holds {} bytes; {} to {} are accepted", path,
                text.size(), kMinSecretBytes, kMaxSecretBytes);
  }
  return Secret(decode(text), fmt::format("the file '{}'", path));
}

Result<Secret> Secret::from_file(const std::string& path, const char* variable) {
  if (!path.empty()) return from_file(path);
  const char* named = std::getenv(variable);
  if (named == nullptr) {
    return fail(ErrorCode::kInvalidInput,
                "no file is given; accepted: a file, or its name in the environment variable {}, which is not set",
                variable);
  }
  return from_file(std::string(named));
}

Result<Secret> Secret::from_text(const std::string& text, const std::string& what) {
  if (text.size() < kMinSecretBytes || text.size() > kMaxSecretBytes) {
    return fail(ErrorCode::kInvalidInput, "{} has {} characters; {} to {} are accepted", what, text.size(),
                kMinSecretBytes, kMaxSecretBytes);
  }
  return Secret(decode(text), what);
}

Status Secret::write(const std::filesystem::path& path) const {
  const mode_t before = ::umask(0077);
  Status written = write_file(path, hex() + "\n");
  ::umask(before);
  return written;
}

Result<Descriptor> Secret::share() const {
  const std::string text = hex();
  Descriptor memory(::memfd_create(kSharedName, MFD_CLOEXEC));
  if (!memory.valid() || ::fchmod(memory.get(), 0600) != 0 ||
      ::write(memory.get(), text.data(), text.size()) != std::ssize(text)) {
    return fail(ErrorCode::kIo, "cannot hold a secret in memory for other processes: {}", errno_text());
  }
  return memory;
}

// Who says where it is may be anybody, so it must be what share() made: the system opens it to this user alone.
Result<Secret> Secret::from_process(std::int64_t process, int descriptor) {
  const std::string path = fmt::format("/proc/{}/fd/{}", process, descriptor);
  std::error_code problem;
  const std::filesystem::path target = std::filesystem::read_symlink(path, problem);
  if (problem || target != fmt::format("/memfd:{} (deleted)", kSharedName)) {
    return fail(ErrorCode::kRefused, "process {} shares no secret with this user as its descriptor {}: {}", process,
                descriptor, problem ? problem.message() : target.string());
  }
  return from_file(path);
}

std::string Secret::hex() const {
  std::string text;
  for (const char c : bytes_) {
    text += fmt::format("{:02x}", static_cast<unsigned char>(c));
  }
  return text;
}

Proof prove(const Secret& secret, std::initializer_list<std::span<const std::byte>> parts) {
  std::vector<std::byte> text;
  for (const auto part : parts) text.insert(text.end(), part.begin(), part.end());
  Proof proof{};
  unsigned length = 0;
  const bool good = ::HMAC(EVP_sha256(), secret.bytes().data(), static_cast<int>(secret.bytes().size()),
                           reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                           reinterpret_cast<unsigned char*>(proof.data()), &length) != nullptr;
  MOTLEY_INVARIANT(good && length == proof.size(), "OpenSSL has no HMAC-SHA256");
  return proof;
}

bool same_proof(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

void fill_random(std::span<std::byte> bytes) {
  MOTLEY_INVARIANT(RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(bytes.size())) == 1,
                   "the operating system gives no random bytes");
}

}  // namespace motley::net
