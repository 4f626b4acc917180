#include "motley/train/checkpoint/checkpoint.h"

#include <algorithm>
#include <charconv>

#include "motley/base/guard.h"
#include "motley/base/log.h"
#include "motley/base/os/file.h"
#include "motley/serial/json_fields.h"
#include "motley/train/checkpoint/renamed_keys.h"

namespace motley::data {

template <class Archive>
void fields(Archive& archive, LedgerState& ledger) {
  archive.required("seed", ledger.seed);
  archive.required("epoch", ledger.epoch);
  archive.required("cursor", ledger.cursor);
  archive.required("size", ledger.size, NumberIs{.min = 1});
}

}  // namespace motley::data

namespace motley::train {

template <class Archive>
void fields(Archive& archive, Manifest::File& file) {
  archive.required("bytes", file.bytes);
  archive.required("crc32c", file.crc32c);
}

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kPrefix = "step-";
constexpr const char* kManifest = "manifest.json";
constexpr int kStateVersion = 2;
constexpr int kManifestVersion = 1;
constexpr double kLargest = 1LL << 53;  // that JSON readers take exactly

// What is in the two JSON files.
struct StateFields {
  SavedState state = {};
  Json batch_split = {};
  Json stage_batch_splits = {};
};

template <class Archive>
void fields(Archive& archive, StateFields& it) {
  SavedState& state = it.state;
  archive.version(kStateVersion, kRenamedFields);
  archive.required("step", state.step, NumberIs::between(0, kLargest));
  archive.required("ledger", state.ledger);
  archive.required("evaluated_step", state.evaluated_step);
  archive.required("next_evaluation", state.next_evaluation, NumberIs{.min = -1});
  archive.required("samples_lost_or_duplicated", state.not_used_once);
  archive.optional("batch_split", it.batch_split);
  archive.optional("stage_batch_splits", it.stage_batch_splits);
  archive.optional("embedding_servers", state.table_servers);
}

struct ManifestFields {
  std::int64_t step = 0;
  Json files = {};
};

template <class Archive>
void fields(Archive& archive, ManifestFields& manifest) {
  archive.version(kManifestVersion);
  archive.required("step", manifest.step);
  archive.required("files", manifest.files);
}

// Steps that have a finished folder, newest first.
std::vector<std::int64_t> checkpointed_steps(const fs::path& folder) {
  std::vector<std::int64_t> steps;
  std::error_code ignored;
  for (fs::directory_iterator at(folder, ignored); !ignored && at != fs::directory_iterator(); at.increment(ignored)) {
    const std::string name = at->path().filename().string();
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
  const auto damaged = [&](const std::string& what) {
    return fail(ErrorCode::kCorrupt, "checkpoint '{}' is damaged: {}", own.string(), what);
  };
  // Whose bytes are as they were written: another version of Motley did.
  const auto of_another = [&](const std::string& what) {
    return fail(ErrorCode::kCorrupt, "checkpoint '{}' is not one of this version of Motley: {}", own.string(), what);
  };
  MOTLEY_ASSIGN(const std::string text, read_file(own / kManifest, 1 << 20));
  const Result<Manifest> manifest = parse_manifest(text);
  if (!manifest) return damaged(manifest.error().message);
  if (manifest->step != step) return damaged(fmt::format("{} is of step {}", kManifest, manifest->step));
  Checkpoint checkpoint{step, {}};
  for (const auto& [name, written] : manifest->files) {
    Result<std::string> content = read_file(own / name, written.bytes);
    if (!content) {
      return damaged(fmt::format("{} cannot be read: {}", name, content.error().message));
    }
    if (content->size() != written.bytes) {
      return damaged(fmt::format("{} has {} bytes, {} were written", name, content->size(), written.bytes));
    }
    if (!MOTLEY_GUARD("checkpoint-checksum", crc32c(*content) == written.crc32c)) {
      return damaged(fmt::format("{} does not match its checksum", name));
    }
    checkpoint.files[name] = std::move(*content);
  }
  const Result<SavedState> state = parse_state(checkpoint.files[kStateFile]);
  if (!state) {
    const std::string& why = state.error().message;
    return why.find("'version'") != std::string::npos ? of_another(why) : damaged(why);
  }
  if (state->step != step) return damaged(fmt::format("{} is of step {}", kStateFile, state->step));
  return checkpoint;
}

// A checkpoint's files are written beside its place, each by one process: where ranks cannot reach each other, more
// than one may write the same step into a folder that they share.
constexpr char kAside[] = ".part-";

Result<fs::path> make_aside(const fs::path& own) {
  for (int number = 0;; ++number) {
    fs::path aside = own.string() + (MOTLEY_KEEPS("checkpoint-aside") ? kAside + std::to_string(number) : "");
    std::error_code problem;
    if (fs::create_directory(aside, problem) || aside == own) return aside;
    if (problem) return fail(ErrorCode::kIo, "cannot make the folder '{}': {}", aside.string(), problem.message());
  }
}

// What others have not finished, of earlier steps: they have been lost.
void remove_leftovers(const fs::path& folder, std::int64_t step) {
  std::error_code ignored;
  std::vector<fs::path> leftovers;
  for (fs::directory_iterator at(folder, ignored); !ignored && at != fs::directory_iterator(); at.increment(ignored)) {
    const bool is_aside = at->path().filename().string().find(kAside) != std::string::npos;
    if (is_aside && at->path() < make_folder_path(folder, step)) leftovers.push_back(at->path());
  }
  for (const fs::path& path : leftovers) fs::remove_all(path, ignored);
}

// Into its place. What is there and good stays: it is of the same step, and was said to be written.
Status put_in_place(const fs::path& aside, const fs::path& folder, std::int64_t step) {
  const fs::path own = make_folder_path(folder, step);
  std::error_code ignored;
  if (const Status renamed = rename_durably(aside, own); renamed || !fs::exists(own, ignored)) return renamed;
  if (MOTLEY_KEEPS("planted-good-checkpoint-stays") && read_checkpoint(folder, step)) {
    fs::remove_all(aside, ignored);
    return sync_folder(folder);
  }
  fs::remove_all(own, ignored);
  return rename_durably(aside, own);
}

}  // namespace

Status write_checkpoint(const fs::path& folder, const Checkpoint& checkpoint, int keep) {
  // A step has one state. A good checkpoint of it stays: without it, a power failure before the rename would lose what
  // was said to be written.
  if (MOTLEY_KEEPS("planted-good-checkpoint-stays") && read_checkpoint(folder, checkpoint.step)) {
    return sync_folder(folder);
  }
  std::error_code ignored;
  MOTLEY_TRY(make_folders(folder));
  MOTLEY_ASSIGN(const fs::path aside, make_aside(make_folder_path(folder, checkpoint.step)));
  const Status written = [&]() -> Status {
    Manifest manifest{checkpoint.step, {}};
    for (const auto& [name, content] : checkpoint.files) {
      MOTLEY_TRY(write_file(aside / name, content));
      manifest.files[name] = {content.size(), crc32c(content)};
    }
    MOTLEY_TRY(write_file(aside / kManifest, format_manifest(manifest)));
    return put_in_place(aside, folder, checkpoint.step);
  }();
  if (!written) {
    fs::remove_all(aside, ignored);
    Error error = written.error();
    if (const std::size_t at = error.message.find(aside.string()); at != std::string::npos) {
      error.message.replace(at, aside.string().size(), make_folder_path(folder, checkpoint.step).string());
    }
    return fail(error.within(
        fmt::format("the checkpoint of step {} was not written (earlier ones are intact)", checkpoint.step)));
  }
  remove_leftovers(folder, checkpoint.step);
  // Those of later steps are not counted: the run has gone back past them, as they are damaged.
  std::vector<std::int64_t> steps = checkpointed_steps(folder);
  std::erase_if(steps, [&](std::int64_t step) { return step > checkpoint.step; });
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
    if (checkpoint || !MOTLEY_KEEPS("checkpoint-one-before")) {
      for (const std::string& warning : damaged) spdlog::warn("{}; the one before it is used", warning);
      return checkpoint;
    }
    damaged.push_back(checkpoint.error().message);
  }
  if (damaged.empty()) {
    return fail(ErrorCode::kInvalidInput, "'{}' holds no checkpoint to resume from", folder.string());
  }
  return fail(ErrorCode::kCorrupt, "no checkpoint in '{}' can be used: {}", folder.string(), damaged.front());
}

