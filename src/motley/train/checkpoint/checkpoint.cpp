#include "motley/train/checkpoint/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "motley/base/os/file.h"

namespace motley::train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kPrefix = "step-";
constexpr const char* kManifest = "manifest.json";
constexpr const char* kNeeded[] = {"weights.safetensors", "optimizer.safetensors", "state.json", "audit.bin"};

// Steps that have a finished folder, newest first.
std::vector<std::int64_t> checkpointed_steps(const fs::path& folder) {
  std::vector<std::int64_t> steps;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    std::int64_t step = 0;
    const char* begin = name.data() + std::string_view(kPrefix).size();
    const char* end = name.data() + name.size();
    if (name.rfind(kPrefix, 0) == 0 && std::from_chars(begin, end, step).ptr == end) {
      steps.push_back(step);
    }
  }
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

fs::path folder_of(const fs::path& folder, std::int64_t step) {
  return folder / fmt::format("{}{:08}", kPrefix, step);
}

Result<Checkpoint> read_checkpoint(const fs::path& folder, std::int64_t step) {
  const fs::path own = folder_of(folder, step);
  MOTLEY_ASSIGN(const std::string text, read_file(own / kManifest, 1 << 20));
  const Json manifest = Json::parse(text, nullptr, false);
  const auto damaged = [&](const std::string& name, const std::string& what) {
    return fail(ErrorCode::kCorrupt, "checkpoint '{}' is damaged: {} {}", own.string(), name, what);
  };
  struct Entry {
    std::size_t bytes = 0;
    std::uint32_t crc = 0;
  };
  std::map<std::string, Entry> entries;
  try {
    if (manifest.at("version").get<int>() != 1) {
      return damaged(kManifest, "is not of version 1");
    }
    for (const auto& [name, entry] : manifest.at("files").items()) {
      entries[name] = {entry.at("bytes").get<std::size_t>(), entry.at("crc32c").get<std::uint32_t>()};
    }
  } catch (const Json::exception&) {
    return damaged(kManifest, "is not a manifest");
  }
  for (const char* name : kNeeded) {
    if (!entries.contains(name)) {
      return damaged(kManifest, fmt::format("does not name {}", name));
    }
  }
  Checkpoint checkpoint{step, {}};
  for (const auto& [name, entry] : entries) {
    if (name.find('/') != std::string::npos) {
      return damaged(kManifest, "names a file outside the checkpoint");
    }
    Result<std::string> content = read_file(own / name);
    if (!content) {
      return damaged(name, "cannot be read: " + content.error().message);
    }
    if (content->size() != entry.bytes) {
      return damaged(name, fmt::format("has {} bytes, {} were written", content->size(), entry.bytes));
    }
    if (crc32c(*content) != entry.crc) {
      return damaged(name, "does not match its checksum");
    }
    checkpoint.files[name] = std::move(*content);
  }
  return checkpoint;
}

}  // namespace

Status write_checkpoint(const fs::path& folder, const Checkpoint& checkpoint, int keep) {
  const fs::path own = folder_of(folder, checkpoint.step);
  const fs::path aside = own.string() + ".part";
  std::error_code ignored;
  fs::remove_all(aside, ignored);
  MOTLEY_TRY(make_folders(aside));
  Json files = Json::object();
  Status written;
  for (const auto& [name, content] : checkpoint.files) {
    written = write_file(aside / name, content);
    if (!written) {
      break;
    }
    files[name] = {{"bytes", content.size()}, {"crc32c", crc32c(content)}};
  }
  if (written) {
    written =
        write_file(aside / kManifest, Json{{"version", 1}, {"step", checkpoint.step}, {"files", files}}.dump(2) + "\n");
  }
  if (written) {
    fs::remove_all(own, ignored);
    written = rename_durably(aside, own);
  }
  if (!written) {
    fs::remove_all(aside, ignored);
    return fail(written.error().within(
        fmt::format("the checkpoint of step {} was not written (earlier ones are intact)", checkpoint.step)));
  }
  const std::vector<std::int64_t> steps = checkpointed_steps(folder);
  for (std::size_t i = static_cast<std::size_t>(keep); i < steps.size(); ++i) {
    fs::remove_all(folder_of(folder, steps[i]), ignored);
  }
  return {};
}

bool holds_checkpoint(const fs::path& folder) {
  return !checkpointed_steps(folder).empty();
}

Result<LoadedCheckpoint> read_newest_checkpoint(const fs::path& folder) {
  LoadedCheckpoint loaded;
  for (const std::int64_t step : checkpointed_steps(folder)) {
    Result<Checkpoint> checkpoint = read_checkpoint(folder, step);
    if (checkpoint) {
      loaded.checkpoint = std::move(*checkpoint);
      return loaded;
    }
    loaded.warnings.push_back(checkpoint.error().message + "; the one before it is used");
  }
  if (loaded.warnings.empty()) {
    return fail(ErrorCode::kInvalidInput, "'{}' holds no checkpoint to resume from", folder.string());
  }
  return fail(ErrorCode::kCorrupt, "no checkpoint in '{}' can be used: {}", folder.string(), loaded.warnings.front());
}

}  // namespace motley::train
