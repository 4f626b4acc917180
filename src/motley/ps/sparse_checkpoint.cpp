#include "motley/ps/sparse_checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "motley/base/os/file.h"

namespace motley::ps {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::string_view kPrefix = "sparse-";
constexpr std::string_view kSuffix = ".json";
constexpr std::size_t kManifestLimit = std::size_t{16} << 20;
constexpr std::size_t kDimensionLimit = std::size_t{1} << 20;

fs::path manifest_path(const fs::path& folder, std::int64_t step) {
  return folder / fmt::format("{}{:08}{}", kPrefix, step, kSuffix);
}

template <class Kind>
Kind kind_of(const std::string& text, std::initializer_list<Kind> kinds) {
  for (const Kind kind : kinds) {
    if (text == to_string(kind)) {
      return kind;
    }
  }
  throw std::invalid_argument(fmt::format("'{}' is not known", text));
}

}  // namespace

std::string to_json(const SparseManifest& manifest) {
  const RowInitializer& initializer = manifest.form.initializer;
  Json files = Json::array();
  for (const RowFile& file : manifest.files) {
    files.push_back({{"name", file.name}, {"bytes", file.bytes}, {"crc32c", file.crc}, {"rows", file.rows}});
  }
  const Json table = {{"name", manifest.form.name},
                      {"dimension", manifest.form.dimension},
                      {"optimizer", to_string(manifest.form.optimizer)},
                      {"initializer", to_string(initializer.kind)},
                      {"scale", initializer.scale},
                      {"seed", initializer.seed}};
  return Json{{"version", 1}, {"step", manifest.step}, {"table", table}, {"files", files}}.dump(2) + "\n";
}

Result<SparseManifest> parse_sparse_manifest(std::string_view text) {
  SparseManifest manifest;
  std::string field = "version";
  try {
    const Json json = Json::parse(text);
    const auto at = [&field](const Json& object, const char* key) -> const Json& { return object.at(field = key); };
    if (at(json, "version").get<int>() != 1) {
      throw std::invalid_argument("only 1 is known");
    }
    manifest.step = at(json, "step").get<std::int64_t>();
    const Json& table = at(json, "table");
    manifest.form.name = at(table, "name").get<std::string>();
    manifest.form.dimension = at(table, "dimension").get<std::size_t>();
    if (manifest.form.dimension < 1 || manifest.form.dimension > kDimensionLimit) {
      throw std::invalid_argument(fmt::format("must be from 1 to {}", kDimensionLimit));
    }
    using Optimizer = RowOptimizer::Kind;
    manifest.form.optimizer =
        kind_of(at(table, "optimizer").get<std::string>(), {Optimizer::kSgd, Optimizer::kAdagrad, Optimizer::kAdam});
    RowInitializer& initializer = manifest.form.initializer;
    initializer.kind = kind_of(at(table, "initializer").get<std::string>(),
                               {RowInitializer::Kind::kUniform, RowInitializer::Kind::kNormal});
    initializer.scale = at(table, "scale").get<float>();
    if (!std::isfinite(initializer.scale)) {
      throw std::invalid_argument("must be finite");
    }
    initializer.seed = at(table, "seed").get<std::uint64_t>();
    for (const Json& entry : at(json, "files")) {
      RowFile file;
      file.name = at(entry, "name").get<std::string>();
      if (file.name.empty() || file.name.find('/') != std::string::npos) {
        throw std::invalid_argument("must be a file in the same folder");
      }
      file.bytes = at(entry, "bytes").get<std::uint64_t>();
      file.crc = at(entry, "crc32c").get<std::uint32_t>();
      file.rows = at(entry, "rows").get<std::uint64_t>();
      manifest.files.push_back(std::move(file));
    }
    if (manifest.files.empty()) {
      throw std::invalid_argument("must name at least one file");
    }
  } catch (const std::exception& problem) {
    return fail(ErrorCode::kCorrupt, "the manifest's '{}' cannot be used: {}", field, problem.what());
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
