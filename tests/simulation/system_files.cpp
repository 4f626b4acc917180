// Files, folders and mapped memory: these functions take the place of the system's library's in this program, and are
// the simulated cluster's while one of its threads runs. Paths are absolute.
#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "tests/simulation/cluster.h"

namespace motley::simulation {
namespace {

constexpr std::size_t kPageBytes = 4096;

std::string full_path(int folder, const char* path) {
  if (path[0] == '/' || folder == AT_FDCWD) return path;
  const auto opened = std::dynamic_pointer_cast<DiskFile>(simulator().file(folder));
  return opened ? opened->path + "/" + path : path;
}

// What /proc/PID/fd/N refers to.
std::shared_ptr<MemoryFile> find_memory(const std::string& path) {
  int process = 0, descriptor = 0;
  if (std::sscanf(path.c_str(), "/proc/%d/fd/%d", &process, &descriptor) != 2) return nullptr;
  const Process* const owner = simulator().find(process);
  if (owner == nullptr || owner->has_ended || owner->host != Cluster::caller().host) return nullptr;
  return std::dynamic_pointer_cast<MemoryFile>(simulator().file(descriptor));
}

void reserve(SharedMemory& memory, std::size_t bytes) {
  if (bytes <= memory.bytes) return;
  bytes = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  auto* const data = static_cast<std::byte*>(std::aligned_alloc(kPageBytes, bytes));
  std::memset(data, 0, bytes);
  if (memory.bytes > 0) std::memcpy(data, memory.data, memory.bytes);
  std::free(std::exchange(memory.data, data));
  memory.bytes = bytes;
}

int open_path(const std::string& path, int flags) {
  simulator().operation();
  if (path == "/dev/shm" && (flags & O_TMPFILE) == O_TMPFILE) {
    auto memory = std::make_shared<SharedMemory>();
    memory->number = cluster().disk.next_number();
    memory->host = Cluster::caller().host;
    return simulator().open(std::make_shared<MemoryFile>(std::move(memory)));
  }
  if (path.starts_with("/proc/")) {
    if (path == "/proc/sys/kernel/random/boot_id") {
      auto inode = std::make_shared<Inode>();
      inode->content = fmt::format("boot-of-host-{}\n", Cluster::caller().host);
      return simulator().open(std::make_shared<DiskFile>(std::move(inode), path, false));
    }
    const auto memory = find_memory(path);
    if (!memory) return fail_call(ENOENT);
    return simulator().open(std::make_shared<MemoryFile>(memory->memory));
  }
  auto inode = cluster().disk.open(path, flags);
  if (!inode) return -1;
  return simulator().open(std::make_shared<DiskFile>(std::move(inode), path, (flags & O_APPEND) != 0));
}

int describe(const Inode& inode, struct stat& status) {
  status = {};
  status.st_dev = Cluster::device();
  status.st_ino = inode.number;
  status.st_nlink = 1;
  status.st_uid = ::geteuid();
  status.st_mode = inode.is_folder ? S_IFDIR | 0700U : S_IFREG | 0600U;
  status.st_size = static_cast<off_t>(inode.content.size());
  return 0;
}

int describe(const SharedMemory& memory, struct stat& status) {
  status = {};
  status.st_dev = 2;
  status.st_ino = memory.number;
  status.st_nlink = 1;
  status.st_uid = ::geteuid();
  status.st_mode = S_IFREG | 0600U;
  status.st_size = static_cast<off_t>(memory.bytes);
  return 0;
}

int describe_path(const std::string& path, struct stat& status) {
  simulator().operation();
  if (path == "/dev/shm") {
    status = {};
    status.st_dev = status.st_ino = 2;
    status.st_mode = S_IFDIR | 0700U;
    return 0;
  }
  if (path.starts_with("/proc/")) {
    const auto memory = find_memory(path);
    return memory ? describe(*memory->memory, status) : fail_call(ENOENT);
  }
  const auto inode = cluster().disk.find(path);
  return inode ? describe(*inode, status) : -1;
}

// What opendir(3) gives: the names as they were then.
struct Folder {
  int descriptor = -1;
  std::vector<dirent> entries;
  std::size_t next = 0;
};

DIR* list_folder(int descriptor) {
  const auto opened = std::dynamic_pointer_cast<DiskFile>(simulator().file(descriptor));
  if (!opened || !opened->inode->is_folder) {
    errno = ENOTDIR;
    return nullptr;
  }
  auto folder = std::make_unique<Folder>();
  folder->descriptor = descriptor;
  for (const auto& [name, inode] : opened->inode->entries) {
    dirent& entry = folder->entries.emplace_back();
    entry.d_ino = inode->number;
    entry.d_type = inode->is_folder ? DT_DIR : DT_REG;
    std::strncpy(entry.d_name, name.c_str(), sizeof entry.d_name - 1);
  }
  return reinterpret_cast<DIR*>(folder.release());
}

// Locks of ranges of files, which only one process takes here, are free.
int control_file(int command, void* argument) {
  if (command == F_GETLK) static_cast<struct flock*>(argument)->l_type = F_UNLCK;
  return 0;
}

mode_t take_mode(int flags, va_list list) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(list, mode_t) : 0;
}

}  // namespace
}  // namespace motley::simulation

