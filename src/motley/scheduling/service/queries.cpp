#include "motley/scheduling/service/queries.h"

#include <nlohmann/json.hpp>

#include "motley/base/text.h"
#include "motley/serial/json_fields.h"

namespace motley::scheduling {
namespace {

using Json = nlohmann::ordered_json;

// Which jobs a list has.
struct StateQuery {
  JobState state = JobState::kPending;
};

template <class Archive>
void fields(Archive& archive, StateQuery& query) {
  archive.required("state", query.state);
}

// What is no UTF-8 is shown as such.
template <class Query>
Result<Query> parse(const Json& query) {
  return parse_json<Query>(query.dump(-1, ' ', false, Json::error_handler_t::replace), "the query");
}

}  // namespace

template <class Archive>
void fields(Archive& archive, LogsQuery& query) {
  archive.optional("attempt", query.attempt);
  archive.optional("offset", query.offset);
}

Result<std::optional<JobState>> read_state_query(const QueryParameters& parameters) {
  const auto found = parameters.find("state");
  if (found == parameters.end() || found->second.empty()) return std::nullopt;
  MOTLEY_ASSIGN(const StateQuery query, parse<StateQuery>(Json{{"state", found->second}}));
  return query.state;
}

Result<LogsQuery> read_logs_query(const QueryParameters& parameters) {
  Json query = Json::object();
  for (const char* key : {"attempt", "offset"}) {
    const auto found = parameters.find(key);
    if (found == parameters.end()) continue;
    const auto number = parse_number<std::int64_t>(found->second);
    query[key] = number ? Json(*number) : Json(found->second);
  }
  return parse<LogsQuery>(query);
}

}  // namespace motley::scheduling
