// Any bytes given as a cluster.yaml are read or refused, and what is read can be written and read again alike.
#include <cstdint>
#include <string_view>

#include "motley/cluster/cluster.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace motley;
  const auto read = cluster::parse_cluster({reinterpret_cast<const char*>(data), size}, "fuzz.yaml");
  if (read) {
    const auto again = cluster::parse_cluster(cluster::to_yaml(*read), "again.yaml");
    MOTLEY_INVARIANT(again.has_value(), "written but not read: {}", again.error().message);
    MOTLEY_INVARIANT(*again == *read, "not the same after writing and reading");
  } else {
    MOTLEY_INVARIANT(!read.error().message.empty(), "an error says nothing");
  }
  return 0;
}