using namespace motley::simulation;  // NOLINT: what follows has the system's names, in no namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = take_mode(flags, list);
  va_end(list);
  MOTLEY_REAL(open, path, flags, mode);
  return open_path(path, flags);
}

int openat(int folder, const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = take_mode(flags, list);
  va_end(list);
  MOTLEY_REAL(openat, folder, path, flags, mode);
  return open_path(full_path(folder, path), flags);
}

int open64(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = take_mode(flags, list);
  va_end(list);
  MOTLEY_REAL(open64, path, flags, mode);
  return open_path(path, flags);
}

int fcntl(int descriptor, int command, ...) {
  va_list list;
  va_start(list, command);
  void* const argument = va_arg(list, void*);
  va_end(list);
  MOTLEY_REAL(fcntl, descriptor, command, argument);
  return control_file(command, argument);
}

int fcntl64(int descriptor, int command, ...) {
  va_list list;
  va_start(list, command);
  void* const argument = va_arg(list, void*);
  va_end(list);
  MOTLEY_REAL(fcntl64, descriptor, command, argument);
  return control_file(command, argument);
}

int flock(int descriptor, int operation) noexcept {
  MOTLEY_REAL(flock, descriptor, operation);
  simulator().operation();
  const auto opened = std::dynamic_pointer_cast<DiskFile>(simulator().file(descriptor));
  if (!opened) return fail_call(EBADF);
  if (opened->inode->locked != nullptr && opened->inode->locked != opened.get()) return fail_call(EWOULDBLOCK);
  opened->inode->locked = opened.get();
  return 0;
}

int fchmod(int descriptor, mode_t mode) noexcept {
  MOTLEY_REAL(fchmod, descriptor, mode);
  return 0;
}

int fchmodat(int folder, const char* path, mode_t mode, int flags) noexcept {
  MOTLEY_REAL(fchmodat, folder, path, mode, flags);
  return 0;
}

int fchown(int descriptor, uid_t owner, gid_t group) noexcept {
  MOTLEY_REAL(fchown, descriptor, owner, group);
  return 0;
}

ssize_t pread64(int descriptor, void* bytes, std::size_t count, off64_t at) {
  MOTLEY_REAL(pread64, descriptor, bytes, count, at);
  simulator().operation();
  const auto opened = std::dynamic_pointer_cast<DiskFile>(simulator().file(descriptor));
  if (!opened) return fail_call(EBADF);
  const std::string& content = opened->inode->content;
  const auto begin = static_cast<std::size_t>(at);
  return begin < content.size() ? static_cast<ssize_t>(content.copy(static_cast<char*>(bytes), count, begin)) : 0;
}

