#include "motley/base/os/file.h"

#include <fcntl.h>
#include <isa-l/crc.h>
#include <isa-l/crc64.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <vector>

#include "motley/base/guard.h"
#include "motley/base/os/descriptor.h"
#include "motley/base/text.h"

namespace motley {
namespace {

namespace fs = std::filesystem;

constexpr int kPipeMilliseconds = 10'000;

// "cannot read 'path': No such file or directory", by the current errno.
tl::unexpected<Error> cannot(const char* what, const fs::path& path, ErrorCode code = ErrorCode::kIo) {
  return fail(code, "cannot {} '{}': {}", what, path.string(), errno_text());
}

Status write_all(int fd, std::string_view content, const fs::path& path) {
  while (!content.empty()) {
    const ssize_t written = ::write(fd, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return cannot("write", path);
    content.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

}  // namespace

std::string errno_text() {
  return std::strerror(errno);
}

Result<std::string> read_file(const fs::path& path, std::size_t limit) {
  // Without waiting: a pipe that nobody writes into would otherwise hold the caller for ever.
  Descriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status{};
  if (!descriptor.valid() || ::fstat(descriptor.get(), &status) != 0) {
    return cannot("read", path, errno == ENOENT ? ErrorCode::kInvalidInput : ErrorCode::kIo);
  }
  if (S_ISDIR(status.st_mode)) {
    return fail(ErrorCode::kInvalidInput, "cannot read '{}': it is a folder, a file is wanted", path.string());
  }
  if (S_ISFIFO(status.st_mode)) {
    pollfd pipe{descriptor.get(), POLLIN, 0};
    if (::poll(&pipe, 1, kPipeMilliseconds) <= 0) {
      return fail(ErrorCode::kInvalidInput, "cannot read '{}': nobody wrote into this pipe for {} s", path.string(),
                  kPipeMilliseconds / 1000);
    }
    ::fcntl(descriptor.get(), F_SETFL, 0);
  }
  if (static_cast<std::size_t>(status.st_size) > limit) {
    return fail(ErrorCode::kInvalidInput, "'{}' has {} bytes; at most {} are accepted", path.string(), status.st_size,
                limit);
  }
  std::string content;
  content.reserve(static_cast<std::size_t>(status.st_size));
  std::array<char, 1 << 16> block;
  for (;;) {
    const ssize_t got = ::read(descriptor.get(), block.data(), block.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return cannot("read", path);
    if (got == 0) return content;
    content.append(block.data(), static_cast<std::size_t>(got));
    if (content.size() > limit) {
      return fail(ErrorCode::kInvalidInput, "'{}' has more than the {} bytes that are accepted", path.string(), limit);
    }
  }
}

Result<std::string> read_end(const fs::path& path, std::size_t limit) {
  Descriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  const off_t size = descriptor.valid() ? ::lseek(descriptor.get(), 0, SEEK_END) : -1;
  if (size < 0) return cannot("read", path, errno == ENOENT ? ErrorCode::kInvalidInput : ErrorCode::kIo);
  std::string content(std::min(limit, static_cast<std::size_t>(size)), '\0');
  const off_t begin = size - static_cast<off_t>(content.size());
  for (std::size_t done = 0; done < content.size();) {
    const ssize_t got =
        ::pread(descriptor.get(), content.data() + done, content.size() - done, begin + static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return cannot("read", path);
    if (got == 0) content.resize(done);  // it has been cut off since
    done += static_cast<std::size_t>(got);
  }
  return content;
}

Status check_writable(const fs::path& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) {
    return fail(ErrorCode::kInvalidInput, "cannot write '{}': it is a folder; accepted: the name of a file",
                path.string());
  }
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  if (::access(folder.c_str(), W_OK | X_OK) != 0) return cannot("write", path, ErrorCode::kInvalidInput);
  return {};
}

// Devices and pipes are written into; only files are replaced. A link stays, and what it points to is replaced.
Status write_file(const fs::path& given, std::string_view content) {
  fs::path path = given;
  std::error_code none;
  if (fs::is_symlink(given, none)) {
    const fs::path target = fs::weakly_canonical(given, none);
    path = none ? given : target;
  }
  struct stat status{};
  if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    MOTLEY_TRY(S_ISDIR(status.st_mode) ? check_writable(path) : Status());
    Descriptor device(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    if (!device.valid()) return cannot("write", path);
    return write_all(device.get(), content, path);
  }
  const fs::path aside =
      path.string() + (MOTLEY_KEEPS("file-aside") ? ".part-" + std::to_string(::getpid()) : std::string());
  {
    Descriptor descriptor(::open(aside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (!descriptor.valid()) return cannot("create", path);
    Status written = write_all(descriptor.get(), content, path);
    if (written && !MOTLEY_GUARD("file-fsync", ::fsync(descriptor.get()) == 0)) written = cannot("sync", path);
    if (!written) {
      ::unlink(aside.c_str());
      return written;
    }
  }
  Status renamed = MOTLEY_KEEPS("file-rename") ? rename_durably(aside, path) : Status();
  if (!renamed) ::unlink(aside.c_str());
  return renamed;
}

Status append_line(const fs::path& path, std::string_view line) {
  Descriptor descriptor(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!descriptor.valid()) return cannot("open", path);
  return write_all(descriptor.get(), std::string(line) + "\n", path);
}

Status make_folders(const fs::path& path) {
  std::error_code problem;
  std::vector<fs::path> parents;  // of those that are missing
  for (fs::path missing = path; !missing.empty() && !fs::exists(missing, problem); missing = missing.parent_path()) {
    parents.push_back(missing.parent_path());
  }
  fs::create_directories(path, problem);
  if (problem) {
    return fail(ErrorCode::kIo, "cannot make the folder '{}': {}", path.string(), problem.message());
  }
  // Else all that is synced below could be lost with a folder's name.
  for (const fs::path& parent : parents) {
    if (MOTLEY_KEEPS("made-folder-fsync")) MOTLEY_TRY(sync_folder(parent));
  }
  return {};
}

Status check_folder_name(std::string_view name) {
  const auto is_accepted = [](unsigned char c) {
    return std::isalnum(c) != 0 || c >= 0x80 ||
           std::string_view("._- ").find(static_cast<char>(c)) != std::string_view::npos;
  };
  if (name.empty() || name.size() > 200 || name.front() == '.' || !std::ranges::all_of(name, is_accepted) ||
      !is_plain(name)) {
    return fail(ErrorCode::kInvalidInput,
                "'{}' is not the name of a folder; accepted: up to 200 letters, digits, spaces, '.', '_' and '-', "
                "not beginning with '.'",
                escaped(name));
  }
  return {};
}

Status sync_folder(const fs::path& folder) {
  Descriptor descriptor(::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!descriptor.valid() || ::fsync(descriptor.get()) != 0) return cannot("sync the folder", folder);
  return {};
}

Status rename_durably(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    return fail(ErrorCode::kIo, "cannot rename '{}' to '{}': {}", from.string(), to.string(), errno_text());
  }
  return MOTLEY_KEEPS("folder-fsync") ? sync_folder(to.parent_path()) : Status();
}

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t crc) {
  // ISA-L counts bytes in an int, and leaves the inversions at both ends to its caller.
  constexpr std::size_t kMaxBytes = std::size_t{1} << 30;
  crc = ~crc;
  while (!bytes.empty()) {
    const auto some = bytes.first(std::min(bytes.size(), kMaxBytes));
    // It takes a pointer to what it could change, and does not.
    auto* data = const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(some.data()));
    crc = ::crc32_iscsi(data, static_cast<int>(some.size()), crc);
    bytes = bytes.subspan(some.size());
  }
  return ~crc;
}

std::uint32_t crc32c(std::string_view bytes, std::uint32_t crc) {
  return crc32c(std::as_bytes(std::span(bytes.data(), bytes.size())), crc);
}

std::uint64_t crc64(std::span<const std::byte> bytes, std::uint64_t crc) {
  return ::crc64_ecma_refl(crc, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
}

}  // namespace motley
