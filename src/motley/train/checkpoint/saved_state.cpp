#include "motley/train/checkpoint/saved_state.h"

#include <nlohmann/json.hpp>

#include "motley/train/checkpoint/renamed_keys.h"

namespace motley::train {

using Json = nlohmann::ordered_json;

namespace {

constexpr int kVersion = 2;

}  // namespace

std::string format_state(const SavedState& state) {
  Json json = {{"version", kVersion},
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
    if (json.at("version").get<int>() != kVersion) {
      return fail(ErrorCode::kInvalidInput,
                  "the checkpoint's state.json has version {}; this Motley reads version {}, in which {}",
                  json.at("version").dump(), kVersion, to_string(kRenamedFields));
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
