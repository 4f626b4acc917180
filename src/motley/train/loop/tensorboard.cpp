#include "motley/train/loop/tensorboard.h"

#include <unistd.h>

#include <array>
#include <bit>

#include "motley/base/os/file.h"

namespace motley::train {
namespace {

// Protobuf's wire format: each field is a key (number * 8 + wire type) and a value; integers are base-128 varints,
// doubles and floats little-endian, messages and strings a length and their bytes.
constexpr std::uint64_t kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5;

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) {
    out += static_cast<char>(value | 0x80);
  }
  out += static_cast<char>(value);
}

void put_key(std::string& out, std::uint64_t field, std::uint64_t type) {
  put_varint(out, field << 3 | type);
}

void put_bytes(std::string& out, std::uint64_t field, std::string_view bytes) {
  put_key(out, field, kBytes);
  put_varint(out, bytes.size());
  out += bytes;
}

// Numbers as they stand in the memory of this machine, which is little-endian.
template <class Number>
std::string as_bytes(Number value) {
  static_assert(std::endian::native == std::endian::little);
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

// Event.wall_time = 1.
std::string event_at(double wall_time) {
  std::string event;
  put_key(event, 1, kFixed64);
  return event + as_bytes(wall_time);
}

// TFRecord's masked checksum, so that a checksum of bytes that hold checksums stays useful.
std::uint32_t masked_crc(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xa282ead8u;
}

constexpr std::size_t kGatherBytes = 64 * 1024;

}  // namespace

Result<TensorBoardWriter> TensorBoardWriter::open(const std::filesystem::path& folder, double wall_time) {
  MOTLEY_TRY(make_folders(folder));
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  const std::filesystem::path path =
      folder /
      fmt::format("events.out.tfevents.{:010d}.{}.{}", static_cast<std::int64_t>(wall_time), host.data(), ::getpid());
  std::FILE* file = std::fopen(path.c_str(), "abe");
  if (file == nullptr) {
    return fail(ErrorCode::kIo, "cannot open '{}': {}", path.string(), errno_text());
  }
  TensorBoardWriter writer(path, file);
  std::string event = event_at(wall_time);
  put_bytes(event, 3, "brain.Event:2");  // Event.file_version
  writer.append(event);
  MOTLEY_TRY(writer.flush());
  return writer;
}

TensorBoardWriter::~TensorBoardWriter() {
  if (file_) {
    (void)flush();
  }
}

Status TensorBoardWriter::scalar(std::string_view tag, std::int64_t step, double value, double wall_time) {
  std::string point;  // Summary.Value: tag = 1, simple_value = 2
  put_bytes(point, 1, tag);
  put_key(point, 2, kFixed32);
  point += as_bytes(static_cast<float>(value));
  std::string summary;
  put_bytes(summary, 1, point);  // Summary.value
  std::string event = event_at(wall_time);
  put_key(event, 2, kVarint);  // Event.step
  put_varint(event, static_cast<std::uint64_t>(step));
  put_bytes(event, 5, summary);  // Event.summary
  append(event);
  return gathered_.size() < kGatherBytes ? Status{} : flush();
}

Status TensorBoardWriter::flush() {
  const bool written = std::fwrite(gathered_.data(), 1, gathered_.size(), file_.get()) == gathered_.size() &&
                       std::fflush(file_.get()) == 0;
  gathered_.clear();
  if (!written) {
    return fail(ErrorCode::kIo, "cannot write '{}': {}", path_.string(), errno_text());
  }
  return {};
}

// The record's length, its checksum, the payload, its checksum.
void TensorBoardWriter::append(const std::string& event) {
  const std::string length = as_bytes(static_cast<std::uint64_t>(event.size()));
  gathered_ += length + as_bytes(masked_crc(length)) + event + as_bytes(masked_crc(event));
}

}  // namespace motley::train
