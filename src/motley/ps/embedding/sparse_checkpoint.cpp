#include "motley/ps/embedding/sparse_checkpoint.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <set>

#include "motley/base/os/file.h"
#include "motley/serial/json_fields.h"

namespace motley::ps {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "sparse-";
constexpr std::string_view kSuffix = ".json";
constexpr std::size_t kManifestLimit = std::size_t{16} << 20;
constexpr std::size_t kDimensionLimit = std::size_t{1} << 20;
constexpr double kMaxScale = std::numeric_limits<float>::max();

fs::path manifest_path(const fs::path& folder, std::int64_t step) {
  return folder / fmt::format("{}{:08}{}", kPrefix, step, kSuffix);
}

}  // namespace

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
  if (!manifest) {
    return fail(manifest.error().within(fmt::format("'{}' is damaged", path.string())));
  }
  if (manifest->step != step) {
    return fail(ErrorCode::kCorrupt, "'{}' is damaged: it says step {}", path.string(), manifest->step);
  }
  return manifest;
}

std::vector<std::int64_t> sparse_checkpoint_steps(const fs::path& folder) {
  std::vector<std::int64_t> steps;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) {
      continue;
    }
    std::int64_t step = 0;
    const char* end = name.data() + name.size() - kSuffix.size();
    if (std::from_chars(name.data() + kPrefix.size(), end, step).ptr == end) {
      steps.push_back(step);
    }
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
    if (!manifest) {
      return;
    }
    for (const RowFile& file : manifest->files) {
      kept.insert(file.name);
    }
  }
  // Manifests go first: at no moment does one name a file that is gone.
  std::error_code ignored;
  for (auto it = steps.begin(); it != steps.end(); ++it) {
    if (it < oldest_kept || it >= newer) {
      fs::remove(manifest_path(folder, *it), ignored);
    }
  }
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kPrefix) && !name.ends_with(kSuffix) && !kept.contains(name)) {
      fs::remove(entry.path(), ignored);
    }
  }
}

}  // namespace motley::ps
