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

std::string shared_path(const std::string& name) {
  return "/motley-" + name;
}

// Maps `bytes` of the open file. What is there already is touched now, so that the first use is not slowed by page
// faults.
Result<std::byte*> map_all(int descriptor, std::size_t bytes, const std::string& name, int populate) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | populate, descriptor, 0);
  if (data == MAP_FAILED) {
    return fail(ErrorCode::kIo, "cannot map the shared memory '/dev/shm{}' of {}: {}", shared_path(name),
                format_bytes(static_cast<double>(bytes)), errno_text());
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

Result<std::unique_ptr<Region>> Region::create(const std::string& name, std::size_t bytes) {
  return create(name, bytes, Backing::kWhole);
}

Result<std::unique_ptr<Region>> Region::create_uncommitted(const std::string& name, std::size_t bytes) {
  return create(name, bytes, Backing::kCommitted);
}

Result<std::unique_ptr<Region>> Region::map(const std::string& name, std::size_t bytes) {
  return map(name, bytes, Backing::kWhole);
}

Result<std::unique_ptr<Region>> Region::map_uncommitted(const std::string& name, std::size_t bytes) {
  return map(name, bytes, Backing::kCommitted);
}

Result<std::unique_ptr<Region>> Region::create(const std::string& name, std::size_t bytes, Backing backing) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  if (bytes == 0 || bytes > (std::size_t{1} << 62)) {
    return fail(ErrorCode::kInvalidInput, "the shared memory '{}' cannot have {} bytes", name, bytes);
  }
  bytes = (bytes + page - 1) / page * page;
  const std::string path = shared_path(name);
  Descriptor descriptor(::shm_open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!descriptor.valid()) {
    return fail(ErrorCode::kIo, "cannot create the shared memory '/dev/shm{}': {}", path, errno_text());
  }
  Status sized = backing == Backing::kWhole ? reserve(descriptor, 0, bytes) : Status();
  if (backing == Backing::kCommitted && ::ftruncate(descriptor.get(), static_cast<off_t>(bytes)) != 0) {
    sized = fail(ErrorCode::kIo, "cannot size the shared memory '/dev/shm{}' to {}: {}", path,
                 format_bytes(static_cast<double>(bytes)), errno_text());
  }
  if (!sized) {
    ::shm_unlink(path.c_str());
    return fail(std::move(sized).error());
  }
  auto data = map_all(descriptor.get(), bytes, name, backing == Backing::kWhole ? MAP_POPULATE : MAP_NORESERVE);
  if (!data) {
    ::shm_unlink(path.c_str());
    return fail(std::move(data).error());
  }
  if (backing == Backing::kWhole) descriptor.close();
  return std::unique_ptr<Region>(new Region(name, std::move(descriptor), *data, bytes, true));
}

Result<std::unique_ptr<Region>> Region::map(const std::string& name, std::size_t bytes, Backing backing) {
  const std::string path = shared_path(name);
  Descriptor descriptor(::shm_open(path.c_str(), O_RDWR | O_CLOEXEC, 0));
  struct stat status{};
  if (!descriptor.valid() || ::fstat(descriptor.get(), &status) != 0) {
    return fail(ErrorCode::kIo, "cannot open the shared memory '/dev/shm{}' of a peer: {}", path, errno_text());
  }
  const auto size = static_cast<std::size_t>(status.st_size);
  if (status.st_uid != ::geteuid()) {
    return fail(ErrorCode::kRefused, "the shared memory '/dev/shm{}' belongs to user {}; this process is user {}", path,
                status.st_uid, ::geteuid());
  }
  if (bytes == 0 || bytes > size) {
    return fail(ErrorCode::kInvalidInput, "the shared memory '/dev/shm{}' has {} bytes; {} are wanted", path, size,
                bytes);
  }
  MOTLEY_ASSIGN(std::byte* const data,
                map_all(descriptor.get(), size, name, backing == Backing::kWhole ? MAP_POPULATE : MAP_NORESERVE));
  return std::unique_ptr<Region>(new Region(name, Descriptor(), data, size, false));
}

Status Region::commit(std::size_t offset, std::size_t bytes) {
  MOTLEY_INVARIANT(descriptor_.valid() && offset + bytes <= size_, "{} bytes at {} of '{}' cannot be committed", bytes,
                   offset, name_);
  MOTLEY_TRY(reserve(descriptor_, offset, bytes));
#ifdef MADV_POPULATE_WRITE
  ::madvise(data_ + offset, bytes, MADV_POPULATE_WRITE);  // a wish: the first use is then not slowed by page faults
#endif
  return {};
}

Region::~Region() {
  unlink();
  ::munmap(data_, size_);
}

void Region::unlink() {
  if (linked_) {
    ::shm_unlink(shared_path(name_).c_str());
    linked_ = false;
  }
}

}  // namespace motley::net