std::string format_state(const SavedState& state) {
  StateFields written{state};
  if (!state.partition.empty()) written.batch_split = Json::parse(state.partition);
  if (!state.stage_split.empty()) written.stage_batch_splits = Json::parse(state.stage_split);
  return write_json(written);
}

Result<SavedState> parse_state(std::string_view text) {
  MOTLEY_ASSIGN(StateFields read, parse_json<StateFields>(text, kStateFile));
  SavedState& state = read.state;
  const auto refuse = [](const char* field, const auto& value, const std::string& accepted) {
    return fail(ErrorCode::kInvalidInput, "{}: field '{}' is {}; accepted is {}", kStateFile, field, value, accepted);
  };
  const data::LedgerState& ledger = state.ledger;
  if (ledger.cursor >= ledger.size) {
    return refuse("ledger.cursor", ledger.cursor,
                  fmt::format("0 to {}, as ledger.size is {}", ledger.size - 1, ledger.size));
  }
  // A step stays within an epoch.
  if (ledger.epoch > static_cast<std::uint64_t>(state.step)) {
    return refuse("ledger.epoch", ledger.epoch, fmt::format("0 to {}, the steps done", state.step));
  }
  if (state.evaluated_step > state.step) {
    return refuse("evaluated_step", state.evaluated_step, fmt::format("0 to {}, the steps done", state.step));
  }
  if (!read.batch_split.is_null()) state.partition = read.batch_split.dump();
  if (!read.stage_batch_splits.is_null()) state.stage_split = read.stage_batch_splits.dump();
  return state;
}

std::string format_manifest(const Manifest& manifest) {
  ManifestFields written{manifest.step, Json::object()};
  for (auto [name, file] : manifest.files) written.files[name] = JsonWriter::written(file);
  return write_json(written);
}

Result<Manifest> parse_manifest(std::string_view text) {
  MOTLEY_ASSIGN(const ManifestFields read, parse_json<ManifestFields>(text, kManifest));
  Manifest manifest{read.step, {}};
  for (const auto& [name, file] : read.files.items()) {
    if (name.find('/') != std::string::npos) {
      return fail(ErrorCode::kInvalidInput, "{}: field 'files' names '{}'; accepted are files of the checkpoint",
                  kManifest, name);
    }
    MOTLEY_ASSIGN(manifest.files[name],
                  parse_json<Manifest::File>(file.dump(), fmt::format("{}: files.{}", kManifest, name)));
  }
  for (const char* name : {kWeightsFile, kOptimizerFile, kStateFile, kAuditFile}) {
    if (!manifest.files.contains(name)) {
      return fail(ErrorCode::kInvalidInput, "{}: field 'files' does not name {}", kManifest, name);
    }
  }
  return manifest;
}

}  // namespace motley::train
