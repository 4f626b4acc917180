// Whole files, read and written so that nothing is lost: a write goes to a file beside the target, is synced, and is
// renamed over it, so that a reader (and a crash) sees the old content or the new, never a part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "motley/base/result.h"

namespace motley {

// The file's content. Errors name the path; a file above `limit` bytes is refused before memory is taken.
Result<std::string> read_file(const std::filesystem::path& path, std::size_t limit = std::size_t{1} << 34);

// Its last `limit` bytes, or all where there are no more: of a file that may be long, and may grow meanwhile.
Result<std::string> read_end(const std::filesystem::path& path, std::size_t limit);

// Whether write_file could write there, told before long work: the folder is there and may be written, and the path is
// no folder. kInvalidInput where not.
Status check_writable(const std::filesystem::path& path);

// Replaces the file atomically and durably (written aside, fsync, rename, fsync of the folder).
// A device or pipe is written into; a link is kept and its target replaced.
Status write_file(const std::filesystem::path& path, std::string_view content);

// Appends one line and flushes it to the operating system (not to the disk).
Status append_line(const std::filesystem::path& path, std::string_view line);

Status make_folders(const std::filesystem::path& path);

// For names that become one folder below another (of runs, of tenants, of submitted jobs): kInvalidInput with the name
// and what is accepted, where the name leads elsewhere ("..", "a/b"), is empty, too long or hidden, or holds what a
// path or a terminal could misread. The caller says whose name it is.
Status check_folder_name(std::string_view name);

// What has been made, renamed and removed in it outlasts a power failure.
Status sync_folder(const std::filesystem::path& folder);

// Renames a file or folder over another and syncs the parent folder.
Status rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);

// CRC-32C (Castagnoli) of the bytes, as in RFC 3720; `crc` continues an earlier call.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t crc = 0);
std::uint32_t crc32c(std::string_view bytes, std::uint32_t crc = 0);

// CRC-64 (XZ) of the bytes, which is their ECMA-182 polynomial, reflected; `crc` continues an earlier call.
std::uint64_t crc64(std::span<const std::byte> bytes, std::uint64_t crc = 0);

// "No space left on device" and the like, for the current errno.
std::string errno_text();

}  // namespace motley