ssize_t pwrite64(int descriptor, const void* bytes, std::size_t count, off64_t at) {
  MOTLEY_REAL(pwrite64, descriptor, bytes, count, at);
  simulator().disk_operation();
  const auto opened = std::dynamic_pointer_cast<DiskFile>(simulator().file(descriptor));
  if (!opened) return fail_call(EBADF);
  return cluster().disk.write(*opened, static_cast<const char*>(bytes), count, static_cast<std::size_t>(at));
}

ssize_t pwrite(int descriptor, const void* bytes, std::size_t count, off_t at) {
  MOTLEY_REAL(pwrite, descriptor, bytes, count, at);
  return ::pwrite64(descriptor, bytes, count, at);
}

FILE* fopen64(const char* path, const char* mode) {
  MOTLEY_REAL(fopen64, path, mode);
  std::fprintf(stderr, "the simulated disk has no streams: %s\n", path);
  std::abort();
}

int fsync(int descriptor) {
  MOTLEY_REAL(fsync, descriptor);
  simulator().disk_operation();
  const auto opened = std::dynamic_pointer_cast<DiskFile>(simulator().file(descriptor));
  return opened ? cluster().disk.sync(*opened->inode) : fail_call(EBADF);
}

int fdatasync(int descriptor) {
  MOTLEY_REAL(fdatasync, descriptor);
  return ::fsync(descriptor);
}

int fstat(int descriptor, struct stat* status) noexcept {
  MOTLEY_REAL(fstat, descriptor, status);
  const auto file = simulator().file(descriptor);
  if (const auto* opened = dynamic_cast<DiskFile*>(file.get())) return describe(*opened->inode, *status);
  if (const auto* memory = dynamic_cast<MemoryFile*>(file.get())) return describe(*memory->memory, *status);
  return fail_call(EBADF);
}

int fstat64(int descriptor, struct stat64* status) noexcept {
  MOTLEY_REAL(fstat64, descriptor, status);
  return ::fstat(descriptor, reinterpret_cast<struct stat*>(status));
}

int stat(const char* path, struct stat* status) noexcept {
  MOTLEY_REAL(stat, path, status);
  return describe_path(path, *status);
}

int lstat(const char* path, struct stat* status) noexcept {
  MOTLEY_REAL(lstat, path, status);
  return describe_path(path, *status);
}

int stat64(const char* path, struct stat64* status) noexcept {
  MOTLEY_REAL(stat64, path, status);
  return describe_path(path, *reinterpret_cast<struct stat*>(status));
}

int lstat64(const char* path, struct stat64* status) noexcept {
  MOTLEY_REAL(lstat64, path, status);
  return describe_path(path, *reinterpret_cast<struct stat*>(status));
}

int access(const char* path, int mode) noexcept {
  MOTLEY_REAL(access, path, mode);
  return cluster().disk.find(path) ? 0 : -1;
}

ssize_t readlink(const char* path, char* target, std::size_t bytes) noexcept {
  MOTLEY_REAL(readlink, path, target, bytes);
  constexpr std::string_view kSpace = "pid:[1]";
  if (std::string_view(path) != "/proc/self/ns/pid") return fail_call(EINVAL);
  return static_cast<ssize_t>(kSpace.copy(target, bytes));
}

int mkdir(const char* path, mode_t mode) noexcept {
  MOTLEY_REAL(mkdir, path, mode);
  simulator().disk_operation();
  return cluster().disk.make_folder(path);
}

int rename(const char* from, const char* to) noexcept {
  MOTLEY_REAL(rename, from, to);
  simulator().disk_operation();
  return cluster().disk.rename(from, to);
}

int unlink(const char* path) noexcept {
  MOTLEY_REAL(unlink, path);
  simulator().disk_operation();
  return cluster().disk.remove(path, false);
}

