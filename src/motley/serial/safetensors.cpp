#include "motley/serial/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "motley/serial/json_fields.h"

static_assert(std::endian::native == std::endian::little, "tensors are written as they stand in memory");

namespace motley {
namespace {

using Json = nlohmann::json;
constexpr std::size_t kHeaderLimit = 100'000'000;
constexpr std::size_t kDimensionLimit = 16;
constexpr const char* kMetadata = "__metadata__";

// An entry has an object at depth 1 with two arrays in it; anything deeper is refused while it is read.
constexpr int kHeaderDepthLimit = 3;

std::optional<std::uint64_t> as_size(const Json& value) {
  return value.is_number_unsigned() ? std::optional(value.get<std::uint64_t>()) : std::nullopt;
}

// The bytes of a shape's values, or nothing where they exceed what can be addressed.
std::optional<std::uint64_t> shape_bytes(const std::vector<std::int64_t>& shape, std::size_t width) {
  std::uint64_t bytes = width;
  for (const std::int64_t size : shape) {
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(size), &bytes)) return std::nullopt;
  }
  return bytes;
}

Result<SafetensorsEntry> parse_entry(const std::string& name, const Json& json, std::size_t data_bytes) {
  const auto corrupt = [&](const std::string& what) {
    return fail(ErrorCode::kCorrupt, "safetensors: tensor '{}': {}", name, what);
  };
  if (!json.is_object() || json.size() != 3 || !json.contains("dtype") || !json.contains("shape") ||
      !json.contains("data_offsets")) {
    return corrupt("its entry must be an object of exactly dtype, shape and data_offsets");
  }
  SafetensorsEntry entry;
  entry.name = name;
  const Json& type = json["dtype"];
  if (!type.is_string() || safetensors_type_bytes(type.get_ref<const std::string&>()) == 0) {
    return corrupt("dtype is not known");
  }
  entry.type = type.get<std::string>();

  const Json& shape = json["shape"];
  if (!shape.is_array() || shape.size() > kDimensionLimit) {
    return corrupt(fmt::format("shape must be a list of at most {} sizes", kDimensionLimit));
  }
  for (const Json& element : shape) {
    const std::optional<std::uint64_t> size = as_size(element);
    if (!size || *size > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return corrupt("shape holds something that is not a size");
    }
    entry.shape.push_back(static_cast<std::int64_t>(*size));
  }

  const Json& offsets = json["data_offsets"];
  const auto begin = offsets.is_array() && offsets.size() == 2 ? as_size(offsets[0]) : std::nullopt;
  const auto end = begin ? as_size(offsets[1]) : std::nullopt;
  if (!begin || !end || *begin > *end || *end > data_bytes) {
    return corrupt(fmt::format("data_offsets must be [begin, end] within the {} bytes of data", data_bytes));
  }
  entry.begin = *begin;
  entry.end = *end;
  const std::optional<std::uint64_t> needed = shape_bytes(entry.shape, safetensors_type_bytes(entry.type));
  if (!needed || *needed != *end - *begin) {
    return corrupt(fmt::format("its {} bytes are not those of its shape and dtype", *end - *begin));
  }
  return entry;
}

}  // namespace

std::size_t safetensors_type_bytes(const std::string& type) {
  static const std::map<std::string, std::size_t> widths = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"I16", 2}, {"U16", 2}, {"F16", 2}, {"BF16", 2},
      {"I32", 4},  {"U32", 4}, {"F32", 4}, {"F64", 8}, {"I64", 8}, {"U64", 8}};
  const auto found = widths.find(type);
  return found == widths.end() ? 0 : found->second;
}

