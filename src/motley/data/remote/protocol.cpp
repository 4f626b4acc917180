// Messages to bytes and back, and samples to bytes and back (see protocol.h).
#include "motley/data/remote/protocol.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "motley/base/os/file.h"
#include "motley/base/random.h"
#include "motley/net/bytes.h"

namespace motley::data {
namespace {

using net::ByteReader;
using net::ByteWriter;

constexpr std::size_t kMaxReasonBytes = 16 << 10;
constexpr std::size_t kMaxSkippedBytes = 1024;
constexpr std::size_t kMostDimensions = 16;
constexpr std::uint64_t kMostFeatures = std::uint64_t{1} << 26;  // and categories, and target values, of a sample
constexpr std::uint32_t kMostClasses = 1U << 24;
constexpr std::size_t kMostAnswerBytes = 4 << 20;
constexpr std::size_t kMostRequested = 65'536;  // samples of one request
constexpr std::uint32_t kHashedSamples = 65'536;

tl::unexpected<Error> malformed(const char* what, std::size_t bytes) {
  return fail(ErrorCode::kCorrupt, "{} bytes are no {} of a data node", bytes, what);
}

// Bytes of a class on the wire.
std::size_t class_bytes(const Description& description) {
  return description.class_count <= 1U << 8 ? 1 : description.class_count <= 1U << 16 ? 2 : 4;
}

void put_floats(ByteWriter& writer, std::span<const float> values) {
  for (const float value : values) writer.put(std::bit_cast<std::uint32_t>(value));
}

float get_float(ByteReader& reader) {
  return std::bit_cast<float>(reader.get<std::uint32_t>());
}

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

// Narrow enough for the wire: each value is below the number of values of T.
template <class T>
void narrow(std::span<const std::int64_t> classes, std::byte* to) {
  for (std::size_t i = 0; i < classes.size(); ++i) {
    const T value = static_cast<T>(classes[i]);
    std::memcpy(to + i * sizeof value, &value, sizeof value);
  }
}

template <class T>
bool widen(const std::byte* from, std::uint32_t class_count, std::span<std::int64_t> classes) {
  bool known = true;
  for (std::size_t i = 0; i < classes.size(); ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof value, sizeof value);
    known = known && value < class_count;
    classes[i] = value;
  }
  return known;
}

}  // namespace

const char* to_string(Set set) {
  return set == Set::kTraining ? "training" : "test";
}

std::size_t Description::feature_count() const {
  return std::accumulate(feature_shape.begin(), feature_shape.end(), std::size_t{1},
                         [](std::size_t product, std::int64_t extent) { return product * std::size_t(extent); });
}

bool Description::operator==(const Description& other) const {
  return encode(*this) == encode(other);
}

Result<Description> describe(const data::Dataset& dataset) {
  Description description;
  description.size = dataset.size();
  description.feature_shape = dataset.feature_shape();
  description.target_kind = dataset.target_kind();
  description.class_count = dataset.class_count();
  description.target_width = dataset.target_width();
  description.categories = dataset.categories();
  if (const data::ByteFeatures* bytes = dataset.byte_features()) description.bytes = *bytes;
  description.skipped = dataset.skipped();
  description.skipped.first.resize(std::min(description.skipped.first.size(), kMaxSkippedBytes));
  if (description.feature_count() > kMostFeatures) {
    return fail(ErrorCode::kInvalidInput, "a sample has {} features; accepted from a data node: {}",
                description.feature_count(), kMostFeatures);
  }
  const std::uint32_t count = std::min(description.size, kHashedSamples);
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto sample = static_cast<std::uint32_t>(std::uint64_t{i} * description.size / count);
    MOTLEY_ASSIGN(const auto bytes, pack(dataset, description, {{}, {sample}}));
    description.contents = mix({description.contents, crc32c(bytes)});
  }
  return description;
}

std::size_t sample_bytes(const Description& description, data::Parts parts) {
  std::size_t bytes = 0;
  if (parts.inputs) {
    bytes += description.categories * sizeof(std::uint64_t);
    bytes += description.feature_count() * (description.bytes ? 1 : sizeof(float));
  }
  if (parts.targets) {
    const bool classes = description.target_kind == data::TargetKind::kClass;
    bytes += description.target_width * (classes ? class_bytes(description) : sizeof(float));
  }
  return bytes;
}

std::size_t samples_in_answer(const Description& description, data::Parts parts) {
  return std::clamp<std::size_t>(kMostAnswerBytes / std::max<std::size_t>(1, sample_bytes(description, parts)), 1,
                                 kMostRequested);
}

