// Files of a simulated cluster, on a disk that all its hosts share. What is not synced may be lost when the power goes:
// of each folder the last changes, of each file the last bytes, half of them or all. It can be full, and lose bits.
// Besides there is memory that processes of a host share, as files without a name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/simulation/simulator.h"

namespace motley::simulation {

struct Inode {
  std::uint64_t number = 0;
  bool is_folder = false;
  std::string content;
  std::string synced;  // what the power's loss leaves of it
  std::map<std::string, std::shared_ptr<Inode>> entries;
  std::map<std::string, std::shared_ptr<Inode>> synced_entries;
  struct Change {
    std::string removed;
    std::string added;
    std::shared_ptr<Inode> inode;
  };
  std::vector<Change> changes;   // of the entries, since they were synced
  const File* locked = nullptr;  // by flock(2)
  void apply(const Change& change);
};

// An open file or folder.
class DiskFile final : public File {
 public:
  DiskFile(std::shared_ptr<Inode> inode, std::string path, bool appends)
      : inode(std::move(inode)), path(std::move(path)), appends(appends) {}
  void close() override {
    if (inode->locked == this) inode->locked = nullptr;
  }
  const std::shared_ptr<Inode> inode;
  const std::string path;
  const bool appends;
  std::size_t position = 0;
};

// Memory that processes map.
struct SharedMemory {
  SharedMemory() = default;
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  std::uint64_t number = 0;
  int host = 0;
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};
class MemoryFile final : public File {
 public:
  explicit MemoryFile(std::shared_ptr<SharedMemory> memory) : memory(std::move(memory)) {}
  const std::shared_ptr<SharedMemory> memory;
};

class Disk {
 public:
  explicit Disk(Simulator& simulator);

  // The inode of a path; null and errno where there is none.
  std::shared_ptr<Inode> find(const std::string& path) const;
  std::shared_ptr<Inode> open(const std::string& path, int flags);
  // Each as the system's call: 0, or -1 and errno.
  int make_folder(const std::string& path);
  int rename(const std::string& from, const std::string& to);
  int remove(const std::string& path, bool folder);
  ssize_t write(DiskFile& file, const char* bytes, std::size_t count, std::optional<std::size_t> at = {});
  int resize(Inode& inode, std::size_t bytes);
  int sync(Inode& inode);

  // From now on until then no more than so many bytes can be written, the last of them by a short write (ENOSPC).
  void fill(double until, std::size_t space) {
    full_until_ = until;
    space_ = space;
  }
  bool is_full() const { return simulator_.now() < full_until_; }
  // The power is gone and back.
  void lose_power();
  // One bit of a file below the folder changes; its path, or nothing where there is no file.
  std::string flip_bit(const std::string& folder);
  std::uint64_t next_number() { return ++numbers_; }

 private:
  struct Place {
    std::shared_ptr<Inode> folder;
    std::string name;
  };
  std::optional<Place> find_place(const std::string& path) const;
  void change(Inode& folder, Inode::Change change);
  void lose_power(Inode& inode);
  bool has_no_space() const { return is_full() && space_ == 0; }

  Simulator& simulator_;
  std::uint64_t numbers_ = 0;
  std::shared_ptr<Inode> root_;
  double full_until_ = 0;
  std::size_t space_ = 0;  // while it is full
};

}  // namespace motley::simulation
