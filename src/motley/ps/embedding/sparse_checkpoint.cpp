#include "motley/ps/embedding/sparse_checkpoint.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <limits>
#include <set>

#include "motley/base/os/file.h"
#include "motley/serial/json_fields.h"

static_assert(std::endian::native == std::endian::little, "rows are written as they stand in memory");

namespace motley::ps {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "sparse-";
constexpr std::string_view kSuffix = ".json";
constexpr std::size_t kManifestLimit = std::size_t{16} << 20;
constexpr double kMaxScale = std::numeric_limits<float>::max();

constexpr std::size_t kBlock = std::size_t{1} << 20;
constexpr std::uint32_t kVersion = 1;

struct Header {
  std::array<char, 8> magic = {'m', 'o', 't', 'l', 'e', 'y', 'r', 'w'};
  std::uint32_t version = kVersion;
  std::uint32_t row_floats = 0;
};
static_assert(sizeof(Header) == 16);

std::size_t compute_record_bytes(std::size_t row_floats) {
  return sizeof(std::uint64_t) + row_floats * sizeof(float);
}

// Reads exactly `size` bytes at `offset`.
Status read_at(int descriptor, std::byte* to, std::size_t size, std::uint64_t offset, const fs::path& path) {
  while (size > 0) {
    const ssize_t got = ::pread(descriptor, to, size, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      return fail(got < 0 ? ErrorCode::kIo : ErrorCode::kCorrupt, "cannot read '{}' at byte {}: {}", path.string(),
                  offset, got < 0 ? errno_text() : "the file ends there");
    }
    to += got;
    size -= static_cast<std::size_t>(got);
    offset += static_cast<std::uint64_t>(got);
  }
  return {};
}

fs::path manifest_path(const fs::path& folder, std::int64_t step) {
  return folder / fmt::format("{}{:08}{}", kPrefix, step, kSuffix);
}

}  // namespace

RowFileWriter::RowFileWriter(fs::path folder, std::string stem, std::size_t row_floats)
    : folder_(std::move(folder)),
      stem_(std::move(stem)),
      aside_(folder_ / (stem_ + ".part")),
      record_bytes_(compute_record_bytes(row_floats)) {
  const Header header{.row_floats = static_cast<std::uint32_t>(row_floats)};
  const auto* bytes = reinterpret_cast<const std::byte*>(&header);
  buffer_.assign(bytes, bytes + sizeof(header));
}

