#include "motley/train/loop/rank_context.h"

#include <span>

namespace motley::train {

Result<std::string> broadcast_text(collective::Group& group, std::string text, int root, const Deadline& deadline) {
  auto bytes = static_cast<std::uint64_t>(text.size());
  MOTLEY_TRY(group.broadcast(std::as_writable_bytes(std::span(&bytes, 1)), root, deadline));
  text.resize(bytes);
  MOTLEY_TRY(group.broadcast(std::as_writable_bytes(std::span(text.data(), text.size())), root, deadline));
  return text;
}

}  // namespace motley::train