std::vector<std::byte> encode(const Open& open) {
  ByteWriter writer;
  writer.put(static_cast<std::uint8_t>(open.set));
  writer.put_text(open.keys, kMaxKeysBytes);
  return writer.take();
}

Result<Open> decode_open(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  const auto set = reader.get<std::uint8_t>();
  Open open{static_cast<Set>(set), reader.get_text(kMaxKeysBytes)};
  if (!reader.complete() || set > static_cast<std::uint8_t>(Set::kTest)) return malformed("opening", bytes.size());
  return open;
}

std::vector<std::byte> encode(const Description& description) {
  ByteWriter writer;
  writer.put(description.size);
  writer.put(static_cast<std::uint8_t>(description.feature_shape.size()));
  for (const std::int64_t extent : description.feature_shape) writer.put(static_cast<std::uint32_t>(extent));
  writer.put(static_cast<std::uint8_t>(description.target_kind));
  writer.put(description.class_count);
  writer.put(description.target_width);
  writer.put(description.categories);
  writer.put(description.skipped.lines);
  writer.put_text(description.skipped.first, kMaxSkippedBytes);
  writer.put(description.contents);
  writer.put(static_cast<std::uint8_t>(description.bytes.has_value()));
  if (description.bytes) {
    put_floats(writer, {&description.bytes->scale, 1});
    writer.put(static_cast<std::uint32_t>(description.bytes->normalisation.mean.size()));
    put_floats(writer, description.bytes->normalisation.mean);
    put_floats(writer, description.bytes->normalisation.deviation);
  }
  return writer.take();
}

Result<Description> decode_description(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  Description description;
  description.size = reader.get<std::uint32_t>();
  const std::size_t dimensions = reader.get<std::uint8_t>();
  std::uint64_t features = 1;
  for (std::size_t i = 0; i < std::min(dimensions, kMostDimensions); ++i) {
    const auto extent = reader.get<std::uint32_t>();
    description.feature_shape.push_back(extent);
    features = std::min(features, kMostFeatures + 1) * extent;
  }
  const auto kind = reader.get<std::uint8_t>();
  description.target_kind = static_cast<data::TargetKind>(kind);
  description.class_count = reader.get<std::uint32_t>();
  description.target_width = reader.get<std::uint32_t>();
  description.categories = reader.get<std::uint32_t>();
  description.skipped.lines = reader.get<std::uint64_t>();
  description.skipped.first = reader.get_text(kMaxSkippedBytes);
  description.contents = reader.get<std::uint64_t>();
  const auto has_bytes = reader.get<std::uint8_t>();
  if (has_bytes == 1) {
    data::ByteFeatures form;
    form.scale = get_float(reader);
    const auto pairs = reader.get<std::uint32_t>();
    if (reader.remaining() != std::uint64_t{pairs} * 2 * sizeof(float) || (pairs > 1 && pairs != features) ||
        !std::isfinite(form.scale) || !(form.scale > 0)) {
      return malformed("description", bytes.size());
    }
    for (std::uint32_t i = 0; i < pairs; ++i) form.normalisation.mean.push_back(get_float(reader));
    for (std::uint32_t i = 0; i < pairs; ++i) form.normalisation.deviation.push_back(get_float(reader));
    description.bytes = std::move(form);
  }
  const bool has_classes = description.target_kind == data::TargetKind::kClass;
  const auto most = static_cast<std::uint32_t>(kMostFeatures);
  const bool possible = dimensions >= 1 && dimensions <= kMostDimensions && features <= kMostFeatures &&
                        features + description.categories > 0 && description.categories <= most &&
                        description.target_width >= 1 && description.target_width <= most && description.size > 0 &&
                        kind <= static_cast<std::uint8_t>(data::TargetKind::kReal) &&
                        has_classes == (description.class_count > 0) && description.class_count <= kMostClasses &&
                        has_bytes <= 1;
  if (!reader.complete() || !possible) return malformed("description", bytes.size());
  return description;
}

std::vector<std::byte> encode_read(data::Parts parts, std::span<const std::uint32_t> samples) {
  ByteWriter writer;
  writer.put(static_cast<std::uint8_t>((parts.inputs ? 1 : 0) | (parts.targets ? 2 : 0)));
  for (const std::uint32_t sample : samples) writer.put(sample);
  return writer.take();
}

