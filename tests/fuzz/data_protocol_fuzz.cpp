// Whatever bytes a worker or a data node sends: decoded or refused, what was decoded is what was sent, and samples are
// as the description says or refused.
#include <algorithm>
#include <vector>

#include "motley/data/remote/protocol.h"

namespace {

using motley::data::Description;

void expect(bool holds) {
  if (!holds) __builtin_trap();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t size) {
  using namespace motley;
  if (size == 0) return 0;
  const auto* begin = reinterpret_cast<const std::byte*>(input);
  const std::vector<std::byte> bytes(begin + 1, begin + size);
  static const Description images = {.size = 1000, .feature_shape = {3}, .class_count = 300, .bytes = {{}}};
  static const Description table = {
      .size = 1000, .feature_shape = {2}, .target_kind = data::TargetKind::kReal, .target_width = 2, .categories = 2};
  switch (input[0] % 5) {
    case 0:
      if (const auto open = data::decode_open(bytes)) expect(encode(*open) == bytes);
      break;
    case 1:
      if (const auto description = data::decode_description(bytes)) {
        expect(encode(*description) == bytes);
        expect(data::samples_in_answer(*description, {true, false}) > 0);
      }
      break;
    case 2:
      if (const auto error = data::decode_failed(bytes)) expect(data::encode(*error) == bytes);
      break;
    case 3:
      for (const Description* description : {&images, &table}) {
        if (const auto read = data::decode_read(bytes, *description)) {
          expect(data::encode_read(read->parts, read->samples) == bytes);
          expect(std::ranges::max(read->samples) < description->size);
        }
      }
      break;
    default:
      for (const Description* description : {&images, &table}) {
        const std::size_t count = bytes.size() / data::sample_bytes(*description, {});
        const bool has_classes = description->class_count > 0;
        std::vector<float> features(count * description->feature_count());
        std::vector<float> values(has_classes ? 0 : count * description->target_width);
        std::vector<std::int64_t> classes(has_classes ? count : 0);
        std::vector<std::uint64_t> ids(count * description->categories);
        const auto samples = std::span(bytes).first(count * data::sample_bytes(*description, {}));
        if (data::unpack(samples, *description, {}, count, {features, classes, values, ids})) {
          for (const std::int64_t value : classes) expect(value >= 0 && value < description->class_count);
        }
      }
  }
  return 0;
}
