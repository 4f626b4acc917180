#include "tests/simulation/disk.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>

namespace motley::simulation {
namespace {

int fail_call(int error) {
  errno = error;
  return -1;
}

// The next name of a path, taken off its front.
std::string take_name(std::string& path) {
  const std::size_t begin = path.find_first_not_of('/');
  if (begin == std::string::npos) {
    path.clear();
    return "";
  }
  const std::size_t end = std::min(path.find('/', begin), path.size());
  std::string name = path.substr(begin, end - begin);
  path.erase(0, end);
  return name;
}

}  // namespace

void Inode::apply(const Change& change) {
  if (!change.removed.empty()) entries.erase(change.removed);
  if (!change.added.empty()) entries[change.added] = change.inode;
}

SharedMemory::~SharedMemory() {
  std::free(data);
}

Disk::Disk(Simulator& simulator) : simulator_(simulator), root_(std::make_shared<Inode>()) {
  root_->is_folder = true;
  root_->number = next_number();
}

std::shared_ptr<Inode> Disk::find(const std::string& path) const {
  std::string rest = path;
  std::shared_ptr<Inode> inode = root_;
  for (std::string name = take_name(rest); !name.empty(); name = take_name(rest)) {
    if (name == ".") continue;
    if (!inode->is_folder) {
      errno = ENOTDIR;
      return nullptr;
    }
    const auto found = inode->entries.find(name);
    if (found == inode->entries.end()) {
      errno = ENOENT;
      return nullptr;
    }
    inode = found->second;
  }
  return inode;
}

std::optional<Disk::Place> Disk::find_place(const std::string& path) const {
  std::string trimmed = path;
  while (trimmed.size() > 1 && trimmed.back() == '/') trimmed.pop_back();
  const std::size_t slash = trimmed.rfind('/');
  auto folder = find(slash == std::string::npos ? "/" : trimmed.substr(0, slash));
  if (!folder) return {};
  if (!folder->is_folder) {
    errno = ENOTDIR;
    return {};
  }
  return Place{std::move(folder), trimmed.substr(slash + 1)};
}

void Disk::change(Inode& folder, Inode::Change change) {
  folder.apply(change);
  folder.changes.push_back(std::move(change));
}

std::shared_ptr<Inode> Disk::open(const std::string& path, int flags) {
  auto inode = find(path);
  if (inode && (flags & O_CREAT) != 0 && (flags & O_EXCL) != 0) {
    errno = EEXIST;
    return nullptr;
  }
  if (!inode && errno == ENOENT && (flags & O_CREAT) != 0) {
    const auto place = find_place(path);
    if (!place) return nullptr;
    if (has_no_space()) {
      errno = ENOSPC;
      return nullptr;
    }
    inode = std::make_shared<Inode>();
    inode->number = next_number();
    change(*place->folder, {.added = place->name, .inode = inode});
  }
  if (!inode) return nullptr;
  if (inode->is_folder && (flags & O_ACCMODE) != O_RDONLY) {
    errno = EISDIR;
    return nullptr;
  }
  if (!inode->is_folder && (flags & O_DIRECTORY) != 0) {
    errno = ENOTDIR;
    return nullptr;
  }
  if ((flags & O_TRUNC) != 0) inode->content.clear();
  return inode;
}

int Disk::make_folder(const std::string& path) {
  const auto place = find_place(path);
  if (!place) return -1;
  if (place->folder->entries.contains(place->name)) return fail_call(EEXIST);
  if (has_no_space()) return fail_call(ENOSPC);
  auto folder = std::make_shared<Inode>();
  folder->is_folder = true;
  folder->number = next_number();
  change(*place->folder, {.added = place->name, .inode = std::move(folder)});
  return 0;
}

int Disk::rename(const std::string& from, const std::string& to) {
  const auto source = find_place(from);
  const auto target = find_place(to);
  if (!source || !target) return -1;
  const auto found = source->folder->entries.find(source->name);
  if (found == source->folder->entries.end()) return fail_call(ENOENT);
  if (source->folder != target->folder) return fail_call(EXDEV);
  const auto inode = found->second;
  if (const auto there = target->folder->entries.find(target->name); there != target->folder->entries.end()) {
    if (there->second->is_folder && !inode->is_folder) return fail_call(EISDIR);
    if (!there->second->is_folder && inode->is_folder) return fail_call(ENOTDIR);
    if (there->second->is_folder && !there->second->entries.empty()) return fail_call(ENOTEMPTY);
  }
  change(*source->folder, {source->name, target->name, inode});
  return 0;
}

int Disk::remove(const std::string& path, bool folder) {
  const auto place = find_place(path);
  if (!place) return -1;
  const auto found = place->folder->entries.find(place->name);
  if (found == place->folder->entries.end()) return fail_call(ENOENT);
  if (found->second->is_folder != folder) return fail_call(folder ? ENOTDIR : EISDIR);
  if (folder && !found->second->entries.empty()) return fail_call(ENOTEMPTY);
  change(*place->folder, {.removed = place->name});
  return 0;
}

ssize_t Disk::write(DiskFile& file, const char* bytes, std::size_t count, std::optional<std::size_t> at) {
  if (has_no_space()) return fail_call(ENOSPC);
  if (is_full()) space_ -= count = std::min(count, space_);
  std::string& content = file.inode->content;
  const std::size_t position = at ? *at : file.appends ? content.size() : file.position;
  if (content.size() < position + count) content.resize(position + count);
  content.replace(position, count, bytes, count);
  if (!at) file.position = position + count;
  return static_cast<ssize_t>(count);
}

int Disk::resize(Inode& inode, std::size_t bytes) {
  if (bytes > inode.content.size() && has_no_space()) return fail_call(ENOSPC);
  inode.content.resize(bytes);
  return 0;
}

int Disk::sync(Inode& inode) {
  if (inode.is_folder) {
    inode.synced_entries = inode.entries;
    inode.changes.clear();
  } else {
    inode.synced = inode.content;
  }
  return 0;
}

void Disk::lose_power() {
  lose_power(*root_);
}

// A folder keeps its first changes since it was synced. A file keeps all that it was given, what was synced, or what
// was synced with some of the new bytes in it.
void Disk::lose_power(Inode& inode) {
  Random& random = simulator_.random();
  if (!inode.is_folder) {
    if (inode.content == inode.synced || random.below(3) == 0) return;
    std::string torn = inode.synced;
    if (random.below(2) == 0) {
      const std::size_t kept = random.below(inode.content.size() + 1);
      torn.resize(std::max(torn.size(), kept));
      torn.replace(0, kept, inode.content, 0, kept);
    }
    inode.content = inode.synced = torn;
    return;
  }
  const std::vector<Inode::Change> changes = std::exchange(inode.changes, {});
  inode.entries = inode.synced_entries;
  const std::size_t kept = random.below(changes.size() + 1);
  for (std::size_t i = 0; i < kept; ++i) inode.apply(changes[i]);
  inode.synced_entries = inode.entries;
  for (const auto& [name, entry] : inode.entries) lose_power(*entry);
}

std::string Disk::flip_bit(const std::string& folder) {
  std::vector<std::pair<std::string, Inode*>> files;
  const auto list = [&](const auto& again, const std::string& path, const Inode& inode) -> void {
    for (const auto& [name, entry] : inode.entries) {
      const std::string own = path + "/" + name;
      if (entry->is_folder) again(again, own, *entry);
      if (!entry->is_folder && !entry->content.empty()) files.emplace_back(own, entry.get());
    }
  };
  if (const auto found = find(folder)) list(list, folder, *found);
  if (files.empty()) return "";
  Random& random = simulator_.random();
  auto& [path, inode] = files[random.below(files.size())];
  const std::size_t at = random.below(inode->content.size());
  inode->content[at] = static_cast<char>(inode->content[at] ^ (1 << random.below(8)));
  if (at < inode->synced.size()) inode->synced[at] = inode->content[at];
  return path;
}

}  // namespace motley::simulation