Result<Read> decode_read(std::span<const std::byte> bytes, const Description& description) {
  ByteReader reader(bytes);
  const auto parts = reader.get<std::uint8_t>();
  Read read{{(parts & 1) != 0, (parts & 2) != 0}, {}};
  const std::size_t count = reader.remaining() / sizeof(std::uint32_t);
  if (parts < 1 || parts > 3 || count == 0 || reader.remaining() % sizeof(std::uint32_t) != 0 ||
      count > samples_in_answer(description, read.parts)) {
    return malformed("request", bytes.size());
  }
  read.samples.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    read.samples.push_back(reader.get<std::uint32_t>());
    if (read.samples.back() >= description.size) {
      return fail(ErrorCode::kCorrupt, "sample {} was asked for of a dataset of {}", read.samples.back(),
                  description.size);
    }
  }
  return read;
}

std::vector<std::byte> encode(const Error& error) {
  ByteWriter writer;
  writer.put_text(error.message, kMaxReasonBytes);
  writer.put(static_cast<std::uint16_t>(error.code));
  return writer.take();
}

Result<Error> decode_failed(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  Error error{ErrorCode::kInternal, reader.get_text(kMaxReasonBytes), -1};
  const auto code = reader.get<std::uint16_t>();
  error.code = static_cast<ErrorCode>(code);
  if (!reader.complete() || code > static_cast<std::uint16_t>(ErrorCode::kInternal)) {
    return malformed("failure", bytes.size());
  }
  return error;
}

Result<std::vector<std::byte>> pack(const data::Dataset& dataset, const Description& description, const Read& read) {
  const std::size_t count = read.samples.size();
  const std::size_t inputs = read.parts.inputs ? count : 0;
  const std::size_t targets = read.parts.targets ? count * description.target_width : 0;
  const bool has_classes = description.target_kind == data::TargetKind::kClass;
  std::vector<std::uint64_t> ids(inputs * description.categories);
  const std::size_t features = inputs * description.feature_count();
  std::vector<std::uint8_t> bytes(description.bytes ? features : 0);
  std::vector<float> floats(description.bytes ? 0 : features);
  std::vector<std::int64_t> classes(has_classes ? targets : 0);
  std::vector<float> values(has_classes ? 0 : targets);
  MOTLEY_TRY(dataset.read(read.samples, {floats, classes, values, ids, bytes}));

  std::vector<std::byte> packed(count * sample_bytes(description, read.parts));
  std::byte* to = packed.data();
  for (const auto part : {bytes_of(ids), bytes_of(bytes), bytes_of(floats), bytes_of(values)}) {
    to = std::copy(part.begin(), part.end(), to);
  }
  switch (class_bytes(description)) {
    case 1:
      narrow<std::uint8_t>(classes, to);
      break;
    case 2:
      narrow<std::uint16_t>(classes, to);
      break;
    default:
      narrow<std::uint32_t>(classes, to);
  }
  return packed;
}

Status unpack(std::span<const std::byte> bytes, const Description& description, data::Parts parts, std::size_t count,
              const data::ReadTarget& into) {
  MOTLEY_INVARIANT(bytes.size() == count * sample_bytes(description, parts), "{} bytes of {} samples", bytes.size(),
                   count);
  const auto take = [&bytes](std::size_t size) {
    const auto taken = bytes.first(size);
    bytes = bytes.subspan(size);
    return taken;
  };
  const auto copy = [](std::span<const std::byte> from, auto to) {
    if (!to.empty()) std::memcpy(to.data(), from.data(), from.size());
  };
  if (parts.inputs) {
    copy(take(count * description.categories * sizeof(std::uint64_t)), into.ids);
    const std::size_t features = count * description.feature_count();
    if (!description.bytes) {
      copy(take(features * sizeof(float)), into.features);
    } else if (const auto stored = take(features); !into.features.empty()) {
      data::features_of({reinterpret_cast<const std::uint8_t*>(stored.data()), features}, *description.bytes,
                        description.feature_count(), into.features);
    }
  }
  if (!parts.targets) return {};
  if (description.target_kind == data::TargetKind::kReal) {
    copy(bytes, into.values);
    return {};
  }
  const std::size_t width = class_bytes(description);
  const bool known = width == 1   ? widen<std::uint8_t>(bytes.data(), description.class_count, into.classes)
                     : width == 2 ? widen<std::uint16_t>(bytes.data(), description.class_count, into.classes)
                                  : widen<std::uint32_t>(bytes.data(), description.class_count, into.classes);
  if (!known) return fail(ErrorCode::kCorrupt, "a class beyond the {} that there are", description.class_count);
  return {};
}

}  // namespace motley::data
