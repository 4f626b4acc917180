// Words for waits.
#include "motley/exchange/waiting.h"

namespace motley::exchange {

std::string describe_ranks(const transport::Session& session, const std::vector<int>& ranks) {
  std::string text;
  for (int rank : ranks) {
    const std::string heard = session.last_heard(rank);
    text += fmt::format("{}rank {}{}", text.empty() ? "" : ", ", rank,
                        heard.empty() ? "" : fmt::format(" (last heard: {})", heard));
  }
  return text.empty() ? "this rank" : text;
}

}  // namespace motley::exchange
