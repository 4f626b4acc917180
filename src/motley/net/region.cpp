#include "motley/net/region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "motley/base/os/descriptor.h"
#include "motley/base/os/file.h"
#include "motley/base/units.h"

namespace motley::net {
namespace {

// Maps `bytes` of the open file. What is there already is touched now, so that the first use is not slowed by page
// faults.
Result<std::byte*> map_all(int descriptor, std::size_t bytes, int populate) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | populate, descriptor, 0);
  if (data == MAP_FAILED) {
    return fail(ErrorCode::kIo, "cannot map {} of shared memory: {}", format_bytes(static_cast<double>(bytes)),
                errno_text());
  }
  ::madvise(data, bytes, MADV_HUGEPAGE);  // a wish, for systems whose shared memory takes advice
  return static_cast<std::byte*>(data);
}

// tmpfs gives pages only when they are first touched, and kills the toucher when there are none; reserving them turns
// that into an error code.
Status reserve(const Descriptor& descriptor, std::size_t offset, std::size_t bytes) {
  int problem = 0;
  do {
    problem = ::posix_fallocate(descriptor.get(), static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (problem == EINTR);
  if (problem == 0) return {};
  return fail(ErrorCode::kIo,
              "cannot reserve {} of shared memory in /dev/shm: {}; make it larger (in a container: --shm-size), or "
              "exchange over TCP",
              format_bytes(static_cast<double>(bytes)), std::strerror(problem));
}

}  // namespace

std::string host_id() {
  std::string id = read_file("/proc/sys/kernel/random/boot_id", 64).value_or("?");
  std::erase(id, '\n');
  struct stat shared{};
  ::stat("/dev/shm", &shared);
  char space[64] = "?";
  const ssize_t length = ::readlink("/proc/self/ns/pid", space, sizeof space - 1);
  return fmt::format("{}/{}:{}/{}/{}", id, shared.st_dev, shared.st_ino,
                     std::string(space, static_cast<std::size_t>(std::max<ssize_t>(length, 0))), ::geteuid());
}

Result<std::unique_ptr<Region>> Region::create(std::size_t bytes) {
  return create(bytes, Backing::kWhole);
}

Result<std::unique_ptr<Region>> Region::create_uncommitted(std::size_t bytes) {
  return create(bytes, Backing::kCommitted);
}

Result<std::unique_ptr<Region>> Region::map(const RegionAddress& address, std::size_t bytes) {
  return map(address, bytes, Backing::kWhole);
}

Result<std::unique_ptr<Region>> Region::map_uncommitted(const RegionAddress& address, std::size_t bytes) {
  return map(address, bytes, Backing::kCommitted);
}

// A file without a name rather than a memfd, whose memory has no bound: where there is no more, its toucher is killed.
Result<std::unique_ptr<Region>> Region::create(std::size_t bytes, Backing backing) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  if (bytes == 0 || bytes > (std::size_t{1} << 62)) {
    return fail(ErrorCode::kInvalidInput, "shared memory cannot have {} bytes", bytes);
  }
  bytes = (bytes + page - 1) / page * page;
  Descriptor descriptor(::open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!descriptor.valid()) {
    return fail(ErrorCode::kIo, "cannot make shared memory in /dev/shm: {}", errno_text());
  }
  if (backing == Backing::kWhole) {
    MOTLEY_TRY(reserve(descriptor, 0, bytes));
  } else if (::ftruncate(descriptor.get(), static_cast<off_t>(bytes)) != 0) {
    return fail(ErrorCode::kIo, "cannot size shared memory in /dev/shm to {}: {}",
                format_bytes(static_cast<double>(bytes)), errno_text());
  }
  struct stat status{};
  if (::fstat(descriptor.get(), &status) != 0) {
    return fail(ErrorCode::kIo, "cannot look at shared memory in /dev/shm: {}", errno_text());
  }
  MOTLEY_ASSIGN(std::byte* const data,
                map_all(descriptor.get(), bytes, backing == Backing::kWhole ? MAP_POPULATE : MAP_NORESERVE));
  const RegionAddress address{::getpid(), descriptor.get(), status.st_ino};
  return std::unique_ptr<Region>(new Region(std::move(descriptor), address, data, bytes));
}

Result<std::unique_ptr<Region>> Region::map(const RegionAddress& address, std::size_t bytes, Backing backing) {
  const std::string path = fmt::format("/proc/{}/fd/{}", address.process, address.descriptor);
  struct stat status{};
  const auto differs = [&] { return !S_ISREG(status.st_mode) || status.st_ino != address.file; };
  if (::stat(path.c_str(), &status) != 0) {
    return fail(ErrorCode::kIo, "cannot open the shared memory {} of a peer: {}", path, errno_text());
  }
  // Looked at before it is opened: to open a device or a pipe may do something.
  if (differs()) return fail(ErrorCode::kIo, "the shared memory {} of a peer is there no more", path);
  const Descriptor descriptor(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!descriptor.valid() || ::fstat(descriptor.get(), &status) != 0) {
    return fail(ErrorCode::kIo, "cannot open the shared memory {} of a peer: {}", path, errno_text());
  }
  if (differs()) return fail(ErrorCode::kIo, "the shared memory {} of a peer is there no more", path);
  const auto size = static_cast<std::size_t>(status.st_size);
  if (status.st_uid != ::geteuid()) {
    return fail(ErrorCode::kRefused, "the shared memory {} belongs to user {}; this process is user {}", path,
                status.st_uid, ::geteuid());
  }
  if (bytes == 0 || bytes > size) {
    return fail(ErrorCode::kInvalidInput, "the shared memory {} has {} bytes; {} are wanted", path, size, bytes);
  }
  MOTLEY_ASSIGN(std::byte* const data,
                map_all(descriptor.get(), size, backing == Backing::kWhole ? MAP_POPULATE : MAP_NORESERVE));
  return std::unique_ptr<Region>(new Region(Descriptor(), {}, data, size));
}

Status Region::commit(std::size_t offset, std::size_t bytes) {
  MOTLEY_INVARIANT(descriptor_.valid() && offset + bytes <= size_, "{} bytes at {} of {} cannot be committed", bytes,
                   offset, size_);
  MOTLEY_TRY(reserve(descriptor_, offset, bytes));
#ifdef MADV_POPULATE_WRITE
  ::madvise(data_ + offset, bytes, MADV_POPULATE_WRITE);  // a wish: the first use is then not slowed by page faults
#endif
  return {};
}

Region::~Region() {
  ::munmap(data_, size_);
}

}  // namespace motley::net
