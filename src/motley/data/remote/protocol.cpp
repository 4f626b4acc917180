#include "motley/data/remote/protocol.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "motley/base/os/file.h"
#include "motley/base/random.h"
#include "motley/net/message_fields.h"

namespace motley::data {
namespace {

using net::ByteReader;
using net::ByteWriter;

constexpr std::size_t kMaxReasonBytes = 16 << 10;
constexpr std::size_t kMaxSkippedBytes = 1024;
constexpr std::size_t kMaxDimensions = 16;
constexpr std::uint64_t kMaxFeatures = std::uint64_t{1} << 26;  // and categories, and target values, of a sample
constexpr std::uint32_t kMaxClasses = 1U << 24;
constexpr std::size_t kMaxAnswerBytes = 4 << 20;
constexpr std::size_t kMaxRequested = 65'536;  // samples of one request
constexpr std::uint32_t kHashedSamples = 65'536;
constexpr std::uint64_t kHashedBytes = std::uint64_t{256} << 20;

tl::unexpected<Error> malformed(const char* what, std::size_t bytes) {
  return fail(ErrorCode::kCorrupt, "{} bytes are no {} of a data server", bytes, what);
}

// Calls work with a value of the type that classes have on the wire, which has room for each.
template <class Work>
auto with_class_type(const Description& description, const Work& work) {
  if (description.class_count <= 1U << 8) return work(std::uint8_t{});
  if (description.class_count <= 1U << 16) return work(std::uint16_t{});
  return work(std::uint32_t{});
}

template <class T>
std::span<const std::byte> as_raw_bytes(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
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
  description.class_names = dataset.preprocessing().class_names;
  description.skipped = dataset.skipped();
  description.skipped.first.resize(std::min(description.skipped.first.size(), kMaxSkippedBytes));
  if (description.feature_count() > kMaxFeatures) {
    return fail(ErrorCode::kInvalidInput, "a sample has {} features; accepted from a data server: {}",
                description.feature_count(), kMaxFeatures);
  }
  const auto affordable = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(
      kHashedBytes / std::max<std::size_t>(1, sample_bytes(description, {})), 1, kHashedSamples));
  const std::uint32_t count = std::min(description.size, affordable);
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto sample = static_cast<std::uint32_t>(std::uint64_t{i} * description.size / count);
    MOTLEY_ASSIGN(const auto bytes, pack(dataset, description, {{}, {sample}}));
    description.contents = mix({description.contents, crc32c(bytes)});
  }
  MOTLEY_ASSIGN(const auto improbable, find_improbable_target(dataset));
  if (improbable) description.improbable_target = improbable->sample;
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
    bytes += description.target_width *
             (classes ? with_class_type(description, [](auto value) { return sizeof value; }) : sizeof(float));
  }
  return bytes;
}

std::size_t samples_in_answer(const Description& description, data::Parts parts) {
  return std::clamp<std::size_t>(kMaxAnswerBytes / std::max<std::size_t>(1, sample_bytes(description, parts)), 1,
                                 kMaxRequested);
}

// Found by argument-dependent lookup, so not in the anonymous namespace.
template <class Archive>
static void fields(Archive& archive, Open& open) {
  archive.required("set", open.set, NumberIs::between(0, static_cast<double>(Set::kTest)));
  archive.required("keys", open.keys, NumberIs::between(0, kMaxKeysBytes));
}

std::vector<std::byte> encode(const Open& open) {
  return net::encode_message(open);
}

Result<Open> decode_open(std::span<const std::byte> bytes) {
  return net::decode_message<Open>(bytes, "opening");
}

// As many deviations as means, which say how many there are.
template <class Archive>
static void fields(Archive& archive, ByteFeatures& form) {
  archive.required("scale", form.scale, NumberIs::kPositive);
  archive.required("mean", form.normalisation.mean, NumberIs::kFinite);
  form.normalisation.deviation.resize(form.normalisation.mean.size());
  for (float& deviation : form.normalisation.deviation) archive.required("deviation", deviation, NumberIs::kFinite);
}

