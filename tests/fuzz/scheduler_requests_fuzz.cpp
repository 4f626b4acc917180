// Any bytes given as the body of POST /v1/what-if, or behind "?" in the addresses of the other requests, are refused
// with a sentence or understood.
#include <cstddef>
#include <cstdint>
#include <string>

#include "motley/scheduling/service/explain.h"
#include "motley/scheduling/service/queries.h"
#include "motley/serial/json_fields.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace motley;
  using namespace motley::scheduling;
  const std::string text(reinterpret_cast<const char*>(bytes), size);
  const auto change = parse_json<WhatIf>(text, "the request");
  MOTLEY_INVARIANT(change || !change.error().message.empty(), "an error says nothing");
  const auto state = read_state_query({{"state", text}});
  MOTLEY_INVARIANT(state || !state.error().message.empty(), "an error says nothing");
  const std::size_t half = text.find('&');
  const std::string rest = half == std::string::npos ? "" : text.substr(half + 1);
  const auto logs = read_logs_query({{"attempt", text.substr(0, half)}, {"offset", rest}});
  MOTLEY_INVARIANT(logs || !logs.error().message.empty(), "an error says nothing");
  return 0;
}
