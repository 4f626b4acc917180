#include "motley/train/checkpoint/saved_state.h"

#include <nlohmann/json.hpp>

namespace motley::train {

using Json = nlohmann::ordered_json;

std::string format_state(const SavedState& state) {
  Json json = {{"version", 1},
               {"step", state.step},
               {"ledger",
                {{"seed", state.ledger.seed},
                 {"epoch", state.ledger.epoch},
                 {"cursor", state.ledger.cursor},
                 {"size", state.ledger.size}}},
               {"evaluated_step", state.evaluated_step},
               {"next_evaluation", state.next_evaluation},
               {"samples_not_used_exactly_once", state.not_used_once}};
  if (!state.partition.empty()) json["partition"] = Json::parse(state.partition);
  if (!state.stage_shares.empty()) json["stage_shares"] = Json::parse(state.stage_shares);
  if (state.table_servers > 0) json["table_servers"] = state.table_servers;
  return json.dump(2) + "\n";
}

Result<SavedState> parse_state(const std::string& text) {
  try {
    const Json json = Json::parse(text);
    if (json.at("version").get<int>() != 1) {
      return fail(ErrorCode::kInvalidInput, "the checkpoint's state.json has version {}; this Motley reads version 1",
                  json.at("version").dump());
    }
    SavedState state;
    json.at("step").get_to(state.step);
    json.at("ledger").at("seed").get_to(state.ledger.seed);
    json.at("ledger").at("epoch").get_to(state.ledger.epoch);
    json.at("ledger").at("cursor").get_to(state.ledger.cursor);
    json.at("ledger").at("size").get_to(state.ledger.size);
    if (json.contains("partition")) state.partition = json.at("partition").dump();
    if (json.contains("stage_shares")) state.stage_shares = json.at("stage_shares").dump();
    if (json.contains("table_servers")) json.at("table_servers").get_to(state.table_servers);
    json.at("evaluated_step").get_to(state.evaluated_step);
    json.at("next_evaluation").get_to(state.next_evaluation);
    json.at("samples_not_used_exactly_once").get_to(state.not_used_once);
    return state;
  } catch (const nlohmann::json::exception& problem) {
    return fail(ErrorCode::kCorrupt, "the checkpoint's state.json cannot be read: {}", problem.what());
  }
}

}  // namespace motley::train