template <class Archive>
static void fields(Archive& archive, Description& description) {
  constexpr NumberIs kAtMostFeatures = NumberIs::between(0, kMaxFeatures);
  archive.required("size", description.size, NumberIs::between(1, std::numeric_limits<std::uint32_t>::max()));
  auto dimensions = static_cast<std::uint8_t>(description.feature_shape.size());
  archive.required("dimensions", dimensions, NumberIs::between(1, kMaxDimensions));
  description.feature_shape.resize(dimensions);
  for (std::int64_t& extent : description.feature_shape) {
    auto narrow = static_cast<std::uint32_t>(extent);
    archive.required("extent", narrow, kAtMostFeatures);
    extent = narrow;
  }
  archive.required("target_kind", description.target_kind,
                   NumberIs::between(0, static_cast<double>(TargetKind::kReal)));
  archive.required("class_count", description.class_count, NumberIs::between(0, kMaxClasses));
  archive.required("target_width", description.target_width, NumberIs::between(1, kMaxFeatures));
  archive.required("categories", description.categories, kAtMostFeatures);
  archive.required("class_names", description.class_names);
  archive.required("lines", description.skipped.lines);
  archive.required("first", description.skipped.first, NumberIs::between(0, kMaxSkippedBytes));
  archive.required("contents", description.contents);
  archive.required("improbable_target", description.improbable_target);
  archive.required("bytes", description.bytes);
}

std::vector<std::byte> encode(const Description& description) {
  return net::encode_message(description);
}

Result<Description> decode_description(std::span<const std::byte> bytes) {
  MOTLEY_ASSIGN(Description description, net::decode_message<Description>(bytes, "description"));
  std::uint64_t features = 1;
  for (const std::int64_t extent : description.feature_shape) {
    features = std::min(features, kMaxFeatures + 1) * static_cast<std::uint64_t>(extent);
  }
  const std::size_t pairs = description.bytes ? description.bytes->normalisation.mean.size() : 0;
  const bool has_classes = description.target_kind == TargetKind::kClass;
  if (features > kMaxFeatures || features + description.categories == 0 || (pairs > 1 && pairs != features) ||
      has_classes != (description.class_count > 0) ||
      (!description.class_names.empty() && description.class_names.size() != description.class_count)) {
    return malformed("description", bytes.size());
  }
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

namespace {

struct Failure {
  Error error;
};

template <class Archive>
void fields(Archive& archive, Failure& failure) {
  archive.required("message", failure.error.message, NumberIs::between(0, kMaxReasonBytes));
  net::error_code(archive, failure.error.code);
}

}  // namespace

std::vector<std::byte> encode(const Error& error) {
  return net::encode_message(Failure{error});
}

Result<Error> decode_failed(std::span<const std::byte> bytes) {
  MOTLEY_ASSIGN(Failure failure, net::decode_message<Failure>(bytes, "failure"));
  return std::move(failure.error);
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
  for (const auto part : {as_raw_bytes(ids), as_raw_bytes(bytes), as_raw_bytes(floats), as_raw_bytes(values)}) {
    to = std::copy(part.begin(), part.end(), to);
  }
  with_class_type(description, [&](auto value) {
    for (const std::int64_t one : classes) {
      value = static_cast<decltype(value)>(one);
      std::memcpy(to, &value, sizeof value);
      to += sizeof value;
    }
  });
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
      data::convert_features({reinterpret_cast<const std::uint8_t*>(stored.data()), features}, *description.bytes,
                             description.feature_count(), into.features);
    }
  }
  if (!parts.targets) return {};
  if (description.target_kind == data::TargetKind::kReal) {
    copy(bytes, into.values);
    return {};
  }
  const bool known = with_class_type(description, [&](auto value) {
    for (std::size_t i = 0; i < into.classes.size(); ++i) {
      std::memcpy(&value, bytes.data() + i * sizeof value, sizeof value);
      if (value >= description.class_count) return false;
      into.classes[i] = value;
    }
    return true;
  });
  if (!known) return fail(ErrorCode::kCorrupt, "a class beyond the {} that there are", description.class_count);
  return {};
}

}  // namespace motley::data