Result<RowFileWriter> RowFileWriter::create(const fs::path& folder, const std::string& stem, std::size_t row_floats) {
  RowFileWriter writer(folder, stem, row_floats);
  writer.descriptor_ = Descriptor(::open(writer.aside_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!writer.descriptor_.valid()) {
    return fail(ErrorCode::kIo, "cannot create '{}': {}", writer.aside_.string(), errno_text());
  }
  return writer;
}

RowFileWriter::~RowFileWriter() {
  if (descriptor_.valid()) ::unlink(aside_.c_str());
}

Status RowFileWriter::add(std::span<const std::byte> rows) {
  file_.rows += rows.size() / record_bytes_;
  buffer_.insert(buffer_.end(), rows.begin(), rows.end());
  return buffer_.size() >= kBlock ? flush() : Status();
}

Status RowFileWriter::flush() {
  std::span<const std::byte> rest = buffer_;
  while (!rest.empty()) {
    const ssize_t written = ::write(descriptor_.get(), rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return fail(ErrorCode::kIo, "cannot write '{}': {}", aside_.string(), errno_text());
    rest = rest.subspan(static_cast<std::size_t>(written));
  }
  file_.bytes += buffer_.size();
  file_.crc = crc32c(buffer_, file_.crc);
  buffer_.clear();
  return {};
}

Result<RowFile> RowFileWriter::finish() {
  MOTLEY_TRY(flush());
  if (::fsync(descriptor_.get()) != 0) {
    return fail(ErrorCode::kIo, "cannot sync '{}': {}", aside_.string(), errno_text());
  }
  file_.name = fmt::format("{}-{:08x}.rows", stem_, file_.crc);
  MOTLEY_TRY(rename_durably(aside_, folder_ / file_.name));
  descriptor_.close();
  return file_;
}

Status read_row_file(const fs::path& folder, const RowFile& file, std::size_t row_floats, const VisitRows& visit) {
  const fs::path path = folder / file.name;
  const auto damaged = [&](const std::string& what) {
    return fail(ErrorCode::kCorrupt, "'{}' is damaged: {}", path.string(), what);
  };
  const Descriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status{};
  if (!descriptor.valid() || ::fstat(descriptor.get(), &status) != 0) {
    return fail(errno == ENOENT ? ErrorCode::kCorrupt : ErrorCode::kIo,
                "cannot read '{}', a part of the checkpoint: {}", path.string(), errno_text());
  }
  const std::size_t record_bytes = compute_record_bytes(row_floats);
  const auto bytes = static_cast<std::uint64_t>(status.st_size);
  if (bytes != file.bytes) return damaged(fmt::format("it has {} bytes, {} were written", bytes, file.bytes));
  std::vector<std::byte> block(kBlock);
  std::uint32_t crc = 0;
  for (std::uint64_t offset = 0; offset < bytes; offset += block.size()) {
    block.resize(std::min<std::uint64_t>(kBlock, bytes - offset));
    MOTLEY_TRY(read_at(descriptor.get(), block.data(), block.size(), offset, path));
    crc = crc32c(block, crc);
  }
  if (crc != file.crc) return damaged("it does not match its checksum");
  Header header;
  if (bytes < sizeof(header)) return damaged("it is shorter than a header");
  MOTLEY_TRY(read_at(descriptor.get(), reinterpret_cast<std::byte*>(&header), sizeof(header), 0, path));
  if (header.magic != Header().magic || header.version != kVersion || header.row_floats != row_floats ||
      bytes != sizeof(header) + file.rows * record_bytes) {
    return damaged(
        fmt::format("it is no file of version {} with {} rows of {} floats", kVersion, file.rows, row_floats));
  }
  const std::uint64_t at_once = std::max<std::size_t>(kBlock / record_bytes, 1);
  std::vector<std::uint64_t> ids;
  std::vector<float> floats;
  for (std::uint64_t row = 0; row < file.rows; row += ids.size()) {
    ids.resize(std::min(at_once, file.rows - row));
    floats.resize(ids.size() * row_floats);
    block.resize(ids.size() * record_bytes);
    MOTLEY_TRY(read_at(descriptor.get(), block.data(), block.size(), sizeof(header) + row * record_bytes, path));
    for (std::size_t i = 0; i < ids.size(); ++i) {
      std::memcpy(&ids[i], block.data() + i * record_bytes, sizeof(std::uint64_t));
      std::memcpy(&floats[i * row_floats], block.data() + i * record_bytes + sizeof(std::uint64_t),
                  row_floats * sizeof(float));
    }
    MOTLEY_TRY(visit(ids, floats));
  }
  return {};
}

template <class Archive>
void fields(Archive& archive, RowFile& file) {
  archive.required("name", file.name, kNotEmpty);
  archive.required("bytes", file.bytes);
  archive.required("crc32c", file.crc);
  archive.required("rows", file.rows);
}

template <class Archive>
void fields(Archive& archive, TableForm& form) {
  archive.required("name", form.name);
  archive.required("dimension", form.dimension, NumberIs::between(1, kDimensionLimit));
  archive.required("optimizer", form.optimizer);
  archive.required("initializer", form.initializer.kind);
  double scale = form.initializer.scale;
  archive.required("scale", scale, NumberIs::between(-kMaxScale, kMaxScale));
  form.initializer.scale = static_cast<float>(scale);
  archive.required("seed", form.initializer.seed);
}

template <class Archive>
void fields(Archive& archive, SparseManifest& manifest) {
  archive.version(1);
  archive.required("step", manifest.step);
  archive.required("table", manifest.form);
  archive.required("files", manifest.files, kNotEmpty);
}

std::string to_json(const SparseManifest& manifest) {
  return write_json(manifest);
}

Result<SparseManifest> parse_sparse_manifest(std::string_view text) {
  auto manifest = parse_json<SparseManifest>(text, "the manifest");
  if (!manifest) return fail(ErrorCode::kCorrupt, "{}", manifest.error().message);
  for (const RowFile& file : manifest->files) {
    if (file.name.find('/') != std::string::npos) {
      return fail(ErrorCode::kCorrupt, "the manifest names the file '{}', which must be in the same folder", file.name);
    }
  }
  return manifest;
}

Status write_sparse_manifest(const fs::path& folder, const SparseManifest& manifest) {
  return write_file(manifest_path(folder, manifest.step), to_json(manifest));
}

Result<SparseManifest> read_sparse_manifest(const fs::path& folder, std::int64_t step) {
  const fs::path path = manifest_path(folder, step);
  MOTLEY_ASSIGN(const std::string text, read_file(path, kManifestLimit));
  Result<SparseManifest> manifest = parse_sparse_manifest(text);
  if (!manifest) return fail(manifest.error().within(fmt::format("'{}' is damaged", path.string())));
  if (manifest->step != step) {
    return fail(ErrorCode::kCorrupt, "'{}' is damaged: it says step {}", path.string(), manifest->step);
  }
  return manifest;
}

std::vector<std::int64_t> sparse_checkpoint_steps(const fs::path& folder) {
  std::vector<std::int64_t> steps;
  std::error_code ignored;
  for (fs::directory_iterator at(folder, ignored); !ignored && at != fs::directory_iterator(); at.increment(ignored)) {
    const std::string name = at->path().filename().string();
    if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) continue;
    std::int64_t step = 0;
    const char* end = name.data() + name.size() - kSuffix.size();
    if (std::from_chars(name.data() + kPrefix.size(), end, step).ptr == end) steps.push_back(step);
  }
  std::ranges::sort(steps);
  return steps;
}

void prune_sparse_checkpoints(const fs::path& folder, std::int64_t step, int keep) {
  const std::vector<std::int64_t> steps = sparse_checkpoint_steps(folder);
  const auto newer = std::ranges::upper_bound(steps, step);
  const auto oldest_kept = newer - std::min<std::ptrdiff_t>(keep, newer - steps.begin());
  std::set<std::string> kept;
  for (auto it = oldest_kept; it != newer; ++it) {
    const Result<SparseManifest> manifest = read_sparse_manifest(folder, *it);
    if (!manifest) return;
    for (const RowFile& file : manifest->files) kept.insert(file.name);
  }
  // Manifests go first: at no moment does one name a file that is gone.
  std::error_code ignored;
  for (auto it = steps.begin(); it != steps.end(); ++it) {
    if (it < oldest_kept || it >= newer) fs::remove(manifest_path(folder, *it), ignored);
  }
  std::error_code end;
  for (fs::directory_iterator at(folder, end); !end && at != fs::directory_iterator(); at.increment(end)) {
    const std::string name = at->path().filename().string();
    if (name.starts_with(kPrefix) && !name.ends_with(kSuffix) && !kept.contains(name)) fs::remove(at->path(), ignored);
  }
}

}  // namespace motley::ps
