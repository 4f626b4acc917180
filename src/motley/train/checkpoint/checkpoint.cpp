#include "motley/train/checkpoint/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "motley/base/log.h"
#include "motley/base/os/file.h"
#include "motley/train/checkpoint/renamed_keys.h"

namespace motley::train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kPrefix = "step-";
constexpr const char* kManifest = "manifest.json";
constexpr int kStateVersion = 2;

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

fs::path make_folder_path(const fs::path& folder, std::int64_t step) {
  return folder / fmt::format("{}{:08}", kPrefix, step);
}

Result<Checkpoint> read_checkpoint(const fs::path& folder, std::int64_t step) {
  const fs::path own = make_folder_path(folder, step);
  MOTLEY_ASSIGN(const std::string text, read_file(own / kManifest, 1 << 20));
  const Json manifest = Json::parse(text, nullptr, false);
  const auto damaged = [&](const std::string& name, const std::string& what) {
    return fail(ErrorCode::kCorrupt, "checkpoint '{}' is damaged: {} {}", own.string(), name, what);
  };
  std::map<std::string, std::pair<std::size_t, std::uint32_t>> entries;  // bytes and checksum
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
  for (const char* name : {kWeightsFile, kOptimizerFile, kStateFile, kAuditFile}) {
    if (!entries.contains(name)) {
      return damaged(kManifest, fmt::format("does not name {}", name));
    }
  }
  Checkpoint checkpoint{step, {}};
  for (const auto& [name, written] : entries) {
    const auto [bytes, crc] = written;
    if (name.find('/') != std::string::npos) {
      return damaged(kManifest, "names a file outside the checkpoint");
    }
    Result<std::string> content = read_file(own / name);
    if (!content) {
      return damaged(name, "cannot be read: " + content.error().message);
    }
    if (content->size() != bytes) {
      return damaged(name, fmt::format("has {} bytes, {} were written", content->size(), bytes));
    }
    if (crc32c(*content) != crc) {
      return damaged(name, "does not match its checksum");
    }
    checkpoint.files[name] = std::move(*content);
  }
  return checkpoint;
}

}  // namespace

Status write_checkpoint(const fs::path& folder, const Checkpoint& checkpoint, int keep) {
  const fs::path own = make_folder_path(folder, checkpoint.step);
  const fs::path aside = own.string() + ".part";
  std::error_code ignored;
  fs::remove_all(aside, ignored);
  MOTLEY_TRY(make_folders(aside));
  const Status written = [&]() -> Status {
    Json files = Json::object();
    for (const auto& [name, content] : checkpoint.files) {
      MOTLEY_TRY(write_file(aside / name, content));
      files[name] = {{"bytes", content.size()}, {"crc32c", crc32c(content)}};
    }
    const Json manifest = {{"version", 1}, {"step", checkpoint.step}, {"files", files}};
    MOTLEY_TRY(write_file(aside / kManifest, manifest.dump(2) + "\n"));
    fs::remove_all(own, ignored);
    return rename_durably(aside, own);
  }();
  if (!written) {
    fs::remove_all(aside, ignored);
    return fail(written.error().within(
        fmt::format("the checkpoint of step {} was not written (earlier ones are intact)", checkpoint.step)));
  }
  const std::vector<std::int64_t> steps = checkpointed_steps(folder);
  for (std::size_t i = static_cast<std::size_t>(keep); i < steps.size(); ++i) {
    fs::remove_all(make_folder_path(folder, steps[i]), ignored);
  }
  return {};
}

bool holds_checkpoint(const fs::path& folder) {
  return !checkpointed_steps(folder).empty();
}

Result<Checkpoint> read_newest_checkpoint(const fs::path& folder) {
  std::vector<std::string> damaged;
  for (const std::int64_t step : checkpointed_steps(folder)) {
    Result<Checkpoint> checkpoint = read_checkpoint(folder, step);
    if (checkpoint) {
      for (const std::string& warning : damaged) spdlog::warn("{}", warning);
      return checkpoint;
    }
    damaged.push_back(checkpoint.error().message + "; the one before it is used");
  }
  if (damaged.empty()) {
    return fail(ErrorCode::kInvalidInput, "'{}' holds no checkpoint to resume from", folder.string());
  }
  return fail(ErrorCode::kCorrupt, "no checkpoint in '{}' can be used: {}", folder.string(), damaged.front());
}

std::string format_state(const SavedState& state) {
  Json json = {{"version", kStateVersion},
               {"step", state.step},
               {"ledger",
                {{"seed", state.ledger.seed},
                 {"epoch", state.ledger.epoch},
                 {"cursor", state.ledger.cursor},
                 {"size", state.ledger.size}}},
               {"evaluated_step", state.evaluated_step},
               {"next_evaluation", state.next_evaluation},
               {"samples_lost_or_duplicated", state.not_used_once}};
  if (!state.partition.empty()) json["batch_split"] = Json::parse(state.partition);
  if (!state.stage_split.empty()) json["stage_batch_splits"] = Json::parse(state.stage_split);
  if (state.table_servers > 0) json["embedding_servers"] = state.table_servers;
  return json.dump(2) + "\n";
}

Result<SavedState> parse_state(const std::string& text) {
  try {
    const Json json = Json::parse(text);
    if (json.at("version").get<int>() != kStateVersion) {
      return fail(ErrorCode::kInvalidInput,
                  "the checkpoint's state.json has version {}; this Motley reads version {}, in which {}",
                  json.at("version").dump(), kStateVersion, to_string(kRenamedFields));
    }
    SavedState state;
    json.at("step").get_to(state.step);
    json.at("ledger").at("seed").get_to(state.ledger.seed);
    json.at("ledger").at("epoch").get_to(state.ledger.epoch);
    json.at("ledger").at("cursor").get_to(state.ledger.cursor);
    json.at("ledger").at("size").get_to(state.ledger.size);
    if (json.contains("batch_split")) state.partition = json.at("batch_split").dump();
    if (json.contains("stage_batch_splits")) state.stage_split = json.at("stage_batch_splits").dump();
    if (json.contains("embedding_servers")) json.at("embedding_servers").get_to(state.table_servers);
    json.at("evaluated_step").get_to(state.evaluated_step);
    json.at("next_evaluation").get_to(state.next_evaluation);
    json.at("samples_lost_or_duplicated").get_to(state.not_used_once);
    return state;
  } catch (const nlohmann::json::exception& problem) {
    return fail(ErrorCode::kCorrupt, "the checkpoint's state.json cannot be read: {}", problem.what());
  }
}

}  // namespace motley::train