int unlinkat(int folder, const char* path, int flags) noexcept {
  MOTLEY_REAL(unlinkat, folder, path, flags);
  simulator().disk_operation();
  return cluster().disk.remove(full_path(folder, path), (flags & AT_REMOVEDIR) != 0);
}

int remove(const char* path) noexcept {
  MOTLEY_REAL(remove, path);
  simulator().disk_operation();
  const auto inode = cluster().disk.find(path);
  return inode ? cluster().disk.remove(path, inode->is_folder) : -1;
}

DIR* fdopendir(int descriptor) {
  MOTLEY_REAL(fdopendir, descriptor);
  return list_folder(descriptor);
}

DIR* opendir(const char* path) {
  MOTLEY_REAL(opendir, path);
  const int descriptor = open_path(path, O_RDONLY | O_DIRECTORY);
  return descriptor < 0 ? nullptr : list_folder(descriptor);
}

dirent* readdir(DIR* directory) {
  MOTLEY_REAL(readdir, directory);
  auto* const folder = reinterpret_cast<Folder*>(directory);
  return folder->next < folder->entries.size() ? &folder->entries[folder->next++] : nullptr;
}

int dirfd(DIR* directory) noexcept {
  MOTLEY_REAL(dirfd, directory);
  return reinterpret_cast<Folder*>(directory)->descriptor;
}

int closedir(DIR* directory) {
  MOTLEY_REAL(closedir, directory);
  const std::unique_ptr<Folder> folder(reinterpret_cast<Folder*>(directory));
  simulator().close(folder->descriptor);
  return 0;
}

int posix_fallocate(int descriptor, off_t offset, off_t bytes) {
  MOTLEY_REAL(posix_fallocate, descriptor, offset, bytes);
  simulator().operation();
  const auto file = std::dynamic_pointer_cast<MemoryFile>(simulator().file(descriptor));
  if (!file) return EBADF;
  reserve(*file->memory, static_cast<std::size_t>(offset + bytes));
  return 0;
}

int ftruncate(int descriptor, off_t bytes) noexcept {
  MOTLEY_REAL(ftruncate, descriptor, bytes);
  simulator().operation();
  const auto file = simulator().file(descriptor);
  if (const auto* memory = dynamic_cast<MemoryFile*>(file.get())) {
    reserve(*memory->memory, static_cast<std::size_t>(bytes));
    return 0;
  }
  const auto* opened = dynamic_cast<DiskFile*>(file.get());
  return opened != nullptr ? cluster().disk.resize(*opened->inode, static_cast<std::size_t>(bytes)) : fail_call(EBADF);
}

int ftruncate64(int descriptor, off64_t bytes) noexcept {
  MOTLEY_REAL(ftruncate64, descriptor, bytes);
  return ::ftruncate(descriptor, bytes);
}

void* mmap(void* address, std::size_t bytes, int protection, int flags, int descriptor, off_t offset) noexcept {
  if (descriptor < 0) {
    static auto* const real = find_real(&::mmap, "mmap");
    return real(address, bytes, protection, flags, descriptor, offset);
  }
  MOTLEY_REAL(mmap, address, bytes, protection, flags, descriptor, offset);
  const auto file = std::dynamic_pointer_cast<MemoryFile>(simulator().file(descriptor));
  if (!file || bytes > file->memory->bytes) {
    errno = EINVAL;
    return MAP_FAILED;
  }
  cluster().mapped.emplace(file->memory->data, file->memory);
  return file->memory->data;
}

int munmap(void* address, std::size_t bytes) noexcept {
  MOTLEY_REAL(munmap, address, bytes);
  const auto found = cluster().mapped.find(address);
  if (found != cluster().mapped.end()) {
    cluster().mapped.erase(found);
    return 0;
  }
  static auto* const real = find_real(&::munmap, "munmap");
  return real(address, bytes);
}

}  // extern "C"
