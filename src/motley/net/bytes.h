// Little-endian fields in byte strings: how every header and message of the wire is written and read. The reader never
// reads past its end and never allocates more than the bytes that are really there, whatever lengths they claim.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace motley::net {

class ByteWriter {
 public:
  template <std::unsigned_integral T>
  void put(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      bytes_.push_back(static_cast<std::byte>(static_cast<std::uint64_t>(value) >> (8 * i)));
    }
  }
  void put_bytes(std::span<const std::byte> bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
  // A 16-bit length and the bytes; text beyond `limit` is cut off.
  void put_text(std::string_view text, std::size_t limit) {
    text = text.substr(0, limit);
    put(static_cast<std::uint16_t>(text.size()));
    put_bytes(std::as_bytes(std::span(text.data(), text.size())));
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

// Reads fields in the order in which they were written. After the first field that is not there, ok() is false and
// every value is zero or empty.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : rest_(bytes) {}
  template <std::unsigned_integral T>
  T get() {
    std::uint64_t value = 0;
    const auto bytes = get_bytes(sizeof(T));
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      value |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
    }
    return static_cast<T>(value);
  }
  std::span<const std::byte> get_bytes(std::size_t count) {
    if (!ok_ || count > rest_.size()) {
      ok_ = false;
      return {};
    }
    const auto bytes = rest_.first(count);
    rest_ = rest_.subspan(count);
    return bytes;
  }
  std::string get_text(std::size_t limit) {
    const std::size_t length = get<std::uint16_t>();
    ok_ = ok_ && length <= limit;
    const auto bytes = get_bytes(length);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  bool ok() const { return ok_; }
  // Every byte was read and nothing was missing.
  bool complete() const { return ok_ && rest_.empty(); }
  std::size_t remaining() const { return rest_.size(); }

 private:
  std::span<const std::byte> rest_;
  bool ok_ = true;
};

}  // namespace motley::net
