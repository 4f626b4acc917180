// Whatever bytes a worker or a server sends: decoded or refused, and what was decoded is what was sent.
#include <algorithm>
#include <cstdlib>

#include "motley/collective/server_protocol.h"

namespace {

template <class Message>
void check(const motley::Result<Message>& message, std::span<const std::byte> bytes) {
  if (!message) return;
  const auto again = motley::collective::encode(*message);
  if (again.size() != bytes.size() || !std::equal(again.begin(), again.end(), bytes.begin())) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
  switch (data[0] % 4) {
    case 0:
      check(motley::collective::decode_server_info(bytes), bytes);
      break;
    case 1:
      check(motley::collective::decode_server_join(bytes), bytes);
      break;
    case 2:
      check(motley::collective::decode_server_joined(bytes), bytes);
      break;
    default:
      check(motley::collective::decode_server_failed(bytes), bytes);
  }
  return 0;
}