Result<SafetensorsFile> parse_safetensors(std::span<const std::byte> bytes) {
  std::uint64_t header_bytes = 0;
  if (bytes.size() < sizeof(header_bytes)) {
    return fail(ErrorCode::kCorrupt, "safetensors: {} bytes are too few for a header", bytes.size());
  }
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  const std::span<const std::byte> rest = bytes.subspan(sizeof(header_bytes));
  if (header_bytes > kHeaderLimit || header_bytes > rest.size()) {
    return fail(ErrorCode::kCorrupt, "safetensors: a header of {} bytes in a file of {} (at most {} are accepted)",
                header_bytes, bytes.size(), kHeaderLimit);
  }

  const std::string_view text(reinterpret_cast<const char*>(rest.data()), header_bytes);
  WatchedJson header;
  try {
    header = parse_watched_json(text, kHeaderDepthLimit);
  } catch (const Json::exception&) {
    header.json = nullptr;
  }
  if (header.is_too_deep || !header.json.is_object() || text[0] != '{') {
    return fail(ErrorCode::kCorrupt, "safetensors: the header is not a JSON object of tensors");
  }
  if (header.repeated_key) {
    return fail(ErrorCode::kCorrupt, "safetensors: '{}' stands in the header twice", *header.repeated_key);
  }

  SafetensorsFile file;
  file.data = rest.subspan(header_bytes);
  for (const auto& [name, value] : header.json.items()) {
    if (name != kMetadata) {
      MOTLEY_ASSIGN(SafetensorsEntry entry, parse_entry(name, value, file.data.size()));
      file.entries.push_back(std::move(entry));
      continue;
    }
    if (!value.is_object()) {
      return fail(ErrorCode::kCorrupt, "safetensors: {} is not an object of texts", kMetadata);
    }
    for (const auto& [key, metadata] : value.items()) {
      if (!metadata.is_string()) {
        return fail(ErrorCode::kCorrupt, "safetensors: {}: '{}' is not a text", kMetadata, key);
      }
      file.metadata.emplace(key, metadata.get<std::string>());
    }
  }

  std::ranges::sort(file.entries, {}, [](const SafetensorsEntry& entry) { return std::pair(entry.begin, entry.end); });
  std::size_t covered = 0;
  for (const SafetensorsEntry& entry : file.entries) {
    if (entry.begin != covered) {
      return fail(ErrorCode::kCorrupt, "safetensors: tensor '{}' begins at byte {} of the data, where {} was expected",
                  entry.name, entry.begin, covered);
    }
    covered = entry.end;
  }
  if (covered != file.data.size()) {
    return fail(ErrorCode::kCorrupt, "safetensors: {} bytes of data belong to no tensor", file.data.size() - covered);
  }
  return file;
}

std::string encode_safetensors(const std::vector<SafetensorsTensor>& tensors,
                               const std::map<std::string, std::string>& metadata) {
  std::vector<const SafetensorsTensor*> ordered;
  for (const SafetensorsTensor& tensor : tensors) ordered.push_back(&tensor);
  std::ranges::sort(ordered, {}, [](const SafetensorsTensor* tensor) {
    return std::pair(-static_cast<int>(safetensors_type_bytes(tensor->type)), tensor);
  });

  Json header = Json::object();
  if (!metadata.empty()) header[kMetadata] = metadata;
  std::size_t offset = 0;
  for (const SafetensorsTensor* tensor : ordered) {
    MOTLEY_INVARIANT(shape_bytes(tensor->shape, safetensors_type_bytes(tensor->type)) == tensor->bytes.size(),
                     "tensor '{}' has {} bytes, which do not fit its shape and type", tensor->name,
                     tensor->bytes.size());
    MOTLEY_INVARIANT(tensor->name != kMetadata && !header.contains(tensor->name), "tensor name '{}' is taken already",
                     tensor->name);
    header[tensor->name] = {
        {"dtype", tensor->type}, {"shape", tensor->shape}, {"data_offsets", {offset, offset + tensor->bytes.size()}}};
    offset += tensor->bytes.size();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');

  const std::uint64_t header_bytes = text.size();
  std::string file(sizeof(header_bytes), '\0');
  std::memcpy(file.data(), &header_bytes, sizeof(header_bytes));
  file.reserve(file.size() + text.size() + offset);
  file += text;
  for (const SafetensorsTensor* tensor : ordered) {
    file.append(reinterpret_cast<const char*>(tensor->bytes.data()), tensor->bytes.size());
  }
  return file;
}

}  // namespace motley
